//! The key-values of a file: values as they are stored, and questions that name the key.

use std::collections::HashMap;

use super::error::GgufProblem;
use crate::text::clip;

/// The types of single numbers, as files number them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum NumberType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    U64,
    I64,
    F64,
    Bool,
}

impl NumberType {
    /// The type that files number `id`. 8 is a text, 9 a list.
    pub(super) fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// Its number in files.
    pub(crate) fn id(self) -> u32 {
        let all = (0..=12).find(|id| Self::from_id(*id) == Some(self));
        all.expect("every type has a number")
    }

    /// Bytes of one.
    pub fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The number that `bytes` hold.
    ///
    /// # Panics
    /// If `bytes` is not [`NumberType::size`] long.
    pub(super) fn number(self, bytes: &[u8]) -> Number {
        let mut all = [0; 8];
        all[..bytes.len()].copy_from_slice(bytes);
        let raw = u64::from_le_bytes(all);
        assert_eq!(bytes.len(), self.size(), "the bytes of one number");
        match self {
            Self::U8 | Self::U16 | Self::U32 | Self::U64 => Number::Unsigned(raw),
            Self::I8 => Number::Signed(i64::from(raw as i8)),
            Self::I16 => Number::Signed(i64::from(raw as i16)),
            Self::I32 => Number::Signed(i64::from(raw as i32)),
            Self::I64 => Number::Signed(raw as i64),
            Self::F32 => Number::Real(f64::from(f32::from_bits(raw as u32))),
            Self::F64 => Number::Real(f64::from_bits(raw)),
            Self::Bool => Number::Truth(raw != 0),
        }
    }
}

/// A number, as wide as any can be.
#[derive(Clone, Copy, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Number {
    Unsigned(u64),
    Signed(i64),
    Real(f64),
    Truth(bool),
}

impl Number {
    /// A whole number of at least 0.
    pub fn whole(self) -> Option<u64> {
        match self {
            Number::Unsigned(n) => Some(n),
            Number::Signed(n) => u64::try_from(n).ok(),
            Number::Real(_) | Number::Truth(_) => None,
        }
    }

    /// Any number but a truth value.
    pub fn real(self) -> Option<f64> {
        match self {
            Number::Unsigned(n) => Some(n as f64),
            Number::Signed(n) => Some(n as f64),
            Number::Real(x) => Some(x),
            Number::Truth(_) => None,
        }
    }
}

/// Many texts, one behind the other: a vocabulary as texts of their own takes four times the room.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Texts {
    pub(super) all: String,
    pub(super) ends: Vec<u32>,
}

impl Texts {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Text `i`.
    pub fn get(&self, i: usize) -> Option<&str> {
        let end = *self.ends.get(i)? as usize;
        let start = i.checked_sub(1).map_or(0, |before| self.ends[before] as usize);
        Some(&self.all[start..end])
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|i| self.get(i).expect("below the length"))
    }
}

/// Many numbers, as the file has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    pub(super) ty: NumberType,
    pub(super) bytes: Vec<u8>,
}

impl Numbers {
    /// How many there are.
    pub fn len(&self) -> usize {
        self.bytes.len() / self.ty.size()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The type of each.
    pub(crate) fn number_type(&self) -> NumberType {
        self.ty
    }

    /// As they are stored.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// All of them.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Number> {
        self.bytes.chunks_exact(self.ty.size()).map(|bytes| self.ty.number(bytes))
    }
}

/// The value of a key.
#[derive(Clone, Debug, PartialEq)]
#[expect(missing_docs, reason = "the names say it")]
pub enum Value {
    Number(Number),
    Text(String),
    Numbers(Numbers),
    Texts(Texts),
}

impl Value {
    /// The value as a message has it.
    fn describe(&self) -> String {
        match self {
            Value::Number(Number::Unsigned(n)) => n.to_string(),
            Value::Number(Number::Signed(n)) => n.to_string(),
            Value::Number(Number::Real(x)) => x.to_string(),
            Value::Number(Number::Truth(truth)) => truth.to_string(),
            Value::Text(text) => format!("{:?}", clip(text)),
            Value::Numbers(list) => format!("a list of {} numbers", list.len()),
            Value::Texts(list) => format!("a list of {} texts", list.len()),
        }
    }
}

/// The key-values of a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(pub(super) HashMap<String, Value>);

