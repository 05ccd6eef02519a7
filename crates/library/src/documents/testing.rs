//! What tests of this module share.

use std::path::{Path, PathBuf};

use super::id::Id;

/// A folder that is removed at the end of a test.
pub(super) struct TempFolder(PathBuf);

impl TempFolder {
    pub(super) fn new() -> Self {
        let path = std::env::temp_dir().join(format!("longview-library-{}", Id::fresh()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
