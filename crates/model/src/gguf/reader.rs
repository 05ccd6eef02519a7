//! The header of a GGUF file: key-values, and where each tensor lies.
//!
//! Every CVE of this format was arithmetic on numbers of the file: counts, lengths, products of
//! dimensions, sums of sizes. So there is one way to take bytes ([`Cursor::take`]), which compares
//! with what is left before anything is allocated; sizes are computed once, in 64 bits and
//! checked, by [`extent`]; and nothing else in this crate computes them again.

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use longview_core::RangeSource;

use super::error::GgufProblem;
use super::limits::{
    ALIGNMENTS, MAX_DIMS, MAX_ELEMENTS, MAX_HEADER_BYTES, MAX_KEY_BYTES, MAX_KEYS, MAX_NAME_BYTES,
    MAX_TENSORS, MAX_TEXT_BYTES,
};
use super::metadata::{Metadata, NumberType, Numbers, Texts, Value};
use super::types::GgmlType;
use crate::text::clip;

const MAGIC: &[u8; 4] = b"GGUF";
const ALIGNMENT: &str = "general.alignment";
const DEFAULT_ALIGNMENT: u64 = 32;
/// Numbers of the types of values that are no single number.
const TEXT: u32 = 8;
const LIST: u32 = 9;
/// Bytes that are read first of a file that is not in memory.
const FIRST_BYTES: u64 = 1 << 20;

/// A tensor as the header describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// How its values are stored.
    pub ty: GgmlType,
    /// Rows first, the length of a row last: the other way round than in the file.
    pub shape: Vec<usize>,
    /// The first byte, counted from the begin of the file.
    pub start: u64,
    /// Bytes in all.
    pub len: usize,
}

impl TensorInfo {
    /// Values of a row.
    pub fn row_len(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// Values in all.
    pub fn n_values(&self) -> usize {
        self.shape.iter().product()
    }

    /// Some of its rows as a tensor of their own: whole blocks of a matrix, values of a vector that
    /// is stored as plain numbers. `None` where it has no such rows.
    pub(super) fn rows(&self, name: String, rows: Range<usize>) -> Option<Self> {
        let (n_rows, rest) = self.shape.split_first()?;
        let is_blocks = rest.is_empty() && self.ty.block_len() > 1;
        if rows.is_empty() || rows.end > *n_rows || is_blocks {
            return None;
        }
        // The tensor lies in its file as a whole, and so does any part of it.
        let row_bytes = self.len / n_rows;
        let mut shape = self.shape.clone();
        shape[0] = rows.len();
        let start = self.start + (rows.start * row_bytes) as u64;
        Some(Self { name, ty: self.ty, shape, start, len: rows.len() * row_bytes })
    }
}

/// A checked header: every tensor lies inside of the file and apart from the others.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// Of the format: 2 or 3.
    pub version: u32,
    /// The key-values.
    pub metadata: Metadata,
    /// In the order of their places.
    pub tensors: Vec<TensorInfo>,
}

impl Header {
    /// Reads the header of a file that is read in runs.
    pub fn read(source: &dyn RangeSource) -> Result<Self, GgufProblem> {
        let size = source.size();
        let mut n = FIRST_BYTES.min(size);
        loop {
            let mut begin = vec![0; n as usize];
            source.read_at(0, &mut begin).map_err(|source| GgufProblem::Read { source })?;
            match Self::parse(&begin, size) {
                Err(GgufProblem::HeaderTooLarge { .. }) if n < size.min(MAX_HEADER_BYTES) => {
                    n = (n * 4).min(size).min(MAX_HEADER_BYTES);
                }
                done => return done,
            }
        }
    }

