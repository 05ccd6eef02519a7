//! `longview plan`: what fits, by which number it does not, and advice that works.

use serde_json::Value;

use crate::support::{Done, TempFolder, command, longview, needle, run};

fn plan(words: &[&str]) -> Done {
    let model = needle();
    let fixed = ["plan", "--device", "cpu", "-m", model.to_str().unwrap()];
    longview([&fixed, words].concat())
}

fn verdicts(words: &[&str]) -> Vec<Value> {
    let text = plan(&[words, &["--json"]].concat()).ok();
    let json: Value = serde_json::from_str(&text).unwrap();
    json["verdicts"].as_array().unwrap().clone()
}

#[test]
fn a_context_that_no_machine_holds_does_not_fit() {
    let text = plan(&["-c", "1000000000"]).ok();
    for policy in ["full", "longview", "streaming-llm"] {
        let start = format!("  {policy} ");
        let line = text.lines().find(|line| line.starts_with(&start) && line.contains("fit"));
        let line = line.unwrap_or_else(|| panic!("no verdict on {policy}: {text}"));
        for part in ["does not fit: ", "TiB of memory needed", " too much; ", "largest context "] {
            assert!(line.contains(part), "{part} is not in: {line}");
        }
    }
    for verdict in verdicts(&["-c", "1000000000"]) {
        assert_eq!((&verdict["place"], &verdict["fits"]), (&"here".into(), &false.into()));
        assert!(verdict["needed_bytes"].as_u64() > verdict["available_bytes"].as_u64());
        let largest = verdict["largest_context_tokens"].as_u64().unwrap();
        assert!(largest > 4096 && largest < 1_000_000_000, "{largest}");
    }
}

#[test]
fn a_plan_for_documents_is_as_long_as_they_are() {
    let folder = TempFolder::new();
    let text = "The miller carried a basket of straw to the old barn. ".repeat(40);
    folder.write("a.txt", &text);
    folder.write("b.txt", &text);
    let file = |name: &str| folder.file(name).display().to_string();
    let (a, b) = (file("a.txt"), file("b.txt"));
    let context = |words: &[&str]| {
        let text = plan(&[words, &["--json"]].concat()).ok();
        let json: Value = serde_json::from_str(&text).unwrap();
        json["context_tokens"].as_u64().unwrap()
    };
    let (one, both) = (context(&["-f", &a]), context(&["-f", &a, "-f", &b]));
    // As many as `kv build` reads of the same files.
    let mut build = command(["kv", "--library", &file("library"), "build", &a, &b, "-m"]);
    build.arg(needle()).args(["--device", "cpu"]);
    Done::from(build.output().unwrap()).ok();
    let list = longview(["kv", "--library", &file("library"), "ls", "--json"]).ok();
    let list: Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["documents"][0]["sessions"][0]["document_tokens"], both, "{list}");
    assert!(one > 400 && both > 2 * one - 20 && both < 2 * one + 20, "{one} {both}");
    let said = plan(&["-f", &a]).ok();
    assert!(said.contains(&format!("context {one} tokens")), "{said}");
    plan(&["-f", &a, "-c", "4096"]).refuses_usage(&["--file", "--ctx-size"]);
    plan(&["-f", &file("none.txt")]).fails_with(&["-f ", "none.txt", "cannot be read"]);
}

#[test]
fn what_fits_says_so() {
    let text = plan(&["-c", "4096"]).ok();
    assert!(text.contains("\nverdict here (cpu), with "), "{text}");
    assert!(text.contains("  longview       fits; largest context "), "{text}");
    assert!(verdicts(&["-c", "4096"]).iter().all(|verdict| verdict["fits"] == true));
    assert!(plan(&[]).ok().contains("context 131,072 tokens"), "the model's own");
}

