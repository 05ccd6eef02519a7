//! `config.json` as a validated [`ModelConfig`].
//!
//! Everything a model may vary is read here once and bounded, so that later code divides and
//! allocates without asking again. What Longview cannot run exactly is refused by name rather
//! than run approximately: a wrong activation or window would still produce fluent text.

mod problem;
mod raw;
mod rope;

use std::path::{Path, PathBuf};

use half::{bf16, f16};
use longview_core::LayerId;
use longview_ops::Activation;

use self::problem::bounded;
pub use self::problem::{ConfigProblem, MAX_POSITIONS, WindowError};
use self::raw::RawConfig;
pub use self::rope::{RopeConfig, RopeScaling};
use crate::arch::{ArchTraits, Architecture, BiasRule, SlidingRule};
pub use crate::json::FieldError;
use crate::source::{MAX_CONFIG_BYTES, read_text};
use crate::text::clip;

/// The most decoder layers a config may ask for.
pub const MAX_LAYERS: usize = 1024;
/// The most query heads a config may ask for.
pub const MAX_HEADS: usize = 1024;
/// The largest vocabulary a config may ask for.
pub const MAX_VOCAB: usize = 4 << 20;
/// The widest hidden or intermediate state a config may ask for.
pub const MAX_WIDTH: usize = 1 << 20;
/// The widest attention head a config may ask for.
pub const MAX_HEAD_DIM: usize = 4096;
/// One model's dimensions and choices, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelConfig {
    /// Which row of the architecture table applies.
    pub architecture: Architecture,
    /// D, the width of the residual stream.
    pub hidden_size: usize,
    /// F, the width inside the MLP.
    pub intermediate_size: usize,
    /// L, decoder layers.
    pub n_layers: usize,
    /// Hq, query heads.
    pub n_q_heads: usize,
    /// Hkv, key and value heads; divides `n_q_heads`.
    pub n_kv_heads: usize,
    /// Dh, the width of a head; even. Not always `hidden_size / n_q_heads`.
    pub head_dim: usize,
    /// V, rows of the embedding.
    pub vocab_size: usize,
    /// Added to the mean square before the root in every norm.
    pub rms_norm_eps: f32,
    /// Rotary position embedding.
    pub rope: RopeConfig,
    /// The output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// q, k and v projections have biases.
    pub qkv_bias: bool,
    /// The attention output projection has a bias.
    pub o_bias: bool,
    /// The MLP projections have biases.
    pub mlp_bias: bool,
    /// q and k are normed per head before RoPE.
    pub qk_norm: bool,
    /// What the gate of the MLP goes through.
    pub activation: Activation,
    /// Multiplies embeddings.
    pub embedding_scale: f32,
    /// The root of this divides q . k, where it is not the width of a head.
    pub query_scalar: Option<f64>,
    /// The checkpoint holds the weights of norms less 1.
    pub norm_plus_one: bool,
    /// Layers that see the last tokens alone, where others see all.
    pub local: Option<LocalLayers>,
    /// The context the model was made for, as the config declares it.
    pub max_position_embeddings: usize,
    /// Tokens that the narrowest layer sees, itself included, where a window is active that is not
    /// computed: it limits the context.
    pub sliding_window: Option<usize>,
    /// The token a sequence begins with.
    pub bos_token_id: Option<u32>,
    /// Tokens that end a sequence; `generation_config.json` may name others.
    pub eos_token_ids: Vec<u32>,
}

/// Layers that see the last tokens alone, in a model whose other layers see all.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalLayers {
    /// Tokens that such a layer sees, itself included.
    pub window: usize,
    /// Whether each layer of the model is one.
    pub is_local: Vec<bool>,
    /// Their rotary position embedding.
    pub rope: RopeConfig,
}

/// A config that cannot be run: which file, and why.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct ConfigError {
    /// The file that was read.
    pub path: PathBuf,
    /// What is wrong with it.
    pub problem: ConfigProblem,
}

impl ModelConfig {
    /// The factor on q . k, `1 / sqrt(Dh)` unless the model says otherwise, rounded once from f64
    /// as published models have it.
    pub fn attention_scale(&self) -> f32 {
        (1.0 / self.query_scalar.unwrap_or(self.head_dim as f64).sqrt()) as f32
    }

    /// Tokens that a token of `layer` sees, itself included, where the model has layers that see
    /// the last ones alone.
    pub fn window(&self, layer: LayerId) -> Option<usize> {
        let local = self.local.as_ref()?;
        local.is_local.get(layer.index()).is_some_and(|is_local| *is_local).then_some(local.window)
    }

