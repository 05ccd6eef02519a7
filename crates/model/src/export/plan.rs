//! A file that is planned and checked as a whole, and then written front to back.

use std::io::Write;

use super::check::check;
use super::config;
use super::error::ExportError;
use super::keys::{ALIGNMENT, Described, KeyValues, header};
use super::tensors::{OutTensor, tensors};
use super::tokenizer;
use super::types::ExportType;
use crate::chat::ChatTemplate;
use crate::folder::ModelFolder;
use crate::gguf::{GgmlType, GgufArch, GgufFile, GgufModelError, Metadata, is_named_end};
use crate::text::clip;
use crate::tokenizer::Tokenizer;

/// Bytes that are made at once: some rows for each core, and little beside a tensor.
const CHUNK_BYTES: usize = 4 << 20;
/// Of the layout of blocks, as files have it.
const QUANTISATION_VERSION: u32 = 2;

/// A GGUF file that can be written.
pub struct GgufExport {
    header: Vec<u8>,
    tensors: Vec<OutTensor>,
    notes: Vec<String>,
    model: String,
    path: std::path::PathBuf,
}

impl GgufExport {
    /// Plans the file of `folder`, with matrices of type `ty`, and checks that it says what the
    /// folder says. Nothing but the header is in memory.
    ///
    /// # Errors
    /// Names what the format, or the type, has no place for.
    pub fn plan(folder: &ModelFolder, ty: ExportType) -> Result<Self, ExportError> {
        let arch = config::architecture(&folder.config, &folder.path)?;
        let mut keys = KeyValues::default();
        let source = source_metadata(folder)?;
        general_keys(&mut keys, folder, arch, ty, source.as_ref());
        let beside = config::write(&mut keys, arch, &folder.config, &folder.path)?;
        let mut notes: Vec<String> = beside.note.into_iter().collect();
        notes.extend(text_keys(&mut keys, folder, arch, source.as_ref())?);
        let tensors = tensors(&folder.tensors, &folder.config, arch, ty, beside.factors)?;
        let header = header(&keys, tensors.iter().map(describe));
        let size = header.len() as u64 + data_bytes(&tensors);
        notes.extend(check(folder, &header, size, &tensors)?);
        let (model, path) = (arch.name.to_owned(), folder.path.clone());
        Ok(Self { header, tensors, notes, model, path })
    }

    /// What the file calls the architecture.
    pub fn architecture(&self) -> &str {
        &self.model
    }

    /// What the file cannot say and what hardly matters, each as a sentence.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Bytes of the file.
    pub fn n_bytes(&self) -> u64 {
        self.header.len() as u64 + data_bytes(&self.tensors)
    }

    /// How many tensors there are of each type, with the most bytes first.
    pub fn types(&self) -> Vec<(GgmlType, usize)> {
        let mut found: Vec<(GgmlType, usize, u64)> = Vec::new();
        for tensor in &self.tensors {
            let bytes = tensor.source.size();
            match found.iter_mut().find(|(ty, ..)| *ty == tensor.ty) {
                Some((_, n, sum)) => (*n, *sum) = (*n + 1, *sum + bytes),
                None => found.push((tensor.ty, 1, bytes)),
            }
        }
        found.sort_by_key(|(_, _, bytes)| std::cmp::Reverse(*bytes));
        found.into_iter().map(|(ty, n, _)| (ty, n)).collect()
    }

    /// Writes the file, and tells `progress` after each piece how many bytes are written.
    ///
    /// # Errors
    /// If `out` fails, a tensor cannot be read, or has values that its type does not hold.
    pub fn write(
        &self,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), ExportError> {
        let mut done = self.header.len() as u64;
        out.write_all(&self.header).map_err(ExportError::Write)?;
        let mut chunk = Vec::new();
        for (at, tensor) in self.tensors.iter().enumerate() {
            let end = tensor.source.size();
            let rows = (CHUNK_BYTES / tensor.row_bytes.max(1)).max(1);
            for start in (0..end).step_by(rows * tensor.row_bytes.max(1)) {
                let n = (end - start).min((rows * tensor.row_bytes) as u64);
                chunk.resize(n as usize, 0);
                tensor.source.read_at(start, &mut chunk).map_err(|source| ExportError::Read {
                    path: self.path.clone(),
                    name: tensor.name.clone(),
                    source,
                })?;
                out.write_all(&chunk).map_err(ExportError::Write)?;
                done += n;
                progress(done);
            }
            let is_last = at + 1 == self.tensors.len();
            let gap = if is_last { 0 } else { padding(end) };
            out.write_all(&[0; ALIGNMENT][..gap as usize]).map_err(ExportError::Write)?;
            done += gap;
        }
        out.flush().map_err(ExportError::Write)
    }
}

/// Bytes behind a tensor, up to where the next one begins.
fn padding(n: u64) -> u64 {
    n.next_multiple_of(ALIGNMENT as u64) - n
}

