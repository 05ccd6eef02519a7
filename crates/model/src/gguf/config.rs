//! Key-values as the fields of a `config.json`, so that one parser checks what both formats say.
//!
//! A key that would change the result and is not known is refused: a wrong scale would still
//! produce fluent text.

use std::path::Path;

use serde_json::{Map, Value as Json, json};

use super::error::{GgufModelError, GgufProblem};
use super::metadata::{Metadata, Number, Value};
use super::reader::TensorInfo;
use super::types::GgmlType;
use crate::config::{ConfigError, MAX_HEAD_DIM, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};
use crate::config::{ModelConfig, RopeConfig, RopeScaling};
use crate::text::clip;

/// An architecture as GGUF has it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GgufArch {
    /// In `general.architecture`, and before the dot of its keys.
    pub name: &'static str,
    /// Whose class of Hugging Face it is.
    class: &'static str,
    /// Converters have re-ordered the rows of q and k for neighbours that rotate together.
    pub interleaved: bool,
    /// `ffn_up` holds the gate's rows and then its own.
    pub stacked_up: bool,
    /// `attn_qkv` holds the rows of q, of k and of v, which Hugging Face has apart.
    pub stacked_qkv: bool,
    /// Parts of a layer that other architectures call by other names of Hugging Face.
    pub parts: &'static [(&'static str, &'static str)],
}

/// Every architecture that is read. Mistral is `llama`, and so is InternLM2 once it is converted,
/// but for its name.
pub(crate) const ARCHITECTURES: [GgufArch; 8] = [
    GgufArch { interleaved: true, ..plain("llama", "LlamaForCausalLM") },
    GgufArch { interleaved: true, ..plain("internlm2", "LlamaForCausalLM") },
    plain("qwen2", "Qwen2ForCausalLM"),
    plain("qwen3", "Qwen3ForCausalLM"),
    GgufArch { stacked_up: true, ..plain("phi3", "Phi3ForCausalLM") },
    GgufArch { stacked_up: true, ..plain("glm4", "Glm4ForCausalLM") },
    GgufArch { stacked_up: true, stacked_qkv: true, ..plain("chatglm", "GlmForCausalLM") },
    GgufArch { parts: &GEMMA3_PARTS, ..plain("gemma3", GEMMA3) },
];

const fn plain(name: &'static str, class: &'static str) -> GgufArch {
    GgufArch { name, class, interleaved: false, stacked_up: false, stacked_qkv: false, parts: &[] }
}

/// The class of Gemma 3, whose metadata leaves several things to whoever reads it.
const GEMMA3: &str = "Gemma3ForCausalLM";

const GEMMA3_PARTS: [(&str, &str); 3] = [
    ("post_attention_norm", "post_attention_layernorm"),
    ("ffn_norm", "pre_feedforward_layernorm"),
    ("post_ffw_norm", "post_feedforward_layernorm"),
];

/// The last of so many layers of Gemma 3 has no window.
const GEMMA3_PATTERN: usize = 6;
/// Layers of Gemma 3 of 27B, whose scores are scaled by the width of the model over its heads.
const GEMMA3_27B_LAYERS: usize = 62;

/// Divisors of RoPE's frequencies.
const FACTORS: &str = "rope_freqs.weight";

/// The class of what `llama` is with a window over the past.
const WINDOWED_LLAMA: &str = "MistralForCausalLM";

/// Keys, without the architecture before them, that change the result unless they have the value
/// beside them.
const NOT_COMPUTED: [(&str, f64, &str); 10] = [
    ("expert_count", 0.0, "mixtures of experts are not run yet"),
    ("attention.scale", 0.0, "scores are scaled by the head width alone"),
    ("attention.clamp_kqv", 0.0, "q, k and v are not clamped"),
    ("attention.max_alibi_bias", 0.0, "positions come from RoPE alone"),
    ("attn_logit_softcapping", 0.0, "scores are not capped"),
    ("final_logit_softcapping", 0.0, "logits are not capped"),
    ("logit_scale", 0.0, "logits are not scaled"),
    ("residual_scale", 0.0, "what a layer adds is not scaled"),
    ("embedding_scale", 0.0, "embeddings are not scaled"),
    ("attention.temperature_scale", 0.0, "scores are scaled by the head width alone"),
];

