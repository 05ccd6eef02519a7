//! The real program on a screen that nobody sees.

use std::path::{Path, PathBuf};

use egui_kittest::kittest::Queryable as _;
use image::Rgb;
use longview_desktop::document::Stage;
use longview_desktop::engine::local::{self, LocalOptions};
use longview_desktop::engine::{Attention, EngineSetup};
use longview_desktop::store::Places;
use longview_desktop::strings;
use longview_library::documents::{Documents, Id};
use longview_startup::DeviceChoice;

use crate::real::document;
use crate::support::Setup;
use crate::support::screen::{Screen, until};

const QUESTION: &str =
    "What is the special magic number for quiet-harbour mentioned in the provided text?";
const RIGHT: &str = "2019860";
/// Behind the passage that an answer rests on, in the light theme.
const MARK: Rgb<u8> = Rgb([0xbf, 0xd5, 0xf8]);

#[test]
fn the_program_opens_a_window_with_a_file_and_ends() {
    let screen = Screen::start("start");
    // A page: its text is read by a child of the program.
    let file = screen.folder.join("story.html");
    let text = "Once upon a time there was a harbour. ".repeat(50);
    std::fs::write(&file, format!("<html><body><p>{text}</p></body></html>")).unwrap();
    let status = screen.program(&["--exit-after-start"], &[&file]).end();
    assert!(status.success(), "{status}");
}

/// What was said to the question about a text, from the program's own files.
fn answer(screen: &Screen, text: &str) -> Option<String> {
    let places = Places {
        config: screen.folder.join("config/longview"),
        conversations: screen.folder.join("data/longview/conversations"),
    };
    let exchanges = places.conversation(Id::of(text.as_bytes()));
    let asked = exchanges.iter().find(|exchange| exchange.question == QUESTION)?;
    let reply = asked.replies.iter().find(|reply| reply.attention != Attention::Full)?;
    Some(reply.answer.as_ref()?.text.clone())
}

/// The picture of its window is left in the target folder: `tmp/started.png`.
#[test]
fn the_program_reads_a_file_and_answers_on_the_screen() {
    let screen = Screen::start("answer");
    let file = screen.folder.join("harbours.txt");
    std::fs::write(&file, document()).unwrap();
    let _program = screen.program(&["--read", "--ask", QUESTION], &[&file]);
    until("an answer", || answer(&screen, &document()).is_some());
    let answered = answer(&screen, &document()).unwrap();
    assert!(answered.contains(RIGHT), "{answered}");
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("started.png");
    // The passage is marked in the frame after the answer.
    until("the marked passage on the screen", || {
        let picture = screen.picture();
        picture.save(&path).unwrap();
        let on_page = picture.enumerate_pixels().filter(|(x, ..)| (280..840).contains(x));
        on_page.filter(|(_, _, pixel)| **pixel == MARK).count() > 1000
    });
    println!("the program's window is in {}", path.display());
}

#[test]
fn a_second_start_brings_the_window_forward_with_its_file() {
    let screen = Screen::start("second");
    let manager = screen.manager();
    let (one, two) = (screen.folder.join("one.txt"), screen.folder.join("two.txt"));
    std::fs::write(&one, "The first story is about a harbour. ".repeat(40)).unwrap();
    std::fs::write(&two, "The second story is about a lantern. ".repeat(40)).unwrap();
    let mut first = screen.program(&["--exit-after", "2"], &[&one]);
    let window = manager.window();
    let status = screen.program(&[], &[&two]).end();
    assert!(status.success(), "the second start hands over and ends: {status}");
    assert_eq!(manager.asked_forward(), window, "the window that was there");
    // It ends once both documents can be read.
    assert!(first.end().success());
    let names: Vec<_> = Documents::open(&screen.folder.join("library"))
        .unwrap()
        .list()
        .unwrap()
        .into_iter()
        .map(|document| document.name)
        .collect();
    assert!(names.contains(&"one".to_owned()) && names.contains(&"two".to_owned()), "{names:?}");
}

/// A file of some 6,000 tokens, the facts at the end, and its text.
fn long_document(screen: &Screen) -> (PathBuf, String) {
    let file = screen.folder.join("long.txt");
    let text = "Once upon a time there was a harbour, and nobody spoke. ".repeat(400) + &document();
    std::fs::write(&file, &text).unwrap();
    (file, text)
}

/// Tokens of a document in the library that are read and kept, and all.
fn kept_tokens(library: &Documents, text: &str) -> Option<(usize, usize)> {
    let document = library.get(Id::of(text.as_bytes())).unwrap()?;
    document.sessions.first().map(|session| (session.n_tokens, session.n_document))
}

#[test]
fn what_was_read_before_a_kill_is_not_read_again() {
    let screen = Screen::start("kill");
    let (file, text) = long_document(&screen);
    let library = Documents::open(&screen.folder.join("library")).unwrap();
    let kept = || kept_tokens(&library, &text);
    let mut program = screen.program(&["--read", "--keep-every", "0.2"], &[&file]);
    until("what was read is kept while it is read", || kept().is_some());
    assert!(program.runs());
    program.kill();
    let (n_kept, n_document) = kept().unwrap();
    assert!(n_kept < n_document, "{n_kept} of {n_document}: it was killed too late");

    // The next start, with the same engine.
    let options = LocalOptions { library: Some(library.clone()), ..LocalOptions::default() };
    let engine = EngineSetup { device: DeviceChoice::Cpu, ..EngineSetup::default() };
    let mut setup = Setup::new(local::engines(options)(&engine));
    setup.library = Some(library.clone());
    setup.files = vec![file];
    let mut window = setup.window();
    window.wait_for(strings::READ_ON);
    let state = window.0.state().state().documents[0].read_state().unwrap().clone();
    assert_eq!((state.tokens, state.was_kept), (n_kept, true), "what was kept is there");
    window.click(strings::READ_ON);
    let mut least = usize::MAX;
    window.until("the rest", |window| {
        let stage = &window.0.state().state().documents[0].stage;
        if let Stage::Reading(reading) = stage {
            least = least.min(reading.progress.map_or(usize::MAX, |progress| progress.done));
        }
        matches!(stage, Stage::Read(state) if state.is_complete())
    });
    assert!(least > n_kept, "reading goes on at {n_kept}, and {least} is the least that was seen");
    assert_eq!(kept(), Some((n_document, n_document)), "and all of it is kept");
    window.click(QUESTION);
    window.wait_for(strings::ASK_AGAIN);
    assert!(window.0.query_all_by_label_contains(RIGHT).next().is_some(), "the right number");
}

#[test]
fn a_window_that_is_closed_while_it_reads_keeps_what_was_read() {
    let screen = Screen::start("close");
    let manager = screen.manager();
    let (file, text) = long_document(&screen);
    let library = Documents::open(&screen.folder.join("library")).unwrap();
    let kept = || kept_tokens(&library, &text);
    let mut program = screen.program(&["--read", "--keep-every", "0.2"], &[&file]);
    let window = manager.window();
    until("what was read is kept while it is read", || kept().is_some());
    assert!(program.runs());
    let (before, _) = kept().unwrap();
    manager.close(window);
    let status = program.end();
    assert!(status.success(), "{status}");
    let (after, all) = kept().unwrap();
    assert!(before < after && after < all, "{before}, {after} of {all}: closed too late, or lost");
}
