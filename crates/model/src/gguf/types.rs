//! How GGUF stores the values of a tensor: types, and their blocks.

use longview_core::quant::QuantType;

/// A type of stored values. The bytes of a row are blocks, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "names of the format; `longview-core` has the blocks")]
pub enum GgmlType {
    F32,
    F16,
    Bf16,
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

/// A type with its number in files and its name.
type Row = (GgmlType, u32, &'static str);

const TABLE: [Row; 13] = [
    (GgmlType::F32, 0, "F32"),
    (GgmlType::F16, 1, "F16"),
    (GgmlType::Bf16, 30, "BF16"),
    (GgmlType::Q4_0, 2, "Q4_0"),
    (GgmlType::Q4_1, 3, "Q4_1"),
    (GgmlType::Q5_0, 6, "Q5_0"),
    (GgmlType::Q5_1, 7, "Q5_1"),
    (GgmlType::Q8_0, 8, "Q8_0"),
    (GgmlType::Q4K, 12, "Q4_K"),
    (GgmlType::Q5K, 13, "Q5_K"),
    (GgmlType::Q6K, 14, "Q6_K"),
    (GgmlType::Iq4Nl, 20, "IQ4_NL"),
    (GgmlType::Mxfp4, 39, "MXFP4"),
];

/// Types that have a name and are not read.
const NOT_READ: [(u32, &str); 21] = [
    (4, "Q4_2"),
    (5, "Q4_3"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (26, "I32"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
];

impl GgmlType {
    /// Every type that is read.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.into_iter().map(|row| row.0)
    }

    /// The type that files number `id`; the name of one that is not read.
    pub(super) fn from_id(id: u32) -> Result<Self, String> {
        if let Some((found, ..)) = TABLE.iter().find(|row| row.1 == id) {
            return Ok(*found);
        }
        let name = NOT_READ.iter().find(|(number, _)| *number == id);
        Err(name.map_or_else(|| format!("number {id}"), |(_, name)| (*name).to_owned()))
    }

    fn row(self) -> &'static Row {
        TABLE.iter().find(|row| row.0 == self).expect("every type has a row")
    }

    /// The quantised type, if it is one.
    pub fn quant_type(self) -> Option<QuantType> {
        Some(match self {
            GgmlType::F32 | GgmlType::F16 | GgmlType::Bf16 => return None,
            GgmlType::Q4_0 => QuantType::Q4_0,
            GgmlType::Q4_1 => QuantType::Q4_1,
            GgmlType::Q5_0 => QuantType::Q5_0,
            GgmlType::Q5_1 => QuantType::Q5_1,
            GgmlType::Q8_0 => QuantType::Q8_0,
            GgmlType::Q4K => QuantType::Q4K,
            GgmlType::Q5K => QuantType::Q5K,
            GgmlType::Q6K => QuantType::Q6K,
            GgmlType::Iq4Nl => QuantType::Iq4Nl,
            GgmlType::Mxfp4 => QuantType::Mxfp4,
        })
    }

    /// Its number in files.
    pub fn id(self) -> u32 {
        self.row().1
    }

    /// What everybody calls it.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Values of a block.
    pub fn block_len(self) -> usize {
        self.quant_type().map_or(1, QuantType::block_len)
    }

    /// Bytes of a block.
    pub fn block_bytes(self) -> usize {
        match self.quant_type() {
            Some(quant) => quant.block_bytes(),
            None if self == GgmlType::F32 => 4,
            None => 2,
        }
    }

    /// Bytes of `n` values, if they are whole blocks and a number of bytes.
    pub fn bytes_of(self, n: u64) -> Option<u64> {
        let block = self.block_len() as u64;
        n.is_multiple_of(block).then(|| (n / block).checked_mul(self.block_bytes() as u64))?
    }
}

/// The types that are read, comma separated, for messages.
pub(super) fn supported() -> String {
    TABLE.map(|row| row.2).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_is_found_by_its_number() {
        for ty in GgmlType::all() {
            assert_eq!(GgmlType::from_id(ty.id()).unwrap(), ty);
            assert_eq!(ty.bytes_of(ty.block_len() as u64 * 3), Some(ty.block_bytes() as u64 * 3));
        }
        assert_eq!(GgmlType::F32.bytes_of(u64::MAX), None, "more bytes than can be counted");
        assert_eq!(GgmlType::Q4K.bytes_of(896), None, "a row of Qwen2.5-0.5B is no whole blocks");
    }

    #[test]
    fn other_types_have_a_name_or_a_number() {
        for (id, name) in [(10, "Q2_K"), (23, "IQ4_XS"), (99, "number 99")] {
            assert_eq!(GgmlType::from_id(id).unwrap_err(), name);
        }
        assert!(supported().ends_with("Q4_K, Q5_K, Q6_K, IQ4_NL, MXFP4"));
    }
}