/// The architecture of a file.
pub(super) fn architecture(metadata: &Metadata) -> Result<&'static GgufArch, GgufProblem> {
    const KEY: &str = "general.architecture";
    let name = metadata.text(KEY)?;
    if name == Some("clip") || metadata.text("general.type")? == Some("mmproj") {
        return Err(GgufProblem::Projector);
    }
    let name = name.ok_or_else(|| GgufProblem::MissingKey { key: KEY.to_owned() })?;
    ARCHITECTURES.iter().find(|arch| arch.name == name).ok_or_else(|| {
        let hint = match name {
            "gemma" | "gemma2" | "gemma3n" => "; of Gemma, the third version is read",
            _ => "",
        };
        let supported = ARCHITECTURES.map(|arch| arch.name).join(", ");
        GgufProblem::Architecture { name: clip(name), supported, hint }
    })
}

/// Asks for the keys of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'static GgufArch,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch.name)
    }

    fn size(&self, name: &str, max: usize) -> Result<Option<usize>, GgufProblem> {
        self.metadata.whole(&self.key(name), 1, max)
    }

    fn required(&self, name: &str, max: usize) -> Result<usize, GgufProblem> {
        self.size(name, max)?.ok_or_else(|| GgufProblem::MissingKey { key: self.key(name) })
    }

    fn real(&self, name: &str) -> Result<Option<f64>, GgufProblem> {
        self.metadata.real(&self.key(name))
    }

    fn text(&self, name: &str) -> Result<Option<&str>, GgufProblem> {
        self.metadata.text(&self.key(name))
    }

    fn refuse_unknown(&self) -> Result<(), GgufProblem> {
        for (name, harmless, reason) in NOT_COMPUTED {
            let key = self.key(name);
            let found = match self.metadata.get(&key) {
                None => continue,
                Some(Value::Number(number)) => number.real(),
                Some(_) => None,
            };
            if found != Some(harmless) {
                let found = found.map_or("not a number".to_owned(), |found| found.to_string());
                return Err(GgufProblem::Unsupported { key, found, reason });
            }
        }
        let key = self.key("attention.causal");
        if self.metadata.get(&key) == Some(&Value::Number(Number::Truth(false))) {
            let reason = "attention here looks back alone";
            return Err(GgufProblem::Unsupported { key, found: "false".to_owned(), reason });
        }
        Ok(())
    }
}

/// The tensors of a file and the values of those that belong to the config.
pub(crate) struct Tensors<'a> {
    pub infos: &'a [TensorInfo],
    /// The bytes of a tensor.
    pub read: &'a dyn Fn(&TensorInfo) -> Result<Vec<u8>, GgufProblem>,
}

impl Tensors<'_> {
    fn info(&self, name: &str) -> Option<&TensorInfo> {
        self.infos.iter().find(|info| info.name == name)
    }

    fn has(&self, name: &str) -> bool {
        self.info(name).is_some()
    }

    /// A list of factors, one for each rotated pair, if the file has one.
    fn factors(&self, name: &str) -> Result<Option<Vec<f64>>, GgufProblem> {
        let Some(info) = self.info(name) else { return Ok(None) };
        if info.ty != GgmlType::F32 || info.n_values() > MAX_HEAD_DIM {
            let shape = info.shape.iter().map(|n| *n as u64).collect();
            return Err(GgufProblem::Shape { tensor: name.to_owned(), shape });
        }
        let bytes = (self.read)(info)?;
        let numbers = bytes.as_chunks().0.iter().map(|four| f64::from(f32::from_le_bytes(*four)));
        Ok(Some(numbers.collect()))
    }
}

/// What a `config.json` would say of the model.
pub(crate) fn model_config(
    metadata: &Metadata,
    tensors: &Tensors<'_>,
    path: &Path,
) -> Result<ModelConfig, GgufModelError> {
    let fields = config_json(metadata, tensors).map_err(|problem| problem.of(path))?;
    let config = ModelConfig::from_object(&fields);
    let mut config = config.map_err(|problem| ConfigError { path: path.to_owned(), problem })?;
    // Converters add the 1.
    config.norm_plus_one = false;
    if let Some(factors) = tensors.factors(FACTORS).map_err(|problem| problem.of(path))? {
        set_factors(&mut config.rope, factors).map_err(|problem| problem.of(path))?;
    }
    Ok(config)
}

