//! A GGUF file, or the parts of one, with their headers checked.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longview_core::{HostBytes, RangeSource};

use super::error::{GgufError, GgufProblem};
use super::limits::{MAX_PARTS, MAX_TENSORS};
use super::metadata::Metadata;
use super::reader::{Header, TensorInfo};
use crate::source::{FolderFiles, SharedSource, check_file};
use crate::weights::map;

/// A tensor's place: the part of the model that holds it, and where.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// Name, type, shape and place.
    pub info: TensorInfo,
    /// Which part holds it, counted from 0.
    pub part: usize,
}

/// One file of a model.
#[derive(Clone)]
struct Part {
    source: SharedSource,
    /// All of it, where it is mapped.
    bytes: Option<HostBytes>,
}

impl Part {
    fn map(path: &Path) -> Result<Self, GgufError> {
        let read = |source| GgufProblem::Read { source }.of(path);
        check_file(path).map_err(read)?;
        Ok(Self::mapped(map(path).map_err(read)?))
    }

    fn mapped(bytes: HostBytes) -> Self {
        Self { source: Arc::new(Mapped(bytes.clone())), bytes: Some(bytes) }
    }

    fn header(&self, path: &Path) -> Result<Header, GgufError> {
        let header = match &self.bytes {
            Some(bytes) => Header::parse(bytes.as_ref(), bytes.len() as u64),
            None => Header::read(&*self.source),
        };
        header.map_err(|problem| problem.of(path))
    }
}

/// A model in GGUF, mapped or read in runs. Blocks are as the file has them.
#[derive(Clone)]
pub struct GgufFile {
    /// The file that was named.
    pub path: PathBuf,
    /// The key-values of the first part.
    pub metadata: Metadata,
    /// The tensors of all parts.
    pub tensors: Vec<StoredTensor>,
    parts: Vec<Part>,
}

/// What finds a part by its name; `None` where there is no such file.
type FindPart<'a> = &'a dyn Fn(&str) -> Option<Result<Part, GgufError>>;

impl GgufFile {
    /// Maps `path`, and the other parts if it is the first of several.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::of_parts(path, Part::map(path)?, &|name| {
            let path = path.with_file_name(name);
            path.symlink_metadata().is_ok().then(|| Part::map(&path))
        })
    }

    /// As [`GgufFile::open`] of files that lie elsewhere. The first by name is the first part.
    pub(super) fn from_files(files: &FolderFiles) -> Option<Result<Self, GgufError>> {
        let part = |source: &SharedSource| Part { source: Arc::clone(source), bytes: None };
        let is_gguf = |name: &str| name.to_ascii_lowercase().ends_with(".gguf");
        let (name, first) = files.weights.iter().find(|(name, _)| is_gguf(name))?;
        let path = files.name.join(name);
        Some(Self::of_parts(&path, part(first), &|name| files.weights.get(name).map(part).map(Ok)))
    }

    #[cfg(test)]
    pub(super) fn of_bytes(path: &Path, bytes: HostBytes) -> Result<Self, GgufError> {
        Self::of_parts(path, Part::mapped(bytes), &|_| None)
    }

    fn of_parts(path: &Path, first: Part, find: FindPart<'_>) -> Result<Self, GgufError> {
        let header = first.header(path)?;
        let n_parts = header.metadata.whole(SPLIT_COUNT, 0, MAX_PARTS as usize);
        let n_parts = n_parts.map_err(|problem| problem.of(path))?.unwrap_or(0);
        let mut file = Self {
            path: path.to_owned(),
            tensors: Vec::new(),
            parts: Vec::new(),
            metadata: header.metadata,
        };
        file.add(header.tensors, first).map_err(|problem| problem.of(path))?;
        if n_parts > 1 {
            file.add_parts(n_parts, find)?;
        }
        Ok(file)
    }

    /// The stored bytes of a tensor, its blocks: in place where the file is mapped.
    ///
    /// # Errors
    /// What the system says.
    pub fn blocks(&self, tensor: &StoredTensor) -> io::Result<HostBytes> {
        let TensorInfo { start, len, .. } = tensor.info;
        let part = &self.parts[tensor.part];
        match &part.bytes {
            Some(bytes) => Ok(bytes.slice(start as usize..start as usize + len)),
            None => HostBytes::filled(len, |out| part.source.read_at(start, out)),
        }
    }

    /// Whether the stored bytes of a tensor are in memory.
    pub(super) fn is_mapped(&self, tensor: &StoredTensor) -> bool {
        self.parts[tensor.part].bytes.is_some()
    }

    /// The file that a tensor is in.
    pub(super) fn source(&self, tensor: &StoredTensor) -> SharedSource {
        Arc::clone(&self.parts[tensor.part].source)
    }

    fn add(&mut self, tensors: Vec<TensorInfo>, part: Part) -> Result<(), GgufProblem> {
        let number = self.parts.len();
        let stored = |info| StoredTensor { info, part: number };
        self.tensors.extend(tensors.into_iter().map(stored));
        self.parts.push(part);
        let found = self.tensors.len() as u64;
        if found > MAX_TENSORS {
            let what = "the parts together".to_owned();
            return Err(GgufProblem::TooMany { what, offset: 0, found, max: MAX_TENSORS });
        }
        Ok(())
    }

    fn add_parts(&mut self, n_parts: usize, find: FindPart<'_>) -> Result<(), GgufError> {
        let first = self.path.clone();
        let refuse = |reason: String| GgufProblem::Split { reason }.of(&first);
        check_number(&self.metadata, 0, n_parts).map_err(|problem| problem.of(&first))?;
        let name = first.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let ending = format!("-00001-of-{n_parts:05}.gguf");
        let Some(stem) = name.strip_suffix(&ending) else {
            let reason = format!("its name does not end in {ending}, so its parts are not found");
            return Err(refuse(reason));
        };
        for number in 1..n_parts {
            let name = format!("{stem}-{:05}-of-{n_parts:05}.gguf", number + 1);
            let part = find(&name);
            let part = part.ok_or_else(|| refuse(format!("{name} is missing; download it")))??;
            let path = first.with_file_name(&name);
            let header = part.header(&path)?;
            check_number(&header.metadata, number, n_parts)
                .and_then(|()| self.add(header.tensors, part))
                .map_err(|problem| problem.of(&path))?;
        }
        let mut names: Vec<&str> = self.tensors.iter().map(|t| t.info.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let reason = format!("tensor {} is in two of them", crate::text::clip(twice[0]));
            return Err(refuse(reason));
        }
        Ok(())
    }
}

const SPLIT_COUNT: &str = "split.count";

/// Whether a part says that it is number `part` of `n_parts`.
fn check_number(metadata: &Metadata, part: usize, n_parts: usize) -> Result<(), GgufProblem> {
    let whole = |key| metadata.whole(key, 0, MAX_PARTS as usize);
    let (found, of) = (whole("split.no")?, whole(SPLIT_COUNT)?);
    if found == Some(part) && of == Some(n_parts) {
        return Ok(());
    }
    let number = |n: Option<usize>| n.map_or("?".to_owned(), |n| n.to_string());
    let reason = format!(
        "it says that it is part {} of {}, counted from 0, where part {part} of {n_parts} is \
         needed; name the first part",
        number(found),
        number(of)
    );
    Err(GgufProblem::Split { reason })
}

/// A mapped file, read as others are.
struct Mapped(HostBytes);

impl RangeSource for Mapped {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.as_ref().read_at(at, out)
    }
}
