//! Files that are not on a file system: a browser's storage, or memory.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use longview_core::RangeSource;

/// A file that every thread may read in runs.
pub type SharedSource = Arc<dyn RangeSource + Send + Sync>;

/// A model folder whose files lie elsewhere: [`ModelFolder::from_files`] reads it as
/// [`ModelFolder::open`] reads a folder.
///
/// [`ModelFolder::from_files`]: crate::folder::ModelFolder::from_files
/// [`ModelFolder::open`]: crate::folder::ModelFolder::open
#[derive(Clone, Default)]
pub struct FolderFiles {
    /// What the folder is called in messages.
    pub name: PathBuf,
    /// Text files by name: `config.json`, `tokenizer.json` and those of the others that there are.
    pub texts: BTreeMap<String, String>,
    /// `model.safetensors`, or the shards that `model.safetensors.index.json` names.
    pub weights: BTreeMap<String, SharedSource>,
}