/// Llama 3.1's scaling, which is nowhere but in this tensor.
fn set_factors(rope: &mut RopeConfig, factors: Vec<f64>) -> Result<(), GgufProblem> {
    let n_pairs = rope.rotary_dim / 2;
    let is_factor = |factor: &f64| factor.is_finite() && *factor > 0.0;
    if factors.len() != n_pairs || !factors.iter().all(is_factor) {
        let expected = format!("{n_pairs} numbers above 0, one for each rotated pair");
        let found = format!("a list of {} numbers", factors.len());
        return Err(GgufProblem::Key { key: FACTORS.to_owned(), found, expected });
    }
    if rope.scaling != RopeScaling::Default {
        return Err(GgufProblem::Unsupported {
            key: FACTORS.to_owned(),
            found: "there beside another scaling".to_owned(),
            reason: "one of them is computed",
        });
    }
    rope.scaling = RopeScaling::Factors { factors };
    Ok(())
}

fn config_json(
    metadata: &Metadata,
    tensors: &Tensors<'_>,
) -> Result<Map<String, Json>, GgufProblem> {
    let arch = architecture(metadata)?;
    let keys = Keys { metadata, arch };
    keys.refuse_unknown()?;
    let tensor = "token_embd.weight";
    let embedding = tensors.info(tensor).ok_or(GgufProblem::MissingTensor { tensor })?;
    let width = keys.required("embedding_length", MAX_WIDTH)?;
    let n_heads = keys.required("attention.head_count", MAX_HEADS)?;
    let n_kv_heads = keys.size("attention.head_count_kv", MAX_HEADS)?.unwrap_or(n_heads);
    let head_dim = head_dim(&keys, width, n_heads)?;
    let context = keys.required("context_length", MAX_POSITIONS)?;
    let epsilon = keys.real("attention.layer_norm_rms_epsilon")?.ok_or_else(|| {
        GgufProblem::MissingKey { key: keys.key("attention.layer_norm_rms_epsilon") }
    })?;
    // Whole numbers in the width of an f32; absent or 0 is none.
    let window = metadata.whole(&keys.key("attention.sliding_window"), 0, u32::MAX as usize)?;
    let window = window.filter(|tokens| *tokens > 0);
    let class = match window {
        Some(_) if arch.class == "LlamaForCausalLM" => WINDOWED_LLAMA,
        _ => arch.class,
    };
    let has_qkv_bias =
        ["blk.0.attn_q.bias", "blk.0.attn_qkv.bias"].iter().any(|name| tensors.has(name));
    let mut fields = json!({
        "architectures": [class],
        "hidden_size": width,
        "intermediate_size": keys.required("feed_forward_length", MAX_WIDTH)?,
        "num_hidden_layers": keys.required("block_count", MAX_LAYERS)?,
        "num_attention_heads": n_heads,
        "num_key_value_heads": n_kv_heads,
        "head_dim": head_dim,
        "vocab_size": embedding.shape[0],
        "rms_norm_eps": epsilon,
        "max_position_embeddings": context,
        "tie_word_embeddings": !tensors.has("output.weight"),
        "attention_bias": has_qkv_bias,
        "mlp_bias": tensors.has("blk.0.ffn_up.bias"),
        "sliding_window": window,
        "use_sliding_window": window.is_some(),
        "max_window_layers": 0,
        "rope_theta": keys.real("rope.freq_base")?.unwrap_or(10_000.0),
        "rope_scaling": rope_scaling(&keys, tensors, context)?,
    });
    let rotary = keys.size("rope.dimension_count", MAX_HEAD_DIM)?.unwrap_or(head_dim);
    fields["partial_rotary_factor"] = json!(rotary as f64 / head_dim as f64);
    if arch.class == GEMMA3 {
        add_gemma3(&keys, &mut fields)?;
    }
    match fields {
        Json::Object(fields) => Ok(fields),
        _ => unreachable!("an object was made"),
    }
}

