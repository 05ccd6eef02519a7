//! What goes wrong around the window: disks, models, the network, settings, and an end in the
//! middle of something. Each message names the thing and what to do, and nothing is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use eframe::egui::accesskit::Role;
use egui_kittest::kittest::{NodeT as _, Queryable as _};
use longview_desktop::document::{Document, Stage};
use longview_desktop::engine::local::{self, LocalOptions};
use longview_desktop::engine::{EngineSetup, Engines, Failure, FailureKind, ModelSource};
use longview_desktop::store::Places;
use longview_desktop::{files, strings};
use longview_library::documents::{Documents, Id, NewDocument};
use longview_library::{Library, Patience, Settings};
use longview_startup::DeviceChoice;

use crate::real::document;
use crate::support::flow::{QUESTION, answered};
use crate::support::script::Script;
use crate::support::{Folder, NARROW, PATIENCE, Setup, Window};

/// Engines of the model that is chosen, on the CPU.
fn engines(library: Option<&Documents>) -> Engines {
    let make = local::engines(LocalOptions {
        library: library.cloned(),
        // What is kept on the way is another test's.
        keep_every: Duration::from_secs(3600),
        ..LocalOptions::default()
    });
    Arc::new(move |setup: &EngineSetup| {
        make(&EngineSetup { device: DeviceChoice::Cpu, ..setup.clone() })
    })
}

/// A window over the embedded model and the library.
fn real(library: &Documents, file: Option<&Path>) -> Window {
    let mut setup = Setup::over(engines(Some(library)));
    setup.library = Some(library.clone());
    setup.files = file.map(Path::to_owned).into_iter().collect();
    setup.patience = PATIENCE;
    setup.window()
}

/// A window over a script and the library.
fn scripted(library: &Documents) -> (Script, Window) {
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.library = Some(library.clone());
    (script, setup.window())
}

fn documents(window: &Window) -> &[Document] {
    &window.0.state().state().documents
}

fn notices(window: &Window) -> Vec<Failure> {
    window.0.state().state().notices.iter().map(|notice| notice.failure.clone()).collect()
}

/// "Keep it now", where nothing is in the way any more.
fn keeps_now(window: &mut Window, library: &Documents, name: &str) {
    window.click(strings::KEEP_NOW);
    window.until("it is in the library", |_| {
        let list = library.list().unwrap();
        list.iter().any(|d| d.name == name && d.sessions.iter().any(|s| s.is_complete()))
    });
    window.until("nothing to keep", |window| !window.sees(strings::KEEP_NOW));
    assert_eq!(notices(window), []);
}

fn put(library: &Documents, name: &str) -> Id {
    let text = format!("{name}, and what is told there.");
    library.add(NewDocument { text: &text, name: Some(name), sources: Vec::new() }).unwrap().id
}

#[test]
fn the_sample_is_opened_at_the_first_start_alone() {
    let folder = Folder::new("sample");
    let (_script, mut first) = scripted(&folder.library());
    first.until("the sample in the library", |window| {
        documents(window).first().is_some_and(|document| document.kept.is_some())
    });
    assert_eq!(documents(&first)[0].title, strings::SAMPLE_TITLE);
    drop(first);
    let (_script, mut second) = scripted(&folder.library());
    second.wait_for(&strings::more(strings::SAMPLE_TITLE));
    second.0.run_ok();
    assert!(documents(&second).is_empty(), "it is in the library, and not open");
    assert!(second.sees(strings::CHOOSE_TITLE) && second.sees(strings::OPEN_SAMPLE));
    drop(second);
    // A narrow window shows the list.
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    (setup.library, setup.size) = (Some(folder.library()), NARROW);
    let mut narrow = setup.window();
    narrow.wait_for(&strings::more(strings::SAMPLE_TITLE));
}

