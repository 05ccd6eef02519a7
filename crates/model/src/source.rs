//! Where files are read from: a folder, a browser's storage, or memory.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
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
    /// `model.safetensors`, or the shards that `model.safetensors.index.json` names, or, without
    /// any text, a `.gguf` file or its parts.
    pub weights: BTreeMap<String, SharedSource>,
}

/// The longest `config.json` and `generation_config.json`, in bytes. Published ones have up to
/// 10 KB.
pub const MAX_CONFIG_BYTES: u64 = 10_000_000;
/// The longest `tokenizer_config.json`, in bytes. Published ones have up to 2 MB.
pub const MAX_TOKENIZER_CONFIG_BYTES: u64 = 50_000_000;
/// The longest `tokenizer.json`, in bytes. Published ones have up to 34 MB.
pub const MAX_TOKENIZER_BYTES: u64 = 400_000_000;

/// The file at `path`, of at most `limit` bytes. A pipe or a device, which may never end, is
/// refused before it is opened, and a link that leads nowhere says so.
pub(crate) fn read_bytes(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let about = check_file(path)?;
    if about.len() > limit {
        return Err(too_long(about.len(), limit));
    }
    let mut bytes = Vec::with_capacity(about.len() as usize);
    File::open(path)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(too_long(bytes.len() as u64, limit));
    }
    Ok(bytes)
}

/// As [`read_bytes`], of text.
pub(crate) fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    String::from_utf8(read_bytes(path, limit)?).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::other(format!("not UTF-8 at byte {at}; download the file again"))
    })
}

/// What the system knows of the file at `path`, if it is one.
pub(crate) fn check_file(path: &Path) -> io::Result<fs::Metadata> {
    let about = fs::metadata(path).map_err(|error| match fs::read_link(path) {
        Ok(target) => {
            let target = crate::text::clip(&target.display().to_string());
            io::Error::other(format!("it is a link to {target}, where no file is"))
        }
        Err(_) => error,
    })?;
    if about.is_dir() {
        return Err(io::Error::other("it is a folder"));
    }
    if !about.is_file() {
        return Err(io::Error::other("it is a pipe or a device; a file is needed"));
    }
    Ok(about)
}

fn too_long(bytes: u64, limit: u64) -> io::Error {
    io::Error::other(format!("it has {bytes} bytes, above the limit of {limit}"))
}
