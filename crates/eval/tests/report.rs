//! From a results file to a page that needs nothing else.

use std::fs;
use std::path::PathBuf;

use longview_eval::record::{Answer, PolicyLabel, Probe, Question, Record, Speed};
use longview_eval::report::{self, Chart, Data, ReportError};

/// A folder of this test alone.
fn folder(name: &str) -> PathBuf {
    let folder =
        std::env::temp_dir().join(format!("longview-report-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a temporary folder");
    folder
}

fn label(policy: &str, budget: usize) -> PolicyLabel {
    PolicyLabel { policy: policy.into(), budget, ..PolicyLabel::default() }
}

fn answer(task: &str, policy: PolicyLabel, length: usize, sample: usize, score: f64) -> Record {
    Record::Answer(Answer {
        task: task.into(),
        policy,
        length,
        sample,
        depth: Some(sample as f64 / 3.0),
        question: Question::Agnostic,
        score,
        ..Answer::default()
    })
}

/// Full attention is right in one task and wrong in the other; quest is right in half.
fn records() -> Vec<Record> {
    let mut all = Vec::new();
    for length in [4096, 8192] {
        for sample in 0..4 {
            all.push(answer("easy", label("full", 0), length, sample, 1.0));
            all.push(answer("hard", label("full", 0), length, sample, 0.0));
            all.push(answer("hard", label("quest", 256), length, sample, 0.0));
            for budget in [256, 512] {
                let score = f64::from(u8::from(sample % 2 == 0));
                all.push(answer("easy", label("quest", budget), length, sample, score));
            }
        }
    }
    for budget in [256, 512] {
        all.push(Record::Probe(Probe {
            text: "novel".into(),
            policy: label("quest", budget),
            length: 4096,
            steps: 2,
            recall: 0.25,
            recall_group: 0.75,
            recency: vec![None, Some(0.5)],
            ..Probe::default()
        }));
    }
    for context in [4096, 8192] {
        let step_s = context as f64 * 1e-7;
        let speed = Speed { policy: label("full", 0), context, step_s, ..Speed::default() };
        all.push(Record::Speed(speed));
    }
    all
}

fn write_lines(path: &PathBuf, records: &[Record], end: &str) {
    let line = |record| serde_json::to_string(record).expect("a record") + "\n";
    let text: String = records.iter().map(line).collect();
    fs::write(path, text + end).expect("a results file");
}

#[test]
fn a_results_file_becomes_a_page_with_plots_and_a_table() {
    let folder = folder("page");
    let path = folder.join("results.jsonl");
    // An answer that is there twice counts once, the later one; kinds that are not
    // known and a last line that was cut off are passed over.
    let mut all = records();
    let again = answer("easy", label("quest", 512), 4096, 1, 1.0);
    all.push(again);
    write_lines(&path, &all, "{\"kind\":\"of a later version\"}\n{\"kind\":\"answer\",\"ta");
    let data = Data::read(&[path]).expect("results");
    assert_eq!(data.answers.len(), 2 * 4 * 5);
    assert!(data.is_able("easy", 4096, Question::Agnostic));
    assert!(!data.is_able("hard", 4096, Question::Agnostic));
    let figures = data.figures();
    let find = |name: &str| {
        let all: Vec<_> = figures.iter().map(|f| f.name.as_str()).collect();
        figures.iter().find(|f| f.name == name).unwrap_or_else(|| panic!("{name} of {all:?}"))
    };
    let Chart::Lines { series, .. } = &find("score-easy-4096-agnostic").chart else {
        panic!("scores are lines")
    };
    let names: Vec<_> = series.iter().map(|s| (s.name.as_str(), s.is_reference)).collect();
    assert_eq!(names, [("quest", false), ("full", true)]);
    let points: Vec<_> = series[0].points.iter().map(|p| (p.x, p.y)).collect();
    assert_eq!(points, [(256.0, 0.5), (512.0, 0.75)]);
    assert_eq!(series[1].points.len(), 2, "full attention is there at every budget");
    assert!(find("score-hard-4096-agnostic").caption.contains("under 80 %"));
    let Chart::Heat { columns, rows, .. } = &find("depth-easy-quest-256").chart else {
        panic!("depths are a map")
    };
    assert_eq!((columns.len(), rows.len()), (2, 4));
    let Chart::Lines { series, .. } = &find("recall-novel-4096").chart else {
        panic!("recall is lines")
    };
    assert_eq!(series[1].points[0].y, 0.75, "what the group could reach");
    let Chart::Lines { series, .. } = &find("recency-novel-4096").chart else {
        panic!("recall by place is lines")
    };
    let points: Vec<_> = series[0].points.iter().map(|p| (p.x, p.y)).collect();
    assert_eq!(points, [(0.75, 0.5)], "where no top token lies there is no recall");
    for name in ["latency", "throughput", "step-shares", "recency-novel-4096"] {
        assert!(!find(name).caption.is_empty(), "{name} says how to read it");
    }

    let out = folder.join("report");
    let n = figures.len();
    let files = report::files(&data).expect("a report");
    assert_eq!(files.len(), 2 * n + 2);
    fs::create_dir_all(&out).expect("a folder");
    for file in files {
        fs::write(out.join(file.name), file.bytes).expect("a file of the report");
    }
    for figure in &figures {
        let png = fs::read(out.join(format!("{}.png", figure.name))).expect("a plot");
        assert_eq!(&png[1..4], b"PNG");
        let svg = fs::read_to_string(out.join(format!("{}.svg", figure.name))).expect("a plot");
        assert!(svg.contains("<svg") && svg.contains("<text"), "{} has text", figure.name);
    }
    let page = fs::read_to_string(out.join("index.html")).expect("a page");
    assert_eq!(page.matches("<figure ").count(), n);
    assert_eq!(page.matches("<details>").count(), n, "the numbers behind every plot");
    let bar = "<th></th><th>select, s</th><th>fetch, s</th><th>attend, s</th><th>rest, s</th>";
    assert!(page.contains(bar) && page.contains("<tr><td>full</td><td>0.000000</td>"), "{page}");
    assert!(!page.contains("src=") && !page.contains("href=\"http"), "nothing is fetched");
    let table = fs::read_to_string(out.join("scores.md")).expect("a table");
    assert!(table.contains("| quest, B = 512 | 75.0 (30-95) |"), "{table}");
    assert!(table.contains("hard *"), "{table}");
    fs::remove_dir_all(folder).expect("the test's own folder");
}

#[test]
fn what_is_no_results_file_is_named() {
    let folder = folder("bad");
    let missing = Data::read(&[folder.join("none.jsonl")]).unwrap_err();
    assert!(missing.to_string().contains("none.jsonl"), "{missing}");
    let path = folder.join("text.jsonl");
    fs::write(&path, "hello\nworld\n").expect("a file");
    let wrong = Data::read(std::slice::from_ref(&path)).unwrap_err();
    assert!(matches!(wrong, ReportError::Line { line: 1, .. }), "{wrong}");
    assert!(wrong.to_string().contains("text.jsonl, line 1"), "{wrong}");
    fs::write(&path, "").expect("a file");
    assert!(matches!(Data::read(&[path]).unwrap_err(), ReportError::Empty(_)));
    fs::remove_dir_all(folder).expect("the test's own folder");
}