    /// Reads the header of a file of `size` bytes that begins with `begin`.
    pub fn parse(begin: &[u8], size: u64) -> Result<Self, GgufProblem> {
        let known = begin.len().min(MAX_HEADER_BYTES as usize);
        let mut cursor = Cursor { bytes: &begin[..known], at: 0, size };
        check_magic(begin)?;
        cursor.take(MAGIC.len() as u64, &"the begin")?;
        let version = cursor.u32(&"the version")?;
        if version == 2_u32.swap_bytes() || version == 3_u32.swap_bytes() {
            return Err(GgufProblem::BigEndian);
        }
        if !(2..=3).contains(&version) {
            return Err(GgufProblem::Version { version });
        }
        let n_tensors = cursor.count(&"the number of tensors", MAX_TENSORS)?;
        let n_keys = cursor.count(&"the number of keys", MAX_KEYS)?;
        let metadata = read_metadata(&mut cursor, n_keys)?;
        let alignment = alignment(&metadata)?;
        let described = read_tensors(&mut cursor, n_tensors, alignment)?;
        let data_start = cursor.at.next_multiple_of(alignment);
        let tensors = place(described, data_start, size, alignment)?;
        Ok(Self { version, metadata, tensors })
    }

    /// The tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }
}

/// Whether a file begins as GGUF does.
pub fn is_gguf(begin: &[u8]) -> bool {
    begin.starts_with(MAGIC)
}

fn check_magic(begin: &[u8]) -> Result<(), GgufProblem> {
    if is_gguf(begin) {
        return Ok(());
    }
    let begins = if begin.is_empty() {
        "nothing, it is empty".to_owned()
    } else if begin.starts_with(b"version https://git-lfs") {
        "what stands for a large file in Git: run `git lfs pull`".to_owned()
    } else {
        let text = String::from_utf8_lossy(&begin[..begin.len().min(16)]);
        format!("{:?}", clip(&text))
    };
    Err(GgufProblem::NotGguf { begins })
}

/// Takes bytes one after the other and knows where it is.
struct Cursor<'a> {
    /// What is known of the file's begin.
    bytes: &'a [u8],
    at: u64,
    /// Bytes of the file.
    size: u64,
}

/// What is being read, as a message names it.
trait What {
    fn name(&self) -> String;
}

impl What for &str {
    fn name(&self) -> String {
        (*self).to_owned()
    }
}

/// Some part of a thing with a name.
struct Of<'a>(&'a str, &'a str);

impl What for Of<'_> {
    fn name(&self) -> String {
        format!("{} {}", self.0, clip(self.1))
    }
}

/// One of many things that has no name yet.
struct Nth(&'static str, u64);

impl What for Nth {
    fn name(&self) -> String {
        format!("{} {}", self.0, self.1)
    }
}

impl<'a> Cursor<'a> {
    /// The next `n` bytes.
    fn take(&mut self, n: u64, what: &dyn What) -> Result<&'a [u8], GgufProblem> {
        let offset = self.at;
        // `at` never passes the end.
        if n > self.size - offset {
            let (what, size) = (what.name(), self.size);
            return Err(GgufProblem::Truncated { what, offset, needed: n, size });
        }
        let Some(bytes) = self.bytes[offset as usize..].get(..n as usize) else {
            return Err(GgufProblem::HeaderTooLarge { what: what.name(), offset });
        };
        self.at += n;
        Ok(bytes)
    }

    fn u32(&mut self, what: &dyn What) -> Result<u32, GgufProblem> {
        let bytes = self.take(4, what)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
    }

    fn u64(&mut self, what: &dyn What) -> Result<u64, GgufProblem> {
        let bytes = self.take(8, what)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    }

    /// A number of things or bytes, of at most `max`.
    fn count(&mut self, what: &dyn What, max: u64) -> Result<u64, GgufProblem> {
        let offset = self.at;
        let found = self.u64(what)?;
        if found > max {
            return Err(GgufProblem::TooMany { what: what.name(), offset, found, max });
        }
        Ok(found)
    }

    /// A text of at most `max` bytes.
    fn text(&mut self, what: &dyn What, max: u64) -> Result<&'a str, GgufProblem> {
        let n = self.count(what, max)?;
        let offset = self.at;
        let bytes = self.take(n, what)?;
        let not_utf8 = |_| GgufProblem::NotUtf8 { what: what.name(), offset };
        std::str::from_utf8(bytes).map_err(not_utf8)
    }

    fn numbers(
        &mut self,
        ty: NumberType,
        n: u64,
        what: &dyn What,
    ) -> Result<&'a [u8], GgufProblem> {
        let offset = self.at;
        // At most 16 Mi elements of 8 bytes.
        let bytes = self.take(n * ty.size() as u64, what)?;
        match bytes.iter().find(|byte| ty == NumberType::Bool && **byte > 1) {
            Some(found) => Err(GgufProblem::Truth { what: what.name(), offset, found: *found }),
            None => Ok(bytes),
        }
    }
}

