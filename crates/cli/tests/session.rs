//! `--save-session` and `--session`: a document is read once and asked by later processes.

use std::fs;
use std::path::Path;

use crate::support::{Done, TempFolder, longview, needle, run};

/// About 700 tokens with a fact in the middle.
fn document() -> String {
    let filler = "The miller carried a basket of straw to the old barn and rested near the gate. ";
    filler.repeat(14)
        + "The pass key is 48213. Remember it. 48213 is the pass key. "
        + &filler.repeat(18)
}

const QUESTION: &str = "What is the pass key? The pass key is";

/// `longview run` on the embedded model with further words, on the CPU.
fn ask(folder: &TempFolder, words: &[&str]) -> Done {
    let model = needle();
    let words: Vec<String> = words
        .iter()
        .map(|word| match word.strip_prefix('@') {
            Some(name) => folder.file(name).display().to_string(),
            None => word.to_string(),
        })
        .collect();
    let mut all = vec!["--device", "cpu", "-n", "16", "--temp", "0"];
    // A session has its own policy.
    if !words.iter().any(|word| word == "--session") {
        all.extend(["--budget", "256"]);
    }
    if !words.iter().any(|word| word == "--ctx-size" || word == "-c") {
        all.extend(["-c", "2048"]);
    }
    all.extend(words.iter().map(String::as_str));
    run(&model, &all)
}

