//! What can be wrong with a folder's weights, each with the file and what to do.

use std::fmt;
use std::path::{Path, PathBuf};

use longview_core::quant::QuantType;
use longview_ops::OpError;

use super::limits::{MAX_HEADER_BYTES, MAX_TENSORS};
use crate::config::WindowError;
use crate::text::clip;

/// Mismatches printed before the rest is only counted: one wrong number of a config changes every
/// tensor.
const SHOWN: usize = 5;

/// A model that could not be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// A file is wrong.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The device refused.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The context is longer than the model's window.
    #[error(transparent)]
    Window(#[from] WindowError),
}

/// Weights that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WeightsError {
    /// No safetensors file at all.
    #[error(
        "{}: no model.safetensors and no model.safetensors.index.json{}",
        dir.display(),
        if *has_pickle {
            "; pytorch_model.bin is not read because loading it can run code: \
             save the model again as safetensors"
        } else {
            "; a Hugging Face model folder holds one of them"
        }
    )]
    NoWeights {
        /// The folder.
        dir: PathBuf,
        /// It holds PyTorch pickles instead.
        has_pickle: bool,
    },
    /// The system refused.
    #[error("{}: cannot be read ({source})", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Nothing in the file.
    #[error("{}: the file is empty; download it again", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// A repository was cloned without its large files.
    #[error("{}: is a Git LFS pointer, not the weights; run `git lfs pull`", path.display())]
    LfsPointer {
        /// The file.
        path: PathBuf,
    },
    /// Fewer bytes than the header promises.
    #[error(
        "{}: truncated, {found} bytes of {needed}; download it again",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Bytes that must be there.
        needed: u64,
        /// Bytes that are.
        found: u64,
    },
    /// A header or index beyond the cap.
    #[error(
        "{}: a header of {bytes} bytes is above the cap of {MAX_HEADER_BYTES}; \
         the file is corrupt or not safetensors",
        path.display()
    )]
    HeaderTooLarge {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
    },
    /// More bytes than addresses: in a program of 32 bits, as in a browser.
    #[error(
        "{}: tensor {} has {bytes} bytes, more than this program can address; use a smaller \
         model, or the program outside of the browser",
        path.display(), clip(name)
    )]
    TensorTooLarge {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its length.
        bytes: u64,
    },
    /// A weight that is no number.
    #[error(
        "{}: tensor {} holds {what}; the file is damaged, or was when it was made: download it \
         again, or take another conversion", path.display(), clip(name)
    )]
    NotFinite {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// What, and where in it.
        what: String,
    },
    /// More tensors than any model has.
    #[error("{}: more than {MAX_TENSORS} tensors; the file is corrupt", path.display())]
    TooManyTensors {
        /// The file.
        path: PathBuf,
    },
    /// The header contradicts itself or the file.
    #[error(
        "{}: corrupt safetensors header ({}); download it again", path.display(), clip(reason)
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Which part.
        reason: String,
    },
    /// The index is not what an index is.
    #[error("{}: not a safetensors index ({source}); download it again", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// Line and column are in it.
        source: serde_json::Error,
    },
    /// A shard outside the folder.
    #[error(
        "{}: shard name {:?} is not a plain file name; shards must lie beside the index",
        path.display(),
        clip(name)
    )]
    ShardName {
        /// The index.
        path: PathBuf,
        /// The name it gives.
        name: String,
    },
    /// Shards that were not downloaded.
    #[error(
        "{}: {} of the shards it names are missing: {}; download them",
        path.display(),
        missing.len(),
        clip(&missing.join(", "))
    )]
    MissingShards {
        /// The index.
        path: PathBuf,
        /// Their names.
        missing: Vec<String>,
    },
    /// An output projection that the config denies.
    #[error(
        "{}: {lm_head} differs from {embedding}, but config.json says \"tie_word_embeddings\": \
         true; set it to false to use {lm_head}, or remove that tensor",
        path.display()
    )]
    NotTied {
        /// The file or index.
        path: PathBuf,
        /// The tensor that the config would use twice.
        embedding: String,
        /// The tensor that would be ignored.
        lm_head: String,
    },
    /// Quantised twice, errors add up.
    #[error(
        "{}: {} is quantised already, as {ty}; leave out the quantisation, or take the model in 16 \
         bits", path.display(), clip(name)
    )]
    Quantised {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Its type.
        ty: QuantType,
    },
    /// No quantised type fits.
    #[error(
        "{}: {} has rows of {n_cols} values, which are no whole blocks of 32; it cannot be \
         quantised", path.display(), clip(name)
    )]
    NoBlocks {
        /// The file.
        path: PathBuf,
        /// The tensor.
        name: String,
        /// Values of a row.
        n_cols: usize,
    },
    /// Tensors that are not what the config calls for.
    #[error("{}: {} not fit {by}:{}", path.display(), match mismatches.len() {
        1 => "1 tensor does".to_owned(),
        n => format!("{n} tensors do"),
    }, Lines(mismatches))]
    Mismatches {
        /// The file or index.
        path: PathBuf,
        /// What calls for them.
        by: &'static str,
        /// Every one of them.
        mismatches: Vec<Mismatch>,
    },
}

