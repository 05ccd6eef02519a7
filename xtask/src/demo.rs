//! The demo as a check: a trained model must answer, recall must keep up with full attention, and
//! a policy that forgets must not. If the last did not hold, the questions would prove nothing.

use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::args::Parsed;
use crate::process::{capture, dev_binary};

pub(crate) const ABOUT: &str = "runs `longview demo --context 4096 --json` under clusterkv and \
                                streaming-llm and checks the answers";

/// Fewer questions than this are an anecdote.
const MIN_QUESTIONS: f64 = 20.0;

/// Share of the questions that full attention must answer: what the model card promises.
const MIN_FULL_SHARE: f64 = 0.9;

/// Answers that recall may miss of those that full attention gets.
const MAX_RECALL_LOSS: f64 = 1.0;

/// Share of full's answers that sinks and the recent window alone may get.
const MAX_CONTROL_SHARE: f64 = 0.4;

/// Figures of the report that must be above zero, whatever the policy.
const POSITIVE: &[&str] = &[
    "/context_tokens",
    "/budget_tokens",
    "/questions",
    "/full/correct",
    "/full/decode_tokens_per_s",
    "/full/device_kv_bytes",
    "/recall/decode_tokens_per_s",
    "/recall/device_kv_bytes",
    "/host_kv_bytes",
];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    Parsed::parse(args, &[], &[])?;
    check()
}

/// The stage of CI.
pub(crate) fn check() -> Result<()> {
    check_at("4096", &[])
}

/// The same on a short document, for `cargo xtask ci --quick`. The default budget is half of it,
/// so that the first and last tokens alone would answer nearly half of the questions.
pub(crate) fn quick_check() -> Result<()> {
    check_at("1024", &["--budget", "256"])
}

fn check_at(context: &str, budget: &[&str]) -> Result<()> {
    let binary = dev_binary("longview")?;
    check_with(&|| Command::new(&binary), context, budget).map(drop)
}

/// The check of a short document by what `program` starts: `longview`, maybe in an emulator.
/// Returns how many questions of how many full attention and recall answer.
pub(crate) fn short_check_with(program: &dyn Fn() -> Command) -> Result<String> {
    let recall = check_with(program, "1024", &["--budget", "256"])?;
    let of = |key: &str| figure(&recall, key).map_err(anyhow::Error::msg);
    let (full, recalled) = (of("/full/correct")?, of("/recall/correct")?);
    Ok(format!("full {full}, clusterkv {recalled} of {}", of("/questions")?))
}

/// The report under recall, if both hold.
fn check_with(program: &dyn Fn() -> Command, context: &str, budget: &[&str]) -> Result<Value> {
    let recalls = ["--context", context, "--policy", "clusterkv"];
    let recall = demo(program(), &[&recalls, budget].concat())?;
    let budget = figure(&recall, "/budget_tokens").map_err(anyhow::Error::msg)?.to_string();
    let forgets = ["--context", context, "--policy", "streaming-llm", "--budget", &budget];
    let control = demo(program(), &forgets)?;
    let problems = judge(&recall, &control);
    if problems.is_empty() {
        return Ok(recall);
    }
    bail!("the demo does not hold what it promises:\n  {}", problems.join("\n  "))
}

/// One run; stdout must be one JSON object and nothing else.
fn demo(mut program: Command, options: &[&str]) -> Result<Value> {
    program.args(["demo", "--json"]).args(options);
    let text = capture(program.current_dir(crate::process::root()))?;
    println!("{}", text.trim_end());
    serde_json::from_str(&text).context("stdout of the demo is not one JSON object")
}

/// What is wrong with the two reports; empty where all is well.
fn judge(recall: &Value, control: &Value) -> Vec<String> {
    let mut problems = Vec::new();
    for (report, policy) in [(recall, "clusterkv"), (control, "streaming-llm")] {
        let form = problems_of_form(report, policy);
        problems.extend(form.into_iter().map(|problem| format!("{policy}: {problem}")));
    }
    // Answers are only judged where every figure is there.
    if problems.is_empty() {
        problems = problems_of_answers(recall, control).unwrap_or_else(|problem| vec![problem]);
    }
    problems
}

fn problems_of_form(report: &Value, policy: &str) -> Vec<String> {
    let mut problems = Vec::new();
    for key in POSITIVE {
        match figure(report, key) {
            Ok(value) if value > 0.0 => {}
            Ok(value) => problems.push(format!("{key} is {value}, not positive")),
            Err(problem) => problems.push(problem),
        }
    }
    problems.extend(figure(report, "/recall/correct").err());
    if report.pointer("/recall/policy").and_then(Value::as_str) != Some(policy) {
        problems.push(format!("/recall/policy is not \"{policy}\""));
    }
    problems.extend(problem_of_hit_rate(report, policy));
    problems
}

/// A policy that never recalls has no hits to count: 0 or null.
fn problem_of_hit_rate(report: &Value, policy: &str) -> Option<String> {
    let rate = report.pointer("/recall/hit_rate");
    match (rate, rate.and_then(Value::as_f64)) {
        (_, Some(rate)) if policy == "clusterkv" && !(rate > 0.0 && rate <= 1.0) => {
            Some(format!("/recall/hit_rate is {rate}, not above 0 and at most 1"))
        }
        (_, Some(rate)) if !(0.0..=1.0).contains(&rate) => {
            Some(format!("/recall/hit_rate is {rate}, not a share"))
        }
        (_, Some(_)) => None,
        (Some(Value::Null), None) if policy != "clusterkv" => None,
        _ => Some("/recall/hit_rate is missing".into()),
    }
}

