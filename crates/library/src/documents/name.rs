//! Names of documents: what may be one, and which one a file gives.

use std::path::Path;

use super::error::DocumentsError;

/// Letters that a name may have.
const MAX_NAME: usize = 200;
/// Letters of the longest ending of a file.
const MAX_ENDING: usize = 8;

/// Whether a document may be called so. Names are shown in tables and typed in shells.
///
/// # Errors
/// [`DocumentsError::BadName`] with what is wrong.
pub fn check_name(name: &str) -> Result<(), DocumentsError> {
    let bad = |reason| Err(DocumentsError::BadName { name: name.to_owned(), reason });
    if name.trim().is_empty() {
        return bad("it is empty");
    }
    if name.trim() != name {
        return bad("it begins or ends with a blank");
    }
    if name.starts_with('-') {
        return bad("it begins with a dash, as options do");
    }
    if name.chars().count() > MAX_NAME {
        return bad("it has more than 200 letters");
    }
    if name.chars().any(char::is_control) {
        return bad("it has control characters");
    }
    Ok(())
}

/// What a document of the file `name` is called, unless another one is: the name without its
/// ending, in letters that a name may have. Everything that shows documents calls them so.
pub fn name_of_file(name: &str) -> String {
    let path = Path::new(name);
    let is_ending = |ending: &str| {
        ending.len() <= MAX_ENDING && ending.chars().all(|c| c.is_ascii_alphanumeric())
    };
    // What stands behind the dot of `Dr. Smith` is none.
    let has_ending = path.extension().and_then(|ending| ending.to_str()).is_some_and(is_ending);
    let stem = if has_ending { path.file_stem() } else { path.file_name() };
    let stem = stem.and_then(|stem| stem.to_str()).unwrap_or("");
    let clean: String = stem.chars().filter(|c| !c.is_control()).take(MAX_NAME / 2).collect();
    let clean = clean.trim_start_matches(|c: char| c == '-' || c.is_whitespace()).trim_end();
    if clean.is_empty() { "document".to_owned() } else { clean.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_gives_its_name_without_the_ending() {
        for (file, name) in [
            ("story.txt", "story"),
            ("story.TXT", "story"),
            ("../../etc/passwd.txt", "passwd"),
            ("Dr. Smith", "Dr. Smith"),
            ("Dr. Smith.txt", "Dr. Smith"),
            ("no. 4 (draft).final version", "no. 4 (draft).final version"),
            ("- notes.md", "notes"),
            (".txt", ".txt"),
            ("a\nb.md", "ab"),
            ("", "document"),
            ("--", "document"),
        ] {
            let found = name_of_file(file);
            assert_eq!(found, name, "{file:?}");
            assert!(check_name(&found).is_ok(), "{file:?}");
        }
        let long = name_of_file(&format!("{}.txt", "long ".repeat(60)));
        assert!(check_name(&long).is_ok() && long.starts_with("long long"), "{long}");
    }
}
