//! A checkpoint in the folder of published ones, and the engines that run it.

use std::path::Path;
use std::sync::Arc;

use longview_core::DType;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineOptions};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::Specials;
use longview_ops::Activations;
use longview_scheduler::{PolicyOptions, Preset};

use super::reference::{BOOK, Reference};

/// What came of a check: its figures, or what is wrong.
pub(super) type Checked = Result<String, String>;

/// A checkpoint with its reference and the book.
pub(super) struct Checkpoint<'a> {
    pub(super) folder: &'a Path,
    pub(super) reference: Reference,
}

/// The kinds of engine that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// All of it in f32: a test path.
    F32,
    /// As users run it: activations, keys and values of 16 bits.
    Fast,
    /// Activations in f32, and keys and values of this type.
    Rows(DType),
}

impl Checkpoint<'_> {
    pub(super) fn model(&self) -> Result<ModelFolder, String> {
        ModelFolder::open(&self.folder.join(&self.reference.file)).map_err(|e| e.to_string())
    }

    /// The book, with lines as Python reads them.
    fn book(&self) -> Result<String, String> {
        let text = std::fs::read_to_string(self.folder.join(BOOK));
        Ok(text.map_err(|e| format!("{BOOK}: {e}"))?.replace("\r\n", "\n"))
    }

    /// The tokens of the whole book.
    pub(super) fn book_ids(&self) -> Result<Vec<u32>, String> {
        let (model, book) = (self.model()?, self.book()?);
        let tokenizer = model.tokenizer().map_err(|e| e.to_string())?;
        tokenizer.encode(&book, Specials::AsWritten).map_err(|e| e.to_string())
    }

    pub(super) fn engine(
        &self,
        way: Way,
        ctx_size: usize,
        max_sequences: usize,
    ) -> Result<Engine<CpuBackend>, String> {
        let backend = CpuBackend::new(CpuOptions::default()).map_err(|e| e.to_string())?;
        let (activations, kv_dtype) = match way {
            Way::F32 => (Activations::F32, DType::F32),
            Way::Fast => (Activations::default(), DType::F16),
            Way::Rows(dtype) => (Activations::F32, dtype),
        };
        let options =
            EngineOptions { ctx_size, max_sequences, activations, kv_dtype, ..Default::default() };
        let full = PolicyOptions::new(Preset::Full);
        Engine::load(Arc::new(backend), self.model()?, options, &full).map_err(|e| e.to_string())
    }
}