    /// Reads and checks `path`.
    pub fn open(path: &Path) -> Result<Self, ConfigError> {
        let fail = |problem| ConfigError { path: path.to_owned(), problem };
        let text = read_text(path, MAX_CONFIG_BYTES);
        let text = text.map_err(|source| fail(ConfigProblem::Read { source }))?;
        Self::parse(&text, path)
    }

    /// Checks the text of the file `path`.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        Self::from_json(text).map_err(|problem| ConfigError { path: path.to_owned(), problem })
    }

    /// Checks the text of a `config.json`.
    pub fn from_json(text: &str) -> Result<Self, ConfigProblem> {
        let json: serde_json::Value =
            serde_json::from_str(text).map_err(|source| ConfigProblem::Json { source })?;
        Self::from_object(json.as_object().ok_or(ConfigProblem::NoObject)?)
    }

    /// Checks the fields of a `config.json`.
    pub(crate) fn from_object(
        fields: &serde_json::Map<String, serde_json::Value>,
    ) -> Result<Self, ConfigProblem> {
        let raw = RawConfig::read(fields)?;
        let architecture = architecture(&raw)?;
        let traits = architecture.traits();
        check_computable(&raw, traits)?;
        let hidden_size = required("hidden_size", raw.hidden_size, MAX_WIDTH)?;
        let n_q_heads = required("num_attention_heads", raw.num_attention_heads, MAX_HEADS)?;
        let n_kv_heads = kv_heads(&raw, traits, n_q_heads)?;
        let head_dim = head_dim(&raw, traits, hidden_size, n_q_heads)?;
        let max_position_embeddings = bounded(
            "max_position_embeddings",
            raw.max_position_embeddings.unwrap_or(traits.default_max_positions as u64),
            MAX_POSITIONS,
        )?;
        let n_layers = required("num_hidden_layers", raw.num_hidden_layers, MAX_LAYERS)?;
        let bias = |rule| match rule {
            BiasRule::Never => false,
            BiasRule::Always => true,
            BiasRule::AttentionBias(absent) => raw.attention_bias.unwrap_or(absent),
            BiasRule::Bias(absent) => raw.bias.unwrap_or(absent),
            BiasRule::MlpBias => raw.mlp_bias.unwrap_or(false),
        };
        let local = match local_layers(&raw, traits, n_layers)? {
            None => None,
            Some((window, is_local)) => Some(LocalLayers {
                window,
                is_local,
                rope: RopeConfig::local_from_raw(&raw, traits, head_dim, max_position_embeddings)?,
            }),
        };
        Ok(Self {
            architecture,
            hidden_size,
            intermediate_size: required("intermediate_size", raw.intermediate_size, MAX_WIDTH)?,
            n_layers,
            n_q_heads,
            n_kv_heads,
            head_dim,
            vocab_size: required("vocab_size", raw.vocab_size, MAX_VOCAB)?,
            rms_norm_eps: rms_norm_eps(&raw, traits)?,
            rope: RopeConfig::from_raw(&raw, traits, head_dim, max_position_embeddings)?,
            tie_word_embeddings: raw.tie_word_embeddings.unwrap_or(traits.default_tied),
            qkv_bias: bias(traits.qkv_bias),
            o_bias: bias(traits.o_bias),
            mlp_bias: bias(traits.mlp_bias),
            qk_norm: traits.qk_norm,
            activation: traits.activation,
            embedding_scale: embedding_scale(&raw, traits, hidden_size),
            query_scalar: query_scalar(&raw)?,
            norm_plus_one: traits.norm_plus_one,
            local,
            max_position_embeddings,
            sliding_window: sliding_window(&raw, traits, n_layers)?,
            bos_token_id: raw.bos_token_id.first().copied(),
            eos_token_ids: raw.eos_token_id,
        })
    }

    /// G, query heads per KV head.
    pub fn group_size(&self) -> usize {
        self.n_q_heads / self.n_kv_heads
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.n_q_heads * self.head_dim
    }

    /// Width of all key (or value) heads together.
    pub fn kv_width(&self) -> usize {
        self.n_kv_heads * self.head_dim
    }

    /// The longest context that is computed as the model was trained, if a window limits it.
    pub fn max_exact_context(&self) -> Option<usize> {
        self.sliding_window
    }

    /// Refuses a context longer than an active sliding window.
    pub fn check_context(&self, context: usize) -> Result<(), WindowError> {
        match self.max_exact_context() {
            Some(window) if context > window => Err(WindowError { context, window }),
            _ => Ok(()),
        }
    }
}

