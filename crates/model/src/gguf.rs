//! GGUF files: one file that holds config, tokenizer, chat template and weights.
//!
//! The file is checked whole before anything is believed ([`Header::parse`]), its key-values become
//! what a `config.json` and a `tokenizer.json` would say, and its tensors get the names and the
//! order of rows that Hugging Face has. So everything behind this module is the same for both
//! formats. A device with kernels for them gets blocks as they are stored; for others they are made
//! into 16-bit values while they are handed over.

mod config;
mod dequantize;
mod error;
mod file;
mod limits;
mod metadata;
mod names;
mod pre;
mod reader;
mod rows;
#[cfg(test)]
pub(crate) mod tests;
mod tokenizer;
mod types;
#[cfg(test)]
mod writer;

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use longview_core::quant::QuantType;

pub use self::dequantize::dequantize;
pub use self::error::{GgufError, GgufModelError, GgufProblem};
pub use self::file::{GgufFile, StoredTensor};
pub use self::limits::{
    MAX_ELEMENTS, MAX_HEADER_BYTES, MAX_KEYS, MAX_NAME_BYTES, MAX_TENSORS, MAX_TEXT_BYTES,
};
pub use self::metadata::{Metadata, Number, NumberType, Numbers, Texts, Value};
pub use self::reader::{Header, TensorInfo, is_gguf};
pub use self::types::GgmlType;

pub(crate) use self::config::{ARCHITECTURES, GgufArch, Tensors, model_config};
pub(crate) use self::pre::Pre;
pub(crate) use self::tokenizer::{is_named_end, tokenizer as tokenizer_of};

use self::rows::{RowOrder, Rows, loaded_type};
use crate::chat::ChatTemplate;
use crate::config::ModelConfig;
use crate::generation::GenerationDefaults;
use crate::source::FolderFiles;
use crate::tokenizer::Tokenizer;
use crate::weights::{Tensor, TensorSet};

const TEMPLATE: &str = "tokenizer.chat_template";

/// What a file holds, as a folder would.
pub(crate) struct GgufModel {
    pub config: ModelConfig,
    pub generation: GenerationDefaults,
    pub tensors: TensorSet,
    pub tokenizer: Option<Tokenizer>,
    pub chat: Option<ChatTemplate>,
}

/// Reads and checks the file `path`.
pub(crate) fn open(path: &Path) -> Result<GgufModel, GgufModelError> {
    of_file(&GgufFile::open(path)?)
}

/// As [`open`] of files that lie elsewhere, if a GGUF file is among them.
pub(crate) fn from_files(files: &FolderFiles) -> Option<Result<GgufModel, GgufModelError>> {
    let file = GgufFile::from_files(files)?;
    Some(file.map_err(GgufModelError::from).and_then(|file| of_file(&file)))
}

fn of_file(file: &GgufFile) -> Result<GgufModel, GgufModelError> {
    let path = &file.path;
    let arch = config::architecture(&file.metadata).map_err(|problem| problem.of(path))?;
    let infos: Vec<TensorInfo> = file.tensors.iter().map(|tensor| tensor.info.clone()).collect();
    let read = |info: &TensorInfo| {
        let tensor = file.tensors.iter().find(|tensor| tensor.info == *info);
        let bytes = tensor.map(|tensor| file.blocks(tensor)).transpose();
        let bytes = bytes.map_err(|source| GgufProblem::Read { source })?;
        Ok(bytes.map_or_else(Vec::new, |bytes| bytes.as_ref().to_vec()))
    };
    let tensors = config::Tensors { infos: &infos, read: &read };
    let config = config::model_config(&file.metadata, &tensors, path)?;
    let tensors = tensor_set(file, arch, &config);
    let in_file = |name: &str| names::from_hugging_face(name, arch);
    tensors.check(&config).map_err(|error| error.with_names(in_file))?;
    let mut parts = tokenizer::tokenizer(&file.metadata, config.vocab_size, path)?;
    let template = file.metadata.text(TEMPLATE).map_err(|problem| problem.of(path))?;
    let special = std::mem::take(&mut parts.config.special);
    let origin = || format!("{}: {TEMPLATE}", path.display());
    let chat = template.map(|source| ChatTemplate::of_text(source, origin(), special));
    let generation = GenerationDefaults { eos_token_ids: parts.ends, ..Default::default() };
    Ok(GgufModel { config, generation, tensors, tokenizer: parts.tokenizer, chat })
}

