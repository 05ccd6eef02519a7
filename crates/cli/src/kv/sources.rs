//! From files to one text.

use std::path::{Path, PathBuf};

use anyhow::Result;
use longview_library::documents::Source;

use crate::files::input;

/// What stands between two files.
const BETWEEN: &str = "\n\n";

/// The text of all files in order, and what each was.
pub fn read(files: &[PathBuf]) -> Result<(String, Vec<Source>)> {
    let (mut text, mut sources) = (String::new(), Vec::new());
    for path in files {
        let part = input::read_text("kv build", path)?;
        if !text.is_empty() {
            text.push_str(BETWEEN);
        }
        text.push_str(&part);
        sources.push(source(path, "txt", part.len() as u64));
    }
    Ok((text, sources))
}

fn source(path: &Path, kind: &str, bytes: u64) -> Source {
    let name = match path.to_str() {
        Some("-") => "stdin".to_owned(),
        _ => path.file_name().unwrap_or_default().to_string_lossy().into_owned(),
    };
    Source { name, kind: kind.to_owned(), bytes }
}
