//! The fields of `config.json` as they are written, before anything is believed.

use serde_json::{Map, Value};

use crate::json::{FieldError, Fields};

/// Every field that bears on the result; the rest of the file is not read.
#[derive(Debug, Default)]
pub(super) struct RawConfig {
    pub architectures: Option<Vec<String>>,
    pub model_type: Option<String>,
    pub hidden_size: Option<u64>,
    pub intermediate_size: Option<u64>,
    pub num_hidden_layers: Option<u64>,
    pub num_attention_heads: Option<u64>,
    pub num_key_value_heads: Field,
    pub head_dim: Option<u64>,
    pub vocab_size: Option<u64>,
    pub rms_norm_eps: Option<f64>,
    pub hidden_act: Option<String>,
    pub hidden_activation: Option<String>,
    pub dtype: Option<String>,
    pub query_pre_attn_scalar: Option<f64>,
    pub attn_logit_softcapping: Option<f64>,
    pub final_logit_softcapping: Option<f64>,
    pub use_bidirectional_attention: Option<bool>,
    pub attention_bias: Option<bool>,
    pub bias: Option<bool>,
    pub mlp_bias: Option<bool>,
    pub tie_word_embeddings: Option<bool>,
    pub max_position_embeddings: Option<u64>,
    pub original_max_position_embeddings: Option<u64>,
    pub rope_theta: Option<f64>,
    pub rope_local_base_freq: Option<f64>,
    pub rope_scaling: Option<Map<String, Value>>,
    pub rope_parameters: Option<Map<String, Value>>,
    pub partial_rotary_factor: Option<f64>,
    pub sliding_window: Field,
    pub use_sliding_window: Option<bool>,
    pub max_window_layers: Option<u64>,
    pub sliding_window_pattern: Option<u64>,
    pub layer_types: Option<Vec<String>>,
    pub quantization_config: Option<Map<String, Value>>,
    pub bos_token_id: Vec<u32>,
    pub eos_token_id: Vec<u32>,
}

impl RawConfig {
    /// The fields of the object that `config.json` holds.
    pub(super) fn read(config: &Map<String, Value>) -> Result<Self, FieldError> {
        let fields = Fields(config);
        let or_null = |field| Field::read(&fields, field);
        Ok(Self {
            architectures: fields.texts("architectures")?,
            model_type: fields.text("model_type")?,
            hidden_size: fields.whole("hidden_size")?,
            intermediate_size: fields.whole("intermediate_size")?,
            num_hidden_layers: fields.whole("num_hidden_layers")?,
            num_attention_heads: fields.whole("num_attention_heads")?,
            num_key_value_heads: or_null("num_key_value_heads")?,
            head_dim: fields.whole("head_dim")?,
            vocab_size: fields.whole("vocab_size")?,
            rms_norm_eps: fields.number("rms_norm_eps")?,
            hidden_act: fields.text("hidden_act")?,
            hidden_activation: fields.text("hidden_activation")?,
            dtype: fields.text("dtype")?.or(fields.text("torch_dtype")?),
            query_pre_attn_scalar: fields.number("query_pre_attn_scalar")?,
            attn_logit_softcapping: fields.number("attn_logit_softcapping")?,
            final_logit_softcapping: fields.number("final_logit_softcapping")?,
            use_bidirectional_attention: fields.truth("use_bidirectional_attention")?,
            attention_bias: fields.truth("attention_bias")?,
            bias: fields.truth("bias")?,
            mlp_bias: fields.truth("mlp_bias")?,
            tie_word_embeddings: fields.truth("tie_word_embeddings")?,
            max_position_embeddings: fields.whole("max_position_embeddings")?,
            original_max_position_embeddings: fields.whole("original_max_position_embeddings")?,
            rope_theta: fields.number("rope_theta")?,
            rope_local_base_freq: fields.number("rope_local_base_freq")?,
            rope_scaling: fields.object("rope_scaling")?,
            rope_parameters: fields.object("rope_parameters")?,
            partial_rotary_factor: fields.number("partial_rotary_factor")?,
            sliding_window: or_null("sliding_window")?,
            use_sliding_window: fields.truth("use_sliding_window")?,
            max_window_layers: fields.whole("max_window_layers")?,
            sliding_window_pattern: match fields.whole("sliding_window_pattern")? {
                None => fields.whole("_sliding_window_pattern")?,
                given => given,
            },
            layer_types: fields.texts("layer_types")?,
            quantization_config: fields.object("quantization_config")?,
            bos_token_id: fields.token_ids("bos_token_id")?,
            eos_token_id: fields.token_ids("eos_token_id")?,
        })
    }
}

/// A number for which `null` and absence mean different things.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum Field {
    #[default]
    Absent,
    Null,
    Value(u64),
}

impl Field {
    fn read(fields: &Fields<'_>, field: &'static str) -> Result<Self, FieldError> {
        let absent = if fields.0.contains_key(field) { Field::Null } else { Field::Absent };
        Ok(fields.whole(field)?.map_or(absent, Field::Value))
    }
}
