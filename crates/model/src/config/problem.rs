//! Why a config is refused, and the bounds of sizes.

use longview_core::Grouped;

use crate::json::FieldError;

/// The most positions a config may declare; they must fit `u32` with room to spare.
pub const MAX_POSITIONS: usize = 1 << 30;

/// Why a config was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigProblem {
    /// The file could not be read.
    #[error("cannot be read ({source}); a Hugging Face model folder holds config.json")]
    Read {
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not JSON of the expected form.
    #[error("is not a model config ({source}); download the file again")]
    Json {
        /// Line and column are in it.
        source: serde_json::Error,
    },
    /// The file is JSON of another form.
    #[error("is not a model config: it must be a JSON object; download the file again")]
    NoObject,
    /// A field has the wrong type.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// The architecture is not in the table.
    #[error("architecture {name:?} is not supported; Longview runs {supported}")]
    UnknownArchitecture {
        /// As the config names it.
        name: String,
        /// The classes that are supported.
        supported: String,
    },
    /// The weights are quantised in a way that is not read.
    #[error(
        "the checkpoint is quantised ({method}); Longview reads F32, F16 and BF16 weights: \
         use the unquantised checkpoint"
    )]
    Quantised {
        /// `quant_method` of the config.
        method: String,
    },
    /// A field without a default is absent.
    #[error("{field} is missing; it cannot be guessed, take config.json from the model's source")]
    Missing {
        /// Its name in config.json.
        field: &'static str,
    },
    /// A number is outside what Longview accepts.
    #[error("{field} is {value}; it must be from {min} to {max}")]
    OutOfRange {
        /// Its name in config.json.
        field: &'static str,
        /// What config.json says.
        value: u64,
        /// The smallest accepted value.
        min: usize,
        /// The largest accepted value.
        max: usize,
    },
    /// A real number is outside what the formula allows.
    #[error("{field} is {value}; it must be {requirement}")]
    BadNumber {
        /// Its name in config.json.
        field: &'static str,
        /// What config.json says.
        value: f64,
        /// What it must be.
        requirement: &'static str,
    },
    /// Query heads do not divide among the KV heads.
    #[error(
        "num_attention_heads {n_q_heads} is not a multiple of num_key_value_heads {n_kv_heads}"
    )]
    HeadGroups {
        /// Query heads.
        n_q_heads: usize,
        /// KV heads.
        n_kv_heads: usize,
    },
    /// The head width cannot be derived.
    #[error(
        "hidden_size {hidden_size} is not a multiple of num_attention_heads {n_q_heads} and \
         head_dim is absent; set head_dim"
    )]
    NoHeadDim {
        /// Width of a token's vector between layers, D.
        hidden_size: usize,
        /// Query heads of a layer, Hq.
        n_q_heads: usize,
    },
    /// RoPE rotates pairs.
    #[error("the head width {head_dim} is odd; RoPE needs pairs of components")]
    OddHeadDim {
        /// Numbers of a key or value of one head, Dh.
        head_dim: usize,
    },
    /// The MLP's activation is not the one the kernels compute.
    #[error("hidden_act {name:?} is not supported; Longview's MLP computes {computed}")]
    Activation {
        /// As the config names it.
        name: String,
        /// The one that this architecture has.
        computed: &'static str,
    },
    /// Something that would change the result.
    #[error("{field} {found} is not supported: {reason}")]
    NotComputed {
        /// Its name in config.json.
        field: &'static str,
        /// What config.json says.
        found: String,
        /// What is computed instead.
        reason: &'static str,
    },
    /// A list of layers that does not fit the model.
    #[error(
        "layer_types {found}; it must be a list of {n_layers} of sliding_attention and \
         full_attention"
    )]
    LayerTypes {
        /// What it is instead.
        found: String,
        /// Decoder layers.
        n_layers: usize,
    },
    /// The RoPE scaling is not known.
    #[error("rope type {name:?} is not supported; Longview computes {supported}")]
    RopeType {
        /// As the config names it.
        name: String,
        /// Those that are known.
        supported: &'static str,
    },
    /// A list of RoPE factors that does not fit a head.
    #[error("{field} {found}; it must be a list of {expected} numbers, one for each rotated pair")]
    RopeFactors {
        /// Its name in config.json.
        field: &'static str,
        /// What it is instead.
        found: String,
        /// Rotated pairs of a head.
        expected: usize,
    },
    /// Only part of each head would be rotated, or each layer differently.
    #[error("{what} is not supported: every head is rotated in full, alike in every layer")]
    RopeForm {
        /// The field and its value.
        what: String,
    },
}

/// The context asked for is longer than the model's sliding window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "a context of {} tokens is longer than this model's sliding window of {}; \
     beyond it the model was trained to forget, which Longview does not imitate: \
     use -c {window} or less",
    Grouped::from(*context),
    Grouped::from(*window)
)]
pub struct WindowError {
    /// Tokens asked for.
    pub context: usize,
    /// Tokens the window spans.
    pub window: usize,
}

/// `value` as a size from 1 to `max`; zero would become a divisor.
pub(super) fn bounded(field: &'static str, value: u64, max: usize) -> Result<usize, ConfigProblem> {
    match usize::try_from(value) {
        Ok(size) if (1..=max).contains(&size) => Ok(size),
        _ => Err(ConfigProblem::OutOfRange { field, value, min: 1, max }),
    }
}
