//! The tensors of a folder: found, compared with the config, and handed over.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use longview_core::quant::{QuantType, block_without_scale};
use longview_core::{DType, HostBytes, decode_f32};
use longview_ops::{Activations, Backend, QuantSource, WeightSource, WeightStream};
use serde::Deserialize;

use super::error::{LoadError, Mismatch, WeightsError};
use super::expected::expected_tensors;
use super::finite::first_not_finite;
use super::limits::{MAX_HEADER_BYTES, MAX_TENSORS};
use super::made::{MadeRows, RowForm};
use super::part::{ExpectedTensor, TensorPart};
use super::shard::Shard;
use super::tensor::{Quantised, Tensor, runs_of};
use crate::config::ModelConfig;
use crate::source::{FolderFiles, SharedSource, check_file, read_text};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// All tensors of a model folder by name.
#[derive(Clone, Debug)]
pub struct TensorSet {
    /// The file or index that was opened, for messages.
    pub(super) path: PathBuf,
    /// What says which tensors there should be, for messages.
    described_by: &'static str,
    tensors: HashMap<String, Tensor>,
}

const CONFIG: &str = "config.json";

impl TensorSet {
    /// Maps the weights in the folder `dir` and checks every header.
    pub fn open(dir: &Path) -> Result<Self, WeightsError> {
        let single = dir.join(SINGLE);
        if is_there(&single)? {
            let tensors = Shard::open(&single)?.tensors;
            return Ok(Self { path: single, described_by: CONFIG, tensors });
        }
        let index = dir.join(INDEX);
        if is_there(&index)? {
            return Self::open_sharded(dir, index);
        }
        let has_pickle = dir.join("pytorch_model.bin").is_file()
            || dir.join("pytorch_model.bin.index.json").is_file();
        Err(WeightsError::NoWeights { dir: dir.to_owned(), has_pickle })
    }

    /// Reads the headers of weights that lie in `files`.
    pub fn from_files(files: &FolderFiles) -> Result<Self, WeightsError> {
        let dir = &files.name;
        if let Some(source) = files.weights.get(SINGLE) {
            let path = dir.join(SINGLE);
            let tensors = Shard::of_source(&path, source)?.tensors;
            return Ok(Self { path, described_by: CONFIG, tensors });
        }
        let Some(text) = files.texts.get(INDEX) else {
            return Err(WeightsError::NoWeights { dir: dir.clone(), has_pickle: false });
        };
        let path = dir.join(INDEX);
        let map = parse_index(&path, text)?;
        let shard = |name: &str| {
            let source: Option<&SharedSource> = files.weights.get(name);
            source.map(|source| Shard::of_source(&dir.join(name), source))
        };
        Self::of_shards(path, &map, shard)
    }

    /// Follows the index's map. Tensors it does not name are not part of the model.
    fn open_sharded(dir: &Path, path: PathBuf) -> Result<Self, WeightsError> {
        let map = read_index(&path)?;
        Self::of_shards(path, &map, |name| {
            let file = dir.join(name);
            match is_there(&file) {
                Ok(true) => Some(Shard::open(&file)),
                Ok(false) => None,
                Err(error) => Some(Err(error)),
            }
        })
    }

    /// `open` says `None` of a shard that is not there.
    fn of_shards(
        path: PathBuf,
        map: &HashMap<String, String>,
        open: impl Fn(&str) -> Option<Result<Shard, WeightsError>>,
    ) -> Result<Self, WeightsError> {
        let names: BTreeSet<&String> = map.values().collect();
        if let Some(name) = names.iter().find(|name| !is_plain_file_name(name)) {
            return Err(WeightsError::ShardName { path, name: (*name).clone() });
        }
        let (mut shards, mut missing) = (HashMap::with_capacity(names.len()), Vec::new());
        for name in names {
            match open(name) {
                Some(shard) => drop(shards.insert(name.as_str(), shard)),
                None => missing.push(name.clone()),
            }
        }
        if !missing.is_empty() {
            return Err(WeightsError::MissingShards { path, missing });
        }
        let opened = shards.into_iter().map(|(name, shard)| Ok((name, shard?)));
        let mut shards = opened.collect::<Result<HashMap<_, _>, WeightsError>>()?;
        let mut absent = Vec::new();
        let mut tensors = HashMap::with_capacity(map.len());
        for (name, shard) in map {
            match shards.get_mut(shard.as_str()).and_then(|shard| shard.tensors.remove(name)) {
                Some(tensor) => drop(tensors.insert(name.clone(), tensor)),
                None => {
                    absent.push(Mismatch::NotInShard { name: name.clone(), shard: shard.clone() })
                }
            }
        }
        WeightsError::from_mismatches(&path, CONFIG, absent)?;
        Ok(Self { path, described_by: CONFIG, tensors })
    }