impl Metadata {
    /// The value of `key` as it is stored.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// All keys.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// The value of `key`, if there is one; an error if it is not what `read` takes.
    fn read<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, GgufProblem> {
        let Some(value) = self.get(key) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| GgufProblem::Key {
            key: key.to_owned(),
            found: value.describe(),
            expected: expected.to_owned(),
        })
    }

    pub(super) fn text(&self, key: &str) -> Result<Option<&str>, GgufProblem> {
        self.read(key, "a text", |value| match value {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }

    pub(super) fn truth(&self, key: &str) -> Result<Option<bool>, GgufProblem> {
        self.read(key, "true or false", |value| match value {
            Value::Number(Number::Truth(truth)) => Some(*truth),
            _ => None,
        })
    }

    pub(super) fn real(&self, key: &str) -> Result<Option<f64>, GgufProblem> {
        self.read(key, "a finite number", |value| match value {
            Value::Number(number) => number.real().filter(|number| number.is_finite()),
            _ => None,
        })
    }

    /// A whole number from `min` to `max`.
    pub(super) fn whole(
        &self,
        key: &str,
        min: usize,
        max: usize,
    ) -> Result<Option<usize>, GgufProblem> {
        let expected = format!("a whole number from {min} to {max}");
        self.read(key, &expected, |value| match value {
            Value::Number(number) => {
                let size = usize::try_from(number.whole()?).ok()?;
                (min..=max).contains(&size).then_some(size)
            }
            _ => None,
        })
    }

    pub(super) fn texts(&self, key: &str) -> Result<Option<&Texts>, GgufProblem> {
        self.read(key, "a list of texts", |value| match value {
            Value::Texts(texts) => Some(texts),
            _ => None,
        })
    }

    /// A list of `n` numbers, or more: what is beyond belongs to nothing.
    pub(super) fn numbers(&self, key: &str, n: usize) -> Result<Option<&Numbers>, GgufProblem> {
        let expected = format!("a list of {n} numbers");
        self.read(key, &expected, |value| match value {
            Value::Numbers(numbers) if numbers.len() >= n && numbers.ty != NumberType::Bool => {
                Some(numbers)
            }
            _ => None,
        })
    }

    /// A digest of the keys that begin with `prefix` and of their values.
    pub(super) fn digest(&self, prefix: &str) -> [u8; 32] {
        let mut keys: Vec<&String> = self.0.keys().filter(|key| key.starts_with(prefix)).collect();
        keys.sort();
        let mut hasher = blake3::Hasher::new();
        for key in keys {
            let (kind, bytes, ends) = match &self.0[key] {
                Value::Number(number) => (format!("{number:?}"), &[][..], &[][..]),
                Value::Text(text) => ("text".to_owned(), text.as_bytes(), &[][..]),
                Value::Numbers(list) => (format!("{:?}", list.ty), &list.bytes[..], &[][..]),
                Value::Texts(list) => ("texts".to_owned(), list.all.as_bytes(), &list.ends[..]),
            };
            for part in [key.as_bytes(), kind.as_bytes(), bytes] {
                hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
            }
            hasher.update(&(ends.len() as u64).to_le_bytes());
            for end in ends {
                hasher.update(&end.to_le_bytes());
            }
        }
        *hasher.finalize().as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One value of each kind.
    fn all() -> Metadata {
        let texts = Texts { all: "abcd".to_owned(), ends: vec![1, 1, 4] };
        let numbers = Numbers { ty: NumberType::I16, bytes: vec![1, 0, 0xff, 0xff] };
        let truths = Numbers { ty: NumberType::Bool, bytes: vec![1, 0] };
        let values = [
            ("unsigned", Value::Number(Number::Unsigned(u64::MAX))),
            ("signed", Value::Number(Number::Signed(-3))),
            ("real", Value::Number(Number::Real(0.5))),
            ("truth", Value::Number(Number::Truth(true))),
            ("text", Value::Text("a\nb".to_owned())),
            ("numbers", Value::Numbers(numbers)),
            ("truths", Value::Numbers(truths)),
            ("texts", Value::Texts(texts)),
        ];
        Metadata(values.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
    }

    #[test]
    fn types_of_numbers_have_their_ids_and_sizes() {
        let sizes = [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8];
        for (id, size) in (0..).zip(sizes) {
            let ty = NumberType::from_id(id);
            assert_eq!(ty.map_or(0, NumberType::size), size, "{id}");
            assert_eq!(ty.map_or(id, NumberType::id), id);
        }
        assert_eq!(NumberType::from_id(13), None);
    }

    #[test]
    fn numbers_have_their_sign_and_their_width() {
        let bytes = 0x8182_8384_8586_8788_u64.to_le_bytes();
        let number = |id: u32| {
            let ty = NumberType::from_id(id).unwrap();
            ty.number(&bytes[..ty.size()])
        };
        assert_eq!((number(0), number(1)), (Number::Unsigned(0x88), Number::Signed(-0x78)));
        assert_eq!((number(2), number(3)), (Number::Unsigned(0x8788), Number::Signed(-0x7878)));
        assert_eq!(number(4), Number::Unsigned(0x8586_8788));
        assert_eq!(number(5), Number::Signed(0x8586_8788 - (1 << 32)));
        assert_eq!(number(6), Number::Real(f64::from(f32::from_bits(0x8586_8788))));
        assert_eq!(number(7), Number::Truth(true));
        assert_eq!(number(10), Number::Unsigned(0x8182_8384_8586_8788));
        assert_eq!(number(11), Number::Signed(0x8182_8384_8586_8788_u64.cast_signed()));
        assert_eq!(number(12), Number::Real(f64::from_bits(0x8182_8384_8586_8788)));
        assert_eq!(Number::Signed(-1).whole(), None);
        assert_eq!((Number::Real(2.0).whole(), Number::Truth(true).real()), (None, None));
        assert_eq!((Number::Signed(7).whole(), Number::Signed(-7).real()), (Some(7), Some(-7.0)));
    }

    #[test]
    fn lists_know_their_length_and_elements() {
        let metadata = all();
        let Some(Value::Texts(texts)) = metadata.get("texts") else { panic!("no texts") };
        assert_eq!(texts.iter().collect::<Vec<_>>(), ["a", "", "bcd"]);
        assert_eq!((texts.len(), texts.is_empty(), texts.get(3)), (3, false, None));
        assert!(Texts::default().is_empty());
        let Some(Value::Numbers(numbers)) = metadata.get("numbers") else { panic!("no numbers") };
        assert_eq!(numbers.iter().collect::<Vec<_>>(), [Number::Signed(1), Number::Signed(-1)]);
        assert_eq!((numbers.len(), numbers.is_empty()), (2, false));
        assert_eq!(
            (numbers.number_type(), numbers.bytes()),
            (NumberType::I16, &[1, 0, 255, 255][..])
        );
        assert!(Numbers { ty: NumberType::F64, bytes: Vec::new() }.is_empty());
        let mut keys: Vec<&str> = metadata.keys().collect();
        keys.sort_unstable();
        assert_eq!(keys.join(" "), "numbers real signed text texts truth truths unsigned");
    }

    #[test]
    fn a_value_of_another_type_is_described() {
        let metadata = all();
        for (key, found) in [
            ("unsigned", "18446744073709551615"),
            ("signed", "-3"),
            ("real", "0.5"),
            ("truth", "true"),
            ("numbers", "a list of 2 numbers"),
            ("texts", "a list of 3 texts"),
        ] {
            let message = metadata.text(key).unwrap_err().to_string();
            assert_eq!(message, format!("{key} is {found}; it must be a text"));
        }
        let message = metadata.whole("text", 1, 9).unwrap_err().to_string();
        assert!(message.ends_with("; it must be a whole number from 1 to 9"), "{message}");
        assert!(!message.contains('\n'), "{message}");
        assert!(metadata.whole("signed", 0, 9).is_err() && metadata.real("truth").is_err());
        assert!(metadata.truth("unsigned").is_err() && metadata.texts("numbers").is_err());
        let message = metadata.numbers("truths", 2).unwrap_err().to_string();
        assert_eq!(message, "truths is a list of 2 numbers; it must be a list of 2 numbers");
        assert!(metadata.numbers("numbers", 3).is_err() && metadata.numbers("text", 0).is_err());
        assert_eq!(metadata.text("absent").unwrap(), None);
    }

    #[test]
    fn a_digest_is_of_the_keys_of_a_prefix_and_of_each_value() {
        let whole = all().digest("");
        assert_eq!(whole, all().digest(""));
        for key in all().keys() {
            let mut other = all();
            let changed = match other.0.get_mut(key).unwrap() {
                Value::Number(number) => {
                    *number = Number::Signed(-4);
                    other
                }
                Value::Text(text) => {
                    text.push('c');
                    other
                }
                Value::Numbers(numbers) => {
                    numbers.bytes.reverse();
                    other
                }
                Value::Texts(texts) => {
                    texts.ends[0] = 0;
                    other
                }
            };
            assert_ne!(changed.digest(""), whole, "{key}");
            assert_eq!(changed.digest("a key of another name"), all().digest("nothing"));
        }
    }
}
