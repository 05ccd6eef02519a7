//! The binary among other processes: closed pipes, signals, and what belongs on stdout.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
#[cfg(unix)]
use std::time::{Duration, Instant};

use crate::support::{Done, TempFolder, command, longview, needle, run};

/// Enough of a template for a chat.
const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}\
                        {% if add_generation_prompt %}assistant:{% endif %}";

#[test]
fn a_closed_pipe_ends_quietly() {
    let model = needle();
    let model = model.to_str().unwrap();
    for words in [
        &["completions", "bash"][..],
        &["plan", "-m", model],
        &["run", "-m", model, "-p", "The", "-n", "64", "--ignore-eos"],
        &["demo", "--context", "1024", "--questions", "4"],
        &["doctor", "--json"],
    ] {
        let mut child = command(words).spawn().unwrap();
        drop(child.stdout.take());
        let done = Done::from(child.wait_with_output().unwrap());
        assert_eq!(done.code, Some(0), "{words:?}: {}", done.stderr);
        assert!(!done.stderr.contains("panicked") && !done.stderr.contains("error"), "{words:?}");
    }
}

#[test]
fn a_reader_that_leaves_after_a_line_is_no_error() {
    let mut child = command(["demo", "--context", "2048", "--questions", "8"]).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("A document of "), "{line}");
    let done = Done::from(child.wait_with_output().unwrap());
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

#[cfg(unix)]
fn interrupt(pid: u32) {
    let pid = pid.to_string();
    let status = std::process::Command::new("kill").args(["-INT", pid.as_str()]).status();
    assert!(status.unwrap().success());
}

/// A prefill of minutes.
#[cfg(unix)]
fn long_prefill() -> std::process::Child {
    let mut child = command(["demo", "--context", "131072"]).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("Clusters") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "the demo ended early");
    }
    // The introduction is printed before the model is loaded.
    std::thread::sleep(Duration::from_millis(1500));
    child
}

#[test]
#[cfg(unix)]
fn ctrl_c_in_prefill_says_what_was_kept() {
    let child = long_prefill();
    let start = Instant::now();
    interrupt(child.id());
    let done = Done::from(child.wait_with_output().unwrap());
    assert_eq!(done.code, Some(130), "{}", done.stderr);
    assert!(done.stderr.contains("interrupted: "), "{}", done.stderr);
    assert!(
        done.stderr.contains(" document tokens were computed; they are not kept"),
        "{}",
        done.stderr
    );
    let words = done.stderr.split("interrupted: ").nth(1).unwrap();
    let mut counts = words.split(" document tokens").next().unwrap().split(" of ");
    let mut count = || counts.next().unwrap().replace(',', "").parse::<usize>().unwrap();
    let (computed, total) = (count(), count());
    assert!(computed < total / 2, "{computed} of {total} in a second or two");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
#[cfg(unix)]
fn a_long_prefill_says_where_it_is_now_and_then() {
    let mut child = long_prefill();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let line = lines.find_map(|line| line.ok().filter(|line| line.starts_with("prefill: ")));
    interrupt(child.id());
    child.wait().unwrap();
    let line = line.expect("a line of progress");
    assert!(line.contains(" tokens/s, ") && line.ends_with(" left"), "{line}");
}

#[test]
#[cfg(unix)]
fn a_second_ctrl_c_ends_at_once() {
    let child = long_prefill();
    interrupt(child.id());
    interrupt(child.id());
    let done = Done::from(child.wait_with_output().unwrap());
    assert_eq!(done.code, Some(130), "{}", done.stderr);
}

#[test]
fn json_is_all_there_is_on_stdout() {
    let text = longview(["demo", "--context", "2048", "--questions", "8", "--json"]).ok();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["context_tokens"], 2048);
    assert_eq!(json["budget_tokens"], 512);
    assert_eq!(json["questions"], 8);
    let keys: Vec<&String> = json.as_object().unwrap().keys().collect();
    let expected =
        ["context_tokens", "budget_tokens", "questions", "full", "recall", "host_kv_bytes"];
    assert_eq!(keys, expected);
    assert!(json["recall"]["hit_rate"].as_f64().is_some_and(|rate| rate > 0.0 && rate < 1.0));
    let device = |part: &str| json[part]["device_kv_bytes"].as_u64().unwrap();
    assert!(device("recall") < device("full"));
}

#[test]
fn the_demo_tells_recall_from_forgetting() {
    let correct = |policy: &str| {
        let words = ["demo", "-c", "4096", "--json", "--policy", policy];
        let json: serde_json::Value = serde_json::from_str(&longview(words).ok()).unwrap();
        let of = |part: &str| json[part]["correct"].as_u64().unwrap();
        (of("full"), of("recall"))
    };
    let (full, recalled) = correct("longview");
    assert!(full >= 22, "full attention answers {full} of 24");
    assert!(recalled + 1 >= full, "longview answers {recalled}, full attention {full}");
    let (_, kept) = correct("streaming-llm");
    assert!(5 * kept <= 2 * full, "streaming-llm answers {kept}, full attention {full}");
}

