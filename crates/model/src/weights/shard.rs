//! One safetensors file, mapped, its header checked against its length.

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use longview_core::{DType, HostBytes};
use memmap2::Mmap;
use safetensors::tensor::{Dtype, Metadata};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{MAX_HEADER_BYTES, MAX_TENSORS, Tensor, WeightsError};

/// Bytes of the number that begins the file: the length of the header.
const PREFIX: usize = 8;

pub(super) struct Shard {
    pub tensors: HashMap<String, Tensor>,
}

impl Shard {
    pub(super) fn open(path: &Path) -> Result<Self, WeightsError> {
        let bytes = map(path)?;
        let header = header(path, bytes.as_ref())?;
        let metadata = parse(path, header)?;
        let start = PREFIX + header.len();
        check_length(path, (start as u64) + metadata.data_len() as u64, bytes.len() as u64)?;
        let tensors = metadata.tensors().into_iter().map(|(name, info)| {
            let (first, end) = info.data_offsets;
            let tensor = Tensor {
                dtype: readable(info.dtype),
                stored: format!("{:?}", info.dtype),
                shape: info.shape.clone(),
                bytes: bytes.slice(start + first..start + end),
            };
            (name, tensor)
        });
        Ok(Self { tensors: tensors.collect() })
    }
}

fn map(path: &Path) -> Result<HostBytes, WeightsError> {
    let read = |source| WeightsError::Read { path: path.to_owned(), source };
    let file = File::open(path).map_err(read)?;
    if file.metadata().map_err(read)?.len() == 0 {
        return Err(WeightsError::Empty { path: path.to_owned() });
    }
    // SAFETY: the mapping is read-only and private to this process, and it is only ever seen as
    // bytes, for which every value is valid. What no process can rule out is another one that
    // truncates the file meanwhile; that ends in SIGBUS, not in a wrong read, and every runtime
    // that maps weights accepts it.
    let mapped = unsafe { Mmap::map(&file) }.map_err(read)?;
    Ok(HostBytes::new(Arc::new(mapped)))
}

/// The header's JSON, if the file is long enough and the header short enough.
fn header<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a [u8], WeightsError> {
    if bytes.starts_with(b"version https://git-lfs") {
        return Err(WeightsError::LfsPointer { path: path.to_owned() });
    }
    let Some((prefix, rest)) = bytes.split_first_chunk::<PREFIX>() else {
        check_length(path, PREFIX as u64, bytes.len() as u64)?;
        unreachable!("the file is shorter than its prefix");
    };
    let length = u64::from_le_bytes(*prefix);
    if length > MAX_HEADER_BYTES {
        return Err(WeightsError::HeaderTooLarge { path: path.to_owned(), bytes: length });
    }
    if length > rest.len() as u64 {
        let (needed, found) = (PREFIX as u64 + length, bytes.len() as u64);
        return Err(WeightsError::Truncated { path: path.to_owned(), needed, found });
    }
    Ok(&rest[..length as usize])
}

/// Counts before it builds: a hostile header of 100 MB must not become gigabytes of maps.
fn parse(path: &Path, header: &[u8]) -> Result<Metadata, WeightsError> {
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

/// `runs` of bytes, one after the other, in memory that is aligned to 8.
pub(super) fn aligned_copy(runs: &[&[u8]]) -> HostBytes {
    let len = runs.iter().map(|run| run.len()).sum();
    let mut words = vec![0u64; usize::div_ceil(len, 8)];
    let mut left: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
    for run in runs {
        let (to, rest) = left.split_at_mut(run.len());
        to.copy_from_slice(run);
        left = rest;
    }
    HostBytes::new(Arc::new(Words(words))).slice(0..len)
}

/// Owns memory aligned to 8; a `Vec<u8>` promises only 1.
struct Words(Vec<u64>);

impl AsRef<[u8]> for Words {
    fn as_ref(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
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
