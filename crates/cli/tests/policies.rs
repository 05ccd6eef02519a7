//! `longview policies`, and policies that are named on a command line or in a file.

use serde_json::Value;

use crate::support::{TempFolder, longview, needle, run};

/// Every policy of this release.
const NAMES: [&str; 15] = [
    "full",
    "clusterkv",
    "longview",
    "streaming-llm",
    "quest",
    "infllm",
    "ktransformers",
    "loki",
    "infinigen",
    "lrqk",
    "snapkv",
    "pyramidkv",
    "ada-snapkv",
    "ada-pyramid",
    "h2o",
];

#[test]
fn the_list_says_of_each_where_it_stands_and_what_may_be_said() {
    let text = longview(["policies"]).ok();
    for name in NAMES {
        let start = format!("{name}: ");
        let mut lines = text.lines().skip_while(|line| !line.starts_with(&start));
        assert!(lines.next().is_some(), "{name} is not in:\n{text}");
        // Lines that go on are further in.
        let entry = lines.take_while(|line| line.starts_with("  ")).map(str::trim);
        let entry = entry.collect::<Vec<_>>().join(" ");
        let (place, options) = entry.split_once(" options: ").expect("options");
        // A sentence first, for who does not know the paper.
        let (sentence, place) = place.split_once(". index: ").expect("a sentence");
        let is_plain = sentence.starts_with(|c: char| c.is_uppercase()) && sentence.len() > 40;
        assert!(is_plain, "{name}: {sentence}");
        let place = format!("index: {place}");
        let is_placed = ["index: ", "; budget: ", "; rows: "].iter().all(|w| place.contains(w));
        assert!(is_placed, "{name}: {place}");
        assert!(options.starts_with("--budget"), "{name}: {options}");
    }
    assert!(text.ends_with("\n`longview policies NAME` explains the options of one of them.\n"));
}

#[test]
fn lines_fit_into_a_window() {
    let wide =
        |text: String| text.lines().find(|line| line.chars().count() > 100).map(str::to_owned);
    assert_eq!(wide(longview(["policies"]).ok()), None);
    for name in NAMES {
        assert_eq!(wide(longview(["policies", name]).ok()), None, "{name}");
    }
}

#[test]
fn every_option_of_a_policy_is_explained_beside_it() {
    for name in NAMES {
        let text = longview(["policies", name]).ok();
        assert!(text.starts_with(&format!("{name}: ")), "{name}:\n{text}");
        let (list, explained) = text.split_once("\nOptions (").expect("options are explained");
        let options: Vec<&str> =
            list.split_whitespace().filter(|word| word.starts_with("--")).collect();
        for option in &options {
            assert!(explained.contains(&format!("\n  {option} ")), "{option} is not explained");
        }
        let n_explained = explained.lines().filter(|line| line.starts_with("  --")).count();
        assert_eq!(n_explained, options.len(), "{name}: options of others");
    }
    let text = longview(["policies", "quest", "--json"]).ok();
    let entries: Vec<Value> = serde_json::from_str(&text).expect("one JSON value");
    assert_eq!(entries.iter().map(|entry| &entry["name"]).collect::<Vec<_>>(), ["quest"]);
    longview(["policies", "qest"]).refuses_usage(&["'qest'", "quest"]);
}

#[test]
fn the_list_as_json_has_the_same_policies_with_figures() {
    let text = longview(["policies", "--json"]).ok();
    let entries: Vec<Value> = serde_json::from_str(&text).expect("one JSON value");
    let names: Vec<_> = entries.iter().map(|e| e["name"].as_str().expect("a name")).collect();
    assert_eq!(names, NAMES);
    for entry in &entries {
        for field in ["source", "index", "budget", "residency"] {
            assert!(entry[field].as_str().is_some_and(|text| !text.is_empty()), "{entry}");
        }
        assert!(entry["dense_when_deep"].is_boolean(), "{entry}");
        let options = entry["options"].as_array().expect("names of options");
        let explained = entry["options_given_defaults"].as_array().expect("what they mean");
        assert_eq!(options.len(), explained.len(), "{entry}");
        for option in explained {
            assert!(options.contains(&option["name"]), "{option}");
            assert!(option["value"].is_string() && option["help"].is_string(), "{option}");
        }
    }
    let bytes = |name: &str, field: &str| {
        let entry = entries.iter().find(|entry| entry["name"] == name).expect("it is listed");
        entry[field].as_u64().expect("a number of bytes")
    };
    // 32 layers of 8 heads with keys and values of 128 numbers of 2 bytes.
    let row = 32 * 8 * 2 * 128 * 2;
    assert_eq!(bytes("full", "device_bytes_per_token"), row);
    for name in NAMES {
        assert!(bytes(name, "host_bytes_per_token") >= row, "{name}: the host holds every row");
        let device = bytes(name, "device_bytes_per_token");
        assert!(name == "full" || device < row, "{name}: {device} bytes");
    }
}

/// The policy and the tokens attended of a short run.
fn policy_of(words: &[&str]) -> Value {
    let fixed = ["-p", "The wind rose over the hills.", "-n", "2", "-c", "512", "--json"];
    let text = run(&needle(), &[&fixed, words].concat()).ok();
    serde_json::from_str(&text).expect("one JSON value")
}

