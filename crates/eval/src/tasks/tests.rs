//! Every task on the embedded model's tokenizer: determinism, lengths, and that the documents hold
//! what the questions ask for.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use longview_model::folder::ModelFolder;

use super::*;
use crate::error::EvalError;
use crate::haystack::{TextSource, split_sentences};
use crate::prompt::Prompter;

fn folder() -> &'static ModelFolder {
    static FOLDER: OnceLock<ModelFolder> = OnceLock::new();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle");
    FOLDER.get_or_init(|| ModelFolder::open(&path).unwrap())
}

fn prompter() -> Prompter<'static> {
    Prompter::new(folder().tokenizer().unwrap(), folder().chat.as_ref())
}

fn setting(length: usize, seed: u64, sample: usize) -> Setting<'static> {
    Setting { prompter: prompter(), text: &TextSource::Generated, length, seed, sample }
}

/// Tasks that need no file.
fn free() -> Vec<Box<dyn Task>> {
    let mut tasks = all(&TaskFiles::default());
    tasks.retain(|task| task.check().is_ok());
    tasks
}

fn task(name: &str) -> Box<dyn Task> {
    let mut found = select(&[name.to_owned()], &TaskFiles::default()).unwrap();
    assert_eq!(found.len(), 1, "{name}");
    found.remove(0)
}

/// A folder with a file; gone when dropped.
struct Files(PathBuf);