#[test]
fn a_document_has_one_name_everywhere() {
    let folder = Folder::new("names");
    let library = folder.library();
    put(&library, "story");
    let files =
        [folder.file("story.txt", "A story of a harbour."), folder.file("b.md", "The end.")];
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.library = Some(library.clone());
    setup.files = files.to_vec();
    let mut window = setup.window();
    // Files are called as they are.
    window.wait_for(&strings::file_of_order(1, "b.md"));
    window.click(strings::OPEN_EACH);
    let names = |window: &Window| {
        let in_library: Vec<String> =
            library.list().unwrap().into_iter().map(|document| document.name).collect();
        let all_kept = documents(window).iter().all(|document| document.kept.is_some());
        let has_all = documents(window).iter().all(|d| in_library.contains(&d.title));
        (documents(window).len() == 2 && all_kept && has_all, in_library)
    };
    window.until("both, named as in the library", |window| names(window).0);
    assert!(names(&window).1.contains(&"story-2".to_owned()), "another one is called story");
    window.wait_for(&strings::more("story-2"));
    assert!(!window.sees_part("story.txt"));
    // Of several files.
    window.drop_files(&[folder.file("one.txt", "First."), folder.file("two.txt", "Second.")]);
    window.click(strings::OPEN_AS_ONE);
    window.until("one document of both", |_| {
        library.list().unwrap().iter().any(|document| document.name == "one and 1 more")
    });
    window.wait_for(&strings::more("one and 1 more"));
}

#[test]
fn without_dialogs_the_window_says_what_to_do() {
    let folder = Folder::new("dialogs");
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.chosen.has_no_dialogs = true;
    setup.chosen.place = Some(folder.0.clone());
    let mut window = setup.window();
    window.wait_for(strings::READ);
    window.click(strings::OPEN_FILE);
    window.wait_for(strings::failure(FailureKind::NoDialog).1);
    assert!(window.sees(strings::NO_DIALOG));
    window.picture("no_dialog");
    window.click(strings::OPEN_FOLDER);
    window.0.run_ok();
    assert_eq!(notices(&window).len(), 1, "once is enough");
    window.click(strings::DISMISS);
    window.click(strings::MODELS);
    window.click(strings::CHOOSE_GGUF);
    window.wait_for(strings::NO_DIALOG_FOR_MODELS);
    window.click(strings::CLOSE_DIALOG);
    // Answers go where they are found, and never over another file.
    window.click(strings::READ);
    script.read(16);
    window.click_part(QUESTION);
    script.say(4);
    window.wait_for(strings::ASK_AGAIN);
    for name in ["Sample document.answers.md", "Sample document 2.answers.md"] {
        window.click(strings::EXPORT);
        let path = folder.0.join(name);
        window.wait_for(&strings::exported(&path.display().to_string()));
        assert!(std::fs::read_to_string(path).unwrap().contains("2003322"));
    }
}

/// The real dialogs, in a process whose environment has none. Without its variable it does nothing.
#[cfg(target_os = "linux")]
#[test]
fn dialogs_child() {
    use longview_desktop::dialogs::{Dialogs as _, NoDialog, SystemDialogs};

    if std::env::var_os("LONGVIEW_TEST_DIALOGS").is_none() {
        return;
    }
    assert_eq!(SystemDialogs.open(), Err(NoDialog));
    assert_eq!(SystemDialogs.folder(), Err(NoDialog));
    assert_eq!(SystemDialogs.model(true), Err(NoDialog));
    assert_eq!(SystemDialogs.model(false), Err(NoDialog));
    assert_eq!(SystemDialogs.save("answers.md"), Err(NoDialog));
    assert!(SystemDialogs.place().is_some());
}

#[cfg(target_os = "linux")]
#[test]
fn a_system_without_dialogs_is_noticed() {
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "trouble::dialogs_child"]).env("LONGVIEW_TEST_DIALOGS", "1");
    child.env("PATH", "/nowhere").env("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere");
    let output = child.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY").output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

/// A library in which nothing can be written: its lock cannot be opened. Tests may run as root, for
/// whom modes of files mean nothing.
fn close_library(folder: &Folder) {
    let lock = folder.0.join("library/locks/library.lock");
    let _ = std::fs::remove_file(&lock);
    std::fs::create_dir(lock).unwrap();
}

#[test]
fn a_library_that_cannot_be_written_is_read() {
    let folder = Folder::new("read-only");
    let library = folder.library();
    let file = folder.file("harbours.txt", &document());
    let mut window = real(&library, Some(&file));
    window.click(strings::READ);
    window.wait_for_part("read in");
    drop(window);
    close_library(&folder);
    // From its file as well as from the list.
    for file in [Some(&*file), None] {
        let mut window = real(&library, file);
        window.click_part("harbours, ");
        window.wait_for_part("opened in");
        assert_eq!(notices(&window), [], "nothing is wrong with it");
    }
    // What is not there is read and asked, and the window says why it is not kept.
    let new = folder.file("new.txt", &format!("It is new. {}", document()));
    let mut window = real(&library, Some(&new));
    window.wait_for(strings::failure(FailureKind::NotKept).0);
    assert!(window.sees_part("library.lock: cannot be opened"));
    window.click(strings::READ);
    window.wait_for_part("read in");
    window.wait_for(strings::NOT_IN_LIBRARY);
    window.click_part("What is the special magic number for amber-lantern");
    window.wait_for(strings::ASK_AGAIN);
    assert!(window.sees_part("5828235."), "the right number");
    // Still nothing can be written; then it can.
    window.click(strings::DISMISS);
    window.click(strings::KEEP_NOW);
    window.wait_for(strings::failure(FailureKind::NotKept).0);
    std::fs::remove_dir(folder.0.join("library/locks/library.lock")).unwrap();
    keeps_now(&mut window, &library, "new");
    drop(window);
    let mut window = real(&library, None);
    window.click_part("new, ");
    window.wait_for_part("opened in");
}