#[test]
fn a_file_says_the_policy_and_the_command_line_goes_before_it() {
    let folder = TempFolder::new();
    let path = folder.write("quest.toml", "policy = \"quest\"\nbudget = 96\nblock-size = 8\n");
    let file = ["--policy-file", path.to_str().unwrap()];
    let report = policy_of(&file);
    assert_eq!((&report["policy"], &report["budget_tokens"]), (&"quest".into(), &96.into()));
    let report = policy_of(&[&file[..], &["--budget", "80"]].concat());
    assert_eq!((&report["policy"], &report["budget_tokens"]), (&"quest".into(), &80.into()));
    let report = policy_of(&[&file[..], &["--policy", "infllm"]].concat());
    assert_eq!((&report["policy"], &report["budget_tokens"]), (&"infllm".into(), &96.into()));
    // What the file says of blocks means nothing to another policy, which is said.
    let words = [&file[..], &["--policy", "snapkv", "-p", "x"]].concat();
    run(&needle(), &words).fails_with(&["--block-size has no meaning for --policy snapkv"]);
}

#[test]
fn the_budget_of_lrqk_follows_the_context() {
    // Active tokens for so short a context, and 64 lite tokens.
    let report = policy_of(&["--policy", "lrqk"]);
    assert_eq!((&report["policy"], &report["budget_tokens"]), (&"lrqk".into(), &320.into()));
}

#[test]
fn a_policys_option_without_what_it_is_about_is_named() {
    for (words, message) in [
        (
            ["--policy", "ktransformers", "--preselect-kernel", "5"],
            "--preselect-kernel: means something with --preselect alone",
        ),
        (
            ["--policy", "clusterkv", "--host-threads", "2"],
            "--host-threads: means something with --attend host alone",
        ),
        (
            ["--policy", "infllm", "--recent", "0"],
            "--importance: local: with --recent 0 there is no local window; use --importance last",
        ),
    ] {
        run(&needle(), &[&["-p", "x"], &words[..]].concat()).fails_with(&[message]);
    }
}

#[test]
fn a_file_that_says_something_wrong_is_named_with_what_is_wrong() {
    let folder = TempFolder::new();
    let refuses = |text: &str, parts: &[&str]| {
        let path = folder.write("policy.toml", text);
        let words = ["-p", "x", "--policy-file", path.to_str().unwrap()];
        run(&needle(), &words).fails_with(&[&["policy.toml"], parts].concat());
    };
    refuses("policy = \"quest\"\npages = 3\n", &["unknown option 'pages' of a policy"]);
    refuses("policy = \"best\"\n", &["unknown policy 'best': one of full, clusterkv"]);
    refuses("policy = 3\n", &["policy: must be a name in quotes"]);
    refuses("budget = 512\n", &["has no line `policy = \"NAME\"`"]);
    refuses("policy = \"quest\"\nbudget = [1]\n", &["budget: must be a number or a name"]);
    refuses("policy = \"lrqk\"\nrank = \"many\"\n", &["--rank: 'many' is not a whole number"]);
    refuses("policy = \n", &["is not TOML"]);
    let missing = folder.file("missing.toml");
    let words = ["-p", "x", "--policy-file", missing.to_str().unwrap()];
    // The system's own words differ, its number does not.
    run(&needle(), &words).fails_with(&["missing.toml: cannot be read", "(os error 2)"]);
}

#[test]
fn a_value_that_an_option_does_not_have_refuses_usage() {
    for (words, message) in [
        (["--representative", "best"], "'best' is not one of max, mean, quest, dynamic, fix"),
        (["--budget-mode", "fair"], "'fair' is not one of uniform, ada"),
        (["--pool", "min"], "'min' is not one of avg, max"),
        (["--importance", "all"], "'all' is not one of local, last"),
        (["--ahead", "far"], "'far' is not true or false"),
        (["--host-threads", "some"], "'some' is not a whole number"),
        (["--rank", "many"], "'many' is not a whole number"),
        (["--beta", "steep"], "'steep' is not a number"),
    ] {
        let done = run(&needle(), &[&["-p", "x"], &words[..]].concat());
        assert_eq!(done.code, Some(2), "{words:?}: {}", done.stderr);
        assert!(done.stderr.contains(message), "{words:?}: {}", done.stderr);
        assert_eq!(done.stdout, "");
    }
}

/// Text that repeats itself, which the answer goes on with.
#[test]
fn drafts_change_no_token_and_are_counted() {
    let prompt = "The miller carried a basket of straw to the old barn. ".repeat(12);
    let said = |draft: &str| -> Value {
        let words = ["-p", &prompt, "-n", "60", "--ignore-eos", "--json", "--draft", draft];
        serde_json::from_str(&run(&needle(), &words).ok()).expect("one JSON value")
    };
    let (off, lookup) = (said("off"), said("lookup"));
    assert_eq!(off["generated_ids"], lookup["generated_ids"]);
    assert_eq!(off["timings"]["drafted_tokens"], 0);
    let count = |name: &str| lookup["timings"][name].as_u64().expect("a count");
    assert!(count("accepted_tokens") > 20, "{lookup}");
    assert!(count("accepted_tokens") <= count("drafted_tokens"));
    assert_eq!(count("decode_tokens"), 59, "the last token is not computed");
    let words = ["-p", &prompt, "-n", "60", "--ignore-eos", "--stats", "--draft", "lookup"];
    let done = run(&needle(), &words);
    assert!(done.stderr.contains("tokens by lookup, "), "{}", done.stderr);
}

#[test]
fn a_policy_that_cannot_take_a_token_back_refuses_drafts_by_name() {
    for (policy, why) in [
        ("h2o", "by the attention of every token"),
        ("infllm", "by the queries of every token"),
        ("infinigen", "selects a layer ahead"),
    ] {
        let words = ["-p", "x", "--budget", "64", "--policy", policy, "--draft", "lookup"];
        let start = format!("--draft lookup: --policy {policy} ");
        run(&needle(), &words).fails_with(&[&start, why, "--draft off"]);
    }
    run(&needle(), &["-p", "x", "--draft", "8"]).refuses_usage(&["--draft", "lookup", "off"]);
}