impl Files {
    fn new(name: &str, text: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("longview-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), text).unwrap();
        Self(folder)
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn names_are_unique_and_groups_hold_tasks() {
    let tasks = all(&TaskFiles::default());
    let mut names: Vec<&str> = tasks.iter().map(|task| task.name()).collect();
    assert_eq!(names.iter().filter(|name| name.starts_with("ruler-")).count(), 13);
    assert_eq!(names.iter().filter(|name| name.starts_with("longbench-")).count(), 21);
    assert_eq!(names.iter().filter(|name| name.starts_with("infinitebench-")).count(), 4);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), tasks.len());
    for (group, _) in GROUPS {
        assert!(names.iter().any(|name| name.starts_with(&format!("{group}-"))), "{group}");
    }
    let ruler = select(&["ruler".into(), "ruler-vt".into()], &TaskFiles::default()).unwrap();
    assert_eq!(ruler.len(), 11, "without the files of QA, and each once");
}

#[test]
fn unknown_names_and_missing_files_are_named() {
    let message = |name: &str| match select(&[name.to_owned()], &TaskFiles::default()) {
        Ok(_) => panic!("{name} was found"),
        Err(error) => error.to_string(),
    };
    assert!(message("rulre").contains("unknown task 'rulre': one of needle, many,"));
    assert!(message("ruler-qa-1").contains("needs --squad FILE"));
    assert!(message("longbench").contains("needs --longbench DIR"));
}

#[test]
fn samples_fill_their_length_and_depend_on_nothing_else() {
    for task in free() {
        // Long enough for the longest solved example and 50 facts.
        let length = 3000;
        let sample = task.sample(&setting(length, 7, 1)).unwrap();
        assert_eq!(sample, task.sample(&setting(length, 7, 1)).unwrap(), "{}", task.name());
        assert_eq!(sample.questions.len(), task.n_questions(), "{}", task.name());
        let n = prompter().n_tokens(&sample).unwrap();
        // A unit of filler is a sentence or two; a rare word costs 3 lines of a list.
        assert!(n <= length && n + 90 > length, "{}: {n} of {length}", task.name());
        for other in [setting(length, 8, 1), setting(length, 7, 2)] {
            assert_ne!(sample, task.sample(&other).unwrap(), "{}", task.name());
        }
    }
}

#[test]
fn a_length_that_is_too_short_says_what_is_needed() {
    for task in free() {
        match task.sample(&setting(30, 1, 0)) {
            Err(EvalError::TooShort { needed, .. }) => {
                let enough = task.sample(&setting(needed + 8, 1, 0));
                assert!(enough.is_ok(), "{}: {needed}", task.name());
            }
            other => panic!("{}: {other:?}", task.name()),
        }
    }
}

#[test]
fn documents_hold_the_answers() {
    let lists = ["infinitebench-math-find", "many-json-10", "many-json-30", "many-json-50"];
    for task in free().iter().filter(|task| !lists.contains(&task.name())) {
        let sample = task.sample(&setting(3000, 3, 2)).unwrap();
        for question in &sample.questions {
            for reference in &question.references {
                let text = &sample.document;
                assert!(text.contains(reference), "{}: {reference}", task.name());
                assert!(!question.ask.contains(reference), "{}", task.name());
                assert_eq!(question.metric.score(reference, &question.references).ceil(), 1.0);
            }
            let all = question.references.join(" ");
            let score = question.metric.score(&all, &question.references);
            assert_eq!(score, 1.0, "{}: {all}", task.name());
        }
    }
}

#[test]
fn json_records_are_in_the_text_and_a_full_object_is_right() {
    let sample = task("many-json-30").sample(&setting(3000, 3, 0)).unwrap();
    let question = &sample.questions[0];
    assert_eq!(question.references.len(), 30);
    let mut members = Vec::new();
    for record in &question.references {
        let (name, value) = record.split_once(": ").unwrap();
        assert!(sample.document.contains(&format!("The badge number of {name} is {value}.")));
        members.push(format!("\"{name}\": \"{value}\""));
    }
    let all = format!("{{{}}}", members.join(", "));
    assert_eq!(question.metric.score(&all, &question.references), 1.0);
    assert!(prompter().count(&all).unwrap() <= question.max_new);
    let half = format!("{{{}", members[..15].join(", "));
    assert_eq!(question.metric.score(&half, &question.references), 0.5);
}

#[test]
fn ruler_counts_are_those_of_its_parameters() {
    let count = |name: &str, what: &str| {
        let sample = task(name).sample(&setting(4096, 5, 0)).unwrap();
        sample.document.matches(what).count()
    };
    let needles = " special magic numbers for ";
    assert_eq!(count("ruler-niah-single-1", needles), 1);
    assert_eq!(count("ruler-niah-multikey-1", needles), 4);
    assert_eq!(count("ruler-niah-multivalue", needles), 4);
    assert_eq!(count("ruler-niah-multiquery", needles), 4);
    assert!(count("ruler-niah-multikey-2", needles) > 30);
    // Two chains of a value and four hops, one of them solved.
    assert_eq!(count("ruler-vt", "VAR "), 2 * (1 + 2 * 4));
    let words = task("ruler-cwe").sample(&setting(8192, 5, 0)).unwrap();
    let list = words.document.rsplit_once("Memorize the ones").unwrap().1;
    for word in &words.questions[0].references {
        assert_eq!(list.split_whitespace().filter(|other| other == word).count(), 30, "{word}");
    }
    let text = task("ruler-fwe").sample(&setting(4096, 5, 0)).unwrap();
    let times = |word: &String| text.document.split(' ').filter(|other| *other == word).count();
    let ranks: Vec<usize> = text.questions[0].references.iter().map(times).collect();
    // n k^-2 / zeta(2) for k = 2, 3, 4: as 36 to 16 to 9.
    assert!(ranks.is_sorted_by(|a, b| a > b), "{ranks:?}");
    assert!((ranks[0] as f64 / ranks[2] as f64 - 4.0).abs() < 0.5, "{ranks:?}");
}

#[test]
fn one_query_and_several_are_asked_in_rulers_words() {
    let one = task("ruler-niah-single-3").sample(&setting(1024, 5, 0)).unwrap();
    assert!(one.document.starts_with("A special magic uuid is hidden within the following text."));
    assert!(one.questions[0].ask.starts_with("\nWhat is the special magic uuid for "));
    let four = task("ruler-niah-multiquery").sample(&setting(1024, 5, 0)).unwrap();
    assert!(four.document.starts_with("Some special magic numbers are hidden within"));
    let ask = &four.questions[0].ask;
    assert!(ask.starts_with("\nWhat are all the special magic numbers for "), "{ask}");
    assert_eq!((ask.matches(", ").count(), ask.matches(", and ").count()), (3, 1), "{ask}");
    assert!(four.questions[0].lead.ends_with(" mentioned in the provided text are"));
}

#[test]
fn depths_of_single_needles_cover_the_document() {
    let depths: Vec<f64> = (0..20).map(|i| setting(1, 0, i).spread()).collect();
    for part in 0..5 {
        let (from, to) = (f64::from(part) / 5.0, f64::from(part + 1) / 5.0);
        let n = depths.iter().filter(|depth| (from..to).contains(depth)).count();
        assert!((3..=5).contains(&n), "{n} of 20 in {from}..{to}");
    }
    for sample in 0..4 {
        let setting = setting(1500, 1, sample);
        let made = task("needle-single").sample(&setting).unwrap();
        let at = made.document.find("One of the special").unwrap() as f64;
        let found = at / made.document.len() as f64;
        let wanted = made.questions[0].depth.unwrap();
        assert!((found - wanted).abs() < 0.05, "{found}, expected {wanted}");
    }
}

#[test]
fn chat_templates_surround_document_and_question() {
    let sample = task("ruler-vt").sample(&setting(2048, 1, 0)).unwrap();
    let prompt = prompter().encode(&sample).unwrap();
    let tokenizer = folder().tokenizer().unwrap();
    let text = |ids: &[u32]| tokenizer.decode(ids, false).unwrap();
    assert!(text(&prompt.document).starts_with("<|begin_of_text|><|im_start|>user\nMemorize"));
    let tail = text(&prompt.questions[0]);
    assert!(tail.contains("<|im_end|>\n<|im_start|>assistant\n Answer: According"), "{tail}");
    assert!(tail.ends_with("they are: "), "{tail}");
    let plain = Prompter::new(tokenizer, None).encode(&sample).unwrap();
    assert!(text(&plain.document).starts_with("<|begin_of_text|>Memorize"));
}

#[test]
fn qa_is_read_from_the_published_files() {
    let squad = r#"{"data": [{"title": "t", "paragraphs": [
        {"context": "Paris is in France.", "qas": [
            {"question": "Where is Paris?", "answers": [{"text": "France"}, {"text": "in France"}]},
            {"question": "None?", "answers": [], "is_impossible": true}]},
        {"context": "Rome is in Italy.", "qas": []}]}, {"title": "u", "paragraphs": [
        {"context": "Rome is in Italy.", "qas": []},
        {"context": "Paris is in France.", "qas": []}]}]}"#;
    let hotpot = r#"[{"question": "Q?", "answer": "yes", "context": [
        ["A", ["One.", " Two."]], ["B", ["Three."]]]}]"#;
    let (one, two) = (Files::new("squad.json", squad), Files::new("hotpot.json", hotpot));
    let files = TaskFiles {
        squad: Some(one.0.join("squad.json")),
        hotpotqa: Some(two.0.join("hotpot.json")),
        ..TaskFiles::default()
    };
    let tasks = select(&["ruler-qa-1".into(), "ruler-qa-2".into()], &files).unwrap();
    assert_eq!(tasks[0].n_documents(10), 1, "one question has an answer");
    let sample = tasks[0].sample(&setting(1024, 1, 0)).unwrap();
    assert!(sample.document.contains("Document 2:\n"), "{}", sample.document);
    // Paragraphs that are there twice are one, as in RULER.
    assert_eq!(sample.document.matches("Rome is in Italy.").count(), 1);
    assert_eq!(sample.document.matches("Paris is in France.").count(), 1);
    assert_eq!(sample.questions[0].references, ["France", "in France"]);
    assert_eq!(sample.questions[0].metric.score("It is france.", &["France".into()]), 1.0);
    let sample = tasks[1].sample(&setting(1024, 1, 0)).unwrap();
    assert!(sample.document.contains(":\nA\nOne. Two."), "{}", sample.document);
    std::fs::write(one.0.join("squad.json"), "{}").unwrap();
    let broken = select(&["ruler-qa-1".into()], &files).err().unwrap().to_string();
    assert!(broken.contains("squad.json: is not as expected"), "{broken}");
}

