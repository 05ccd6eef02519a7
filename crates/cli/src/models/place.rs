//! Where the model lies that `-m` or `-hf` names.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use longview_library::{Library, LibraryError, ModelName, Prefer, Settings, Wanted};

use super::pull::download;
use crate::interrupt::Interrupt;

/// A model at the hub, as llama.cpp names it.
#[derive(Args, Clone, Debug)]
pub struct HubArgs {
    /// Model at the Hugging Face hub, which is downloaded once; also -hf. USER/REPO, with the
    /// :QUANT of a GGUF file (else Q4_K_M, Q8_0 or the first) or an @REVISION [default: none].
    #[arg(long, value_name = "NAME", conflicts_with = "model")]
    pub hf_repo: Option<ModelName>,

    /// GGUF file of --hf-repo, by its name there [default: chosen by its quantisation].
    #[arg(long, value_name = "FILE", requires = "hf_repo")]
    pub hf_file: Option<String>,

    /// Download nothing: use models that are here [default: off, or what HF_HUB_OFFLINE says].
    #[arg(long)]
    pub offline: bool,
}

impl HubArgs {
    /// The folder or file of the model at the hub, after a download if it is not here; `None` where
    /// there is no --hf-repo.
    pub fn fetch(&self, interrupt: &Interrupt) -> Result<Option<PathBuf>> {
        let Some(name) = &self.hf_repo else { return Ok(None) };
        let library = Library::new(Settings::from_environment(self.offline)?);
        let wanted = self.wanted(name);
        match library.find(&wanted) {
            Ok(found) => return Ok(Some(found.path)),
            Err(LibraryError::NotHere { .. } | LibraryError::Incomplete { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Some(download(&library, &wanted, interrupt)?.path))
    }

    /// Where the model at the hub lies, if it is here.
    pub fn here(&self) -> Option<PathBuf> {
        let library = Library::new(Settings::from_environment(true).ok()?);
        let wanted = self.wanted(self.hf_repo.as_ref()?);
        Some(library.find(&wanted).ok()?.path)
    }

    fn wanted<'a>(&'a self, name: &'a ModelName) -> Wanted<'a> {
        Wanted { name, file: self.hf_file.as_deref(), prefer: Prefer::Gguf }
    }
}

/// What `-m` names: a file or folder, or else a model that was downloaded; `None` for what can be
/// neither.
///
/// # Errors
/// For the name of a model that is not here, with the command that downloads it.
pub fn place(path: &Path) -> Result<Option<PathBuf>> {
    if path.symlink_metadata().is_ok() {
        return Ok(Some(path.to_owned()));
    }
    let Some(name) = path.to_str().and_then(|text| text.parse::<ModelName>().ok()) else {
        return Ok(None);
    };
    let library = Library::new(Settings::from_environment(true)?);
    let wanted = Wanted { name: &name, file: None, prefer: Prefer::Safetensors };
    match library.find(&wanted) {
        Ok(found) => Ok(Some(found.path)),
        Err(LibraryError::NotHere { near, .. }) => {
            let alike = match &near[..] {
                [] => String::new(),
                names => format!("; here is {}", names.join(", ")),
            };
            bail!(
                "{name}: is neither a folder, nor a file, nor a model that was downloaded{alike}; \
                 `longview pull {name}` downloads it if it is at the hub"
            )
        }
        Err(error) => Err(error.into()),
    }
}
