//! The header of a file as bytes: key-values, and where tensors will be.

use crate::gguf::{GgmlType, Metadata, Number, Value};

/// Where tensors begin; nobody chooses another one.
pub(super) const ALIGNMENT: usize = 32;
const MAGIC: &[u8] = b"GGUF";
const VERSION: u32 = 3;
/// Numbers of types of values.
const U32: u32 = 4;
const I32: u32 = 5;
const F32: u32 = 6;
const BOOL: u32 = 7;
const TEXT: u32 = 8;
const LIST: u32 = 9;
const U64: u32 = 10;
const I64: u32 = 11;

/// Key-values, written one after the other.
#[derive(Default)]
pub(super) struct KeyValues {
    n: u64,
    bytes: Vec<u8>,
}

impl KeyValues {
    fn begin(&mut self, key: &str, ty: u32) {
        self.n += 1;
        put_text(&mut self.bytes, key);
        self.bytes.extend(ty.to_le_bytes());
    }

    fn begin_list(&mut self, key: &str, ty: u32, n: usize) {
        self.begin(key, LIST);
        self.bytes.extend(ty.to_le_bytes());
        self.bytes.extend((n as u64).to_le_bytes());
    }

    pub(super) fn u32(&mut self, key: &str, value: u32) {
        self.begin(key, U32);
        self.bytes.extend(value.to_le_bytes());
    }

    /// A size, which the config bounds far below 32 bits.
    pub(super) fn size(&mut self, key: &str, value: usize) {
        self.u32(key, u32::try_from(value).unwrap_or(u32::MAX));
    }

    pub(super) fn f32(&mut self, key: &str, value: f64) {
        self.begin(key, F32);
        self.bytes.extend((value as f32).to_le_bytes());
    }

    pub(super) fn truth(&mut self, key: &str, value: bool) {
        self.begin(key, BOOL);
        self.bytes.push(value.into());
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.begin(key, TEXT);
        put_text(&mut self.bytes, value);
    }

    pub(super) fn texts<'a>(&mut self, key: &str, values: impl ExactSizeIterator<Item = &'a str>) {
        self.begin_list(key, TEXT, values.len());
        values.for_each(|value| put_text(&mut self.bytes, value));
    }

    pub(super) fn i32s(&mut self, key: &str, values: &[i32]) {
        self.begin_list(key, I32, values.len());
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    pub(super) fn f32s(&mut self, key: &str, values: &[f32]) {
        self.begin_list(key, F32, values.len());
        self.bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }

    /// The keys of another file that `takes`, sorted.
    pub(super) fn copy(&mut self, from: &Metadata, takes: impl Fn(&str) -> bool) {
        let mut keys: Vec<&str> = from.keys().filter(|key| takes(key)).collect();
        keys.sort_unstable();
        for key in keys {
            match from.get(key) {
                Some(Value::Number(number)) => self.number(key, *number),
                Some(Value::Text(text)) => self.text(key, text),
                Some(Value::Texts(texts)) => self.texts(key, texts.iter()),
                Some(Value::Numbers(list)) => {
                    self.begin_list(key, list.number_type().id(), list.len());
                    self.bytes.extend(list.bytes());
                }
                None => {}
            }
        }
    }

    /// A number in the width in which converters write such numbers.
    fn number(&mut self, key: &str, number: Number) {
        match number {
            Number::Truth(truth) => self.truth(key, truth),
            Number::Real(real) => self.f32(key, real),
            Number::Unsigned(n) => match u32::try_from(n) {
                Ok(n) => self.u32(key, n),
                Err(_) => {
                    self.begin(key, U64);
                    self.bytes.extend(n.to_le_bytes());
                }
            },
            Number::Signed(n) => match i32::try_from(n) {
                Ok(n) => {
                    self.begin(key, I32);
                    self.bytes.extend(n.to_le_bytes());
                }
                Err(_) => {
                    self.begin(key, I64);
                    self.bytes.extend(n.to_le_bytes());
                }
            },
        }
    }
}

/// A tensor as a header describes it.
pub(super) struct Described<'a> {
    pub(super) name: &'a str,
    pub(super) ty: GgmlType,
    /// Rows, then columns; one number for a vector.
    pub(super) shape: &'a [usize],
    pub(super) n_bytes: u64,
}

/// The header, up to where the first tensor begins.
pub(super) fn header<'a>(
    keys: &KeyValues,
    tensors: impl ExactSizeIterator<Item = Described<'a>>,
) -> Vec<u8> {
    let mut out = MAGIC.to_vec();
    out.extend(VERSION.to_le_bytes());
    out.extend((tensors.len() as u64).to_le_bytes());
    out.extend(keys.n.to_le_bytes());
    out.extend(&keys.bytes);
    let mut at = 0_u64;
    for tensor in tensors {
        put_text(&mut out, tensor.name);
        out.extend((tensor.shape.len() as u32).to_le_bytes());
        out.extend(tensor.shape.iter().rev().flat_map(|n| (*n as u64).to_le_bytes()));
        out.extend(tensor.ty.id().to_le_bytes());
        out.extend(at.to_le_bytes());
        at = (at + tensor.n_bytes).next_multiple_of(ALIGNMENT as u64);
    }
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    out
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.bytes());
}
