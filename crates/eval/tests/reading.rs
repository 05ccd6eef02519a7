//! What a report takes from results files: each measurement once, failures that stay, and nothing
//! that cannot be put beside the rest.

use std::fs;
use std::path::{Path, PathBuf};

use longview_eval::record::{
    Answer, Cache, Failure, Perplexity, PolicyLabel, Probe, Question, Record, Run, Spectrum, Speed,
};
use longview_eval::report::{self, Chart, Data, ReportError};

/// A folder of one test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("longview-reading-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str, records: &[Record]) -> PathBuf {
        let line = |record| serde_json::to_string(record).unwrap() + "\n";
        let path = self.0.join(name);
        fs::write(&path, records.iter().map(line).collect::<String>()).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn label(policy: &str, budget: usize) -> PolicyLabel {
    PolicyLabel { policy: policy.into(), budget, ..PolicyLabel::default() }
}

fn answer(task: &str, policy: PolicyLabel, sample: usize, score: f64) -> Answer {
    let (question, length) = (Question::Agnostic, 4096);
    Answer { task: task.into(), policy, length, sample, question, score, ..Answer::default() }
}

fn run(model: &str, settings: &[(&str, &str)]) -> Record {
    let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    Record::Run(Run {
        model: model.into(),
        settings: settings.iter().map(pair).collect(),
        ..Run::default()
    })
}

fn read(paths: &[&Path]) -> Result<Data, ReportError> {
    Data::read(&paths.iter().map(|path| path.to_path_buf()).collect::<Vec<_>>())
}

#[test]
fn files_of_two_models_or_settings_are_refused() {
    let folder = Folder::new("mixed");
    let said = |task: &str| Record::Answer(answer(task, label("full", 0), 0, 1.0));
    let probe = || Record::Perplexity(Perplexity { tokens: 1, ..Perplexity::default() });
    let plain = folder.file("plain", &[run("m", &[("--depths", "10")]), said("needle"), probe()]);
    let refused = |name: &str, records: &[Record]| {
        let error = read(&[&plain, &folder.file(name, records)]).unwrap_err().to_string();
        assert!(error.contains("plain and ") && error.contains(name), "{error}");
        error
    };
    let error = refused("answers", &[run("other", &[]), said("another")]);
    assert!(error.contains("model m in the one, other in the other"), "{error}");
    assert!(refused("probes", &[run("other", &[]), probe()]).contains("model m"));
    let marked = |fingerprint: &str| {
        Record::Run(Run { model: "m".into(), fingerprint: fingerprint.into(), ..Run::default() })
    };
    let both = [marked("ab"), probe(), marked("cd"), probe()];
    // A file that does not tell it apart does not hide that others do.
    let error = read(&[&plain, &folder.file("marks", &both)]).unwrap_err().to_string();
    assert!(error.contains("a model of fingerprint ab in the one, cd in the other"), "{error}");
    let stretched = run("m", &[("--rope-scaling", "linear")]);
    assert!(refused("stretched", &[stretched.clone(), said("needle")]).contains("--rope-scaling"));
    // Other settings for another task, and settings of other tasks, keep nothing from comparing.
    let other = [stretched, said("another"), probe()];
    let depths = [run("m", &[("--depths", "20"), ("--recall", "exact")]), said("needle")];
    let (other, depths) = (folder.file("other", &other), folder.file("depths", &depths));
    assert_eq!(read(&[&plain, &other, &depths]).unwrap().answers.len(), 2);
}

#[test]
fn what_was_measured_again_counts_once_and_last() {
    let folder = Folder::new("again");
    let at = label("quest", 256);
    let all = |value: f64| {
        let (policy, text) = (at.clone(), "novel".to_owned());
        let probe =
            Probe { recall: value, text: text.clone(), policy: policy.clone(), ..Probe::default() };
        vec![
            run("m", &[]),
            Record::Probe(Probe { head: 1, ..probe.clone() }),
            Record::Probe(probe),
            Record::Perplexity(Perplexity {
                text: text.clone(),
                policy: policy.clone(),
                nll: value,
                ..Perplexity::default()
            }),
            Record::Cache(Cache {
                text: text.clone(),
                policy: policy.clone(),
                hits: (10.0 * value) as u64,
                ..Cache::default()
            }),
            Record::Spectrum(Spectrum { text, values: vec![value], ..Spectrum::default() }),
            Record::Speed(Speed { policy, step_s: value, ..Speed::default() }),
        ]
    };
    let (first, again) = (folder.file("first", &all(0.5)), folder.file("again", &all(0.75)));
    let data = read(&[&first, &again]).unwrap();
    let recalls: Vec<f64> = data.probes.iter().map(|p| p.recall).collect();
    assert_eq!(recalls, [0.75, 0.75], "heads 0 and 1");
    assert_eq!((data.perplexities.len(), data.perplexities[0].nll), (1, 0.75));
    assert_eq!((data.caches.len(), data.caches[0].hits), (1, 7));
    assert_eq!((data.spectra.len(), data.spectra[0].values[0]), (1, 0.75));
    assert_eq!((data.speeds.len(), data.speeds[0].step_s), (1, 0.75));
}