#[test]
fn a_session_file_is_opened_beside_a_library_that_cannot_be_written() {
    let folder = Folder::new("session");
    let first = Documents::open(&folder.0.join("first")).unwrap();
    let mut window = real(&first, Some(&folder.file("harbours.txt", &document())));
    window.click(strings::READ);
    window.wait_for_part("read in");
    drop(window);
    let kept = first.list().unwrap().remove(0);
    let session = folder.0.join("harbours.lvs");
    std::fs::copy(first.session_path(&kept.sessions[0]), &session).unwrap();
    let library = folder.library();
    close_library(&folder);
    let mut window = real(&library, Some(&session));
    window.wait_for_part("opened in");
}

#[test]
fn a_limit_of_the_library_is_told_by_its_name() {
    let folder = Folder::new("quota");
    let library = folder.library();
    library.set_quota(Some(1000)).unwrap();
    let mut window = real(&library, Some(&folder.file("harbours.txt", &document())));
    window.click(strings::READ);
    window.wait_for_part("read in");
    window.wait_for_part("the library may hold 1000 B");
    let told = notices(&window);
    assert!(told[0].message.contains("\"Limit of the library\" in Settings"), "{told:?}");
    assert!(strings::DISK_LIMIT.starts_with("Limit of the library"));
    // An answer does not make it another text.
    window.click_part("What is the special magic number for amber-lantern");
    window.wait_for(strings::ASK_AGAIN);
    library.set_quota(None).unwrap();
    keeps_now(&mut window, &library, "harbours");
    drop(window);
    let mut window = real(&library, None);
    window.click_part("harbours, ");
    window.wait_for_part("opened in");
    window.click_part("What is the special magic number for amber-lantern");
    window.wait_for(strings::ASK_AGAIN);
    assert!(window.sees_part("5828235."), "the right number");
}

#[test]
fn questions_that_could_not_be_saved_are_saved_later() {
    let folder = Folder::new("unsaved");
    let library = folder.library();
    let places = Places::below(&folder.0);
    // A file where the folder of the conversations is to be.
    std::fs::write(&places.conversations, "").unwrap();
    let start = || {
        let (script, open) = Script::new();
        let mut setup = Setup::new(open);
        setup.library = Some(library.clone());
        setup.places = Some(places.clone());
        (script, setup.window())
    };
    let (script, mut window) = start();
    window.click(strings::READ);
    script.read(16);
    window.click_part(QUESTION);
    script.say(4);
    window.wait_for(strings::failure(FailureKind::NotSaved).0);
    window.click(strings::TRY_AGAIN);
    window.wait_for(strings::failure(FailureKind::NotSaved).0);
    std::fs::remove_file(&places.conversations).unwrap();
    window.click(strings::TRY_AGAIN);
    let id = window.0.state().state().documents[0].kept.unwrap();
    window.until("what was asked is on the disk", |_| places.conversation(id).len() == 1);
    assert_eq!(notices(&window), []);
}

