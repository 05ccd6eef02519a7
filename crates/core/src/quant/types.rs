//! The types of quantised weights: names and the sizes of their blocks.

use std::fmt;
use std::str::FromStr;

/// A block format of quantised weights, as ggml defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[expect(missing_docs, reason = "names of the format; quant/blocks.rs has the blocks")]
pub enum QuantType {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
    Mxfp4,
}

/// A type with its name, the values of a block and the bytes of one.
type Row = (QuantType, &'static str, usize, usize);

const TABLE: [Row; 10] = [
    (QuantType::Q4_0, "q4_0", 32, 18),
    (QuantType::Q4_1, "q4_1", 32, 20),
    (QuantType::Q5_0, "q5_0", 32, 22),
    (QuantType::Q5_1, "q5_1", 32, 24),
    (QuantType::Q8_0, "q8_0", 32, 34),
    (QuantType::Q4K, "q4_k", 256, 144),
    (QuantType::Q5K, "q5_k", 256, 176),
    (QuantType::Q6K, "q6_k", 256, 210),
    (QuantType::Iq4Nl, "iq4_nl", 32, 18),
    (QuantType::Mxfp4, "mxfp4", 32, 17),
];

impl QuantType {
    /// Every type.
    pub const ALL: [QuantType; 10] = {
        let mut all = [QuantType::Q4_0; 10];
        let mut i = 0;
        while i < TABLE.len() {
            all[i] = TABLE[i].0;
            i += 1;
        }
        all
    };

    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.0 == self).expect("every type has a row")
    }

    /// The lower-case name used on command lines and in messages.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Values of a block.
    pub fn block_len(self) -> usize {
        self.row().2
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        self.row().3
    }
}

impl fmt::Display for QuantType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no quantised type.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("unknown quantised type '{0}': use {names}", names = TABLE.map(|row| row.1).join(", "))]
pub struct ParseQuantTypeError(String);

impl FromStr for QuantType {
    type Err = ParseQuantTypeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = TABLE.iter().find(|row| row.1.eq_ignore_ascii_case(text));
        found.map(|row| row.0).ok_or_else(|| ParseQuantTypeError(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back_and_others_say_what_to_use() {
        for ty in QuantType::ALL {
            assert_eq!(ty.name().parse(), Ok(ty));
            assert_eq!(ty.name().to_uppercase().parse(), Ok(ty));
        }
        let error = "q2_k".parse::<QuantType>().unwrap_err().to_string();
        assert!(error.starts_with("unknown quantised type 'q2_k': use q4_0, q4_1, "), "{error}");
    }
}