/// The architecture by its class, or by `model_type` where no class is listed.
fn architecture(raw: &RawConfig) -> Result<Architecture, ConfigProblem> {
    let class = raw.architectures.as_ref().and_then(|names| names.first());
    let (found, name) = match (class, &raw.model_type) {
        (Some(name), _) => (Architecture::from_class_name(name), name),
        (None, Some(name)) => (Architecture::from_model_type(name), name),
        (None, None) => return Err(ConfigProblem::Missing { field: "architectures" }),
    };
    found.ok_or_else(|| ConfigProblem::UnknownArchitecture {
        name: clip(name),
        supported: Architecture::supported(),
    })
}

/// Refuses what the kernels do not compute.
fn check_computable(raw: &RawConfig, traits: &ArchTraits) -> Result<(), ConfigProblem> {
    if let Some(quantisation) = &raw.quantization_config {
        let method = quantisation.get("quant_method").and_then(|name| name.as_str());
        return Err(ConfigProblem::Quantised { method: clip(method.unwrap_or("unnamed")) });
    }
    for (field, cap, reason) in [
        ("attn_logit_softcapping", raw.attn_logit_softcapping, "scores are not capped"),
        ("final_logit_softcapping", raw.final_logit_softcapping, "logits are not capped"),
    ] {
        if let Some(cap) = cap {
            return Err(ConfigProblem::NotComputed { field, found: cap.to_string(), reason });
        }
    }
    if raw.use_bidirectional_attention == Some(true) {
        let (field, reason) = ("use_bidirectional_attention", "attention looks back alone");
        return Err(ConfigProblem::NotComputed { field, found: "true".to_owned(), reason });
    }
    let (name, computed) = match traits.activation {
        // "swish" is the older name of the same function.
        Activation::Silu => (&raw.hidden_act, ["silu", "swish"]),
        // The first Gemma configs have an old name of another function beside the right one.
        Activation::GeluTanh => (
            raw.hidden_activation.as_ref().map_or(&raw.hidden_act, |_| &raw.hidden_activation),
            ["gelu_pytorch_tanh", "gelu_new"],
        ),
    };
    match name.as_deref() {
        None => Ok(()),
        Some(name) if computed.contains(&name) => Ok(()),
        Some(name) => Err(ConfigProblem::Activation { name: clip(name), computed: computed[0] }),
    }
}

/// The root of the hidden size, rounded to the type of the checkpoint: so it was in training, and
/// is in transformers.
fn embedding_scale(raw: &RawConfig, traits: &ArchTraits, hidden_size: usize) -> f32 {
    if !traits.scales_embedding {
        return 1.0;
    }
    let scale = (hidden_size as f64).sqrt() as f32;
    match raw.dtype.as_deref() {
        Some("bfloat16") => bf16::from_f32(scale).to_f32(),
        Some("float16") => f16::from_f32(scale).to_f32(),
        _ => scale,
    }
}

fn query_scalar(raw: &RawConfig) -> Result<Option<f64>, ConfigProblem> {
    const FIELD: &str = "query_pre_attn_scalar";
    match raw.query_pre_attn_scalar {
        Some(value) if !(value.is_finite() && value >= 1.0) => {
            let requirement = "a finite number of at least 1";
            Err(ConfigProblem::BadNumber { field: FIELD, value, requirement })
        }
        given => Ok(given),
    }
}

/// The window of layers that alternate with layers that see all, and which layers have it.
fn local_layers(
    raw: &RawConfig,
    traits: &ArchTraits,
    n_layers: usize,
) -> Result<Option<(usize, Vec<bool>)>, ConfigProblem> {
    let SlidingRule::Alternating { window, pattern } = traits.sliding else { return Ok(None) };
    let window = match raw.sliding_window {
        raw::Field::Null => return Ok(None),
        raw::Field::Value(window) => bounded("sliding_window", window, MAX_POSITIONS)?,
        raw::Field::Absent => window,
    };
    let is_local: Vec<bool> = match &raw.layer_types {
        Some(types) => layer_types(types, n_layers)?,
        None => {
            let pattern = raw.sliding_window_pattern.unwrap_or(pattern as u64);
            let pattern = bounded("sliding_window_pattern", pattern, MAX_LAYERS)?;
            (1..=n_layers).map(|n| !n.is_multiple_of(pattern)).collect()
        }
    };
    Ok(is_local.contains(&true).then_some((window, is_local)))
}

