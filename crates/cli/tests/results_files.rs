//! Results files of `longview eval` and `longview probe`: who may go on with one, and what is in
//! it. A build without these commands refuses them, see `bad_input.rs`.

#![cfg(feature = "evaluation")]

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{Done, TempFolder, command, needle};

/// A copy of the embedded model in a folder of that name.
fn model(parent: &TempFolder, name: &str) -> PathBuf {
    let folder = parent.file(name);
    fs::create_dir_all(&folder).unwrap();
    for entry in fs::read_dir(needle()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::copy(&path, folder.join(path.file_name().unwrap())).unwrap();
        }
    }
    folder
}

/// `longview eval` of the model in the current folder.
fn eval(model: &Path, file: &Path, words: &[&str]) -> Done {
    let fixed = "eval --device cpu --tasks needle-passkey --lengths 512 --samples 1 -m . \
                 --policies full -o";
    let mut command = command(fixed.split_whitespace());
    command.current_dir(model).arg(file).args(words).output().unwrap().into()
}

#[test]
fn answers_of_another_model_or_recall_are_not_added() {
    let (here, there) = (TempFolder::new(), TempFolder::new());
    let file = here.file("answers.jsonl");
    let (one, other) = (model(&here, "one"), model(&here, "other"));
    eval(&one, &file, &[]).ok();
    eval(&one, &file, &["--recall", "exact"]).ok();
    let wrong = ["model one, this run has other"];
    eval(&other, &file, &[]).fails_with(&wrong);
    let speculative = ["--recall", "speculative", "--simulate-device"];
    let wrong = ["--recall exact, this run has speculative --recall-gate 0.9"];
    eval(&one, &file, &speculative).fails_with(&wrong);
    // The same name and another model.
    let namesake = model(&there, "one");
    let config = namesake.join("config.json");
    let text = fs::read_to_string(&config).unwrap();
    let changed = text.replacen("\"rope_theta\": ", "\"rope_theta\": 2", 1);
    assert_ne!(text, changed);
    fs::write(&config, changed).unwrap();
    eval(&namesake, &file, &[]).fails_with(&["was written with a model of fingerprint "]);
}

#[test]
fn ways_of_reading_are_compared_in_one_run_by_question() {
    let folder = TempFolder::new();
    let file = folder.file("answers.jsonl");
    let eval = |policies: &str, prefill: &str| -> Done {
        let fixed =
            "eval --device cpu --tasks needle-keys --lengths 2048 --samples 2 --budgets 256";
        let mut command = command(fixed.split_whitespace());
        command.args(["--policies", policies, "--prefill", prefill, "-o"]).arg(&file);
        command.output().unwrap().into()
    };
    let answers = || -> Vec<serde_json::Value> {
        let lines = fs::read_to_string(&file).unwrap();
        let all = lines.lines().map(|line| serde_json::from_str(line).unwrap());
        all.filter(|line: &serde_json::Value| line["kind"] == "answer").collect()
    };
    let table = eval("full,longview", "exact,sparse:0.9").ok();
    for words in [
        "longview:prefill=sparse:0.9",
        "points against --prefill exact, question by question",
        "longview, B = 256",
    ] {
        assert!(table.contains(words), "{words}: {table}");
    }
    // One row for each policy: a difference, questions better and worse, and blocks attended.
    let row = table.lines().find(|line| line.contains("longview, B = 256")).unwrap();
    assert!(row.contains(" +- ") && row.contains("), ") && row.ends_with(" %"), "{row}");
    // Each question is asked in both ways, and the same is right.
    let all = answers();
    let of = |how: Option<&str>| -> Vec<_> {
        let own = all.iter().filter(|answer| answer["options"]["prefill"].as_str() == how);
        own.map(|a| (a["policy"].clone(), a["sample"].clone(), a["references"].clone())).collect()
    };
    assert_eq!((of(None).len(), of(None)), (16, of(Some("sparse:0.9"))), "{all:?}");
    for answer in &all {
        let density = answer["prefill_density"].as_f64();
        let is_sparse = answer["options"]["prefill"].is_string();
        assert_eq!(density.is_some_and(|share| share < 1.0), is_sparse, "{answer}");
    }
    // One way more: what is there stays.
    eval("full,longview", "exact,sparse:0.9,sparse:0.3").ok();
    assert_eq!(answers()[..all.len()], all);
    assert_eq!(answers().len(), all.len() + 16);
    eval("full,h2o", "exact,sparse").fails_with(&["h2o", "--prefill sparse:0.1"]);
    eval("full", "exact,exact").refuses_usage(&["'exact' is given twice"]);
    eval("full", "exact,fast").refuses_usage(&["unknown way to read 'fast'"]);
    let words = ["run", "--prefill", "exact,sparse", "-p", "x"];
    let one: Done = command(words).output().unwrap().into();
    one.refuses_usage(&["unknown way to read 'exact,sparse'"]);
}

#[test]
fn probes_of_another_stretch_are_not_added_and_all_policies_are_probed() {
    let folder = TempFolder::new();
    let file = folder.file("probes.jsonl");
    let text = folder.write("text.txt", "The wind rose over the hills and the sea. ".repeat(60));
    let probe = |words: &[&str]| -> Done {
        let fixed = "probe --device cpu --lengths 384 --steps 2 --budgets 128 --policies \
                     infllm,full,h2o,clusterkv -o";
        let mut command = command(fixed.split_whitespace());
        command.arg(&file).arg("-f").arg(&text).args(words).output().unwrap().into()
    };
    probe(&[]).ok();
    let lines = fs::read_to_string(&file).unwrap();
    for policy in ["infllm", "full", "h2o", "clusterkv"] {
        let is_of = |line: &&str| {
            line.contains("\"perplexity\"") && line.contains(&format!("\"policy\":\"{policy}\""))
        };
        assert_eq!(lines.lines().filter(is_of).count(), 1, "{policy}");
    }
    let stretched = ["--rope-scaling", "linear", "--rope-scale", "2"];
    probe(&stretched).fails_with(&["--rope-scaling the model's, this run has linear"]);
    // What was minified elsewhere is no results file, and is left as it is.
    fs::write(&file, "{\"a\":[1,2]}").unwrap();
    probe(&[]).fails_with(&["probes.jsonl: is not a results file, it seems to be a JSON file"]);
    assert_eq!(fs::read_to_string(&file).unwrap(), "{\"a\":[1,2]}");
}
