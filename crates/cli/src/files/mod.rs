//! Files that commands read and write.
//!
//! Nothing is overwritten by mistake, nothing special is opened, and half a file never has the name
//! of a whole one: [`OutputFile`] and [`input`] are the only ways to a file of the user.

#![cfg_attr(
    not(feature = "evaluation"),
    allow(dead_code, unused_imports, reason = "commands of this feature write files too")
)]

pub mod input;
mod kind;
mod output;
mod part;
mod target;

pub use self::kind::{COMPLETIONS_MARK, FileKind, files_of_page};
pub use self::output::{Output, OutputFile, check_appended};
pub use self::part::remove_unfinished;

use std::path::{Path, PathBuf};

/// The files of a model's folder, each with what a message calls it.
pub fn model_files(folder: &Path) -> Vec<(String, PathBuf)> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    entries.map(|entry| ("a file of the model".to_owned(), entry.path())).collect()
}