#[test]
fn device_memory_is_respected() {
    let all = verdicts(&["-c", "65536", "--device-memory", "1MiB"]);
    assert!(all.iter().all(|verdict| verdict["fits"] == false), "{all:?}");
    assert!(all.iter().any(|verdict| verdict["short_of"] == "device memory"));
    let text = plan(&["-c", "65536", "--device-memory", "1MiB"]).ok();
    assert!(text.contains("no option makes it fit; no context fits"), "{text}");
    let all = verdicts(&["-c", "65536", "--device-memory", "128MiB"]);
    let on_device = |policy: &str| {
        let found = all.iter().find(|v| v["policy"] == policy && v["place"] == "device");
        found.unwrap_or_else(|| panic!("{policy}: {all:?}"))["fits"].clone()
    };
    assert_eq!((on_device("full"), on_device("longview")), (false.into(), true.into()));
    plan(&["--device-memory", "0"]).refuses_usage(&["--device-memory"]);
}

#[test]
fn advice_of_a_plan_and_of_an_error_works() {
    let mut n_followed = 0;
    for (policy, words) in [
        ("full", &["-c", "65536", "--device-memory", "64MiB"][..]),
        ("longview", &["-c", "65536", "--device-memory", "64MiB", "--kv-type", "f32"]),
        ("clusterkv", &["-c", "65536", "--device-memory", "64MiB", "--kv-type", "f32"]),
        ("streaming-llm", &["-c", "2048", "--chunk-size", "8192", "--device-memory", "64MiB"]),
    ] {
        let all = verdicts(&[words, &["--policies", policy]].concat());
        let here = all.iter().find(|verdict| verdict["place"] == "here").unwrap();
        assert_eq!(here["fits"], false, "{here}");
        let ask = |options: &str| {
            let options: Vec<&str> = options.split(' ').filter(|word| !word.is_empty()).collect();
            // What is given twice is an error: advice goes in place of it.
            let mut kept = Vec::new();
            for pair in words.chunks(2) {
                let long = if pair[0] == "-c" { "--ctx-size" } else { pair[0] };
                if !options.contains(&long) {
                    kept.extend_from_slice(pair);
                }
            }
            let named = ["--policy", policy];
            let policy = if options.contains(&"--policy") { &[][..] } else { &named };
            let fixed = ["--device", "cpu", "-p", "x", "-n", "1"];
            run(&needle(), &[&fixed, policy, &kept, &options].concat())
        };
        let refused = ask("");
        let options = here["options"].as_array().unwrap();
        assert!(!options.is_empty(), "{here}");
        for option in options {
            let option = option.as_str().unwrap();
            assert!(refused.stderr.contains(option), "{option} is not in: {}", refused.stderr);
            ask(option).ok();
            n_followed += 1;
        }
        refused.fails_with(&["not enough memory: ", " are available; use "]);
    }
    assert!(n_followed >= 3, "{n_followed}");
}

/// Times are those of this machine; that longer contexts take longer holds on any.
#[test]
fn plan_measures_what_reading_and_answering_take() {
    let words = ["-c", "8192", "--time", "--policies", "full,longview,h2o"];
    let text = plan(&[&words[..], &["--json"]].concat()).ok();
    let json: Value = serde_json::from_str(&text).unwrap();
    let seconds = json["seconds"].as_array().unwrap();
    let of = |policy: &str, what: &str| -> Vec<Option<f64>> {
        let of_policy = seconds.iter().filter(|s| s["policy"] == policy);
        of_policy.map(|seconds| seconds[what].as_f64()).collect()
    };
    for (policy, what) in [("full", "read_s"), ("full", "step_s"), ("longview", "read_s")] {
        let [Some(short), Some(long)] = of(policy, what)[..] else { panic!("{policy} {what}") };
        assert!(0.0 < short && short < long, "{policy} {what}: {short} and {long}");
    }
    // Up to here the default attends to everything, too.
    assert_eq!(of("longview", "step_s"), of("full", "step_s"));
    assert_eq!(of("h2o", "read_s"), [None, None], "it needs a prompt that was read under it");
    let table = plan(&words).ok();
    for part in ["time here", "reading", "answering, tokens/s", "  8,192 tokens"] {
        assert!(table.contains(part), "no '{part}' in\n{table}");
    }
}
