//! Every state as a picture, compared with the one that was looked at.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eframe::egui::accesskit::Role;
use eframe::egui::{Key, Modifiers, Theme, Vec2};
use egui_kittest::kittest::Queryable as _;
use longview_desktop::engine::{
    Failure, FailureKind, Host, LibraryServer, OpenEngine, Served, Serving, StartServer,
};
use longview_desktop::strings;
use longview_library::documents::{Documents, Facts, Id, NewDocument, Reading, SessionKey};

use crate::support::script::{MARKDOWN, Script, Then};
use crate::support::{NARROW, Setup, WIDE, Window};

/// A window in which the sample is planned.
fn planned(size: Vec2, theme: Theme) -> (Script, Window) {
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    (setup.size, setup.theme) = (size, theme);
    let mut window = setup.window();
    window.wait_for(strings::READ);
    (script, window)
}

/// One in which it is read and its first question answered.
fn answered(size: Vec2, theme: Theme) -> (Script, Window) {
    let (script, mut window) = planned(size, theme);
    window.click(strings::READ);
    script.read(16);
    window.wait_for_part("read in");
    if size.x < 920.0 {
        window.click(strings::QUESTIONS);
    }
    window.click_part("What is the special magic number");
    script.say(4);
    window.wait_for(strings::ASK_AGAIN);
    (script, window)
}

#[test]
fn a_document_before_it_is_read() {
    let (_script, mut window) = planned(WIDE, Theme::Light);
    window.picture("planned");
}

#[test]
fn nothing_open() {
    let (_script, mut window) = planned(WIDE, Theme::Light);
    window.close_document(strings::SAMPLE_TITLE);
    window.wait_for(strings::EMPTY_TITLE);
    window.picture("empty");
}

#[test]
fn reading() {
    let (script, mut window) = planned(WIDE, Theme::Light);
    window.click(strings::READ);
    script.read(6);
    window.wait_for_part("1,536 of");
    window.picture("reading");
}

#[test]
fn asking() {
    let (script, mut window) = planned(WIDE, Theme::Light);
    window.click(strings::READ);
    script.read(16);
    window.wait_for_part("read in");
    window.click_part("What is the special magic number");
    script.say(2);
    window.wait_for_part("2 tokens at");
    window.picture("asking");
}

#[test]
fn settings_models_and_the_about_page() {
    let (_script, mut window) = planned(WIDE, Theme::Light);
    window.click(strings::SETTINGS);
    window.wait_for(strings::SAVE);
    window.picture("settings");
    window.click(strings::CANCEL);
    window.click(strings::MODELS);
    window.wait_for(strings::SUGGESTED_MODELS);
    window.picture("models");
    window.click(strings::CLOSE_DIALOG);
    window.click(strings::ABOUT);
    window.wait_for(strings::CLOSE_DIALOG);
    window.picture("about");
}

/// What other programs would ask, if it listened.
struct Silent;

impl LibraryServer for Silent {
    fn served(&self) -> Served {
        let address = "127.0.0.1:8080".parse().unwrap();
        Served { address, model: "needle".into(), is_embedded: true, context: 32_768 }
    }

    fn has_ended(&self) -> bool {
        false
    }

    fn stop(&self) {}

    fn wait(self: Box<Self>) -> Result<(), Failure> {
        Ok(())
    }
}