fn data_bytes(tensors: &[OutTensor]) -> u64 {
    let sizes = tensors.iter().map(|tensor| tensor.source.size());
    let all: u64 = sizes.map(|n| n + padding(n)).sum();
    all - tensors.last().map_or(0, |last| padding(last.source.size()))
}

fn describe(tensor: &OutTensor) -> Described<'_> {
    let OutTensor { name, ty, shape, source, .. } = tensor;
    Described { name, ty: *ty, shape, n_bytes: source.size() }
}

/// The key-values of a model that is a GGUF file itself.
fn source_metadata(folder: &ModelFolder) -> Result<Option<Metadata>, ExportError> {
    if !folder.path.is_file() {
        return Ok(None);
    }
    let file = GgufFile::open(&folder.path).map_err(GgufModelError::from)?;
    Ok(Some(file.metadata))
}

fn general_keys(
    keys: &mut KeyValues,
    folder: &ModelFolder,
    arch: &GgufArch,
    ty: ExportType,
    source: Option<&Metadata>,
) {
    const OWN: [&str; 5] = [
        "general.architecture",
        "general.type",
        "general.file_type",
        "general.quantization_version",
        "general.alignment",
    ];
    keys.text(OWN[0], arch.name);
    keys.text(OWN[1], "model");
    keys.u32(OWN[2], ty.file_type());
    keys.u32(OWN[3], QUANTISATION_VERSION);
    match source {
        Some(source) => keys.copy(source, |key| key.starts_with("general.") && !OWN.contains(&key)),
        None => {
            let name = folder.path.canonicalize().unwrap_or_else(|_| folder.path.clone());
            let name = name.file_name().unwrap_or_default().to_string_lossy();
            keys.text("general.name", &clip(&name));
        }
    }
}

/// Tokenizer and chat template; returns what is lost of them.
fn text_keys(
    keys: &mut KeyValues,
    folder: &ModelFolder,
    arch: &GgufArch,
    source: Option<&Metadata>,
) -> Result<Vec<String>, ExportError> {
    if let Some(source) = source {
        keys.copy(source, |key| key.starts_with("tokenizer."));
        return Ok(Vec::new());
    }
    let Some(tokenizer) = &folder.tokenizer else {
        keys.text("tokenizer.ggml.model", "none");
        return Ok(vec![
            "the folder holds no tokenizer.json, so the file has no vocabulary".to_owned(),
        ]);
    };
    let refuse = |reason| ExportError::Tokenizer { path: tokenizer.path().to_owned(), reason };
    let n_tokens = folder.config.vocab_size;
    let mut notes = tokenizer::write(keys, tokenizer, arch.name, n_tokens).map_err(refuse)?;
    end_keys(keys, folder, tokenizer)?;
    if let Some(chat) = &folder.chat {
        notes.extend(template_keys(keys, chat));
    }
    Ok(notes)
}

/// Tokens that end an answer. Files have keys for three, and readers know some by their texts.
fn end_keys(
    keys: &mut KeyValues,
    folder: &ModelFolder,
    tokenizer: &Tokenizer,
) -> Result<(), ExportError> {
    let mut ends = folder.eos_token_ids();
    ends.retain(|id| (*id as usize) < folder.config.vocab_size);
    let eos = tokenizer.eos_id().filter(|eos| ends.contains(eos)).or(ends.first().copied());
    let Some(eos) = eos else { return Ok(()) };
    keys.u32("tokenizer.ggml.eos_token_id", eos);
    let text = |id: u32| tokenizer.decode(&[id], false).unwrap_or_default();
    ends.retain(|id| *id != eos && !is_named_end(&text(*id)));
    for (name, id) in ["eot", "eom"].iter().zip(&ends) {
        keys.u32(&format!("tokenizer.ggml.{name}_token_id"), *id);
    }
    if ends.len() <= 2 {
        return Ok(());
    }
    Err(ExportError::Config {
        path: folder.path.clone(),
        field: "eos_token_id",
        value: format!("a list in which {} tokens have no usual name", ends.len()),
    })
}

/// Chat templates; the note says what is wrong with one that cannot be read.
fn template_keys(keys: &mut KeyValues, chat: &ChatTemplate) -> Option<String> {
    const KEY: &str = "tokenizer.chat_template";
    let sources: Vec<_> = match chat.sources() {
        Ok(sources) => sources.collect(),
        Err(error) => return Some(format!("the file has no chat template: {error}")),
    };
    let others: Vec<&str> =
        sources.iter().map(|(name, _)| *name).filter(|name| *name != "default").collect();
    if !others.is_empty() {
        keys.texts("tokenizer.chat_templates", others.iter().copied());
    }
    for (name, template) in &sources {
        match *name {
            "default" => keys.text(KEY, template),
            name => keys.text(&format!("{KEY}.{name}"), template),
        }
    }
    None
}