#[test]
fn failures_that_were_mended_are_gone_and_the_others_say_who_failed() {
    let folder = Folder::new("failures");
    let at = label("quest", 256);
    let failure = |sample: usize, index: usize| Failure {
        task: "t".into(),
        policy: Some(at.clone()),
        length: 4096,
        sample,
        question: Some(Question::Agnostic),
        index: Some(index),
        seed: Some(0),
        error: "too hot".into(),
    };
    let old =
        |sample: usize| Failure { question: None, index: None, seed: None, ..failure(sample, 0) };
    let whole = |sample: usize| Failure { policy: None, ..old(sample) };
    let said = |sample: usize, index: usize| {
        Record::Answer(Answer { index, ..answer("t", at.clone(), sample, 1.0) })
    };
    let failed = Record::Failure;
    let file = folder.file(
        "results",
        &[
            run("m", &[]),
            failed(failure(0, 0)),
            failed(failure(0, 1)),
            failed(failure(0, 2)),
            failed(old(1)),
            failed(whole(2)),
            failed(whole(3)),
            // Another question of the same run mends nothing.
            said(3, 1),
            run("m", &[]),
            said(0, 0),
            failed(failure(0, 1)),
            said(1, 0),
            said(2, 0),
        ],
    );
    let data = read(&[&file]).unwrap();
    let left: Vec<_> = data.failures.iter().map(|f| (f.sample, f.index)).collect();
    assert_eq!(left, [(0, Some(1)), (0, Some(2)), (3, None)]);
    let files = report::files(&data).unwrap();
    let page = String::from_utf8(files.last().unwrap().bytes.clone()).unwrap();
    assert!(page.contains("2 answers failed, 1 sample failed for all policies"), "{page}");
    let line = "<li>t, 4096 tokens, document 0, question 1: quest B=256: too hot</li>";
    assert_eq!(page.matches(line).count(), 1, "{page}");
}

#[test]
fn a_line_that_was_cut_inside_of_a_letter_is_passed_over() {
    let folder = Folder::new("cut");
    let file = folder.file("results", &[Record::Answer(answer("t", label("full", 0), 0, 1.0))]);
    let mut bytes = fs::read(&file).unwrap();
    let whole = bytes.clone();
    bytes.extend("{\"kind\":\"answer\",\"task\":\"\u{fc}".as_bytes());
    bytes.pop();
    fs::write(&file, &bytes).unwrap();
    assert_eq!(read(&[&file]).unwrap().answers.len(), 1);
    // A whole record without line break is one; what is none is named with its line.
    fs::write(&file, [&whole[..], whole.trim_ascii_end()].concat()).unwrap();
    assert_eq!(read(&[&file]).unwrap().answers.len(), 1);
    fs::write(&file, [&whole[..], b"hello"].concat()).unwrap();
    assert!(matches!(read(&[&file]).unwrap_err(), ReportError::Line { line: 2, .. }));
}

#[test]
fn all_tasks_count_alike_and_a_policy_that_lacks_one_is_not_among_them() {
    let folder = Folder::new("all");
    let mut all = Vec::new();
    for sample in 0..9 {
        all.push(answer("many", label("full", 0), sample, 1.0));
        all.push(answer("many", label("quest", 256), sample, 1.0));
        all.push(answer("many", label("loki", 256), sample, 1.0));
    }
    all.push(answer("few", label("full", 0), 0, 1.0));
    all.push(answer("few", label("quest", 256), 0, 0.0));
    let all: Vec<Record> = all.into_iter().map(Record::Answer).collect();
    let data = read(&[&folder.file("results", &all)]).unwrap();
    let figures = data.figures();
    let of_all = figures.iter().find(|f| f.name == "score-all-4096-agnostic").unwrap();
    let Chart::Lines { series, .. } = &of_all.chart else { panic!("scores are lines") };
    let lines: Vec<_> = series.iter().map(|s| (s.name.as_str(), s.points[0].y)).collect();
    assert_eq!(lines, [("quest", 0.5), ("full", 1.0)]);
    let table = data.markdown();
    assert!(table.contains("| policy | few, n = 1 | many, n = 9 | all, n = 10 |"), "{table}");
    assert!(table.contains("| loki, B = 256 | - | 100.0 (70-100) | - |"), "{table}");
    assert!(table.contains("| quest, B = 256 | 0.0 (0-79) | 100.0 (70-100) | 50.0 ("), "{table}");
}

