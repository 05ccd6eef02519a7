//! The model inside the binary, so that the installed program works alone.
//!
//! Weights are mapped, not read, so the files must lie somewhere: they are written once to the
//! user's cache folder, under a name made from their content, and compared byte by byte before
//! each use. Where there is no such folder a private one among the temporary files serves.
use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use longview_model::folder::{FolderError, ModelFolder};

/// The embedded model cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum EmbeddedError {
    /// No folder takes its files.
    #[error(
        "{}: the embedded model cannot be written there; set XDG_CACHE_HOME or TMPDIR to a folder \
         with 9 MB of space: {source}",
        folder.display()
    )]
    Write {
        /// The last folder that was tried.
        folder: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Its files cannot be read back.
    #[error(transparent)]
    Folder(#[from] FolderError),
}

macro_rules! model_file {
    ($name:literal) => {
        ($name, include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/needle/", $name)))
    };
}

const FILES: [(&str, &[u8]); 5] = [
    model_file!("config.json"),
    model_file!("generation_config.json"),
    model_file!("model.safetensors"),
    model_file!("tokenizer.json"),
    model_file!("tokenizer_config.json"),
];

/// What the embedded model is called, where models are named.
pub const NAME: &str = "needle";

/// Whether a model that was named is the embedded one: a file or folder of that name is not.
pub fn is_named(model: &Path) -> bool {
    model == Path::new(NAME) && model.symlink_metadata().is_err()
}

/// Opens the embedded model.
///
/// # Errors
/// If there is no room for its files.
pub fn open() -> Result<ModelFolder, EmbeddedError> {
    let name = format!("needle-{:016x}", content_hash());
    if let Some(folder) = cache_dir().map(|cache| cache.join("longview").join(&name))
        && write_all(&folder).is_ok()
    {
        return Ok(ModelFolder::open(&folder)?);
    }
    open_temporary(&name)
}

/// Opens the model from a folder of this process alone. Unix keeps mapped files that are removed.
fn open_temporary(name: &str) -> Result<ModelFolder, EmbeddedError> {
    let folder = env::temp_dir().join(format!("longview-{name}-{}", std::process::id()));
    if let Err(source) = write_all(&folder) {
        return Err(EmbeddedError::Write { folder, source });
    }
    let opened = ModelFolder::open(&folder);
    if cfg!(unix) {
        let _ = fs::remove_dir_all(&folder);
    }
    Ok(opened?)
}

/// Where programs of this user keep what can be made again.
pub(crate) fn cache_dir() -> Option<PathBuf> {
    let folder = |name: &str| env::var_os(name).filter(|v: &OsString| !v.is_empty());
    if cfg!(windows) {
        return folder("LOCALAPPDATA").map(PathBuf::from);
    }
    if let Some(cache) = folder("XDG_CACHE_HOME") {
        return Some(PathBuf::from(cache)).filter(|path| path.is_absolute());
    }
    let below_home = if cfg!(target_os = "macos") { "Library/Caches" } else { ".cache" };
    folder("HOME").map(|home| PathBuf::from(home).join(below_home))
}

fn write_all(folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    FILES.iter().try_for_each(|(name, bytes)| ensure_file(&folder.join(name), bytes))
}

/// Leaves a file that is right, and replaces any other in one step, so that a second process
/// never sees a part.
fn ensure_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if fs::read(path).is_ok_and(|found| found == bytes) {
        return Ok(());
    }
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let mut file = fs::File::create(&fresh)?;
    file.write_all(bytes)?;
    drop(file);
    fs::rename(&fresh, path)
}

/// FNV-1a, to tell releases apart; what is used is compared in full.
fn content_hash() -> u64 {
    let bytes = FILES.iter().flat_map(|(_, bytes)| bytes.iter());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_copy_is_replaced() {
        let folder = env::temp_dir().join(format!("longview-embedded-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("model.safetensors"), b"damaged").unwrap();
        write_all(&folder).unwrap();
        for (name, bytes) in FILES {
            assert!(fs::read(folder.join(name)).unwrap() == bytes, "{name}");
        }
        assert_eq!(fs::read_dir(&folder).unwrap().count(), FILES.len());
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_temporary_copy_opens_and_is_gone() {
        let model = open_temporary("test").unwrap();
        assert_eq!(model.config.vocab_size, 2048);
        assert!(!cfg!(unix) || !model.path.exists());
    }
}