/// The settings of a window that serves its library, or whose port another program has.
fn serving(theme: Theme, is_taken: bool) -> Window {
    let (_script, open) = Script::new();
    let (host, name) = (Host::default(), format!("longview-served-{theme:?}-{is_taken}"));
    let folder = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
    let start: StartServer = Arc::new(move |_| {
        let message = "another program has port 8080".into();
        let failure = Failure { kind: FailureKind::PortTaken, message };
        if is_taken { Err(failure) } else { Ok(Box::new(Silent)) }
    });
    host.publish(start);
    let mut setup = Setup::new(open);
    setup.library = Some(Documents::open(&folder).unwrap());
    setup.settings.serve.on = true;
    (setup.host, setup.theme) = (Some(host), theme);
    let mut window = setup.window();
    window.wait_for(strings::READ);
    window.until("what the host says", |window| match &window.0.state().state().serving {
        Some(Serving::On(_)) => !is_taken,
        Some(Serving::Failed(_)) => is_taken,
        _ => false,
    });
    window.until("no short message", |window| window.0.state().state().toast.is_none());
    window.click(strings::SETTINGS);
    window.wait_for(strings::SAVE);
    std::fs::remove_dir_all(folder).unwrap();
    window
}

#[test]
fn the_library_for_other_programs() {
    serving(Theme::Light, false).picture("serving");
}

#[test]
fn the_library_for_other_programs_in_the_dark() {
    serving(Theme::Dark, false).picture("serving_dark");
}

#[test]
fn a_port_that_another_program_has() {
    serving(Theme::Light, true).picture("port_taken");
}

#[test]
fn an_answer() {
    let (_script, mut window) = answered(WIDE, Theme::Light);
    window.picture("answered");
}

#[test]
fn an_answer_in_the_dark() {
    let (_script, mut window) = answered(WIDE, Theme::Dark);
    window.picture("answered_dark");
}

fn formatted(theme: Theme) -> Window {
    let (script, mut window) = planned(Vec2::new(1280.0, 1240.0), theme);
    window.click(strings::READ);
    script.read(16);
    window.wait_for_part("read in");
    window.type_question("Tell me in Markdown");
    window.click(strings::ASK);
    script.say(MARKDOWN.split_inclusive(' ').count());
    window.wait_for(strings::ASK_AGAIN);
    window
}

#[test]
fn an_answer_in_markdown() {
    formatted(Theme::Light).picture("formatted");
}

#[test]
fn an_answer_in_markdown_in_the_dark() {
    formatted(Theme::Dark).picture("formatted_dark");
}

#[test]
fn two_answers() {
    let (script, mut window) = answered(WIDE, Theme::Light);
    window.click(strings::COMPARE);
    script.say(4);
    window.wait_for(strings::SAME_ANSWER);
    window.picture("compared");
}

#[test]
fn what_was_recalled() {
    let (_script, mut window) = answered(WIDE, Theme::Light);
    window.click(strings::RECALL);
    window.picture("recall");
}

#[test]
fn a_narrow_window() {
    let (_script, mut window) = answered(NARROW, Theme::Light);
    window.picture("narrow_questions");
    window.click(strings::DOCUMENT);
    window.picture("narrow_document");
    window.click(strings::DOCUMENTS);
    window.picture("narrow_list");
}

#[test]
fn an_engine_that_stopped() {
    let (script, mut window) = answered(WIDE, Theme::Light);
    window.click(strings::ASK_AGAIN);
    script.say_then(Then::Panic);
    window.wait_for(strings::START_AGAIN);
    window.picture("stopped");
}

#[test]
fn shortcuts() {
    let (_script, mut window) = planned(WIDE, Theme::Light);
    window.click(strings::SHORTCUTS);
    window.picture("shortcuts");
}

#[test]
fn a_library() {
    let folder = std::env::temp_dir().join(format!("longview-shelf-{}", std::process::id()));
    let library = Documents::open(&folder).unwrap();
    for name in ["Letters from the harbour", "A history of lanterns", "Log of the brig Amber"] {
        let (text, sources) = (format!("{name}. It was long."), Vec::new());
        library.add(NewDocument { text: &text, name: Some(name), sources }).unwrap();
    }
    let pinned = library.find("A history of lanterns").unwrap();
    library.set_pinned(pinned.id, true).unwrap();
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.library = Some(library);
    let mut window = setup.window();
    window.wait_for(&strings::more("Log of the brig Amber"));
    window.until("the engine", |window| window.0.state().state().model().is_some());
    window.picture("library");
    window.click(&strings::more("A history of lanterns"));
    window.click(strings::DELETE);
    window.wait_for(strings::REALLY_DELETE);
    window.picture("delete");
    std::fs::remove_dir_all(folder).unwrap();
}