#[test]
fn longbench_cuts_the_middle_and_keeps_the_question() {
    let context: String = (0..3000).map(|i| format!("word{i} ")).collect();
    let row = serde_json::json!({
        "input": "Where?", "context": context, "answers": ["here", "there"], "all_classes": null,
    });
    let files = Files::new("hotpotqa.jsonl", &format!("{row}\n{row}\n"));
    let tasks = TaskFiles { longbench: Some(files.0.clone()), ..TaskFiles::default() };
    let found = select(&["longbench".into()], &tasks).unwrap();
    assert_eq!(found.len(), 1, "only one data set has its file");
    assert_eq!((found[0].name(), found[0].n_documents(500)), ("longbench-hotpotqa", 2));
    let sample = found[0].sample(&setting(1000, 1, 1)).unwrap();
    let n = prompter().n_tokens(&sample).unwrap();
    assert!(n <= 1000 && n > 980, "{n}");
    assert!(sample.document.contains("word0 word1 ") && sample.document.contains("word2999"));
    assert!(!sample.document.contains("word1500"));
    assert!(sample.questions[0].ask.contains("Question: Where?\nAnswer:"));
    assert!(sample.chat);
    let long = found[0].sample(&setting(60_000, 1, 0)).unwrap();
    assert!(long.document.contains("word1500"));
}

#[test]
fn essays_of_a_folder_are_cut_at_sentences() {
    let text = "It rained. \"Oh!\" she said. Then it stopped, at last.";
    assert_eq!(split_sentences(text).len(), 4);
    let files = Files::new("book.txt", &text.repeat(3).replace("last.It", "last. It"));
    let source = TextSource::open(&files.0).unwrap();
    let setting = Setting { text: &source, ..setting(800, 1, 0) };
    let sample = task("ruler-niah-single-2").sample(&setting).unwrap();
    assert!(sample.document.matches("It rained.").count() > 5, "{}", sample.document);
}
