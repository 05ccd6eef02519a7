//! One safetensors file, mapped or read in runs, its header checked against its length.

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;

use longview_core::{DType, HostBytes};
use safetensors::tensor::Dtype;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use super::error::WeightsError;
use super::limits::{MAX_HEADER_BYTES, MAX_TENSORS};
use super::stored::Stored;
use super::tensor::Tensor;
use crate::source::SharedSource;

/// Bytes of the number that begins the file: the length of the header.
const PREFIX: usize = 8;
/// How a file begins that only names the large one.
const LFS_BEGIN: &[u8] = b"version https://git-lfs";

pub(super) struct Shard {
    pub tensors: HashMap<String, Tensor>,
}

impl Shard {
    pub(super) fn open(path: &Path) -> Result<Self, WeightsError> {
        let bytes =
            map(path).map_err(|source| WeightsError::Read { path: path.to_owned(), source })?;
        if bytes.is_empty() {
            return Err(WeightsError::Empty { path: path.to_owned() });
        }
        let length = header_length(path, bytes.as_ref(), bytes.len() as u64)?;
        let start = PREFIX + length;
        // What is mapped has addresses.
        Self::read(path, &bytes.as_ref()[PREFIX..start], bytes.len() as u64, |first, len| {
            let first = start + first as usize;
            Stored::InMemory(bytes.slice(first..first + len))
        })
    }

    /// Reads the header alone; tensors are read when they are asked for.
    pub(super) fn of_source(path: &Path, source: &SharedSource) -> Result<Self, WeightsError> {
        let read = |source| WeightsError::Read { path: path.to_owned(), source };
        let size = source.size();
        if size == 0 {
            return Err(WeightsError::Empty { path: path.to_owned() });
        }
        let mut begin = vec![0; size.min(LFS_BEGIN.len() as u64) as usize];
        source.read_at(0, &mut begin).map_err(read)?;
        let length = header_length(path, &begin, size)?;
        let mut header = vec![0; length];
        source.read_at(PREFIX as u64, &mut header).map_err(read)?;
        let start = (PREFIX + length) as u64;
        Self::read(path, &header, size, |first, len| Stored::InFile {
            source: Arc::clone(source),
            start: start + first,
            len,
        })
    }

    /// The tensors that `header` tells of, in a file of `size` bytes.
    fn read(
        path: &Path,
        header: &[u8],
        size: u64,
        stored_at: impl Fn(u64, usize) -> Stored,
    ) -> Result<Self, WeightsError> {
        let entries = parse(path, header)?.tensors;
        let corrupt = |reason: String| WeightsError::Corrupt { path: path.to_owned(), reason };
        let data_len = data_len(&entries).map_err(corrupt)?;
        check_length(path, (PREFIX + header.len()) as u64 + data_len, size)?;
        let mut tensors = HashMap::with_capacity(entries.len());
        for (name, entry) in entries {
            let Entry { dtype, shape, data_offsets: (first, end) } = entry;
            let bytes = end - first;
            let Ok(len) = usize::try_from(bytes) else {
                return Err(WeightsError::TensorTooLarge { path: path.to_owned(), name, bytes });
            };
            let tensor = Tensor {
                dtype: readable(dtype),
                stored: format!("{dtype:?}"),
                shape: shape.into_iter().map(|n| n as usize).collect(),
                stored_at: stored_at(first, len),
                quantised: None,
                name_in_file: None,
            };
            tensors.insert(name, tensor);
        }
        Ok(Self { tensors })
    }
}

/// The file in memory, as a whole: a system without mappings says so.
#[cfg(target_arch = "wasm32")]
pub(crate) fn map(path: &Path) -> io::Result<HostBytes> {
    std::fs::read(path).map(HostBytes::from_vec)
}

/// The file in memory: its pages are read when they are touched.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn map(path: &Path) -> io::Result<HostBytes> {
    let file = std::fs::File::open(path)?;
    if file.metadata()?.len() == 0 {
        // Nothing cannot be mapped.
        return Ok(HostBytes::from_vec(Vec::new()));
    }
    // SAFETY: the mapping is read-only and private to this process, and it is only ever seen as
    // bytes, for which every value is valid. What no process can rule out is another one that
    // truncates the file meanwhile; that ends in SIGBUS, not in a wrong read, and every runtime
    // that maps weights accepts it.
    let mapped = unsafe { memmap2::Mmap::map(&file) }?;
    Ok(HostBytes::new(Arc::new(mapped)))
}