/// A library of documents that were read by a model, as files say it.
fn shelf(name: &str, n: usize) -> (PathBuf, Documents) {
    let folder = std::env::temp_dir().join(format!("longview-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    let library = Documents::open(&folder).unwrap();
    let places = ["harbour", "lighthouse", "old mill", "northern road", "botanical garden"];
    let kinds = ["Letters from the", "A history of the", "Log of the", "Plans for the"];
    for i in 0..n {
        let name = format!("{} {}, part {}", kinds[i % 4], places[i % 5], i / 20 + 1);
        let new = NewDocument { text: &name, name: Some(&name), sources: Vec::new() };
        let document = library.add(new).unwrap();
        if i % 3 == 0 {
            continue;
        }
        let key = SessionKey {
            fingerprint: Id::of(b"needle"),
            kv_type: "f16".into(),
            reading: Reading::Plain,
            policy: "longview".into(),
            sparse: None,
        };
        let building = library.begin(document.id, &key).unwrap();
        let mut writer = building.writer().unwrap();
        writer.write_all(&vec![0; 1000 + 4096 * i]).unwrap();
        let tokens: Vec<u32> = (0..300 + 40 * i as u32).collect();
        let facts = Facts {
            tokens: &tokens,
            n_document: tokens.len(),
            context: 16_384,
            model: if i % 2 == 0 { "needle" } else { "Qwen/Qwen2.5-0.5B-Instruct" },
            about: "",
            preset: "longview",
        };
        building.commit(writer, &facts).unwrap();
    }
    (folder, library)
}

/// Time of the window's thread for a frame of a long list, where nothing is optimised.
const LIST_FRAME: Duration = Duration::from_millis(200);

#[test]
fn two_hundred_documents() {
    let (folder, library) = shelf("two-hundred", 200);
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.library = Some(library.clone());
    let mut window = setup.window();
    window.click(strings::OPEN_SAMPLE);
    window.wait_for(strings::READ);
    window.until("all documents", |window| window.0.state().state().kept.len() == 201);
    let last = "Plans for the botanical garden, part 10";
    window.wait_for(&strings::more(last));
    window.picture("library_200");
    let mut frames: Vec<_> = (0..20)
        .map(|_| {
            let begin = std::time::Instant::now();
            window.0.step();
            begin.elapsed()
        })
        .collect();
    frames.sort_unstable();
    println!("a frame beside 200 documents: median {:?}", frames[10]);
    assert!(frames[10] < LIST_FRAME, "{frames:?}");
    let find = |window: &mut Window, wanted: &str| {
        let field = window.0.get_by_role_and_label(Role::TextInput, strings::FIND);
        field.set_text_value_accesskit(wanted);
        window.0.run_ok();
    };
    find(&mut window, "mill, part 3");
    assert!(
        window.sees(&strings::more("Log of the old mill, part 3"))
            && !window.sees(&strings::more(last))
    );
    window.picture("library_found");
    window.click(&strings::more("Log of the old mill, part 3"));
    window.click(strings::PIN);
    window.wait_for_part("today, pinned");
    window.click(&strings::more("Log of the old mill, part 3"));
    window.wait_for(strings::UNPIN);
    window.picture("library_menu");
    window.click(strings::RENAME);
    window.wait_for(strings::NEW_NAME);
    window.picture("rename");
    window.click_last(strings::CANCEL);
    find(&mut window, "nowhere");
    window.wait_for(strings::NOTHING_FOUND);
    let _ = std::fs::remove_dir_all(folder);
}

/// A folder of three texts. Its own name is not shown.
fn texts(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("longview-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for (name, n) in [("Chapter 1.txt", 90), ("Chapter 2.txt", 300), ("Chapter 10.md", 40)] {
        std::fs::write(folder.join(name), "The harbour was quiet that evening. ".repeat(n))
            .unwrap();
    }
    folder
}

fn order(theme: Theme, size: Vec2, suffix: &str) -> (Script, Window) {
    let folder = texts(&format!("texts{suffix}"));
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    (setup.theme, setup.size) = (theme, size);
    setup.files = vec![folder.clone()];
    let mut window = setup.window();
    window.wait_for(strings::OPEN_AS_ONE);
    window.picture(&format!("order{suffix}"));
    std::fs::remove_dir_all(folder).unwrap();
    (script, window)
}

fn order_and_line(theme: Theme, suffix: &str) {
    let (script, mut window) = order(theme, WIDE, suffix);
    window.click(strings::OPEN_EACH);
    window.until("all are planned", |window| {
        let documents = &window.0.state().state().documents;
        documents.len() == 3 && documents.iter().all(|d| d.plan.is_some())
    });
    for name in ["Chapter 1", "Chapter 2", "Chapter 10"] {
        window.click_part(&format!("{name}, "));
        window.click(strings::READ);
    }
    script.read(2);
    window.wait_for_part("Reading, 63 %");
    window.picture(&format!("line{suffix}"));
}

#[test]
fn several_files_and_their_line() {
    order_and_line(Theme::Light, "");
}

#[test]
fn several_files_and_their_line_in_the_dark() {
    order_and_line(Theme::Dark, "_dark");
}

#[test]
fn several_files_in_a_narrow_window() {
    order(Theme::Light, NARROW, "_narrow");
}

fn no_device(theme: Theme, name: &str) {
    let open: OpenEngine = Arc::new(|| {
        let message =
            "cuda: there is no NVIDIA driver here (libcuda.so.1 was not found)".to_owned();
        Err(Failure { kind: FailureKind::NoDevice, message })
    });
    let mut setup = Setup::new(open);
    setup.theme = theme;
    let mut window = setup.window();
    window.wait_for(strings::failure(FailureKind::NoDevice).0);
    window.picture(name);
}

#[test]
fn no_such_device() {
    no_device(Theme::Light, "no_device");
}

#[test]
fn no_such_device_in_the_dark() {
    no_device(Theme::Dark, "no_device_dark");
}

#[test]
fn no_memory() {
    let (script, mut window) = planned(WIDE, Theme::Light);
    window.click(strings::READ);
    script.read(2);
    window.wait_for_part("512 of");
    script.read_then(Then::OutOfMemory);
    window.wait_for(strings::failure(FailureKind::OutOfMemory).0);
    window.picture("out_of_memory");
}

/// What cannot be read, or not be kept, is said before it is read.
#[test]
fn too_little_memory_and_too_little_disk() {
    let folder = std::env::temp_dir().join(format!("longview-little-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("Encyclopedia.txt");
    let text = "This is too large, and there is a full disk. ".repeat(200);
    std::fs::write(&file, text).unwrap();
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.files = vec![file];
    let mut window = setup.window();
    window.wait_for_part("This does not fit");
    assert!(window.sees_part("and 1.0 KiB are free: it can be read and asked, and is not kept"));
    window.picture("too_large");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn what_was_read_and_is_not_kept() {
    let folder = std::env::temp_dir().join(format!("longview-unkept-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("Lanterns.txt");
    std::fs::write(&file, "It cannot be kept where there is no room. ".repeat(20)).unwrap();
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.files = vec![file];
    let mut window = setup.window();
    window.click(strings::READ);
    script.read(1);
    window.wait_for(strings::KEEP_NOW);
    window.picture("not_kept");
    std::fs::remove_dir_all(folder).unwrap();
}

fn damaged(theme: Theme, name: &str) {
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.theme = theme;
    // A path that is the same on every machine: tests run in the folder of their crate.
    setup.chosen.open = vec![PathBuf::from("tests/files/damaged.lvs")];
    let mut window = setup.window();
    window.wait_for(strings::READ);
    window.click(strings::OPEN_FILE);
    window.wait_for(strings::failure(FailureKind::File).0);
    window.picture(name);
}

#[test]
fn a_damaged_file() {
    damaged(Theme::Light, "damaged");
}

#[test]
fn a_damaged_file_in_the_dark() {
    damaged(Theme::Dark, "damaged_dark");
}

#[test]
fn twice_the_size() {
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.settings.scale = 200;
    // Of 1,280 by 800 pixels half as many points are left.
    setup.size = WIDE / 2.0;
    let mut window = setup.window();
    window.wait_for(strings::READ);
    window.picture("scaled");
    window.click(strings::READ);
    script.read(16);
    window.wait_for_part("read in");
    window.click(strings::QUESTIONS);
    window.click_part("What is the special magic number");
    script.say(4);
    window.wait_for(strings::ASK_AGAIN);
    window.picture("scaled_questions");
    window.click(strings::DOCUMENTS);
    window.picture("scaled_list");
    window.0.key_press_modifiers(Modifiers::COMMAND, Key::M);
    window.0.run_ok();
    window.wait_for(strings::SUGGESTED_MODELS);
    window.picture("scaled_models");
}

#[test]
fn dialogs_in_the_dark() {
    let (_script, mut window) = planned(WIDE, Theme::Dark);
    window.click(strings::SETTINGS);
    window.click(strings::ADVANCED);
    window.wait_for(strings::POLICY_HELP);
    window.picture("settings_dark");
    window.click(strings::CANCEL);
    window.click(strings::MODELS);
    window.wait_for(strings::SUGGESTED_MODELS);
    window.picture("models_dark");
}

#[test]
fn models_in_a_narrow_window() {
    let (_script, mut window) = planned(NARROW, Theme::Light);
    window.click(strings::DOCUMENTS);
    window.click(strings::MODELS);
    window.wait_for(strings::SUGGESTED_MODELS);
    window.picture("narrow_models");
}

#[test]
fn what_was_recalled_in_the_dark() {
    let (_script, mut window) = answered(WIDE, Theme::Dark);
    window.click(strings::RECALL);
    window.picture("recall_dark");
}

/// Fonts of the system have what the program's own have not; a letter that none has ends the test.
/// Which font it is depends on the system, so the picture is left in the target folder, as
/// `tmp/languages.png`, and compared with none.
#[test]
fn a_page_of_many_languages() {
    let folder = std::env::temp_dir().join(format!("longview-lang-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("東京.txt");
    let text = "中文：这本书讲述了一个安静的港口，以及一盏没有人提起的灯。\n\n\
        日本語：港は静かで、だれも灯台のことを話さなかった。カタカナも、ひらがなも、漢字もある。\n\n\
        한국어: 항구는 조용했고 아무도 등불에 대해 말하지 않았다.\n\n\
        Ελληνικά, русский, Việt, and emoji: 😀 🚢 📚 ☕ 🌍\n\n";
    std::fs::write(&file, text.repeat(6)).unwrap();
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.files = vec![file];
    setup.has_system_fonts = true;
    let mut window = setup.window();
    window.wait_for(strings::READ);
    window.0.run_ok();
    let picture = window.0.render().unwrap();
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("languages.png");
    picture.save(&path).unwrap();
    println!("the page is in {}", path.display());
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_document_that_is_too_long() {
    let (_script, open) = Script::new();
    let file = std::env::temp_dir().join(format!("longview-long-{}.txt", std::process::id()));
    std::fs::write(&file, "words and ".repeat(50_000)).unwrap();
    let mut setup = Setup::new(open);
    setup.files = vec![file.clone()];
    let mut window = setup.window();
    // The name of the file is another one each time: what is wrong is what matters.
    window.wait_for(strings::failure(FailureKind::TooLong).0);
    let _ = std::fs::remove_file(file);
}
