//! A GGUF file, or the parts of one, with their headers checked.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use longview_core::HostBytes;

use super::error::{GgufError, GgufProblem};
use super::limits::{MAX_PARTS, MAX_TENSORS};
use super::metadata::Metadata;
use super::reader::{Header, TensorInfo};
use crate::source::{SharedSource, check_file};
use crate::weights::map;

/// A tensor's place: the part of the model that holds it, and where.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// Name, type, shape and place.
    pub info: TensorInfo,
    /// Which of [`GgufFile::parts`].
    pub part: usize,
}

/// A model in GGUF, mapped. Blocks are as the file has them.
#[derive(Clone, Debug)]
pub struct GgufFile {
    /// The file that was named.
    pub path: PathBuf,
    /// The key-values of the first part.
    pub metadata: Metadata,
    /// The tensors of all parts.
    pub tensors: Vec<StoredTensor>,
    /// The bytes of each part.
    pub parts: Vec<HostBytes>,
}

impl GgufFile {
    /// Maps `path`, and the other parts if it is the first of several.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let read = |source| GgufProblem::Read { source }.of(path);
        check_file(path).map_err(read)?;
        Self::of_bytes(path, map(path).map_err(read)?)
    }

    /// As [`GgufFile::open`], of the bytes of the file `path`.
    pub(super) fn of_bytes(path: &Path, bytes: HostBytes) -> Result<Self, GgufError> {
        let header = parse(path, &bytes)?;
        let n_parts = header.metadata.whole(SPLIT_COUNT, 0, MAX_PARTS as usize);
        let n_parts = n_parts.map_err(|problem| problem.of(path))?.unwrap_or(0);
        let mut file = Self {
            path: path.to_owned(),
            tensors: Vec::new(),
            parts: Vec::new(),
            metadata: header.metadata.clone(),
        };
        file.add(header, bytes).map_err(|problem| problem.of(path))?;
        if n_parts > 1 {
            file.add_parts(n_parts)?;
        }
        Ok(file)
    }

    /// The stored bytes of a tensor: its blocks.
    pub fn blocks(&self, tensor: &StoredTensor) -> HostBytes {
        let start = tensor.info.start as usize;
        self.parts[tensor.part].slice(start..start + tensor.info.len)
    }

    /// A part as a file that is read in runs.
    pub(super) fn source(&self, part: usize) -> SharedSource {
        Arc::new(Mapped(self.parts[part].clone()))
    }

    fn add(&mut self, header: Header, bytes: HostBytes) -> Result<(), GgufProblem> {
        let part = self.parts.len();
        self.tensors.extend(header.tensors.into_iter().map(|info| StoredTensor { info, part }));
        self.parts.push(bytes);
        let found = self.tensors.len() as u64;
        if found > MAX_TENSORS {
            let what = "the parts together".to_owned();
            return Err(GgufProblem::TooMany { what, offset: 0, found, max: MAX_TENSORS });
        }
        Ok(())
    }

    fn add_parts(&mut self, n_parts: usize) -> Result<(), GgufError> {
        let first = self.path.clone();
        let refuse = |path: &Path, reason: String| GgufProblem::Split { reason }.of(path);
        check_number(&self.metadata, 0, n_parts).map_err(|problem| problem.of(&first))?;
        let name = first.file_name().and_then(OsStr::to_str).unwrap_or_default();
        let ending = format!("-00001-of-{n_parts:05}.gguf");
        let Some(stem) = name.strip_suffix(&ending) else {
            let reason = format!("its name does not end in {ending}, so its parts are not found");
            return Err(refuse(&first, reason));
        };
        for part in 1..n_parts {
            let name = format!("{stem}-{:05}-of-{n_parts:05}.gguf", part + 1);
            let path = first.with_file_name(&name);
            if path.symlink_metadata().is_err() {
                return Err(refuse(&first, format!("{name} is missing; download it")));
            }
            let read = |source| GgufProblem::Read { source }.of(&path);
            check_file(&path).map_err(read)?;
            let bytes = map(&path).map_err(read)?;
            let header = parse(&path, &bytes)?;
            check_number(&header.metadata, part, n_parts).map_err(|problem| problem.of(&path))?;
            self.add(header, bytes).map_err(|problem| problem.of(&path))?;
        }
        let mut names: Vec<&str> = self.tensors.iter().map(|t| t.info.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            let reason = format!("tensor {} is in two of them", crate::text::clip(twice[0]));
            return Err(refuse(&first, reason));
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

fn parse(path: &Path, bytes: &HostBytes) -> Result<Header, GgufError> {
    Header::parse(bytes.as_ref(), bytes.len() as u64).map_err(|problem| problem.of(path))
}

/// A mapped file, read as others are.
struct Mapped(HostBytes);

impl longview_core::RangeSource for Mapped {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.as_ref().read_at(at, out)
    }
}
