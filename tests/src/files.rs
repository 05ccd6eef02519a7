//! Where the files lie that tests read: in the repository, or where a packed run keeps them.

use std::path::{Path, PathBuf};

/// The environment variable that names a folder with `tests/fixtures` and `models` as the
/// repository has them.
pub const FILES: &str = "LONGVIEW_FILES";

/// The folder.
pub fn root() -> PathBuf {
    let repository = || Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    std::env::var_os(FILES).map_or_else(repository, PathBuf::from)
}

/// The embedded model.
pub fn needle() -> PathBuf {
    root().join("models/needle")
}

/// A checkpoint with golden numbers.
pub fn fixture(name: &str) -> PathBuf {
    fixtures().join(name)
}

/// The folder of all of them.
pub fn fixtures() -> PathBuf {
    root().join("tests/fixtures")
}