fn problems_of_answers(recall: &Value, control: &Value) -> Result<Vec<String>, String> {
    let questions = figure(recall, "/questions")?;
    let (full, recalled) = (figure(recall, "/full/correct")?, figure(recall, "/recall/correct")?);
    let control_full = figure(control, "/full/correct")?;
    let controlled = figure(control, "/recall/correct")?;
    let same = ["/questions", "/context_tokens", "/budget_tokens", "/full/correct"];
    let mut problems = Vec::new();
    for key in same {
        let (a, b) = (figure(recall, key)?, figure(control, key)?);
        if a != b {
            problems.push(format!("{key} differs between the runs: {a} and {b}"));
        }
    }
    if questions < MIN_QUESTIONS {
        problems.push(format!("{questions} questions, fewer than {MIN_QUESTIONS}"));
    }
    if full < MIN_FULL_SHARE * questions {
        problems.push(format!("full answers {full} of {questions}, under {MIN_FULL_SHARE}"));
    }
    if recalled < full - MAX_RECALL_LOSS {
        problems.push(format!("clusterkv answers {recalled}, more than one below full's {full}"));
    }
    if controlled > MAX_CONTROL_SHARE * control_full {
        problems.push(format!(
            "streaming-llm answers {controlled} of full's {control_full}, above {MAX_CONTROL_SHARE}"
        ));
    }
    Ok(problems)
}

/// A number of the report.
fn figure(report: &Value, key: &str) -> Result<f64, String> {
    let value = report.pointer(key).ok_or_else(|| format!("{key} is missing"))?;
    value.as_f64().ok_or_else(|| format!("{key} is {value}, not a number"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn report(policy: &str, correct: u32, hit_rate: Value) -> Value {
        json!({
            "context_tokens": 4096, "budget_tokens": 512, "questions": 20,
            "full": {"correct": 20, "decode_tokens_per_s": 90.5, "device_kv_bytes": 4_000_000},
            "recall": {"policy": policy, "correct": correct, "decode_tokens_per_s": 120.0,
                "hit_rate": hit_rate, "device_kv_bytes": 500_000},
            "host_kv_bytes": 4_000_000
        })
    }

    fn recall(correct: u32) -> Value {
        report("clusterkv", correct, json!(0.6))
    }

    fn control(correct: u32) -> Value {
        report("streaming-llm", correct, Value::Null)
    }

    fn with(mut report: Value, key: &str, value: Value) -> Value {
        *report.pointer_mut(key).expect(key) = value;
        report
    }

    #[test]
    fn a_demo_that_holds_has_no_problems() {
        assert_eq!(judge(&recall(19), &control(8)), [""; 0]);
        assert_eq!(judge(&recall(20), &report("streaming-llm", 0, json!(0))), [""; 0]);
    }

    #[test]
    fn answers_that_miss_their_mark_are_named() {
        let expected = ["clusterkv answers 18, more than one below full's 20"];
        assert_eq!(judge(&recall(18), &control(8)), expected);
        let expected = ["streaming-llm answers 9 of full's 20, above 0.4"];
        assert_eq!(judge(&recall(20), &control(9)), expected);
        let weak = |report| with(report, "/full/correct", json!(17));
        assert_eq!(
            judge(&weak(recall(17)), &weak(control(2))),
            ["full answers 17 of 20, under 0.9"]
        );
        let few = |report| with(report, "/questions", json!(19));
        assert_eq!(judge(&few(recall(20)), &few(control(2))), ["19 questions, fewer than 20"]);
    }

    #[test]
    fn reports_of_different_runs_are_not_compared_in_silence() {
        let other = with(control(2), "/budget_tokens", json!(256));
        let expected = ["/budget_tokens differs between the runs: 512 and 256"];
        assert_eq!(judge(&recall(20), &other), expected);
    }

    #[test]
    fn missing_and_empty_figures_are_named() {
        let mut gone = recall(20);
        gone.as_object_mut().expect("an object").remove("host_kv_bytes");
        assert_eq!(judge(&gone, &control(2)), ["clusterkv: /host_kv_bytes is missing"]);
        let zero = with(recall(20), "/full/decode_tokens_per_s", json!(0));
        let expected = ["clusterkv: /full/decode_tokens_per_s is 0, not positive"];
        assert_eq!(judge(&zero, &control(2)), expected);
        let text = with(recall(20), "/recall/correct", json!("all"));
        let expected = ["clusterkv: /recall/correct is \"all\", not a number"];
        assert_eq!(judge(&text, &control(2)), expected);
    }

    #[test]
    fn recall_must_hit_and_a_rate_is_a_share() {
        let none = report("clusterkv", 20, Value::Null);
        assert_eq!(judge(&none, &control(2)), ["clusterkv: /recall/hit_rate is missing"]);
        let zero = report("clusterkv", 20, json!(0.0));
        assert_eq!(judge(&zero, &control(2)).len(), 1);
        let much = report("streaming-llm", 2, json!(1.5));
        let expected = ["streaming-llm: /recall/hit_rate is 1.5, not a share"];
        assert_eq!(judge(&recall(20), &much), expected);
    }
}