/// Which of the layers have a window.
fn layer_types(types: &[String], n_layers: usize) -> Result<Vec<bool>, ConfigProblem> {
    let wrong = |found| ConfigProblem::LayerTypes { found, n_layers };
    if types.len() != n_layers {
        return Err(wrong(format!("has {} entries", types.len())));
    }
    let is_local = |name: &String| match name.as_str() {
        "sliding_attention" => Ok(true),
        "full_attention" => Ok(false),
        other => Err(wrong(format!("contains {:?}", clip(other)))),
    };
    types.iter().map(is_local).collect()
}

fn required(field: &'static str, value: Option<u64>, max: usize) -> Result<usize, ConfigProblem> {
    bounded(field, value.ok_or(ConfigProblem::Missing { field })?, max)
}

fn kv_heads(
    raw: &RawConfig,
    traits: &ArchTraits,
    n_q_heads: usize,
) -> Result<usize, ConfigProblem> {
    let n_kv_heads = match raw.num_key_value_heads {
        raw::Field::Value(value) => bounded("num_key_value_heads", value, MAX_HEADS)?,
        raw::Field::Null => n_q_heads,
        raw::Field::Absent => traits.default_n_kv_heads.unwrap_or(n_q_heads),
    };
    if !n_q_heads.is_multiple_of(n_kv_heads) {
        return Err(ConfigProblem::HeadGroups { n_q_heads, n_kv_heads });
    }
    Ok(n_kv_heads)
}

fn head_dim(
    raw: &RawConfig,
    traits: &ArchTraits,
    hidden_size: usize,
    n_q_heads: usize,
) -> Result<usize, ConfigProblem> {
    let head_dim = match (raw.head_dim, traits.default_head_dim) {
        (Some(value), _) => bounded("head_dim", value, MAX_HEAD_DIM)?,
        (None, Some(default)) => default,
        (None, None) if hidden_size.is_multiple_of(n_q_heads) => hidden_size / n_q_heads,
        (None, None) => return Err(ConfigProblem::NoHeadDim { hidden_size, n_q_heads }),
    };
    if !head_dim.is_multiple_of(2) {
        return Err(ConfigProblem::OddHeadDim { head_dim });
    }
    bounded("head_dim", head_dim as u64, MAX_HEAD_DIM)
}

fn rms_norm_eps(raw: &RawConfig, traits: &ArchTraits) -> Result<f32, ConfigProblem> {
    let value = raw.rms_norm_eps.unwrap_or(traits.default_rms_norm_eps);
    // Kernels take it as f32, in which the smallest numbers are 0.
    if !(value as f32 > 0.0 && value < 1.0) {
        let requirement = "above 0 and below 1";
        return Err(ConfigProblem::BadNumber { field: "rms_norm_eps", value, requirement });
    }
    Ok(value as f32)
}

/// The window of the narrowest layer, if any layer has one.
fn sliding_window(
    raw: &RawConfig,
    traits: &ArchTraits,
    n_layers: usize,
) -> Result<Option<usize>, ConfigProblem> {
    let window = match (traits.sliding, raw.sliding_window) {
        (SlidingRule::Never | SlidingRule::Alternating { .. }, _) | (_, raw::Field::Null) => None,
        (SlidingRule::Everywhere(_), raw::Field::Value(window)) => Some(window),
        (SlidingRule::Everywhere(default), raw::Field::Absent) => default.map(|n| n as u64),
        (SlidingRule::WhenEnabled, _) if !slides_anywhere(raw, n_layers) => None,
        (SlidingRule::WhenEnabled, raw::Field::Value(window)) => Some(window),
        (SlidingRule::WhenEnabled, raw::Field::Absent) => Some(4096),
    };
    window.map(|tokens| bounded("sliding_window", tokens, MAX_POSITIONS)).transpose()
}

/// Whether the Qwen rule gives any layer a window: `layer_types`, else layers from
/// `max_window_layers` on.
fn slides_anywhere(raw: &RawConfig, n_layers: usize) -> bool {
    if !raw.use_sliding_window.unwrap_or(false) {
        return false;
    }
    match &raw.layer_types {
        Some(types) => types.iter().any(|name| name == "sliding_attention"),
        None => raw.max_window_layers.unwrap_or(28) < n_layers as u64,
    }
}

#[cfg(test)]
mod tests;
