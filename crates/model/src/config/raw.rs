//! The fields of `config.json` as they are written, before anything is believed.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// Every field that bears on the result; the rest of the file is not read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct RawConfig {
    pub architectures: Option<Vec<String>>,
    pub model_type: Option<String>,
    pub hidden_size: Option<u64>,
    pub intermediate_size: Option<u64>,
    pub num_hidden_layers: Option<u64>,
    pub num_attention_heads: Option<u64>,
    pub num_key_value_heads: Field<u64>,
    pub head_dim: Option<u64>,
    pub vocab_size: Option<u64>,
    pub rms_norm_eps: Option<f64>,
    pub hidden_act: Option<String>,
    pub attention_bias: Option<bool>,
    pub bias: Option<bool>,
    pub mlp_bias: Option<bool>,
    pub tie_word_embeddings: Option<bool>,
    pub max_position_embeddings: Option<u64>,
    pub original_max_position_embeddings: Option<u64>,
    pub rope_theta: Option<f64>,
    pub rope_scaling: Option<Map<String, Value>>,
    pub rope_parameters: Option<Map<String, Value>>,
    pub partial_rotary_factor: Option<f64>,
    pub sliding_window: Field<u64>,
    pub use_sliding_window: Option<bool>,
    pub max_window_layers: Option<u64>,
    pub layer_types: Option<Vec<String>>,
    pub quantization_config: Option<Map<String, Value>>,
    pub bos_token_id: TokenIds,
    pub eos_token_id: TokenIds,
}

/// A field for which `null` and absence mean different things.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Field<T> {
    #[default]
    Absent,
    Null,
    Value(T),
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Option::deserialize(deserializer)?;
        Ok(value.map_or(Field::Null, Field::Value))
    }
}

/// A token id field: nothing, one, or a list.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(untagged)]
pub(crate) enum TokenIds {
    /// Absent or `null`.
    #[default]
    None,
    /// One id.
    One(u32),
    /// Several.
    Many(Vec<u32>),
}

impl TokenIds {
    pub(crate) fn first(&self) -> Option<u32> {
        match self {
            TokenIds::None => None,
            TokenIds::One(id) => Some(*id),
            TokenIds::Many(ids) => ids.first().copied(),
        }
    }

    pub(crate) fn into_vec(self) -> Vec<u32> {
        match self {
            TokenIds::None => Vec::new(),
            TokenIds::One(id) => vec![id],
            TokenIds::Many(ids) => ids,
        }
    }
}