#[test]
fn a_damaged_library_is_repaired_from_the_window() {
    let folder = Folder::new("damaged");
    let library = folder.library();
    let (damaged, _) = (put(&library, "Letters"), put(&library, "Log of the brig"));
    let path = folder.0.join(format!("library/texts/{damaged}.txt"));
    let text = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, text.replace("told", "TOLD")).unwrap();
    let (_script, mut window) = scripted(&library);
    window.click_part("Letters, ");
    window.wait_for(strings::failure(FailureKind::Damaged).0);
    assert!(window.sees_part("the text is not as it was written"));
    window.click(strings::REPAIR);
    window.wait_for(strings::REPAIRED);
    window.until("the list without it", |window| window.0.state().state().kept.len() == 1);
    assert_eq!(notices(&window), []);
    let aside = std::fs::read_dir(folder.0.join("library/damaged")).unwrap().count();
    assert!(aside > 0, "nothing is deleted");
    drop(window);
    // The list itself, and the one before it.
    for name in ["manifest.json", "manifest.old.json"] {
        std::fs::write(folder.0.join("library").join(name), "{").unwrap();
    }
    let (_script, mut window) = scripted(&library);
    window.wait_for(strings::failure(FailureKind::Damaged).0);
    assert!(documents(&window).is_empty(), "no sample in place of what was there");
    window.click(strings::REPAIR);
    // Names are in the list alone.
    window.until("the text again", |window| window.0.state().state().kept.len() == 1);
    let id = window.0.state().state().kept[0].id;
    assert_eq!(library.text(id).unwrap(), "Log of the brig, and what is told there.");
}

/// Damage among the rows: the head of the file says that all is well.
#[test]
fn a_repair_finds_what_is_damaged_in_what_was_read() {
    let folder = Folder::new("rows");
    let library = folder.library();
    let mut window = real(&library, Some(&folder.file("harbours.txt", &document())));
    window.click(strings::READ);
    window.wait_for_part("read in");
    drop(window);
    let kept = library.list().unwrap().remove(0);
    let path = library.session_path(&kept.sessions[0]);
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    files::repair(&library).unwrap();
    let document = library.list().unwrap().remove(0);
    assert!(document.sessions.is_empty() && !path.exists(), "{document:?}");
    assert_eq!(std::fs::read_dir(folder.0.join("library/damaged")).unwrap().count(), 1);
}

#[test]
fn what_could_not_be_had_at_the_start_is_told() {
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    let said = [
        (FailureKind::NoLibrary, "/books: holds other files, and is no library."),
        (FailureKind::NoModels, "The environment variable HF_ENDPOINT must be one."),
        (FailureKind::Settings, "What was there is kept in /home/anna/desktop.damaged.json"),
    ];
    for (kind, message) in said {
        setup.failures.push(Failure { kind, message: message.to_owned() });
    }
    let mut window = setup.window();
    window.wait_for(strings::READ);
    for (kind, message) in said {
        assert!(window.sees(strings::failure(kind).0) && window.sees_part(message), "{message}");
    }
}

#[test]
fn a_damaged_model_is_refused_by_its_name_and_another_one_is_at_hand() {
    let broken = PathBuf::from("tests/files/truncated.gguf");
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.chosen.model = Some(broken.clone());
    let mut window = setup.window();
    window.wait_for(strings::READ);
    window.click(strings::MODELS);
    window.click(strings::CHOOSE_GGUF);
    window.wait_for_part("tests/files/truncated.gguf: truncated: ");
    assert!(window.sees_part("download it again"));
    assert!(window.0.state().state().model().is_some(), "the one before is still there");
    drop(window);
    // One that was right when it was chosen.
    let mut setup = Setup::over(engines(None));
    setup.settings.use_model(ModelSource::Path(broken));
    let mut window = setup.window();
    window.wait_for(strings::failure(FailureKind::Model).0);
    assert!(window.sees_part("tests/files/truncated.gguf: truncated: "));
    window.picture("damaged_model");
    window.click(strings::USE_BUILT_IN);
    window.wait_for(strings::READ);
    assert_eq!(notices(&window), []);
}

#[test]
fn without_a_network_the_window_says_what_to_look_at() {
    let folder = Folder::new("network");
    // Nobody listens at a port that was just free.
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut settings = Settings::from_variables(false, |name| match name {
        "HF_HOME" => Some((&folder.0).into()),
        "HF_ENDPOINT" => Some(format!("http://127.0.0.1:{port}").into()),
        _ => None,
    })
    .unwrap();
    settings.patience = Patience { pause: Duration::from_millis(10), ..settings.patience };
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.models = Some(Arc::new(Library::new(settings)));
    let mut window = setup.window();
    window.wait_for(strings::READ);
    window.click(strings::MODELS);
    window.click_part(&format!("{}: ", strings::DETAILS));
    window.wait_for_part("Check the connection to the internet, and try again.");
    assert!(window.sees_part(&format!("127.0.0.1:{port}")) && !window.sees_part("os error"));
    let field = window.0.get_by_role_and_label(Role::TextInput, strings::MODEL_NAME);
    field.set_text_value_accesskit("org/no name");
    window.0.run_ok();
    window.click(strings::FIND_MODEL);
    window.wait_for_part("org/no name: is no name of a model");
}

