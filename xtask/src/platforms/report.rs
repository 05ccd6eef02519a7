//! What was checked on which platform, and how it went.

use std::time::{Duration, Instant};

use anyhow::{Error, Result};

/// Checks of all platforms so far.
#[derive(Default)]
pub(super) struct Report {
    platform: &'static str,
    checks: Vec<Check>,
}

struct Check {
    platform: &'static str,
    name: String,
    outcome: Outcome,
}

enum Outcome {
    /// With what there is to say about it.
    Passed(String, Duration),
    Failed(String),
    /// This machine cannot make the check, for this reason.
    NotChecked(String),
}

impl Report {
    /// Checks from now on are of this platform.
    pub(super) fn begin(&mut self, platform: &'static str) {
        self.platform = platform;
    }

    /// Makes a check, which returns what there is to say about it; whether it passed.
    pub(super) fn check(&mut self, name: &str, work: impl FnOnce() -> Result<String>) -> bool {
        println!("\n-- {}: {name}", self.platform);
        let start = Instant::now();
        let outcome = match work() {
            Ok(said) => Outcome::Passed(said, start.elapsed()),
            Err(error) => Outcome::Failed(format!("{error:#}")),
        };
        let is_passed = matches!(outcome, Outcome::Passed(..));
        self.push(name, outcome);
        is_passed
    }

    /// Lists a check that this machine cannot make.
    pub(super) fn not_checked(&mut self, name: &str, reason: &str) {
        self.push(name, Outcome::NotChecked(reason.to_owned()));
    }

    /// Counts what ended a platform before its checks were made as one that failed.
    pub(super) fn stopped(&mut self, error: &Error) {
        self.push("set-up", Outcome::Failed(format!("{error:#}")));
    }

    /// The platforms with a check that failed, each once.
    pub(super) fn failed_platforms(&self) -> Vec<&'static str> {
        let failed = self.checks.iter().filter(|c| matches!(c.outcome, Outcome::Failed(_)));
        let mut names: Vec<_> = failed.map(|check| check.platform).collect();
        names.dedup();
        names
    }

    /// A line for each check, and the counts at the end.
    pub(super) fn text(&self) -> String {
        let (mut text, mut passed, mut failed) = (String::new(), 0, 0);
        for Check { platform, name, outcome } in &self.checks {
            let (result, said) = match outcome {
                Outcome::Passed(said, took) => {
                    passed += 1;
                    ("ok", format!("{:.1} s  {said}", took.as_secs_f64()))
                }
                Outcome::Failed(said) => {
                    failed += 1;
                    ("FAILED", said.clone())
                }
                Outcome::NotChecked(reason) => ("NOT CHECKED", reason.clone()),
            };
            let line = format!("{platform:<8} {name:<44} {result:<11}  {said}");
            text += line.trim_end();
            text.push('\n');
        }
        text + &format!("{passed} passed, {failed} failed\n")
    }

    fn push(&mut self, name: &str, outcome: Outcome) {
        self.checks.push(Check { platform: self.platform, name: name.to_owned(), outcome });
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;

    use super::*;

    #[test]
    fn what_failed_and_what_was_not_checked_is_told_apart() {
        let mut report = Report::default();
        report.begin("aarch64");
        assert!(report.check("built", || Ok("2 programs".into())));
        report.begin("macos");
        report.not_checked("longview-library", "no C compiler");
        assert_eq!(report.failed_platforms(), [""; 0]);
        assert!(report.text().ends_with("\n1 passed, 0 failed\n"), "{}", report.text());
        assert!(!report.check("longview-core", || bail!("as told")));
        report.stopped(&anyhow::anyhow!("no room"));
        assert_eq!(report.failed_platforms(), ["macos"]);
        let text = report.text();
        for part in ["ok ", "2 programs", "NOT CHECKED  no C compiler", "FAILED       as told"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        assert!(text.ends_with("no room\n1 passed, 2 failed\n"), "{text}");
    }
}
