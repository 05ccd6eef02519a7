//! What is kept from one start to the next: conversations, settings, and a reading that was killed.

use std::path::{Path, PathBuf};

use eframe::egui::{Event, ImeEvent, Key, Modifiers};
use egui_kittest::kittest::{NodeT as _, Queryable as _};
use longview_desktop::engine::Attention;
use longview_desktop::store::Places;
use longview_desktop::strings;
use longview_library::documents::Documents;

use crate::support::script::Script;
use crate::support::{Setup, Window};

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("longview-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    folder
}

fn window(folder: &Path) -> (Script, Window) {
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    let places = Places::below(folder);
    setup.settings = places.settings().0;
    setup.library = Some(Documents::open(&folder.join("library")).unwrap());
    setup.places = Some(places);
    (script, setup.window())
}

#[test]
fn questions_and_answers_are_there_at_the_next_start() {
    let folder = folder("conversation");
    let (script, mut first) = window(&folder);
    first.click(strings::READ);
    script.read(16);
    first.click_part("What is the special magic number");
    script.say(4);
    first.wait_for(strings::ASK_AGAIN);
    drop(first);
    let (script, mut second) = window(&folder);
    second.click_part(&format!("{}, ", strings::SAMPLE_TITLE));
    second.wait_for_part("The special magic number is 2003322.");
    assert!(second.sees_part("At most 2.1 % of the attention was left out"));
    second.click(strings::READ);
    script.read(16);
    second.wait_for_part("read in");
    // A question is changed: its answer is another one.
    second.click(strings::EDIT);
    second.wait_for(strings::EDITING);
    second.0.key_press_modifiers(Modifiers::COMMAND, Key::A);
    second.0.run_ok();
    second.0.event(Event::Text("Who is Anna?".into()));
    second.0.run_ok();
    second.0.key_press(Key::Enter);
    second.0.run_ok();
    script.say(4);
    second.wait_for(strings::ASK_AGAIN);
    assert_eq!(script.asked()[0].text, "Who is Anna?");
    let document = &second.0.state().state().documents[0];
    assert_eq!(document.conversation.len(), 1, "in place of the one before");
    drop(second);
    let (_script, mut third) = window(&folder);
    third.click_part(&format!("{}, ", strings::SAMPLE_TITLE));
    third.wait_for("Who is Anna?");
    third.click(&strings::more(strings::SAMPLE_TITLE));
    third.click(strings::DELETE);
    third.click_last(strings::DELETE);
    drop(third);
    let left = std::fs::read_dir(folder.join("conversations")).unwrap().count();
    assert_eq!(left, 0, "what is deleted leaves no conversation");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn settings_are_chosen_explained_and_kept() {
    let folder = folder("settings");
    let (script, mut first) = window(&folder);
    first.wait_for(strings::READ);
    first.click(strings::SETTINGS);
    assert!(first.sees(strings::DEVICE_HELP) && !first.sees(strings::POLICY_HELP));
    first.click(strings::ADVANCED);
    for help in [
        strings::POLICY_HELP,
        strings::BOUNDS_HELP,
        strings::FIRST_BUDGET_HELP,
        strings::DEVICE_LIMIT_HELP,
        strings::DISK_LIMIT_HELP,
    ] {
        assert!(first.sees(help), "{help}");
    }
    // It may be scrolled away.
    first.0.get_by_label(strings::BOUNDS).click_accesskit();
    first.0.run_ok();
    first.click(strings::SAVE);
    first.until("an engine that is made so", |_| script.opened() == 2);
    first.wait_for(strings::READ);
    drop(first);
    let (settings, _) = Places::below(&folder).settings();
    assert!(!settings.bounds && !settings.setup().bounds);
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn words_of_an_input_method_are_typed_and_asked() {
    let (script, open) = Script::new();
    let mut setup = Setup::new(open);
    setup.allows_missing_glyphs = true;
    let mut window = setup.window();
    window.click(strings::READ);
    script.read(16);
    window.wait_for_part("read in");
    window.0.key_press_modifiers(Modifiers::COMMAND, Key::L);
    window.0.run_ok();
    window
        .0
        .event(Event::Ime(ImeEvent::Preedit { text: "にほ".into(), active_range_chars: None }));
    window.0.run_ok();
    window.0.event(Event::Ime(ImeEvent::Commit("日本の港は？😀".into())));
    window.0.run_ok();
    window.click(strings::ASK);
    script.say(4);
    window.wait_for(strings::ASK_AGAIN);
    assert_eq!(script.asked()[0].text, "日本の港は？😀");
    assert_eq!(script.asked()[0].attention, Attention::Budget(512));
    let shown = window.0.query_all_by_label("日本の港は？😀").next();
    assert!(shown.is_some_and(|node| !node.accesskit_node().is_hidden()));
}
