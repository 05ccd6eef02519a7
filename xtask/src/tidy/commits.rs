//! The first line of a commit fits where it is shown.

use std::path::Path;
use std::process::Command;

/// The last commit before the rule; those after it are checked.
const SINCE: &str = "8ce4f1d4df57f8e49a6ebc113dd9bea7a2ab27a8";

/// What `git log` and mails show in one line.
const MAX_COLUMNS: usize = 72;

/// Subjects that are too long; `Err` with the reason where there is no history to look at, as in
/// an archive of the sources.
pub(crate) fn long_subjects(root: &Path) -> Result<Vec<String>, String> {
    let range = format!("{SINCE}..HEAD");
    let format = "--format=%h %s";
    let output = Command::new("git").args(["log", format, &range]).current_dir(root).output();
    let output = output.map_err(|error| format!("not checked, no git: {error}"))?;
    if !output.status.success() {
        return Err(format!("not checked: no history that reaches back to {}", &SINCE[..7]));
    }
    Ok(too_long(&String::from_utf8_lossy(&output.stdout)))
}

/// Lines of a short hash and a subject.
fn too_long(log: &str) -> Vec<String> {
    let commits = log.lines().filter_map(|line| line.split_once(' '));
    let columns = commits.map(|(hash, subject)| (hash, subject, subject.chars().count()));
    let long = columns.filter(|(.., n)| *n > MAX_COLUMNS);
    long.map(|(hash, subject, n)| {
        format!("commit {hash}: the subject has {n} columns, over {MAX_COLUMNS}: {subject}")
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_subject_is_reported() {
        let fine = "é".repeat(72);
        let long = "x".repeat(73);
        assert_eq!(too_long(&format!("abc {fine}\n")), [""; 0]);
        let expected = format!("commit def: the subject has 73 columns, over 72: {long}");
        assert_eq!(too_long(&format!("abc {fine}\ndef {long}\n")), [expected]);
    }

    #[test]
    fn without_a_history_it_says_so() {
        // The root of the file system is in no checkout.
        let reason = long_subjects(Path::new("/")).unwrap_err();
        assert!(reason.starts_with("not checked"), "{reason}");
    }
}