#[test]
fn absurd_settings_are_taken_as_far_as_they_make_sense() {
    let folder = Folder::new("absurd");
    let places = Places::below(&folder.0);
    std::fs::create_dir_all(&places.config).unwrap();
    let kept = |budget: &str| {
        let text = format!(
            "{{\"budget\": {budget}, \"device_memory\": 1048576, \"scale\": 100000, \
             \"policy\": \"of-tomorrow\", \"disk_quota\": 1}}"
        );
        std::fs::write(places.config.join("desktop.json"), text).unwrap();
        let (settings, aside) = places.settings();
        assert_eq!(aside, None);
        settings
    };
    for (budget, taken) in [("0", 128), ("18446744073709551615", 8192)] {
        let mut setup = Setup::over(engines(None));
        setup.settings = kept(budget);
        setup.settings.scale = 100;
        let mut window = setup.window();
        assert_eq!(window.0.state().state().budget, taken);
        window.wait_for(strings::failure(FailureKind::OutOfMemory).0);
        let told = notices(&window);
        assert!(told[0].message.contains("1.0 MiB are free"), "{told:?}");
        assert!(!told[0].message.contains("--"), "no options: {told:?}");
        window.click_last(strings::SETTINGS);
        window.wait_for(strings::SAVE);
        // In sight at once, and no absence of a limit.
        let limit = window.0.get_by_role_and_label(Role::SpinButton, strings::DEVICE_LIMIT);
        assert_eq!(limit.accesskit_node().value().as_deref(), Some("1.0 MiB"));
        limit.set_value_accesskit(2.0);
        window.0.run_ok();
        window.click(strings::SAVE);
        window.click(strings::READ);
        window.wait_for_part("read in");
        window.click_part(QUESTION);
        window.wait_for(strings::ASK_AGAIN);
        assert!(window.sees_part("Looked at"), "{:?}", notices(&window));
    }
}

#[test]
fn a_window_that_is_closed_while_it_reads_goes_on_at_the_next_start() {
    let folder = Folder::new("quit");
    let library = folder.library();
    let text = "Once upon a time there was a harbour, and nobody spoke. ".repeat(400) + &document();
    let file = folder.file("long.txt", &text);
    let mut window = real(&library, Some(&file));
    window.click(strings::READ);
    let mut done = 0;
    window.until("some of it is read", |window| {
        if let Stage::Reading(reading) = &documents(window)[0].stage {
            done = reading.progress.map_or(0, |progress| progress.done);
        }
        done >= 512
    });
    drop(window);
    let kept = library.get(Id::of(text.as_bytes())).unwrap().unwrap();
    let session = kept.sessions.first().expect("it is kept at the end");
    assert!(session.n_tokens >= done && !session.is_complete(), "{done}: {session:?}");
    let mut window = real(&library, None);
    window.click_part("long, ");
    window.wait_for(strings::READ_ON);
    assert_eq!(documents(&window)[0].read_state().unwrap().tokens, session.n_tokens);
}

#[test]
fn a_window_that_is_closed_while_it_answers_keeps_what_was_said() {
    let folder = Folder::new("quit-answer");
    let library = folder.library();
    let start = |patience| {
        let (script, open) = Script::new();
        let mut setup = Setup::new(open);
        setup.library = Some(library.clone());
        setup.places = Some(Places::below(&folder.0));
        setup.patience = patience;
        (script, setup.window())
    };
    let (script, mut window) = start(PATIENCE);
    window.click(strings::READ);
    script.read(16);
    window.click_part(QUESTION);
    script.say(2);
    window.wait_for("The special magic number");
    // The step that is under way while the window closes.
    let later = script.clone();
    let step = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        later.say(1);
    });
    drop(window);
    step.join().unwrap();
    let (_script, mut window) = start(Duration::ZERO);
    window.click_part(&format!("{}, ", strings::SAMPLE_TITLE));
    window.wait_for("The special magic number is");
    assert!(window.sees_part(QUESTION) && window.sees_part(strings::STOPPED));
}

#[test]
fn an_answer_is_exported_under_the_name_of_its_document() {
    let (_script, mut window) = answered();
    assert!(window.sees(strings::EXPORT));
    window.click(strings::EXPORT);
    window.0.run_ok();
    assert_eq!(notices(&window), [], "who changes their mind is told nothing");
}