fn read_metadata(cursor: &mut Cursor<'_>, n: u64) -> Result<Metadata, GgufProblem> {
    let mut values = HashMap::new();
    for i in 0..n {
        let offset = cursor.at;
        let key = cursor.text(&Nth("key", i), MAX_KEY_BYTES)?;
        let value = read_value(cursor, key)?;
        if values.insert(key.to_owned(), value).is_some() {
            return Err(GgufProblem::DuplicateKey { key: key.to_owned(), offset });
        }
    }
    Ok(Metadata(values))
}

fn read_value(cursor: &mut Cursor<'_>, key: &str) -> Result<Value, GgufProblem> {
    let what = Of("the value of", key);
    let offset = cursor.at;
    let id = cursor.u32(&what)?;
    if let Some(ty) = NumberType::from_id(id) {
        return Ok(Value::Number(ty.number(cursor.numbers(ty, 1, &what)?)));
    }
    match id {
        TEXT => Ok(Value::Text(cursor.text(&what, MAX_TEXT_BYTES)?.to_owned())),
        LIST => read_list(cursor, &what),
        _ => Err(GgufProblem::ValueType { what: what.name(), offset, id }),
    }
}

fn read_list(cursor: &mut Cursor<'_>, what: &Of<'_>) -> Result<Value, GgufProblem> {
    let offset = cursor.at;
    let id = cursor.u32(what)?;
    let n = cursor.count(what, MAX_ELEMENTS)?;
    if let Some(ty) = NumberType::from_id(id) {
        let bytes = cursor.numbers(ty, n, what)?.to_vec();
        return Ok(Value::Numbers(Numbers { ty, bytes }));
    }
    match id {
        TEXT => read_texts(cursor, n, what).map(Value::Texts),
        LIST => Err(GgufProblem::Nested { what: what.name(), offset }),
        _ => Err(GgufProblem::ValueType { what: what.name(), offset, id }),
    }
}

/// The list grows with what is read: every text has at least its length in the file.
fn read_texts(cursor: &mut Cursor<'_>, n: u64, what: &Of<'_>) -> Result<Texts, GgufProblem> {
    let mut texts = Texts::default();
    for _ in 0..n {
        texts.all.push_str(cursor.text(what, MAX_TEXT_BYTES)?);
        // A header of 100 MB has no more bytes of text.
        texts.ends.push(texts.all.len() as u32);
    }
    Ok(texts)
}

fn alignment(metadata: &Metadata) -> Result<u64, GgufProblem> {
    let found = metadata.whole(ALIGNMENT, 0, u32::MAX as usize)?;
    let found = found.map_or(DEFAULT_ALIGNMENT, |found| found as u64);
    if ALIGNMENTS.contains(&found) && found.is_power_of_two() {
        Ok(found)
    } else {
        Err(GgufProblem::Alignment { found })
    }
}

/// A tensor of which the place is not checked yet.
struct Described {
    name: String,
    ty: GgmlType,
    shape: Vec<usize>,
    /// From the begin of the data.
    offset: u64,
    len: usize,
}

fn read_tensors(
    cursor: &mut Cursor<'_>,
    n: u64,
    alignment: u64,
) -> Result<Vec<Described>, GgufProblem> {
    let (mut tensors, mut names) = (Vec::new(), HashSet::new());
    for i in 0..n {
        let begin = cursor.at;
        let name = cursor.text(&Nth("the name of tensor", i), MAX_NAME_BYTES)?;
        if !names.insert(name) {
            return Err(GgufProblem::DuplicateTensor { tensor: name.to_owned(), offset: begin });
        }
        tensors.push(read_tensor(cursor, name, alignment)?);
    }
    Ok(tensors)
}

