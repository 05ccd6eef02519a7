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
