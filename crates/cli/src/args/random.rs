//! Random command lines: each gives options that work, or a message that names one of them.

use clap::{CommandFactory, FromArgMatches, Parser};
use longview_core::SplitMix64;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineError, EngineOptions, Memory, Sampler};
use longview_model::folder::ModelFolder;
use longview_model::generation::GenerationDefaults;

use super::numbers;
use super::{EngineArgs, PolicyArgs, RopeArgs, SamplingArgs};

const N_LINES: usize = 10_000;

#[derive(Parser)]
#[command(no_binary_name = true)]
struct Line {
    #[arg(long, default_value = "4096", value_parser = numbers::tokens)]
    ctx_size: usize,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    engine: EngineArgs,
    #[command(flatten)]
    rope: RopeArgs,
    #[command(flatten)]
    policy: PolicyArgs,
}

/// Options of every kind but those of single policies, which the scheduler's tests draw, with
/// values that suit them.
const OPTIONS: [(&str, &[&str]); 25] = [
    ("--ctx-size", &["1", "16", "4096", "1073741824"]),
    ("--temp", &["0", "0.5", "100"]),
    ("--top-k", &["0", "1", "100"]),
    ("--top-p", &["0.5", "1", "1e-30"]),
    ("--min-p", &["0", "0.5", "1"]),
    ("--repeat-penalty", &["0.5", "1", "1000"]),
    ("--repeat-last-n", &["-1", "0", "4096"]),
    ("--seed", &["-1", "0", "18446744073709551615"]),
    ("--stop", &["x", "1,000"]),
    ("--draft", &["lookup", "off"]),
    ("--kv-type", &["f16", "f32", "q8"]),
    ("--activations", &["int16", "int8", "bf16", "f32"]),
    ("--prefill", &["exact", "sparse", "sparse:0.5"]),
    ("--chunk-size", &["1", "16", "65536"]),
    ("--recall", &["exact", "speculative"]),
    ("--recall-gate", &["-1", "0.5", "2"]),
    ("--device", &["auto", "cpu"]),
    ("--cuda-device", &["0", "1"]),
    ("--device-memory", &["12MB", "64MB", "512MiB"]),
    ("--threads", &["0", "1", "1024"]),
    ("--rope-scaling", &["none", "linear"]),
    ("--rope-scale", &["1", "2", "1000"]),
    ("--yarn-orig-ctx", &["1", "4096"]),
    ("--policy", &["full", "longview", "clusterkv", "h2o"]),
    ("--budget", &["auto", "16", "4096"]),
];

/// Ends of ranges and what is beyond them, names, and what is no value at all.
const VALUES: &str = "\
    0 1 -1 2 0.5 -2 16 100 101 1000 1001 1024 1025 4096 65536 65537 1073741824 1073741825 \
    18446744073709551615 18446744073709551616 nan inf -inf 1e30 1e-30 x 1,000 f16 f32 q8_0 \
    speculative yarn 512MiB 12MB 64GB";

/// Where the embedded model lies in this repository.
fn folder() -> ModelFolder {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/needle");
    ModelFolder::open(path.as_ref()).unwrap()
}

/// One to four options, each once, with values.
fn draw(rng: &mut SplitMix64) -> Vec<(&'static str, String)> {
    let n_options = 1 + rng.below(4);
    let options = rng.distinct(OPTIONS.len(), n_options);
    // An empty value is one too.
    let values: Vec<&str> = VALUES.split(' ').chain([""]).collect();
    let value = |rng: &mut SplitMix64, own: &[&str]| {
        let all = if rng.below(4) == 0 { values.as_slice() } else { own };
        all[rng.below(all.len())].to_owned()
    };
    let option = |i: u32| OPTIONS[i as usize];
    options.into_iter().map(option).map(|(name, own)| (name, value(rng, own))).collect()
}