/// The tensors under the names of Hugging Face, their rows in its order.
fn tensor_set(file: &GgufFile, arch: &GgufArch, config: &ModelConfig) -> TensorSet {
    let weights = file.tensors.iter().filter(|t| !names::is_frequencies(&t.info.name));
    let tensors: HashMap<String, Tensor> = weights
        .flat_map(|stored| apart(stored, arch, config))
        .map(|ref stored| {
            let info = &stored.info;
            let interleaved = arch.interleaved && names::is_rotated(&info.name);
            let order = if interleaved {
                RowOrder::Interleaved { head_dim: config.head_dim }
            } else {
                RowOrder::Same
            };
            let tensor = tensor(file, stored, order).called(&info.name);
            (names::to_hugging_face(&info.name, arch), tensor)
        })
        .collect();
    TensorSet::of_tensors(&file.path, "its metadata", tensors)
}

/// A tensor as Hugging Face has it: in three where it holds q, k and v. One that is not made of
/// them stays as it is, and the check against the config names it.
fn apart(stored: &StoredTensor, arch: &GgufArch, config: &ModelConfig) -> Vec<StoredTensor> {
    let names = names::split_qkv(&stored.info.name).filter(|_| arch.stacked_qkv);
    let (q, kv) = (config.q_width(), config.kv_width());
    let n_rows = stored.info.shape.first().copied();
    let Some(names) = names.filter(|_| n_rows == Some(q + 2 * kv)) else {
        return vec![stored.clone()];
    };
    let rows = [0..q, q..q + kv, q + kv..q + 2 * kv];
    let infos = names.into_iter().zip(rows).map(|(name, rows)| stored.info.rows(name, rows));
    let infos: Option<Vec<TensorInfo>> = infos.collect();
    let part = stored.part;
    infos.map_or_else(
        || vec![stored.clone()],
        |infos| infos.into_iter().map(|info| StoredTensor { info, part }).collect(),
    )
}

/// In place what needs no work, as rows that are made when they are read what does.
fn tensor(file: &GgufFile, stored: &StoredTensor, order: RowOrder) -> Tensor {
    let TensorInfo { ty, ref shape, start, .. } = stored.info;
    let (dtype, name) = (loaded_type(ty), ty.name());
    let is_plain = matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16);
    if is_plain
        && order == RowOrder::Same
        && file.is_mapped(stored)
        && let Ok(bytes) = file.blocks(stored)
    {
        return Tensor::in_memory(dtype, name, shape.clone(), bytes);
    }
    let is_vector = shape.len() == 1;
    let row_len = match order {
        // Rows follow each other without a gap, so all of them are one.
        RowOrder::Same => stored.info.n_values(),
        // A bias is one row to the format, and as many as it has values to their order.
        RowOrder::Interleaved { .. } if is_vector => 1,
        RowOrder::Interleaved { .. } => stored.info.row_len(),
    };
    let n_rows = stored.info.n_values() / row_len;
    let rows = Rows { source: file.source(stored), start, ty, n_rows, row_len, order };
    let mut tensor = Tensor::in_file(dtype, name, shape.clone(), Arc::new(rows));
    if let (Some(quant), false) = (ty.quant_type(), is_vector) {
        tensor = with_blocks(tensor, quant, file, stored, order);
    }
    // Biases have few values: nobody quantises them, and their blocks cannot be re-ordered.
    if is_vector && !is_plain && order != RowOrder::Same { tensor.not_read() } else { tensor }
}

/// The same with its blocks: in place where that is possible.
fn with_blocks(
    tensor: Tensor,
    quant: QuantType,
    file: &GgufFile,
    stored: &StoredTensor,
    order: RowOrder,
) -> Tensor {
    if order == RowOrder::Same
        && file.is_mapped(stored)
        && let Ok(blocks) = file.blocks(stored)
    {
        return tensor.with_blocks(quant, blocks);
    }
    let TensorInfo { ty, start, .. } = stored.info;
    let row_len = stored.info.row_len();
    let n_rows = stored.info.n_values() / row_len.max(1);
    let rows = Rows { source: file.source(stored), start, ty, n_rows, row_len, order };
    tensor.with_blocks_in_file(quant, Arc::new(rows.into_blocks()))
}