/// The length of the header's JSON in a file of `size` bytes that begins with `begin`, if the file
/// is long enough and the header short enough.
fn header_length(path: &Path, begin: &[u8], size: u64) -> Result<usize, WeightsError> {
    if begin.starts_with(LFS_BEGIN) {
        return Err(WeightsError::LfsPointer { path: path.to_owned() });
    }
    let Some(prefix) = begin.first_chunk::<PREFIX>() else {
        check_length(path, PREFIX as u64, size)?;
        unreachable!("the file is shorter than its prefix");
    };
    let length = u64::from_le_bytes(*prefix);
    if length > MAX_HEADER_BYTES {
        return Err(WeightsError::HeaderTooLarge { path: path.to_owned(), bytes: length });
    }
    if length > size - PREFIX as u64 {
        let needed = PREFIX as u64 + length;
        return Err(WeightsError::Truncated { path: path.to_owned(), needed, found: size });
    }
    Ok(length as usize)
}

/// A file's header. `safetensors` reads offsets as numbers of the machine's width and counts bits
/// in them: in a program of 32 bits that ends at tensors of 512 MiB and files of 4 GiB.
#[derive(Deserialize)]
struct Header {
    /// What whoever wrote it had to say.
    #[serde(rename = "__metadata__")]
    _metadata: Option<HashMap<String, String>>,
    #[serde(flatten)]
    tensors: HashMap<String, Entry>,
}

#[derive(Deserialize)]
struct Entry {
    dtype: Dtype,
    shape: Vec<u64>,
    /// First byte behind the header, and the one behind the last.
    data_offsets: (u64, u64),
}

impl Entry {
    /// Bytes that type and shape make.
    fn size(&self) -> Option<u64> {
        let bits =
            self.shape.iter().try_fold(self.dtype.bitsize() as u64, |n, m| n.checked_mul(*m));
        bits.filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8)
    }
}

/// Bytes behind the header, if tensors lie there one behind the other and as large as they say.
fn data_len(entries: &HashMap<String, Entry>) -> Result<u64, String> {
    let mut all: Vec<(&String, &Entry)> = entries.iter().collect();
    all.sort_by_key(|(_, entry)| entry.data_offsets);
    let mut at = 0;
    for (name, entry) in all {
        let (first, end) = entry.data_offsets;
        if first != at || end < first {
            return Err(format!(
                "{name} lies at {first}..{end}, and {at} is where it should begin"
            ));
        }
        if entry.size() != Some(end - first) {
            let Entry { dtype, shape, .. } = entry;
            return Err(format!("{name} has {} bytes for {dtype:?} {shape:?}", end - first));
        }
        at = end;
    }
    Ok(at)
}

/// Counts before it builds: a hostile header of 100 MB must not become gigabytes of maps.
fn parse(path: &Path, header: &[u8]) -> Result<Header, WeightsError> {
    let corrupt = |reason: String| WeightsError::Corrupt { path: path.to_owned(), reason };
    let text = std::str::from_utf8(header).map_err(|error| corrupt(error.to_string()))?;
    let entries: EntryCount =
        serde_json::from_str(text).map_err(|error| corrupt(error.to_string()))?;
    if entries.0 > MAX_TENSORS {
        return Err(WeightsError::TooManyTensors { path: path.to_owned() });
    }
    serde_json::from_str(text).map_err(|error| corrupt(error.to_string()))
}

/// Shorter than the header says is truncated; longer is something else than the header says.
fn check_length(path: &Path, needed: u64, found: u64) -> Result<(), WeightsError> {
    let path = path.to_owned();
    match found.cmp(&needed) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Less => Err(WeightsError::Truncated { path, needed, found }),
        std::cmp::Ordering::Greater => {
            let reason = format!("{found} bytes, the header accounts for {needed}");
            Err(WeightsError::Corrupt { path, reason })
        }
    }
}

fn readable(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::F32 => Some(DType::F32),
        Dtype::F16 => Some(DType::F16),
        Dtype::BF16 => Some(DType::BF16),
        _ => None,
    }
}

/// The number of entries of a JSON object, counted without keeping any.
struct EntryCount(usize);

impl<'de> Deserialize<'de> for EntryCount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Count;
        impl<'de> Visitor<'de> for Count {
            type Value = usize;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<usize, A::Error> {
                let mut entries = 0;
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {
                    entries += 1;
                }
                Ok(entries)
            }
        }
        deserializer.deserialize_map(Count).map(EntryCount)
    }
}