/// What files of Gemma 3 leave to whoever reads them, as llama.cpp has it.
fn add_gemma3(keys: &Keys<'_>, fields: &mut Json) -> Result<(), GgufProblem> {
    let size = |fields: &Json, name: &str| fields[name].as_u64().unwrap_or(1) as usize;
    let n_layers = size(fields, "num_hidden_layers");
    let scalar = if n_layers == GEMMA3_27B_LAYERS {
        size(fields, "hidden_size") / size(fields, "num_attention_heads").max(1)
    } else {
        size(fields, "head_dim")
    };
    let pattern = keys.size("attention.sliding_window_pattern", MAX_LAYERS)?;
    fields["query_pre_attn_scalar"] = json!(scalar);
    fields["sliding_window_pattern"] = json!(pattern.unwrap_or(GEMMA3_PATTERN));
    fields["rope_local_base_freq"] = json!(keys.real("rope.freq_base_swa")?.unwrap_or(10_000.0));
    Ok(())
}

/// The width of a head, which keys and values share.
fn head_dim(keys: &Keys<'_>, width: usize, n_heads: usize) -> Result<usize, GgufProblem> {
    let [key, value] = ["attention.key_length", "attention.value_length"]
        .map(|name| keys.size(name, MAX_HEAD_DIM));
    let (key, value) = (key?, value?);
    let head_dim = key.unwrap_or(width / n_heads);
    if let Some(value) = value.filter(|value| *value != head_dim) {
        return Err(GgufProblem::Unsupported {
            key: keys.key("attention.value_length"),
            found: value.to_string(),
            reason: "keys and values have one width",
        });
    }
    Ok(head_dim)
}

/// `rope_scaling` of a `config.json`. LongRoPE has its factors in two tensors.
fn rope_scaling(
    keys: &Keys<'_>,
    tensors: &Tensors<'_>,
    context: usize,
) -> Result<Json, GgufProblem> {
    let original = keys.size("rope.scaling.original_context_length", MAX_POSITIONS)?;
    let attention = keys.real("rope.scaling.attn_factor")?.filter(|factor| *factor != 0.0);
    let long = tensors.factors("rope_factors_long.weight")?;
    let short = tensors.factors("rope_factors_short.weight")?;
    if let (Some(long), Some(short)) = (long, short) {
        return Ok(json!({
            "rope_type": "longrope",
            "long_factor": long,
            "short_factor": short,
            "attention_factor": attention.unwrap_or(1.0),
            "original_max_position_embeddings": original.unwrap_or(context),
        }));
    }
    let factor = keys.real("rope.scaling.factor")?;
    // The older spelling, of linear scaling alone.
    let linear = keys.real("rope.scale_linear")?;
    let kind = keys.text("rope.scaling.type")?;
    Ok(match kind {
        None | Some("none") => match linear.or(factor).filter(|factor| *factor != 1.0) {
            Some(factor) if kind.is_none() => json!({"rope_type": "linear", "factor": factor}),
            _ => Json::Null,
        },
        Some("linear") => json!({"rope_type": "linear", "factor": factor.or(linear)}),
        Some("yarn") => yarn(keys, factor, original.unwrap_or(context), attention)?,
        Some(other) => {
            let reason = "none, linear and yarn are computed, and longrope by its two tensors";
            let key = keys.key("rope.scaling.type");
            return Err(GgufProblem::Unsupported { key, found: clip(other), reason });
        }
    })
}

/// llama.cpp multiplies what the file says on top of the factor of the paper.
fn yarn(
    keys: &Keys<'_>,
    factor: Option<f64>,
    original: usize,
    attention: Option<f64>,
) -> Result<Json, GgufProblem> {
    let mut scaling = json!({
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": keys.real("rope.scaling.yarn_beta_fast")?,
        "beta_slow": keys.real("rope.scaling.yarn_beta_slow")?,
    });
    if let (Some(attention), Some(factor)) = (attention, factor) {
        let paper = if factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
        scaling["attention_factor"] = json!(attention * paper);
    }
    Ok(scaling)
}