fn read_tensor(
    cursor: &mut Cursor<'_>,
    name: &str,
    alignment: u64,
) -> Result<Described, GgufProblem> {
    let (what, tensor) = (Of("tensor", name), || name.to_owned());
    let offset = cursor.at;
    let n_dims = cursor.u32(&what)?;
    if !(1..=MAX_DIMS).contains(&n_dims) {
        return Err(GgufProblem::Dimensions { tensor: tensor(), offset, found: n_dims });
    }
    let sizes: Vec<u64> = (0..n_dims).map(|_| cursor.u64(&what)).collect::<Result<_, _>>()?;
    let ty = GgmlType::from_id(cursor.u32(&what)?)
        .map_err(|name| GgufProblem::TensorType { tensor: tensor(), name })?;
    let offset = cursor.u64(&what)?;
    let (shape, len) = extent(name, ty, &sizes, isize::MAX as u64)?;
    if !offset.is_multiple_of(alignment) {
        return Err(GgufProblem::Misaligned { tensor: tensor(), offset, alignment });
    }
    Ok(Described { name: tensor(), ty, shape, offset, len })
}

/// Shape, rows first, and bytes of a tensor of `sizes`, the length of a row first. A program may
/// have `most` bytes in one piece.
fn extent(
    name: &str,
    ty: GgmlType,
    sizes: &[u64],
    most: u64,
) -> Result<(Vec<usize>, usize), GgufProblem> {
    let tensor = || name.to_owned();
    let row = sizes[0];
    if !row.is_multiple_of(ty.block_len() as u64) {
        let (name, block) = (ty.name(), ty.block_len());
        return Err(GgufProblem::Blocks { tensor: tensor(), name, row, block });
    }
    let n = sizes.iter().try_fold(1_u64, |n, size| n.checked_mul(*size)).filter(|n| *n > 0);
    // What follows counts bytes of 32-bit values, and no type takes more for a value.
    let counted = n.and_then(|n| Some((n.checked_mul(4)?, ty.bytes_of(n)?)));
    let Some((bytes, len)) = counted.filter(|(bytes, _)| i64::try_from(*bytes).is_ok()) else {
        return Err(GgufProblem::Shape { tensor: tensor(), shape: sizes.to_vec() });
    };
    if bytes > most {
        return Err(GgufProblem::TensorTooLarge { tensor: tensor(), bytes, most });
    }
    // Both are at most `bytes`, which this program can address.
    Ok((sizes.iter().rev().map(|size| *size as usize).collect(), len as usize))
}

/// Checks that tensors lie one behind the other, each at the next aligned place, and inside of the
/// file. What is behind the last one belongs to nothing and is not read.
fn place(
    mut described: Vec<Described>,
    data_start: u64,
    size: u64,
    alignment: u64,
) -> Result<Vec<TensorInfo>, GgufProblem> {
    described.sort_by_key(|tensor| tensor.offset);
    let mut expected = 0;
    let mut placed = Vec::with_capacity(described.len());
    for Described { name, ty, shape, offset, len } in described {
        if offset != expected {
            return Err(GgufProblem::Place { tensor: name, offset, expected });
        }
        let start = data_start.checked_add(offset);
        let end = start.and_then(|start| start.checked_add(len as u64));
        let (Some(start), Some(_)) = (start, end.filter(|end| *end <= size)) else {
            let end = end.unwrap_or(u64::MAX);
            return Err(GgufProblem::Beyond { tensor: name, end, size });
        };
        // Both are below the size of a file.
        expected = (offset + len as u64).next_multiple_of(alignment);
        placed.push(TensorInfo { name, ty, shape, start, len });
    }
    Ok(placed)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A browser's program has 32 bits: what it refuses is sound elsewhere.
    #[test]
    fn a_tensor_that_a_program_cannot_address_is_no_fault_of_the_file() {
        let most = u64::from(i32::MAX.unsigned_abs());
        let of = |sizes: &[u64]| extent("token_embd.weight", GgmlType::Q8_0, sizes, most);
        assert_eq!(of(&[8192, 65_535]).unwrap(), (vec![65_535, 8192], 65_535 * 8192 / 32 * 34));
        assert_eq!(
            of(&[8192, 128_256]).unwrap_err().to_string(),
            "tensor token_embd.weight has 4202692608 bytes as numbers of 32 bits, and this program \
             can address 2147483647; use a smaller model, or the program outside of the browser"
        );
        let message = of(&[1 << 62, 4]).unwrap_err().to_string();
        assert!(message.contains("the impossible shape [4611686018427387904, 4]"), "{message}");
    }
}