/// One tensor that does not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Not there.
    #[error("{name}: missing{}", if *untied_head {
        "; if the output is the embedding, config.json must say \"tie_word_embeddings\": true"
    } else { "" })]
    Missing {
        /// The tensor.
        name: String,
        /// It is the output projection of an untied model.
        untied_head: bool,
    },
    /// The index sends to a shard that does not hold it.
    #[error("{name}: not in {shard}, where the index puts it")]
    NotInShard {
        /// The tensor.
        name: String,
        /// The file that the index names.
        shard: String,
    },
    /// Another shape.
    #[error("{name}: shape {found:?}, the config gives {expected:?}")]
    Shape {
        /// The tensor.
        name: String,
        /// As stored.
        found: Vec<usize>,
        /// As the config has it.
        expected: Vec<usize>,
    },
    /// A type that is not read.
    #[error("{name}: type {stored}, Longview reads F32, F16 and BF16")]
    Type {
        /// The tensor.
        name: String,
        /// As the file names it.
        stored: String,
    },
    /// A part of the model that the config does not call for.
    #[error("{name}: the config has no such tensor; ignoring it would give wrong results")]
    Unexpected {
        /// The tensor.
        name: String,
    },
}

impl WeightsError {
    /// An error if there is any mismatch.
    pub(super) fn from_mismatches(
        path: &Path,
        by: &'static str,
        mut all: Vec<Mismatch>,
    ) -> Result<(), Self> {
        if all.is_empty() {
            return Ok(());
        }
        // A map's order must not decide what the user sees.
        all.sort_by_cached_key(ToString::to_string);
        Err(Self::Mismatches { path: path.to_owned(), by, mismatches: all })
    }

    /// The same with other names of tensors.
    pub(crate) fn with_names(mut self, rename: impl Fn(&str) -> String) -> Self {
        if let Self::Mismatches { mismatches, .. } = &mut self {
            for mismatch in mismatches {
                let name = mismatch.name_mut();
                *name = rename(name);
            }
        }
        self
    }
}

impl Mismatch {
    fn name_mut(&mut self) -> &mut String {
        match self {
            Self::Missing { name, .. }
            | Self::NotInShard { name, .. }
            | Self::Shape { name, .. }
            | Self::Type { name, .. }
            | Self::Unexpected { name } => name,
        }
    }
}

/// Mismatches as indented lines.
struct Lines<'a>(&'a [Mismatch]);

impl fmt::Display for Lines<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for mismatch in self.0.iter().take(SHOWN) {
            // Names of tensors are the file's own words.
            write!(f, "\n  {}", clip(&mismatch.to_string()))?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}