    /// Tensors of the file `path`, which `described_by` describes.
    pub(crate) fn of_tensors(
        path: &Path,
        described_by: &'static str,
        tensors: HashMap<String, Tensor>,
    ) -> Self {
        Self { path: path.to_owned(), described_by, tensors }
    }

    /// The file or index that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// The tensor called `name`.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Tensor> {
        self.tensors.get_mut(name)
    }

    /// Compares every tensor with what `config` calls for; all differences in one error.
    pub fn check(&self, config: &ModelConfig) -> Result<(), WeightsError> {
        let expected = expected_tensors(config);
        let mut found: Vec<Mismatch> =
            expected.iter().filter_map(|tensor| self.compare(tensor, config)).collect();
        found.extend(self.unexpected(&expected));
        WeightsError::from_mismatches(&self.path, self.described_by, found)?;
        self.check_tied(config)
    }

    /// Refuses an output projection beside a config that says there is none, unless it is a copy of
    /// the embedding: versions of transformers disagree on which of the two to use.
    fn check_tied(&self, config: &ModelConfig) -> Result<(), WeightsError> {
        let layout = &config.architecture.traits().layout;
        let (embedding, lm_head) = (layout.embedding, layout.lm_head);
        let pair = (self.get(embedding), self.get(lm_head));
        let (Some(one), Some(other)) = pair else { return Ok(()) };
        if !config.tie_word_embeddings || self.is_copy(one, other)? {
            return Ok(());
        }
        Err(WeightsError::NotTied {
            path: self.path.clone(),
            embedding: embedding.to_owned(),
            lm_head: lm_head.to_owned(),
        })
    }

    /// Whether two tensors hold the same rows. A part of them is compared: what was trained apart
    /// differs everywhere, and reading all of both would double the time of a start.
    fn is_copy(&self, one: &Tensor, other: &Tensor) -> Result<bool, WeightsError> {
        const N_RUNS: usize = 64;
        const RUN_BYTES: usize = 4096;
        let read = |source| WeightsError::Read { path: self.path.clone(), source };
        let len = one.stored_at.len();
        if one.dtype != other.dtype || one.shape != other.shape || len != other.stored_at.len() {
            return Ok(false);
        }
        let step = len.div_ceil(N_RUNS).max(1);
        for start in (0..len).step_by(step) {
            let run = start..len.min(start + RUN_BYTES);
            let bytes = |tensor: &Tensor| -> std::io::Result<Vec<u8>> {
                let mut bytes = vec![0; run.len()];
                tensor.stored_at.read_runs(std::slice::from_ref(&run), 0, &mut bytes)?;
                Ok(bytes)
            };
            if bytes(one).map_err(read)? != bytes(other).map_err(read)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn compare(&self, expected: &ExpectedTensor, config: &ModelConfig) -> Option<Mismatch> {
        let name = expected.name.clone();
        let Some(tensor) = self.get(&expected.name) else {
            let lm_head = config.architecture.traits().layout.lm_head;
            let untied_head = !config.tie_word_embeddings && name == lm_head;
            return Some(Mismatch::Missing { name, untied_head });
        };
        if tensor.dtype.is_none() {
            return Some(Mismatch::Type { name, stored: tensor.stored.clone() });
        }
        (tensor.shape != expected.shape).then(|| Mismatch::Shape {
            name,
            found: tensor.shape.clone(),
            expected: expected.shape.clone(),
        })
    }

    /// Tensors inside the model that would be ignored although they change the result, such as a
    /// bias of a config without biases. Saved frequency tables are harmless, and so is a copy of
    /// a tied embedding, which stands outside `model.`.
    fn unexpected(&self, expected: &[ExpectedTensor]) -> Vec<Mismatch> {
        let known: BTreeSet<&str> = expected.iter().map(|tensor| tensor.name.as_str()).collect();
        let mut names: Vec<&String> = self
            .tensors
            .keys()
            .filter(|name| name.starts_with("model.") && !known.contains(name.as_str()))
            .filter(|name| !name.ends_with("rotary_emb.inv_freq"))
            .collect();
        names.sort();
        names.into_iter().map(|name| Mismatch::Unexpected { name: name.clone() }).collect()
    }

    /// Bytes of the tensors that `config` uses.
    pub fn weight_bytes(&self, config: &ModelConfig) -> u64 {
        let tensors = expected_tensors(config);
        tensors.iter().filter_map(|t| self.get(&t.name)).map(|t| t.stored_at.len() as u64).sum()
    }

    /// Bytes that these tensors take in their files: of blocks where they are such.
    pub fn file_bytes(&self, config: &ModelConfig) -> u64 {
        let tensors = expected_tensors(config);
        tensors.iter().filter_map(|t| self.get(&t.name)).map(|t| t.file_bytes() as u64).sum()
    }

    /// The type in which most bytes of these tensors are stored, as the file calls it.
    pub fn main_type(&self, config: &ModelConfig) -> &str {
        let mut bytes: BTreeMap<&str, usize> = BTreeMap::new();
        for tensor in expected_tensors(config).iter().filter_map(|t| self.get(&t.name)) {
            *bytes.entry(&tensor.stored).or_default() += tensor.file_bytes();
        }
        bytes.into_iter().max_by_key(|(_, bytes)| *bytes).map_or("", |(name, _)| name)
    }

    /// Bytes that these tensors take on a device whose kernels read quantised weights of `types`.
    pub fn device_bytes(&self, config: &ModelConfig, types: &[QuantType]) -> u64 {
        let tensors = expected_tensors(config);
        let found = tensors.iter().filter_map(|t| self.get(&t.name));
        found.map(|t| t.tile_bytes(types).unwrap_or(t.stored_at.len()) as u64).sum()
    }

    /// The tensor `name` as a backend takes it: a matrix, or a vector as one row.
    pub fn source(&self, name: &str) -> Result<WeightSource, WeightsError> {
        self.collect(self.whole_rows(name)?)
    }

    /// `part` as a backend takes it: a matrix, or a vector as one row.
    ///
    /// # Panics
    /// If `part` has a row that its own tensor has not.
    pub fn part(&self, part: &TensorPart) -> Result<WeightSource, WeightsError> {
        self.collect(self.part_rows(part)?)
    }

    /// Hands the rows of a tensor to `backend`: as blocks, where they are such and the backend has
    /// kernels for them or blocks were asked for, else as numbers. What is not in memory is read
    /// meanwhile.
    pub(crate) fn hand_over<B: Backend>(
        &self,
        backend: &B,
        rows: WeightRows<'_>,
        activations: Activations,
    ) -> Result<B::Weight, LoadError> {
        if let Some(quantised) = &rows.tensor.quantised
            && rows.tensor.shape.len() == 2
            && (quantised.is_made || backend.capabilities().quant_types.contains(&quantised.ty))
        {
            let blocks = self.blocks(quantised, &rows)?;
            let ty = quantised.ty;
            if block_without_scale(ty, blocks.as_ref()).is_some() {
                let what = "NaN or infinity as the scale of a block".to_owned();
                return Err(self.not_finite(&rows, what).into());
            }
            let WeightRows { name, n_rows, n_cols, .. } = rows;
            let source = QuantSource { name, ty, n_rows, n_cols, blocks, activations };
            return Ok(backend.load_quantised(source)?);
        }
        if rows.tensor.shape.len() == 1 {
            return Ok(backend.load_weight(self.checked_vector(rows)?)?);
        }
        if rows.tensor.bytes().is_some() {
            let source = WeightSource { activations, ..self.collect(rows)? };
            return Ok(backend.load_weight(source)?);
        }
        let WeightRows { name, tensor, dtype, n_rows, n_cols, rows } = rows;
        let runs = tensor.runs(&rows);
        let mut read = |at: usize, out: &mut [u8]| {
            tensor.stored_at.read_runs(&runs, at, out)?;
            match first_not_finite(dtype, out) {
                None => Ok(()),
                Some(i) => Err(std::io::Error::other(not_finite_at(at / dtype.size() + i))),
            }
        };
        let stream = WeightStream { name, dtype, n_rows, n_cols, activations, read: &mut read };
        Ok(backend.stream_weight(stream)?)
    }

    /// A vector in memory, all of which are numbers.
    fn checked_vector(&self, rows: WeightRows<'_>) -> Result<WeightSource, WeightsError> {
        let source = self.collect(rows.clone())?;
        match first_not_finite(source.dtype, source.bytes.as_ref()) {
            None => Ok(source),
            Some(i) => Err(self.not_finite(&rows, not_finite_at(i))),
        }
    }

    fn not_finite(&self, rows: &WeightRows<'_>, what: String) -> WeightsError {
        let name = rows.tensor.name_in_file.as_ref().unwrap_or(&rows.name);
        WeightsError::NotFinite { path: self.path.clone(), name: name.clone(), what }
    }

    fn blocks(
        &self,
        quantised: &Quantised,
        rows: &WeightRows<'_>,
    ) -> Result<HostBytes, WeightsError> {
        let read = |source| WeightsError::Read { path: self.path.clone(), source };
        let row_bytes = quantised.stored_at.len() / rows.tensor.shape[0].max(1);
        let runs = runs_of(row_bytes, &rows.rows);
        quantised.stored_at.aligned_runs(&runs, 1).map_err(read)
    }

    /// What a device gets of `part`: its type, and its blocks or values.
    #[cfg(test)]
    pub(crate) fn bits(&self, part: &TensorPart) -> (Option<QuantType>, Vec<u8>) {
        let rows = self.part_rows(part).expect("a tensor of the model");
        match &rows.tensor.quantised {
            Some(quantised) if rows.tensor.shape.len() == 2 => {
                let blocks = self.blocks(quantised, &rows).expect("readable");
                (Some(quantised.ty), blocks.as_ref().to_vec())
            }
            _ => (None, self.collect(rows).expect("readable").bytes.as_ref().to_vec()),
        }
    }

    /// Everything in memory: in place if it lies together at an address that fits its type, or else
    /// copied. safetensors aligns the data only if the writer padded the header; older writers did
    /// not.
    fn collect(&self, rows: WeightRows<'_>) -> Result<WeightSource, WeightsError> {
        let WeightRows { name, tensor, dtype, n_rows, n_cols, rows } = rows;
        let runs = tensor.runs(&rows);
        let read = |source| WeightsError::Read { path: self.path.clone(), source };
        let bytes = tensor.stored_at.aligned_runs(&runs, dtype.size()).map_err(read)?;
        let activations = Activations::default();
        Ok(WeightSource { name, dtype, n_rows, n_cols, bytes, activations })
    }

    /// The vector `name` with 1 added to each element, in f32.
    pub(crate) fn plus_one(&self, name: &str) -> Result<WeightSource, WeightsError> {
        let source = self.checked_vector(self.whole_rows(name)?)?;
        let WeightSource { dtype, ref bytes, .. } = source;
        let values = decode_f32(dtype, bytes.as_ref());
        let bytes: Vec<u8> = values.iter().flat_map(|x| (1.0 + x).to_le_bytes()).collect();
        let bytes = HostBytes::from_vec(bytes);
        Ok(WeightSource { dtype: DType::F32, bytes, ..source })
    }

    /// All rows of the tensor `name`.
    pub(crate) fn whole_rows(&self, name: &str) -> Result<WeightRows<'_>, WeightsError> {
        let (tensor, dtype) = self.readable(name)?;
        let n_cols = tensor.shape.last().copied().unwrap_or(1);
        let n_rows = tensor.shape.iter().rev().skip(1).product();
        let all = 0..tensor.shape.first().copied().unwrap_or(0);
        Ok(WeightRows { name: name.to_owned(), tensor, dtype, n_rows, n_cols, rows: vec![all] })
    }

    /// The rows that `part` names.
    pub(crate) fn part_rows(&self, part: &TensorPart) -> Result<WeightRows<'_>, WeightsError> {
        let name = part.tensor.name.clone();
        let (tensor, dtype) = self.readable(&name)?;
        if tensor.shape != part.tensor.shape {
            let (found, expected) = (tensor.shape.clone(), part.tensor.shape.clone());
            return Err(self.mismatch(Mismatch::Shape { name, found, expected }));
        }
        let (n_rows, n_cols) = match *tensor.shape {
            [_, n_cols] => (part.n_rows(), n_cols),
            _ => (1, part.n_rows()),
        };
        Ok(WeightRows { name, tensor, dtype, n_rows, n_cols, rows: part.rows.clone() })
    }

    /// The rows that `part` names in another form, each value with `offset` added; `order` says
    /// which of them each row is. A vector has rows of one value.
    ///
    /// # Errors
    /// If the tensor is not there, is not read, or has blocks already.
    pub(crate) fn made_rows(
        &self,
        part: &TensorPart,
        form: RowForm,
        order: &dyn Fn(usize) -> usize,
        offset: f32,
    ) -> Result<MadeRows, WeightsError> {
        let WeightRows { name, tensor, dtype, .. } = self.part_rows(part)?;
        if let Some(ty) = tensor.quant_type() {
            return Err(WeightsError::Quantised { path: self.path.clone(), name, ty });
        }
        let rows: Vec<usize> = part.rows.iter().cloned().flatten().collect();
        let order: Vec<usize> = (0..rows.len()).map(|row| rows[order(row)]).collect();
        let in_order = order.iter().enumerate().all(|(at, row)| at == *row);
        let (n_rows, n_cols) = (rows.len(), tensor.shape.get(1).copied().unwrap_or(1));
        let (stored, order) = (tensor.stored_at.clone(), (!in_order).then_some(order));
        Ok(MadeRows { stored, dtype, form, n_rows, n_cols, order, offset })
    }

    fn mismatch(&self, mismatch: Mismatch) -> WeightsError {
        let (path, by) = (self.path.clone(), self.described_by);
        WeightsError::Mismatches { path, by, mismatches: vec![mismatch] }
    }

    /// The tensor `name` with its type.
    pub(super) fn readable(&self, name: &str) -> Result<(&Tensor, DType), WeightsError> {
        let Some(tensor) = self.get(name) else {
            let name = name.to_owned();
            return Err(self.mismatch(Mismatch::Missing { name, untied_head: false }));
        };
        let Some(dtype) = tensor.dtype else {
            let (name, stored) = (name.to_owned(), tensor.stored.clone());
            return Err(self.mismatch(Mismatch::Type { name, stored }));
        };
        Ok((tensor, dtype))
    }
}

