//! Runs of digits in a text.

/// Runs of ASCII digits.
pub(super) fn digit_runs(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_digit()).filter(|run| !run.is_empty())
}
