//! The context where nobody says: what it is, and the line that says why.

use crate::support::{Done, TempFolder, needle, run};

/// What the embedded model says about its positions.
const TRAINED: &str = "\"max_position_embeddings\": 131072";

fn ask(model: &std::path::Path, words: &[&str]) -> Done {
    run(model, &[&["--device", "cpu", "-n", "4", "--no-chat-template"], words].concat())
}

/// The line about the context, which stands once.
#[track_caller]
fn line(done: &Done) -> String {
    let lines: Vec<&str> =
        done.stderr.lines().filter(|line| line.starts_with("context: ")).collect();
    assert_eq!(lines.len(), 1, "{}", done.stderr);
    lines[0].to_owned()
}

fn document(sentences: usize) -> String {
    "The miller carried a basket of straw to the old barn. ".repeat(sentences)
}

#[test]
fn a_document_gets_the_context_that_it_needs() {
    let folder = TempFolder::new();
    let path = folder.write("book.txt", document(340));
    let words = ["-f", path.to_str().unwrap(), "-p", "Where?", "--json"];
    let done = ask(&needle(), &words);
    let said = line(&done);
    let json: serde_json::Value = serde_json::from_str(&done.ok()).unwrap();
    let n_tokens = json["prompt_ids"].as_array().unwrap().len();
    assert!(n_tokens > 4096, "{n_tokens}");
    let context = json["context_tokens"].as_u64().unwrap() as usize;
    assert_eq!(context, (n_tokens + 4).next_multiple_of(1024));
    assert!(said.contains("the document has ") && said.contains("the model's limit is 131,072"));
    assert!(said.ends_with(')'), "{said}");
}

#[test]
fn a_given_context_is_used_as_it_is_or_refused_with_both_numbers() {
    let done = ask(&needle(), &["-c", "700", "-p", "x", "--json"]);
    assert!(!done.stderr.contains("context: "), "{}", done.stderr);
    let json: serde_json::Value = serde_json::from_str(&done.ok()).unwrap();
    assert_eq!(json["context_tokens"], 700);
    let done = ask(&needle(), &["-c", "64", "-p", &document(20)]);
    let needed = done.stderr.split("start with --ctx-size ").nth(1).unwrap().to_owned();
    let needed = needed.split(' ').next().unwrap();
    done.fails_with(&["the prompt has ", "the context holds 64"]);
    ask(&needle(), &["-c", needed, "-p", &document(20)]).ok();
}

#[test]
fn the_context_is_cut_to_memory_and_a_text_that_does_not_fit_says_so() {
    let folder = TempFolder::new();
    let path = folder.write("book.txt", document(340));
    let file = path.to_str().unwrap();
    let model = TempFolder::model();
    model.write("chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    let done = run(model.path(), &["--device", "cpu", "--device-memory", "48MiB"]);
    let said = line(&done);
    assert!(said.ends_with("(as much as memory holds; the model's limit)"), "{said}");
    done.ok();
    let done = ask(&needle(), &["--device-memory", "12MiB", "-f", file]);
    done.fails_with(&[
        "not enough memory: ",
        "is the least that holds it",
        " are needed",
        " available; ",
    ]);
}

#[test]
fn a_document_beyond_the_model_hears_a_whole_command_that_works() {
    let model = TempFolder::model();
    model.edit("config.json", TRAINED, "\"max_position_embeddings\": 512");
    let prompt = document(60);
    let done = ask(model.path(), &["-p", &prompt]);
    assert!(done.stderr.contains("the model was made for 512"), "{}", done.stderr);
    let advice = done.stderr.trim().split("or use ").nth(1).unwrap().to_owned();
    assert!(advice.contains("--rope-scaling yarn --rope-scale "), "{advice}");
    assert_eq!(done.code, Some(1));
    let words: Vec<&str> = advice.split(' ').chain(["-p", &prompt]).collect();
    ask(model.path(), &words).ok();
    let done = ask(model.path(), &["-c", "1000", "-p", "x"]);
    let warning = done.stderr.lines().find(|line| line.starts_with("warning: ")).unwrap();
    let advice = warning.split("consider ").nth(1).unwrap();
    assert_eq!(advice, "-c 1000 --rope-scaling yarn --rope-scale 2");
    let words: Vec<&str> = advice.split(' ').chain(["-p", "x"]).collect();
    assert!(!ask(model.path(), &words).stderr.contains("warning: "));
}

#[test]
fn positions_that_depend_on_the_length_keep_the_trained_one() {
    let model = TempFolder::model();
    let dynamic = "\"max_position_embeddings\": 6144, \
                   \"rope_scaling\": {\"rope_type\": \"dynamic\", \"factor\": 2.0}";
    model.edit("config.json", TRAINED, dynamic);
    let done = ask(model.path(), &["-p", "x"]);
    assert!(line(&done).starts_with("context: 6,144 tokens ("), "{}", done.stderr);
}

#[test]
fn a_session_brings_its_context() {
    let folder = TempFolder::new();
    let path = folder.write("book.txt", document(30));
    let saved = folder.file("book.lvs");
    let (file, saved) = (path.to_str().unwrap(), saved.to_str().unwrap());
    let opened = |words: &[&str]| ask(&needle(), &[&["--session", saved], words].concat());
    for context in ["700", "5000", "0"] {
        let _ = std::fs::remove_file(saved);
        ask(&needle(), &["-f", file, "-c", context, "--save-session", saved]).ok();
        let done = opened(&["-p", "Where?"]);
        let said = line(&done);
        assert!(said.contains("as the session was saved"), "{said}");
        done.ok();
        // Another context works too, and a question that the saved one does not hold.
        opened(&["-p", "Where?", "-c", "8000"]).ok();
        opened(&["-p", &document(100)]).ok();
    }
    opened(&["-p", "x", "-c", "64"]).fails_with(&["the context holds 64", "leave --ctx-size out"]);
}