fn not_finite_at(i: usize) -> String {
    format!("NaN or infinity as value {i}")
}

/// A weight as rows of a stored tensor.
#[derive(Clone)]
pub(crate) struct WeightRows<'a> {
    name: String,
    tensor: &'a Tensor,
    dtype: DType,
    n_rows: usize,
    n_cols: usize,
    /// Runs of its first dimension.
    rows: Vec<Range<usize>>,
}

impl WeightRows<'_> {
    /// Bytes in all, as numbers.
    pub(crate) fn n_bytes(&self) -> usize {
        self.n_rows * self.n_cols * self.dtype.size()
    }
}

/// The index file; its metadata is not used.
#[derive(Deserialize)]
struct IndexFile {
    weight_map: HashMap<String, String>,
}

fn read_index(path: &Path) -> Result<HashMap<String, String>, WeightsError> {
    let read = |source| WeightsError::Read { path: path.to_owned(), source };
    let bytes = check_file(path).map_err(read)?.len();
    if bytes > MAX_HEADER_BYTES {
        return Err(WeightsError::HeaderTooLarge { path: path.to_owned(), bytes });
    }
    parse_index(path, &read_text(path, MAX_HEADER_BYTES).map_err(read)?)
}

/// Whether there is a file of this name: an error if what is there cannot be read as one, as a pipe
/// or a link that leads nowhere.
fn is_there(path: &Path) -> Result<bool, WeightsError> {
    if path.symlink_metadata().is_err() {
        return Ok(false);
    }
    let read = |source| WeightsError::Read { path: path.to_owned(), source };
    check_file(path).map(|_| true).map_err(read)
}

fn parse_index(path: &Path, text: &str) -> Result<HashMap<String, String>, WeightsError> {
    let index: IndexFile = serde_json::from_str(text)
        .map_err(|source| WeightsError::Index { path: path.to_owned(), source })?;
    if index.weight_map.len() > MAX_TENSORS {
        return Err(WeightsError::TooManyTensors { path: path.to_owned() });
    }
    Ok(index.weight_map)
}

/// Whether `name` stays inside the folder on every system: no separator, no drive, no dots.
fn is_plain_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    let one_part = matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None));
    one_part && !name.contains(['/', '\\', ':', '\0'])
}

#[cfg(test)]
mod tests;