#[test]
fn a_run_as_json_holds_the_tokens_of_the_text() {
    let words = ["-p", "The pass key is 12", "-n", "8", "--ignore-eos", "--json", "--stats"];
    let done = run(&needle(), &words);
    assert!(done.stderr.contains("tokens attended per step"), "{}", done.stderr);
    let json: serde_json::Value = serde_json::from_str(&done.ok()).unwrap();
    assert_eq!(json["generated_ids"].as_array().unwrap().len(), 8);
    assert_eq!(json["finish_reason"], "length");
    assert_eq!(json["prompt_ids"][0], 0, "the sequence begins with bos");
    let text = json["text"].as_str().unwrap();
    let words = ["-p", "The pass key is 12", "-n", "8", "--ignore-eos"];
    assert_eq!(run(&needle(), &words).ok(), format!("{text}\n"));
    let words = ["-p", "The pass key is 12", "-n", "0"];
    assert_eq!(run(&needle(), &words).ok(), "\n");
}

#[test]
fn a_file_and_a_prompt_are_one_text() {
    let folder = TempFolder::new();
    let path = folder.write("document.txt", "The wind rose over ");
    let ids = |words: &[&str]| {
        let words = [words, &["-n", "1", "--json"]].concat();
        let json: serde_json::Value = serde_json::from_str(&run(&needle(), &words).ok()).unwrap();
        json["prompt_ids"].clone()
    };
    let both = ["-f", path.to_str().unwrap(), "-p", "the hills."];
    // A user's message has the file first; without a template the text just goes on.
    assert_eq!(ids(&both), ids(&["-p", "The wind rose over \n\nthe hills."]));
    let plain = |words: &[&'static str]| ids(&[words, &["--no-chat-template"]].concat());
    let both = ids(&[&both[..], &["--no-chat-template"]].concat());
    assert_eq!(both, plain(&["-p", "The wind rose over the hills."]));
}

#[test]
fn a_chat_goes_on_from_what_is_computed() {
    let model = TempFolder::model();
    model.write("chat_template.jinja", TEMPLATE);
    let mut child = command(["run", "-m"])
        .arg(model.path())
        .args(["-n", "4", "--ignore-eos", "--stats", "-c", "64"])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let too_long = "word ".repeat(100);
    let turns =
        format!("Hello there, how are you on this fine morning by the river?\n{too_long}\nGood.\n");
    child.stdin.take().unwrap().write_all(turns.as_bytes()).unwrap();
    let done = Done::from(child.wait_with_output().unwrap());
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains("error: no room for this turn"), "{}", done.stderr);
    let prefilled = |line: &&str| line.strip_prefix("prefill  ")?.split(' ').next()?.parse().ok();
    let prefilled = |line: &str| -> Option<usize> { prefilled(&line) };
    let counts: Vec<usize> = done.stderr.lines().filter_map(prefilled).collect();
    assert_eq!(counts.len(), 2, "{}", done.stderr);
    assert!(counts[1] < counts[0], "only the new turn is computed: {counts:?}");
}

#[test]
fn a_template_is_applied_unless_it_is_declined() {
    let model = TempFolder::model();
    model.write("chat_template.jinja", TEMPLATE);
    let json = |words: &[&str]| {
        let words = [words, &["-p", "Hi", "-n", "1", "--json"]].concat();
        let text = run(model.path(), &words).ok();
        serde_json::from_str::<serde_json::Value>(&text).unwrap()
    };
    let (with, without) = (json(&[]), json(&["--no-chat-template"]));
    assert_eq!((&with["chat_template"], &without["chat_template"]), (&true.into(), &false.into()));
    let n = |json: &serde_json::Value| json["prompt_ids"].as_array().unwrap().len();
    assert!(n(&with) > n(&without));
    assert!(n(&json(&["--system", "Be brief."])) > n(&with));
}

#[test]
fn a_plan_covers_every_policy_and_kv_type() {
    let model = needle();
    let words = ["plan", "-m", model.to_str().unwrap(), "-c", "131072"];
    let table = longview(words).ok();
    for part in ["weights", "index", "longview", "streaming-llm", "keys and values", "bf16", "q8"] {
        assert!(table.contains(part), "{part} is not in:\n{table}");
    }
    let text = longview(words.into_iter().chain(["--json"])).ok();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let plans = json["plans"].as_array().unwrap();
    assert_eq!(plans.len(), 12);
    for plan in plans {
        let of = |key: &str| plan[key].as_u64().unwrap();
        assert_eq!(of("device_bytes") + of("host_bytes"), of("total_bytes"));
        assert!(of("weight_bytes") > 8_600_000 && of("weight_bytes") < 8_669_480);
    }
    let device = |i: usize| plans[i]["device_bytes"].as_u64().unwrap();
    assert!(device(1) < device(0), "longview keeps less on the device than full attention");
}

#[test]
fn doctor_names_what_is_missing_and_why() {
    let text = longview(["doctor"]).ok();
    // The adapters depend on the machine; each says how its shader levels fare.
    let n_adapters = text.lines().filter(|line| line.starts_with("adapter ")).count();
    let levels = text.lines().filter(|line| line.trim_start().starts_with("shader level core: "));
    assert_eq!(levels.count(), n_adapters, "{text}");
    assert!(text.contains("model      embedded: loads and answers"), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&longview(["doctor", "--json"]).ok()).unwrap();
    assert_eq!(json["backends"][0]["available"], true);
    assert!(json["embedded_model_error"].is_null());
}

#[test]
fn version_and_completions() {
    assert!(longview(["--version"]).ok().starts_with("longview "));
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = longview(["completions", shell]).ok();
        for word in ["cluster-tokens", "hf-repo", "pull", "rm"] {
            assert!(script.contains(word), "{word} for {shell}");
        }
    }
}
