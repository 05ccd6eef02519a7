//! The whole way with the embedded model: a file, reading, a question, the right answer, and the
//! passage that it stands in.

use std::sync::Arc;

use egui_kittest::kittest::{NodeT as _, Queryable as _};
use longview_desktop::engine::local::{self, ModelSource};
use longview_desktop::strings;
use longview_startup::DeviceChoice;

use crate::support::Setup;

/// A document of some 830 tokens with three numbers in it.
fn document() -> String {
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
    let mut setup = Setup::new(local::opener(ModelSource::Embedded, DeviceChoice::Cpu));
    setup.chosen.open = Some(file.clone());
    let mut window = setup.window();
    window.click(strings::OPEN_FILE);
    let title = file.file_name().unwrap().to_string_lossy().into_owned();
    window.wait_for(&title);
    window.wait_for(strings::READ);
    assert!(window.sees_part("4,096 tokens, with room for questions"));
    window.until("the engine", |window| {
        !window.0.get_by_label(strings::READ).accesskit_node().is_disabled()
    });
    window.click(strings::READ);
    window.wait_for_part("read in");
    let question = "What is the special magic number for quiet-harbour mentioned in the provided text?";
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
    let _ = (std::fs::remove_file(file), Arc::strong_count(&document.text));
}