/// What the grammar makes of options, or its message.
fn read(command: &clap::Command, given: &[(&'static str, String)]) -> Result<Line, String> {
    let words = given.iter().map(|(name, value)| format!("{name}={value}"));
    let matches = command.clone().try_get_matches_from(words).map_err(|e| e.to_string())?;
    Line::from_arg_matches(&matches).map_err(|e| e.to_string())
}

/// Plans a run of the embedded model with the memory that `--device-memory` says.
fn plan(line: &Line, backend: &CpuBackend, folder: &ModelFolder) -> Result<(), EngineError> {
    let rope = line.rope.scaling(&folder.config);
    let options = EngineOptions { rope, ..line.engine.options(line.ctx_size) };
    let memory = Memory { device: options.device_memory, host: None };
    let policy = line.policy.options().expect("the grammar has checked it");
    Engine::check_memory(backend, folder, &options, &policy, memory).map(drop)
}

/// A token of a small vocabulary is chosen.
fn samples(line: &Line, rng: &mut SplitMix64) {
    let params = line.sampling.params(&GenerationDefaults::default(), None).sampling;
    let logits: Vec<f32> = (0..64).map(|_| 20.0 * rng.next_normal()).collect();
    let mut sampler = Sampler::new(params, logits.len()).expect("the grammar has checked it");
    let token = sampler.sample(&logits, &[1, 2, 3]).expect("logits are numbers");
    assert!((token as usize) < logits.len());
}

/// The options after `advice`, such as `--chunk-size 64 --ctx-size 2048`.
fn after(given: &[(&'static str, String)], advice: &str) -> Vec<(&'static str, String)> {
    let mut changed = given.to_vec();
    let words: Vec<&str> = advice.split(' ').collect();
    for pair in words.chunks(2) {
        let found = OPTIONS.iter().find(|(name, _)| *name == pair[0]);
        let (name, _) = found.expect("an option that is drawn");
        changed.retain(|(known, _)| known != name);
        changed.push((name, pair[1].to_owned()));
    }
    changed
}

#[test]
fn every_line_works_or_is_told_what_would() {
    let (command, folder) = (Line::command(), folder());
    let backend = CpuBackend::new(CpuOptions::default()).unwrap();
    let mut rng = SplitMix64::new(18);
    let (mut n_read, mut n_planned, mut n_advised) = (0, 0, 0);
    for _ in 0..N_LINES {
        let given = draw(&mut rng);
        let line = match read(&command, &given) {
            Ok(line) => line,
            Err(message) => {
                let is_named = given.iter().any(|(name, _)| message.contains(name));
                assert!(is_named && message.starts_with("error: "), "{given:?}: {message}");
                continue;
            }
        };
        n_read += 1;
        samples(&line, &mut rng);
        match plan(&line, &backend, &folder) {
            Ok(()) => n_planned += 1,
            Err(EngineError::Memory { advice, .. }) => {
                for words in advice.options() {
                    let line = read(&command, &after(&given, &words));
                    let line = line.unwrap_or_else(|e| panic!("{given:?}, then {words}: {e}"));
                    let result = plan(&line, &backend, &folder);
                    assert!(result.is_ok(), "{given:?}, then {words}: {result:?}");
                    n_advised += 1;
                }
            }
            Err(error) => {
                let message = error.to_string();
                let is_named = given.iter().any(|(name, _)| message.contains(name));
                assert!(is_named, "{given:?}: {message}");
            }
        }
    }
    let counts = (n_read, n_planned, n_advised);
    let is_enough = n_read > N_LINES / 4 && n_planned > N_LINES / 5 && n_advised > 100;
    assert!(is_enough, "of {N_LINES} were read, planned, advised: {counts:?}");
}

/// Names of models and of what is none, for `pull`, `rm` and `-hf`.
const NAMES: [&str; 24] = [
    "org/model",
    "gpt2",
    "org/model:Q4_K_M",
    "org/model@main",
    "org/model:q8_0@v1",
    "org/model@refs/pr/1",
    "",
    "/",
    "//",
    "..",
    "../x",
    "a/b/c",
    "/etc/passwd",
    "a\\b",
    "C:\\x",
    "a/b:",
    "a/b@",
    "a/b:x:y",
    "a/b@../..",
    "a--b/c",
    "é/ü",
    "a\u{1b}[31m/b",
    "a b/c",
    "https://hub/a/b",
];

/// Words of a command about models by name.
fn draw_words(rng: &mut SplitMix64) -> Vec<&'static str> {
    let commands = ["pull", "ls", "rm", "run", "plan"];
    let mut words = vec![commands[rng.below(commands.len())]];
    for _ in 0..rng.below(4) {
        let options = ["--offline", "--json", "--hf-repo", "--hf-file", "-m", "--"];
        let word = if rng.below(2) == 0 {
            NAMES[rng.below(NAMES.len())]
        } else {
            options[rng.below(options.len())]
        };
        words.push(word);
    }
    words
}

#[test]
fn every_line_with_a_name_works_or_is_refused() {
    let grammar = crate::app::Cli::command();
    let mut rng = SplitMix64::new(19);
    let mut n_read = 0;
    for _ in 0..N_LINES {
        let words = draw_words(&mut rng);
        let line = std::iter::once("longview").chain(words.iter().copied());
        match grammar.clone().try_get_matches_from(line) {
            Ok(_) => n_read += 1,
            Err(error) => {
                let text = error.render().to_string();
                assert!(text.starts_with("error: ") && error.exit_code() == 2, "{words:?}: {text}");
            }
        }
    }
    assert!((N_LINES / 20..N_LINES / 2).contains(&n_read), "{n_read} of {N_LINES} were read");
}