#[test]
fn full_attention_alone_has_a_table_and_no_empty_plots() {
    let folder = Folder::new("full");
    let all = ["a", "b"].map(|task| Record::Answer(answer(task, label("full", 0), 0, 1.0)));
    let data = read(&[&folder.file("results", &all)]).unwrap();
    assert_eq!(data.figures(), []);
    assert!(data.markdown().contains("| full | 100.0 "), "{}", data.markdown());
}

#[test]
fn heat_maps_and_hits_are_of_one_kind_each() {
    let folder = Folder::new("kinds");
    let mut all = Vec::new();
    for question in [Question::Aware, Question::Agnostic] {
        for (sample, length) in [(0, 4096), (1, 4096), (0, 8192), (1, 8192)] {
            let score = f64::from(u8::from(question == Question::Aware));
            let depth = Some(sample as f64);
            let answer = answer("niah", label("quest", 256), sample, score);
            all.push(Record::Answer(Answer { question, length, depth, ..answer }));
        }
    }
    for (text, budget, hits) in [("novel", 256, 1), ("novel", 512, 3), ("code", 256, 2)] {
        let (text, policy) = (text.to_owned(), label("quest", budget));
        all.push(Record::Cache(Cache {
            text,
            policy,
            cache_steps: 1,
            length: 4096,
            hits,
            misses: 4 - hits,
            ..Cache::default()
        }));
    }
    let data = read(&[&folder.file("results", &all)]).unwrap();
    let figures = data.figures();
    let find = |name: &str| {
        let all: Vec<_> = figures.iter().map(|f| f.name.as_str()).collect();
        figures.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("{name} of {all:?}"))
    };
    for (slug, score, about) in
        [("aware", 1.0, "question in the prompt"), ("agnostic", 0.0, "question after the choice")]
    {
        let map = find(&format!("depth-niah-quest-256-{slug}"));
        assert!(map.caption.contains(about), "{}", map.caption);
        let Chart::Heat { values, .. } = &map.chart else { panic!("depths are a map") };
        assert!(values.iter().flatten().all(|value| *value == Some(score)), "{slug}: {values:?}");
    }
    for (name, share) in
        [("hits-novel-4096-256", 0.25), ("hits-novel-4096-512", 0.75), ("hits-code-4096-256", 0.5)]
    {
        let Chart::Lines { series, .. } = &find(name).chart else { panic!("hits are lines") };
        let lines: Vec<_> = series.iter().map(|s| (s.name.as_str(), s.points[0].y)).collect();
        assert_eq!(lines, [("quest", share)], "{name}");
    }
    assert!(find("hits-code-4096-256").title.ends_with(", B = 256, code"));
}

#[test]
fn files_of_before_can_be_read() {
    let folder = Folder::new("before");
    let file = folder.0.join("old.jsonl");
    let at = |mut line: serde_json::Value| {
        let of_head = serde_json::json!({
            "policy": "quest", "budget": 256, "length": 9, "layer": 0, "head": 0,
        });
        line.as_object_mut().unwrap().extend(of_head.as_object().unwrap().clone());
        line.to_string()
    };
    let lines = [
        serde_json::json!({
            "kind": "run", "command": "c", "model": "m", "version": "0", "machine": "x",
            "device": "cpu", "kv_type": "f16", "seed": 0,
        })
        .to_string(),
        serde_json::json!({"kind": "failure", "task": "t", "length": 9, "sample": 0, "error": "e"})
            .to_string(),
        at(serde_json::json!({
            "kind": "probe", "text": "n", "steps": 1, "recall": 0.5, "recall_group": 0.5,
            "mass": 0.5, "mass_best": 0.5, "error": 0.1, "loss_bound": 1.0, "recency": [0.0, 0.5],
        })),
        at(serde_json::json!({"kind": "cache", "cache_steps": 1, "hits": 1, "misses": 1})),
    ];
    fs::write(&file, lines.join("\n") + "\n").unwrap();
    let data = read(&[&file]).unwrap();
    assert_eq!((data.failures.len(), data.probes.len(), data.caches.len()), (1, 1, 1));
    assert_eq!(data.probes[0].recency, [Some(0.0), Some(0.5)]);
    assert!(data.figures().iter().any(|f| f.name.starts_with("hits-9-")));
}
