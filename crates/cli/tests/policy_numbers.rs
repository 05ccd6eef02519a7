//! Numbers of policies that are out of range, too large for a budget or for the machine: each is
//! refused by name, with a range or with advice that works, and what is in range runs.

use std::time::{Duration, Instant};

use crate::support::{Done, TempFolder, needle, run};

/// `longview run` on the embedded model, which must not take long whatever it is told.
#[track_caller]
fn ask(line: &str) -> Done {
    let document = "The wind rose over the hills and the river ran on. ".repeat(30);
    let fixed = ["-p", &document, "-n", "4", "--no-chat-template", "--device", "cpu"];
    let words: Vec<&str> = line.split_whitespace().collect();
    let start = Instant::now();
    let done = run(&needle(), &[&fixed, &words[..]].concat());
    assert!(start.elapsed() < Duration::from_secs(60), "{line}: {:?}", start.elapsed());
    assert!(!done.stderr.contains("panicked"), "{line}: {}", done.stderr);
    done
}

#[test]
fn a_number_of_a_policy_that_no_context_has_refuses_usage() {
    let most = "must be a whole number from 0 to 1,073,741,824";
    let least = "must be a whole number from 1 to 1,073,741,824";
    let steps = "must be a whole number from 1 to 1,024";
    for (line, range) in [
        ("--budget 256 --sinks 18446744073709551552", most),
        ("--budget 256 --recent 18446744073709551552", most),
        ("--budget 256 --window 18446744073709551615", least),
        ("--budget 256 --cluster-segment 18446744073709551615", most),
        ("--policy quest --budget 256 --block-size 9223372036854775808", least),
        ("--policy infllm --budget 256 --block-size 9223372036854775808", least),
        ("--policy ktransformers --budget 256 --block-size 9223372036854775808", least),
        ("--policy ktransformers --budget 256 --token-step 18446744073709551615", steps),
        ("--policy streaming-llm --budget 256 --recent 18446744073709551615", most),
        ("--policy snapkv --budget 256 --recent 18446744073709551615", most),
        ("--simulate-device --cache-steps 9223372036854775808", "from 0 to 1,024"),
        ("--policy lrqk --budget 256 --iterations 9223372036854775808", steps),
        ("--policy h2o --budget 256 --window 18446744073709551615", least),
        ("--budget-mode ada --safeguard nan", "must be a number from 0 to 1"),
        ("--safeguard -1", "must be a number from 0 to 1"),
        ("--window -5", "is not a whole number from 1 to 1,073,741,824"),
        ("--safeguard 2", "must be a number from 0 to 1"),
        ("--observe 1000000", "must be a whole number from 1 to 128"),
        ("--policy pyramidkv --beta inf", "must be a number above 1, at most 1000"),
        ("--budget 18446744073709551615", "a whole number from 1 to 1,073,741,824"),
        ("--window 99999999999999999999", "is not a whole number from 1 to 1,073,741,824"),
    ] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let option = words[words.len() - 2];
        ask(line).refuses_usage(&[option, range]);
    }
}

#[test]
fn numbers_at_the_end_of_their_range_run_or_name_a_budget() {
    for line in [
        "--budget 1073741824",
        "--budget 1073741824 --sinks 1000000 --recent 1000000 --window 1000000",
        "--policy streaming-llm --budget 1073741824",
        "--policy h2o --budget 1073741824",
        "--policy infllm --budget 1073741824 --recent 1000000000 --simulate-device",
        "--policy streaming-llm --sinks 500 --recent 4 --budget 504",
        "--policy lrqk --budget 128 --iterations 1024",
        "--policy ktransformers --budget 128 --host-threads 1024 --token-step 1024",
        "--simulate-device --budget 128 --cache-steps 1024",
        "--cluster-segment 1073741824 --cluster-tokens 1073741824 --budget 128",
    ] {
        ask(line).ok();
    }
}

/// The budget that a message says to raise to.
fn advised(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once("raise --budget to ")?;
    rest.split_once(" or more").map(|(tokens, _)| tokens)
}

#[test]
fn one_raise_of_the_budget_is_enough() {
    for (policy, more, leaves) in [
        ("infllm", "--budget 8", "a token to recall"),
        ("infllm", "--budget 20 --recent 100 --window 60", "a token to recall"),
        ("ktransformers", "--budget 8", "a token to recall"),
        ("ktransformers", "--budget 10 --window 100", "a token to recall"),
        ("quest", "--budget 10 --recent 50", "a token to recall"),
        ("clusterkv", "--budget 60 --sinks 50 --recent 200", "a token to recall"),
        ("lrqk", "--budget 5 --window 80", "a token to recall"),
        ("snapkv", "--budget 10 --recent 300", "a token to keep for its attention"),
        ("h2o", "--budget 20 --window 40", "a token to keep for its attention"),
        ("streaming-llm", "--budget 20 --sinks 40", "all of them"),
    ] {
        let line = format!("--policy {policy} {more}");
        let done = ask(&line);
        let message = done.stderr.clone();
        done.fails_with(&[&format!("--policy {policy} --budget "), leaves]);
        let tokens = advised(&message).unwrap_or_else(|| panic!("{line}: {message}"));
        let words: Vec<&str> = more.split_whitespace().collect();
        // Only what was given is named.
        for option in ["--sinks", "--recent", "--window", "--block-size", "--heavy-ratio"] {
            let named = message.contains(&format!("lower {option}"));
            assert!(!named || words.contains(&option), "{line}: {message}");
        }
        let rest = words[2..].join(" ");
        ask(&format!("--policy {policy} --budget {tokens} {rest}")).ok();
    }
}

#[test]
fn numbers_of_a_file_have_the_ranges_of_the_command_line() {
    let folder = TempFolder::new();
    for (text, part) in [
        ("policy = \"h2o\"\nwindow = 9223372036854775807\n", "--window 9223372036854775807: must"),
        ("policy = \"clusterkv\"\nsafeguard = nan\n", "--safeguard NaN: must be a number from 0"),
        ("policy = \"lrqk\"\niterations = 99999999\n", "--iterations 99999999: must be"),
        ("policy = \"infinigen\"\nahead = true\nlayer-prefetch = true\n", "given twice"),
        ("policy = \"quest\"\n\"\\u001b[2J\" = 1\n", "unknown option '\\u{1b}[2J'"),
    ] {
        let path = folder.write("policy.toml", text);
        let words = ["-p", "x", "--device", "cpu", "--policy-file", path.to_str().unwrap()];
        run(&needle(), &words).fails_with(&["policy.toml", part]);
    }
}
