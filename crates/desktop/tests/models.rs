//! Models: looked at, downloaded, used.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use eframe::egui::accesskit::Role;
use egui_kittest::kittest::Queryable as _;
use longview_desktop::engine::local::{self, LocalOptions};
use longview_desktop::engine::{EngineSetup, Engines};
use longview_desktop::store::Places;
use longview_desktop::strings;
use longview_library::{Library, Settings};
use longview_startup::DeviceChoice;

use crate::support::hub::{FIRST, Hub};
use crate::support::script::Script;
use crate::support::{Setup, Window};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("longview-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn library(hub: &Hub, folder: &Path) -> Arc<Library> {
    let settings = Settings::from_variables(false, |name| match name {
        "HF_HOME" => Some(folder.into()),
        "HF_ENDPOINT" => Some((&hub.endpoint).into()),
        _ => None,
    });
    Arc::new(Library::new(settings.unwrap()))
}

/// Engines of the model that is chosen, on the CPU.
fn engines() -> Engines {
    let make = local::engines(LocalOptions::default());
    Arc::new(move |setup: &EngineSetup| {
        make(&EngineSetup { device: DeviceChoice::Cpu, ..setup.clone() })
    })
}

fn look_for(window: &mut Window, name: &str) {
    window.click(strings::MODELS);
    let field = window.0.get_by_role_and_label(Role::TextInput, strings::MODEL_NAME);
    field.set_text_value_accesskit(name);
    window.0.run_ok();
    window.click(strings::FIND_MODEL);
}

#[test]
fn a_model_is_looked_at_downloaded_in_two_goes_and_used() {
    let (hub, folder) = (Hub::start(), folder("models"));
    let mut setup = Setup::over(engines());
    setup.models = Some(library(&hub, &folder));
    setup.places = Some(Places::below(&folder));
    let mut window = setup.window();
    window.wait_for(strings::READ);
    window.click(strings::CHOOSE_MODEL);
    window.wait_for(strings::SUGGESTED_MODELS);
    assert!(window.sees_part("Fits: ") && window.sees_part("Needs ") != window.sees_part("Fits: "));
    window.click(strings::CLOSE_DIALOG);
    assert_eq!(hub.asked.load(Ordering::SeqCst), 0, "nothing is asked unasked");

    look_for(&mut window, "org/needle");
    window.wait_for(strings::DOWNLOAD);
    assert!(window.sees_part("5 files. Licence: mit."), "size and licence before the download");
    window.click(strings::DOWNLOAD);
    window.wait_for_part(&format!("of {}", longview_desktop::strings::size(hub.bytes)));
    window.until("the first bytes on the disk", |_| begun(&folder) >= FIRST as u64);
    window.click(strings::CANCEL_DOWNLOAD);
    window.wait_for(strings::DOWNLOAD_KEPT);
    hub.open_gate();
    window.click(strings::GO_ON);
    window.wait_for(strings::USE);
    window.click(strings::USE);
    window.wait_for_part("org/needle");
    window.until("the other model", |window| {
        window.0.state().state().model().is_some_and(|model| model.name == "org/needle")
    });
    let model = window.0.state().state().model().cloned().unwrap();
    assert!(!model.is_embedded);
    window.click(strings::READ);
    window.wait_for_part("read in");
    drop(window);
    let (settings, _) = Places::below(&folder).settings();
    assert_eq!(settings.model.name(), "org/needle", "and at the next start");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_look_at_a_hub_that_says_nothing_is_ended() {
    let (hub, folder) = (Hub::start(), folder("slow-hub"));
    let (_script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.models = Some(library(&hub, &folder));
    let mut window = setup.window();
    window.wait_for(strings::READ);
    look_for(&mut window, "org/slow");
    window.click(strings::CANCEL_LOOK);
    assert!(!window.sees(strings::LOOKING), "at once");
    // Another one is asked for meanwhile, and what comes late changes nothing.
    window.click(strings::CLOSE_DIALOG);
    look_for(&mut window, "org/needle");
    window.wait_for(strings::DOWNLOAD);
    hub.open_gate();
    std::thread::sleep(std::time::Duration::from_millis(300));
    window.0.run_ok();
    assert!(window.sees(strings::DOWNLOAD) && window.sees_part("5 files. Licence: mit."));
    let _ = std::fs::remove_dir_all(folder);
}

/// Bytes of what a download has begun.
fn begun(folder: &Path) -> u64 {
    let blobs = folder.join("hub/models--org--needle/blobs");
    let entries = std::fs::read_dir(blobs).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|data| data.len()).max().unwrap_or(0)
}

#[test]
fn what_is_no_model_says_why_and_the_conversation_stays() {
    let (hub, folder) = (Hub::start(), folder("no-models"));
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.models = Some(library(&hub, &folder));
    let mut window = setup.window();
    window.click(strings::READ);
    script.read(16);
    window.click_part("What is the special magic number");
    script.say(4);
    window.wait_for(strings::ASK_AGAIN);
    look_for(&mut window, "org/nothing");
    window.wait_for_part("org/nothing: ");
    let field = window.0.get_by_role_and_label(Role::TextInput, strings::MODEL_NAME);
    field.set_text_value_accesskit("/nowhere/at/all.gguf");
    window.0.run_ok();
    window.click(strings::FIND_MODEL);
    window.wait_for_part("/nowhere/at/all.gguf: ");
    let needle = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/needle");
    let field = window.0.get_by_role_and_label(Role::TextInput, strings::MODEL_NAME);
    field.set_text_value_accesskit(needle);
    window.0.run_ok();
    window.click(strings::FIND_MODEL);
    window.until("another engine", |_| script.opened() == 2);
    assert!(window.sees_part("The special magic number is 2003322."), "the answer stays");
    script.read(16);
    window.wait_for_part("read in");
    let _ = std::fs::remove_dir_all(folder);
}
