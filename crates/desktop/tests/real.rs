//! The whole way with the embedded model: a file, reading, a question, the right answer, and the
//! passage that it stands in.

use std::path::Path;

use eframe::egui::accesskit::Role;
use egui_kittest::kittest::{NodeT as _, Queryable as _};
use longview_desktop::engine::local::{self, LocalOptions};
use longview_desktop::engine::{EngineSetup, OpenEngine};
use longview_desktop::strings;
use longview_library::documents::Documents;
use longview_startup::DeviceChoice;

use crate::support::{Setup, Window};

/// The embedded model on the CPU.
fn engines(library: Option<Documents>) -> OpenEngine {
    let options = LocalOptions { library, ..LocalOptions::default() };
    let setup = EngineSetup { device: DeviceChoice::Cpu, ..EngineSetup::default() };
    local::engines(options)(&setup)
}

/// A document of some 830 tokens with three numbers in it.
pub fn document() -> String {
    let names = ["velvet-comet", "quiet-harbour", "amber-lantern"];
    let numbers = ["2003322", "2019860", "5828235"];
    let mut text = String::new();
    for i in 0..90 {
        if i % 30 == 10 {
            let (name, number) = (names[i / 30], numbers[i / 30]);
            text += &format!("One of the special magic numbers for {name} is: {number}. ");
        }
        let who = ["A captain", "His brother", "The old road", "Every evening"][i % 4];
        let what = ["looked upon the harbour", "left a letter", "passed the garden"][i % 3];
        text += &format!("{who} {what}. ");
    }
    text
}

#[test]
fn a_file_is_read_asked_and_answered_with_its_passage() {
    let file = std::env::temp_dir().join(format!("longview-desktop-{}.txt", std::process::id()));
    std::fs::write(&file, document()).unwrap();
    let mut setup = Setup::new(engines(None));
    setup.chosen.open = vec![file.clone()];
    let mut window = setup.window();
    window.click(strings::OPEN_FILE);
    let title = file.file_stem().unwrap().to_string_lossy().into_owned();
    window.wait_for(&title);
    window.wait_for(strings::READ);
    assert!(window.sees_part("4,096 tokens, with room for questions"));
    window.until("the engine", |window| {
        !window.0.get_by_label(strings::READ).accesskit_node().is_disabled()
    });
    window.click(strings::READ);
    window.wait_for_part("read in");
    let question =
        "What is the special magic number for quiet-harbour mentioned in the provided text?";
    window.click(question);
    window.wait_for(strings::ASK_AGAIN);
    assert!(window.sees_part("2019860."), "the right number");
    let state = window.0.state().state();
    let document = state.documents.iter().find(|document| document.title == title).unwrap();
    let answer = document.last_answer().unwrap().answer.as_ref().unwrap();
    let top = &answer.passages[0];
    let quote = &document.text[top.place.clone()];
    assert!(quote.ends_with("quiet-harbour is: 2019860."), "{quote}");
    assert_eq!(document.mark, Some(0), "it is shown");
    assert!(answer.attended.unwrap() <= 513.0, "within the budget");
    assert!(document.map.is_some());
    std::fs::remove_file(file).unwrap();
}

/// With `LONGVIEW_DESKTOP_PICTURE` naming a file, the picture of the documentation is written.
#[test]
fn the_sample_is_answered_in_all_the_forms_that_it_suggests() {
    let open = engines(None);
    let mut window = Setup::new(open).window();
    window.click(strings::READ);
    window.wait_for_part("read in");
    let questions = window.0.state().state().documents[0].suggestions.clone();
    assert_eq!(questions.len(), 4);
    for (i, question) in questions.iter().enumerate() {
        window.type_question(question);
        window.click(strings::ASK);
        window.until(question, |window| {
            let document = &window.0.state().state().documents[0];
            document.conversation.len() == i + 1 && !document.is_answering()
        });
        let document = &window.0.state().state().documents[0];
        let answer = document.last_answer().unwrap().answer.clone().unwrap();
        let quote = document.quote(&answer.passages[0]);
        let number = quote.trim_end_matches('.').rsplit(' ').next().unwrap();
        assert!(answer.text.contains(number), "{question} {} {quote}", answer.text);
        if let (0, Some(path)) = (i, std::env::var_os("LONGVIEW_DESKTOP_PICTURE")) {
            window.0.run_ok();
            window.0.render().unwrap().save(path).unwrap();
        }
    }
}

/// A window over a library, with the file if there is one.
fn with_library(folder: &Path, file: Option<&Path>) -> Window {
    let library = Documents::open(folder).unwrap();
    let open = engines(Some(library.clone()));
    let mut setup = Setup::new(open);
    setup.library = Some(library);
    setup.files = file.map(Path::to_owned).into_iter().collect();
    setup.window()
}

