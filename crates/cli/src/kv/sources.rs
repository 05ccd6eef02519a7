//! From files to one text: each is read by a process with limits, because it may be a stranger's.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow, bail};
use longview_library::documents::Source;
use longview_library::text::{Extracted, extract};

use crate::files::input;

/// What stands between two files.
const BETWEEN: &str = "\n\n";

/// The text of all files in order, and what each was. Errors begin with `option`, which named them.
pub fn read(option: &str, files: &[PathBuf]) -> Result<(String, Vec<Source>)> {
    let most = input::max_text_bytes();
    if files.iter().filter(|path| is_stdin(path)).count() > 1 {
        bail!("-: stdin is given twice; give each file once");
    }
    let (mut text, mut sources) = (String::new(), Vec::new());
    for path in files {
        let shown = path.display();
        let found = if is_stdin(path) {
            extract(io::stdin().lock(), "stdin", most)
        } else {
            let file = input::open_document(option, path)?;
            extract(file, &path.to_string_lossy(), most)
        };
        let Extracted { text: part, kind, file_bytes, n_pages: pages, .. } =
            found.map_err(|error| anyhow!("{shown}: {error}"))?;
        if !text.is_empty() {
            text.push_str(BETWEEN);
        }
        text.push_str(&part);
        if text.len() as u64 > most {
            bail!("{shown}: with it the document is longer than can be read here; leave it out");
        }
        let (name, kind) = (name_of(path), kind.name().to_owned());
        sources.push(Source { name, kind, bytes: file_bytes, pages });
    }
    Ok((text, sources))
}

fn is_stdin(path: &Path) -> bool {
    path == Path::new("-")
}

fn name_of(path: &Path) -> String {
    if is_stdin(path) {
        return "stdin".to_owned();
    }
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
