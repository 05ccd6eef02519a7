//! One safetensors file, mapped or read in runs, its header checked against its length.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use longview_core::{DType, HostBytes};
use safetensors::tensor::{Dtype, Metadata};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};

use super::{MAX_HEADER_BYTES, MAX_TENSORS, Stored, Tensor, WeightsError};
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
        let bytes = map(path)?;
        let length = header_length(path, bytes.as_ref(), bytes.len() as u64)?;
        let start = PREFIX + length;
        Self::read(path, &bytes.as_ref()[PREFIX..start], bytes.len() as u64, |first, end| {
            Stored::InMemory(bytes.slice(start + first..start + end))
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
        Self::read(path, &header, size, |first, end| Stored::InFile {
            source: Arc::clone(source),
            start: start + first as u64,
            len: end - first,
        })
    }

    /// The tensors that `header` tells of, in a file of `size` bytes.
    fn read(
        path: &Path,
        header: &[u8],
        size: u64,
        stored_at: impl Fn(usize, usize) -> Stored,
    ) -> Result<Self, WeightsError> {
        check_addresses(path, size, usize::MAX as u64)?;
        let metadata = parse(path, header)?;
        check_length(path, (PREFIX + header.len()) as u64 + metadata.data_len() as u64, size)?;
        let tensors = metadata.tensors().into_iter().map(|(name, info)| {
            let (first, end) = info.data_offsets;
            let tensor = Tensor {
                dtype: readable(info.dtype),
                stored: format!("{:?}", info.dtype),
                shape: info.shape.clone(),
                stored_at: stored_at(first, end),
            };
            (name, tensor)
        });
        Ok(Self { tensors: tensors.collect() })
    }
}

/// The file in memory, as a whole: a system without mappings says so.
#[cfg(target_arch = "wasm32")]
fn map(path: &Path) -> Result<HostBytes, WeightsError> {
    let bytes = std::fs::read(path);
    let read = |source| WeightsError::Read { path: path.to_owned(), source };
    Ok(HostBytes::from_vec(bytes.map_err(read)?))
}

#[cfg(not(target_arch = "wasm32"))]
fn map(path: &Path) -> Result<HostBytes, WeightsError> {
    let read = |source| WeightsError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(read)?;
    if file.metadata().map_err(read)?.len() == 0 {
        return Err(WeightsError::Empty { path: path.to_owned() });
    }
    // SAFETY: the mapping is read-only and private to this process, and it is only ever seen as
    // bytes, for which every value is valid. What no process can rule out is another one that
    // truncates the file meanwhile; that ends in SIGBUS, not in a wrong read, and every runtime
    // that maps weights accepts it.
    let mapped = unsafe { memmap2::Mmap::map(&file) }.map_err(read)?;
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

/// Offsets in the header are read as numbers of the machine's width.
fn check_addresses(path: &Path, bytes: u64, most: u64) -> Result<(), WeightsError> {
    match bytes <= most {
        true => Ok(()),
        false => Err(WeightsError::ShardTooLarge { path: path.to_owned(), bytes, most }),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_beyond_all_addresses_is_named_with_the_way_out() {
        let (path, most) = (Path::new("model-00001.safetensors"), u64::from(u32::MAX));
        check_addresses(path, most, most).unwrap();
        let message = check_addresses(path, most + 1, most).unwrap_err().to_string();
        assert!(message.starts_with("model-00001.safetensors: 4294967296 bytes"), "{message}");
        assert!(message.contains("use a model whose files are smaller"), "{message}");
    }
}