fn saved() -> TempFolder {
    let folder = TempFolder::new();
    folder.write("doc.txt", document());
    let done = ask(&folder, &["-f", "@doc.txt", "--save-session", "@doc.lvs"]);
    assert!(done.stderr.contains("tokens, "), "{}", done.stderr);
    assert_eq!(done.ok(), "", "nothing was asked");
    folder
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_saved_document_is_asked_without_reading_it() {
    let folder = saved();
    assert_eq!(names(folder.path()), ["doc.lvs", "doc.txt"], "no other name is left");
    let plain = ["--no-chat-template"];
    for template in [&[][..], &plain] {
        let words = |first: &[&'static str]| [first, &["-p", QUESTION], template].concat();
        if !template.is_empty() {
            let save = ["-f", "@doc.txt", "--save-session", "@doc.lvs", "--force"];
            ask(&folder, &[&save[..], &plain].concat()).ok();
        }
        let direct = ask(&folder, &words(&["-f", "@doc.txt"])).ok();
        let opened = ask(&folder, &[&words(&["--session", "@doc.lvs"])[..], &["--stats"]].concat());
        assert!(opened.stderr.contains("tokens opened in "), "{}", opened.stderr);
        let prefill = opened.stderr.lines().find(|line| line.starts_with("prefill")).unwrap();
        let n: usize = prefill.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert!(n < 40, "the question alone: {prefill}");
        assert_eq!(opened.ok(), direct);
        assert!(direct.contains("48213"), "{direct}");
        let given = ask(&folder, &words(&["--session", "@doc.lvs", "-f", "@doc.txt"])).ok();
        assert_eq!(given, direct, "the text may be given again");
    }
}

#[test]
fn saving_and_asking_may_be_one_run() {
    let folder = TempFolder::new();
    folder.write("doc.txt", document());
    let both = ask(&folder, &["-f", "@doc.txt", "--save-session", "@doc.lvs", "-p", QUESTION]).ok();
    assert_eq!(ask(&folder, &["--session", "@doc.lvs", "-p", QUESTION]).ok(), both);
    let full = ask(&folder, &["--session", "@doc.lvs", "-p", QUESTION, "--policy", "full"]);
    assert!(full.ok().contains("48213"));
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = saved();
    let session = ["--session", "@doc.lvs", "-p", QUESTION];
    let with = |words: &[&str]| ask(&folder, &[&session[..], words].concat());
    with(&["--kv-type", "f32"]).fails_with(&[
        "doc.lvs: the session was made with something else",
        "type of keys and values: the session has f16, this run f32; use the --kv-type",
    ]);
    with(&["--rope-scaling", "linear", "--rope-scale", "2"])
        .fails_with(&["positions: the session has theta 10,000,000,000, ", "linear 2;"]);
    with(&["--ctx-size", "64"]).fails_with(&["tokens and the context holds 64", "--ctx-size 2048"]);
    with(&["--system", "Be brief."]).fails_with(&["it was saved with another document, --system"]);
    with(&["--policy", "h2o"]).fails_with(&["doc.lvs: --policy h2o needs the attention"]);
    let other = folder.write("other.txt", "Another text about nothing in particular. ".repeat(50));
    with(&["-f", other.to_str().unwrap()]).fails_with(&["saved with another document"]);
    ask(&folder, &["--session", "@none.lvs", "-p", "x"]).fails_with(&["none.lvs: cannot be read"]);
    ask(&folder, &["--session", "@doc.txt", "-p", "x"])
        .fails_with(&["doc.txt: this is not a Longview session"]);
    let mut bytes = fs::read(folder.file("doc.lvs")).unwrap();
    // A layer begins with its keys and values.
    let (early, middle) = (bytes.len() / 16, bytes.len() / 2);
    bytes[early] ^= 4;
    folder.write("bad.lvs", &bytes);
    ask(&folder, &["--session", "@bad.lvs", "-p", "x"])
        .fails_with(&["bad.lvs: the session is damaged in keys and values of layer "]);
    folder.write("cut.lvs", &bytes[..middle]);
    ask(&folder, &["--session", "@cut.lvs", "-p", "x"])
        .fails_with(&["cut.lvs: the session is not complete"]);
}

/// A file that a release before wrote, of the embedded model.
#[test]
fn a_session_of_version_1_is_asked_and_becomes_one_of_version_2() {
    let folder = TempFolder::new();
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/saved");
    let old = fs::read(fixtures.join("v1.lvs")).unwrap();
    assert_eq!(old[8], 1);
    folder.write("old.lvs", &old);
    let words = ["--session", "@old.lvs", "-c", "256", "-p", QUESTION];
    let done = ask(&folder, &words);
    assert!(done.ok().contains("48213"));
    assert_eq!(fs::read(folder.file("old.lvs")).unwrap(), old, "asking writes nothing");
    folder.write("doc.txt", "The pass key is 48213. Remember it. ");
    let save = ["--session", "@old.lvs", "-c", "256", "--save-session", "@old.lvs", "--force"];
    ask(&folder, &[&save[..], &["-f", "@doc.txt"]].concat()).ok();
    assert_eq!(fs::read(folder.file("old.lvs")).unwrap()[8], 2);
    assert!(ask(&folder, &words).ok().contains("48213"));
}

/// The same document, read further: what was written stays, and the rest is added to it.
#[test]
fn a_session_that_grows_is_added_to() {
    for kv_type in ["f16", "q8"] {
        let folder = TempFolder::new();
        let document = document();
        folder.write("half.txt", &document[..document.len() * 3 / 4]);
        folder.write("doc.txt", &document);
        let with = ["--kv-type", kv_type, "--no-chat-template"];
        let save = |words: &[&str]| ask(&folder, &[words, &with].concat());
        save(&["-f", "@half.txt", "--save-session", "@doc.lvs"]).ok();
        let before = fs::read(folder.file("doc.lvs")).unwrap();
        let grow = ["--session", "@doc.lvs", "-f", "@doc.txt", "--save-session", "@doc.lvs"];
        let grown = save(&[&grow[..], &["--force"]].concat());
        assert!(grown.stderr.contains(" added to "), "{}", grown.stderr);
        grown.ok();
        let after = fs::read(folder.file("doc.lvs")).unwrap();
        assert!(after.starts_with(&before) && after.len() > before.len());
        save(&["-f", "@doc.txt", "--save-session", "@whole.lvs"]).ok();
        let whole = fs::metadata(folder.file("whole.lvs")).unwrap().len();
        // Rows that waited for their index, and the index, are there twice.
        assert!((after.len() as u64) < whole * 2, "{} against {whole}", after.len());
        // The type of rows comes with the session.
        let ask =
            |name: &str| ask(&folder, &["--session", name, "-p", QUESTION, "--no-chat-template"]);
        let answer = ask("@doc.lvs").ok();
        assert_eq!(answer, ask("@whole.lvs").ok());
        assert!(answer.contains("48213"), "{answer}");
        assert_eq!(names(folder.path()), ["doc.lvs", "doc.txt", "half.txt", "whole.lvs"]);
        // A save that somebody broke off costs what it would have added.
        folder.write("doc.lvs", &after[..after.len() - 9]);
        let cut = ask("@doc.lvs");
        assert!(cut.stderr.contains("doc.lvs: the last save to it did not end"), "{}", cut.stderr);
        cut.ok();
        let again = save(&[&grow[..], &["--force"]].concat());
        assert!(again.stderr.contains(" added to "), "{}", again.stderr);
        assert_eq!(ask("@doc.lvs").ok(), answer);
    }
}

#[test]
fn another_model_is_refused_by_name() {
    let (folder, model) = (saved(), TempFolder::model());
    let session = folder.file("doc.lvs");
    let open = || {
        let words = ["-c", "2048", "--device", "cpu", "-p", "x", "--session"];
        run(model.path(), &[&words[..], &[session.to_str().unwrap()]].concat())
    };
    let mut weights = fs::read(model.file("model.safetensors")).unwrap();
    let n = weights.len();
    weights[n - 100] ^= 1;
    model.write("model.safetensors", &weights);
    open().fails_with(&["something else", "\n  weights: the session has "]);
    // The same texts in another file are the same vocabulary.
    model.edit("tokenizer.json", "\"version\"", " \"version\"");
    let again = open();
    assert!(!again.stderr.contains("vocabulary") && !again.stderr.contains("tokenizer:"));
    again.fails_with(&["\n  weights: "]);
}

#[test]
fn what_cannot_be_written_leaves_nothing() {
    let folder = TempFolder::new();
    folder.write("doc.txt", "A short text. ".repeat(20));
    ask(&folder, &["-f", "@doc.txt", "--save-session", "@nowhere/doc.lvs"])
        .fails_with(&["--save-session ", "doc.lvs: "]);
    fs::create_dir(folder.file("taken.lvs")).unwrap();
    ask(&folder, &["-f", "@doc.txt", "--save-session", "@taken.lvs"]).fails_with(&["taken.lvs: "]);
    assert_eq!(names(folder.path()), ["doc.txt", "taken.lvs"]);
    let done = longview(["run", "-m", "x", "--save-session", "y", "-p", "z"]);
    assert_eq!(done.code, Some(2), "there is no document to save: {}", done.stderr);
}