#[test]
fn the_next_start_opens_a_document_without_reading_it() {
    let folder = std::env::temp_dir().join(format!("longview-library-{}", std::process::id()));
    let file = folder.with_extension("txt");
    std::fs::write(&file, document()).unwrap();
    let mut window = with_library(&folder, Some(&file));
    window.click(strings::READ);
    window.wait_for_part("read in");
    drop(window);
    std::fs::remove_file(&file).unwrap();

    let mut window = with_library(&folder, None);
    let name = file.file_stem().unwrap().to_string_lossy().into_owned();
    window.click_part(&format!("{name}, "));
    window.wait_for_part("opened in");
    window.click_part("What is the special magic number for amber-lantern");
    window.wait_for(strings::ASK_AGAIN);
    assert!(window.sees_part("5828235."), "the right number");
    change(&mut window, &name);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_session_file_opens_without_reading_and_goes_into_the_library() {
    let folder = std::env::temp_dir().join(format!("longview-session-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let (text, session) = (folder.join("text.txt"), folder.join("harbours.lvs"));
    std::fs::write(&text, document()).unwrap();
    let first = folder.join("first");
    let mut window = with_library(&first, Some(&text));
    window.click(strings::READ);
    window.wait_for_part("read in");
    drop(window);
    let library = Documents::open(&first).unwrap();
    let kept = library.list().unwrap().remove(0);
    std::fs::copy(library.session_path(&kept.sessions[0]), &session).unwrap();

    // On another machine: with a library of its own, and without one.
    let second = folder.join("second");
    for has_library in [true, false] {
        let mut window = if has_library {
            with_library(&second, Some(&session))
        } else {
            let mut setup = Setup::new(engines(None));
            setup.files = vec![session.clone()];
            setup.window()
        };
        window.wait_for_part("opened in");
        window.click_part("What is the special magic number for amber-lantern");
        window.wait_for(strings::ASK_AGAIN);
        assert!(window.sees_part("5828235."), "the right number");
    }
    let list = Documents::open(&second).unwrap().list().unwrap();
    let complete = list.iter().filter(|document| document.name == "harbours");
    assert!(complete.flat_map(|document| &document.sessions).all(|s| s.is_complete()));
    assert!(list.iter().any(|document| document.name == "harbours"), "{list:?}");
    // What was changed on the way is told, and can be read.
    let mut bytes = std::fs::read(&session).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&session, bytes).unwrap();
    let mut setup = Setup::new(engines(None));
    setup.files = vec![session.clone()];
    let mut window = setup.window();
    window.wait_for_part("is damaged");
    window.click(strings::READ);
    window.wait_for_part("read in");
    std::fs::remove_dir_all(&folder).unwrap();
}

/// Renames, pins, finds, frees the space of, and deletes a document.
fn change(window: &mut Window, name: &str) {
    window.click(&strings::more(name));
    window.click(strings::RENAME);
    let field = window.0.get_by_role_and_label(Role::TextInput, strings::NEW_NAME);
    field.set_text_value_accesskit("harbours");
    window.0.run_ok();
    window.click_last(strings::RENAME);
    window.wait_for(&strings::more("harbours"));
    window.click(&strings::more("harbours"));
    window.click(strings::PIN);
    window.wait_for_part("pinned");
    let find = window.0.get_by_role_and_label(Role::TextInput, strings::FIND);
    find.set_text_value_accesskit("harb");
    window.0.run_ok();
    assert!(window.sees(&strings::more("harbours")));
    assert!(!window.sees(&strings::more(strings::SAMPLE_TITLE)), "it is not looked for");
    let kept = |window: &Window| {
        let kept = window.0.state().state().kept.iter().find(|kept| kept.name == "harbours");
        kept.map(|kept| (kept.bytes, kept.tokens))
    };
    assert!(kept(window).is_some_and(|(bytes, tokens)| bytes > 0 && tokens > 0));
    window.click(&strings::more("harbours"));
    window.click(strings::FREE_SPACE);
    window.wait_for(strings::REALLY_FREE);
    window.click_last(strings::FREE_SPACE);
    window.until("the text alone", |window| kept(window) == Some((0, 0)));
    window.click(&strings::more("harbours"));
    assert!(!window.sees(strings::FREE_SPACE), "there is none to free");
    window.click(strings::DELETE);
    window.wait_for(strings::REALLY_DELETE);
    window.click_last(strings::DELETE);
    window.until("a library without it", |window| {
        window.0.state().state().kept.iter().all(|kept| kept.name != "harbours")
    });
    assert!(!window.sees(&strings::more("harbours")));
}
