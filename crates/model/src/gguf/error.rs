//! What can be wrong with a GGUF file: each names the key or the tensor, and the place in the file.

use std::path::PathBuf;

use super::limits::{ALIGNMENTS, MAX_HEADER_BYTES};
use super::types;
use crate::config::ConfigError;
use crate::text::clip;
use crate::tokenizer::TokenizerError;
use crate::weights::WeightsError;

/// A GGUF file that cannot be used: which, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct GgufError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: GgufProblem,
}

/// A model in GGUF that cannot be used, whichever of its parts is at fault.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufModelError {
    /// The file itself.
    #[error(transparent)]
    File(#[from] GgufError),
    /// What its key-values say of the model.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its tensors do not fit what the key-values say.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// Its tokenizer.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
}

/// Why a GGUF file was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufProblem {
    /// The system refused.
    #[error("cannot be read ({source})")]
    Read {
        /// What the system said.
        source: std::io::Error,
    },
    /// The file does not begin as GGUF does.
    #[error("is not a GGUF file: it begins with {begins}; name a .gguf file or a model's folder")]
    NotGguf {
        /// Its first bytes.
        begins: String,
    },
    /// A version that nobody writes any more, or none yet.
    #[error("GGUF version {version} is not read; versions 2 and 3 are: convert the model again")]
    Version {
        /// As the file has it.
        version: u32,
    },
    /// Numbers in the order of other machines.
    #[error("is a big-endian GGUF file; convert the model again, as little-endian")]
    BigEndian,
    /// The file ends within its header.
    #[error(
        "truncated: {what} at byte {offset} needs {needed} bytes, and the file ends at byte \
         {size}; download it again"
    )]
    Truncated {
        /// What is being read.
        what: String,
        /// Where it begins.
        offset: u64,
        /// Its bytes.
        needed: u64,
        /// Bytes of the file.
        size: u64,
    },
    /// A header beyond the cap.
    #[error(
        "{what} at byte {offset} lies beyond the {MAX_HEADER_BYTES} bytes that a header may have; \
         the file is corrupt"
    )]
    HeaderTooLarge {
        /// What is being read.
        what: String,
        /// Where it begins.
        offset: u64,
    },
    /// A count or a length beyond its cap.
    #[error("{what} at byte {offset} has {found}, above the limit of {max}; the file is corrupt")]
    TooMany {
        /// What is being read.
        what: String,
        /// Where the number stands.
        offset: u64,
        /// The number.
        found: u64,
        /// The limit.
        max: u64,
    },
    /// A text of another encoding.
    #[error("{what} at byte {offset} is not UTF-8; the file is corrupt")]
    NotUtf8 {
        /// What is being read.
        what: String,
        /// Where it begins.
        offset: u64,
    },
    /// A number that stands for a type of values, and for none that there is.
    #[error("{what} at byte {offset} has type {id}, which is none of GGUF's; the file is corrupt")]
    ValueType {
        /// What is being read.
        what: String,
        /// Where it begins.
        offset: u64,
        /// The number.
        id: u32,
    },
    /// A list of lists.
    #[error("{what} at byte {offset} is a list of lists, which no model has")]
    Nested {
        /// What is being read.
        what: String,
        /// Where it begins.
        offset: u64,
    },
    /// Neither true nor false.
    #[error("{what} at byte {offset} holds {found} for true or false; the file is corrupt")]
    Truth {
        /// What is being read.
        what: String,
        /// Where it stands.
        offset: u64,
        /// The byte.
        found: u8,
    },
    /// Two values for one key: readers would disagree which of them counts.
    #[error("key {} is there twice, the second time at byte {offset}", clip(key))]
    DuplicateKey {
        /// The key.
        key: String,
        /// Where the second begins.
        offset: u64,
    },
    /// Two tensors of one name.
    #[error("tensor {} is there twice, the second time at byte {offset}", clip(tensor))]
    DuplicateTensor {
        /// The tensor.
        tensor: String,
        /// Where the second is described.
        offset: u64,
    },
    /// An alignment that no writer chooses.
    #[error(
        "general.alignment is {found}; it must be a power of two from {} to {}",
        ALIGNMENTS.start(),
        ALIGNMENTS.end()
    )]
    Alignment {
        /// As the file has it.
        found: u64,
    },
    /// More dimensions than there can be, or none.
    #[error("tensor {} at byte {offset} has {found} dimensions; 1 to 4 are read", clip(tensor))]
    Dimensions {
        /// The tensor.
        tensor: String,
        /// Where it is described.
        offset: u64,
        /// How many.
        found: u32,
    },
    /// A tensor that is sound, and too large for a program of 32 bits.
    #[error(
        "tensor {} has {bytes} bytes as numbers of 32 bits, and this program can address {most}; \
         use a smaller model, or the program outside of the browser",
        clip(tensor)
    )]
    TensorTooLarge {
        /// The tensor.
        tensor: String,
        /// Bytes of its values.
        bytes: u64,
        /// What can be addressed.
        most: u64,
    },
    /// A shape without values, or with more than can be counted.
    #[error("tensor {} has the impossible shape {shape:?}; the file is corrupt", clip(tensor))]
    Shape {
        /// The tensor.
        tensor: String,
        /// The dimensions, the longest run first, as the file has them.
        shape: Vec<u64>,
    },
    /// A type of values that is not read.
    #[error(
        "tensor {} has type {name}, which is not read; {} are: use a file in one of these",
        clip(tensor),
        types::supported()
    )]
    TensorType {
        /// The tensor.
        tensor: String,
        /// The type's name, or its number if it has none.
        name: String,
    },
    /// Rows that are not whole blocks.
    #[error(
        "tensor {} has rows of {row} values, no multiple of the {block} in a block of {name}",
        clip(tensor)
    )]
    Blocks {
        /// The tensor.
        tensor: String,
        /// The type's name.
        name: &'static str,
        /// Values of a row.
        row: u64,
        /// Values of a block.
        block: usize,
    },
    /// A tensor at a place that the alignment forbids.
    #[error(
        "tensor {} begins at byte {offset} of the data, no multiple of the alignment {alignment}",
        clip(tensor)
    )]
    Misaligned {
        /// The tensor.
        tensor: String,
        /// Its place, from the begin of the data.
        offset: u64,
        /// What it should be a multiple of.
        alignment: u64,
    },
    /// Two tensors that share bytes, or leave a hole between them.
    #[error(
        "tensor {} begins at byte {offset} of the data, and {expected} is where the one before \
         it ends",
        clip(tensor)
    )]
    Place {
        /// The tensor.
        tensor: String,
        /// Its place, from the begin of the data.
        offset: u64,
        /// Where it should be.
        expected: u64,
    },
    /// A tensor that the file does not hold as a whole.
    #[error(
        "truncated: tensor {} ends at byte {end}, and the file at byte {size}; download it again",
        clip(tensor)
    )]
    Beyond {
        /// The tensor.
        tensor: String,
        /// Its end, from the begin of the file.
        end: u64,
        /// Bytes of the file.
        size: u64,
    },
    /// A key without which nothing can be done.
    #[error("{key} is missing; it cannot be guessed, convert the model again")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A tensor without which nothing can be done.
    #[error("holds no tensor {tensor}; name the .gguf file that has the weights")]
    MissingTensor {
        /// The tensor.
        tensor: &'static str,
    },
    /// A value of another type.
    #[error("{key} is {found}; it must be {expected}")]
    Key {
        /// The key.
        key: String,
        /// What the file has.
        found: String,
        /// What it must have.
        expected: String,
    },
    /// A model that is not in the table.
    #[error("architecture {name:?} is not supported in GGUF files; {supported} are{hint}")]
    Architecture {
        /// As the file has it.
        name: String,
        /// Those that are supported.
        supported: String,
        /// What works in its place, if something does.
        hint: &'static str,
    },
    /// The part of a model that looks at pictures.
    #[error(
        "holds a projector for pictures (mmproj), not a language model; name the .gguf file of \
         the language model"
    )]
    Projector,
    /// A part of a supported architecture that is not computed.
    #[error("{key} is {found}, which is not supported: {reason}")]
    Unsupported {
        /// The key.
        key: String,
        /// What the file has.
        found: String,
        /// What would be wrong without it.
        reason: &'static str,
    },
    /// A tokenizer that is not in the table.
    #[error("{key} is {name:?}, which is not supported; {supported} are{hint}")]
    Tokenizer {
        /// `tokenizer.ggml.model` or `tokenizer.ggml.pre`.
        key: &'static str,
        /// As the file has it.
        name: String,
        /// Those that are supported.
        supported: String,
        /// What to do, where that is known.
        hint: &'static str,
    },
    /// An entry of the vocabulary that cannot be.
    #[error("{key}, entry {index}: {reason}")]
    Entry {
        /// The list.
        key: &'static str,
        /// Which of its entries.
        index: usize,
        /// What is wrong.
        reason: String,
    },
    /// One part of several, or parts that do not belong together.
    #[error("is part of a split model, and {reason}")]
    Split {
        /// What is wrong.
        reason: String,
    },
}

impl GgufProblem {
    /// The problem of the file `path`.
    pub(crate) fn of(self, path: &std::path::Path) -> GgufError {
        GgufError { path: path.to_owned(), problem: self }
    }
}
