//! A config as key-values, by the names that llama.cpp's converter gives them.

use std::path::Path;

use super::error::ExportError;
use super::keys::KeyValues;
use super::tensors::Factors;
use crate::arch::Architecture;
use crate::config::{ModelConfig, RopeConfig, RopeScaling};
use crate::gguf::{ARCHITECTURES, GgufArch};
use crate::rope::RopeTable;

/// Layers between two that see all, where a file of Gemma 3 does not say.
const GEMMA3_PATTERN: usize = 6;

/// The architecture of a file of this model.
pub(super) fn architecture(
    config: &ModelConfig,
    path: &Path,
) -> Result<&'static GgufArch, ExportError> {
    // The layout of InternLM2 is Llama's once its rows are apart, and biases of the output
    // projection are read of Llama alone.
    let name = match config.architecture {
        Architecture::Llama | Architecture::Mistral => Some("llama"),
        Architecture::InternLm2 if config.o_bias => Some("llama"),
        Architecture::InternLm2 => Some("internlm2"),
        Architecture::Qwen2 => Some("qwen2"),
        Architecture::Qwen3 => Some("qwen3"),
        Architecture::Phi3 => Some("phi3"),
        Architecture::Glm4 => Some("glm4"),
        Architecture::Gemma3 => Some("gemma3"),
        // Files of it, which are called chatglm, are read here and not written.
        Architecture::Glm => None,
    };
    let found = name.and_then(|name| ARCHITECTURES.iter().find(|arch| arch.name == name));
    found.ok_or_else(|| ExportError::Architecture {
        path: path.to_owned(),
        class: config.architecture.traits().class_name,
        supported: "Llama, Mistral, InternLM2, Qwen2, Qwen3, Phi3, Glm4 and Gemma3".to_owned(),
    })
}

/// Keys of one architecture.
struct ArchKeys<'a> {
    keys: &'a mut KeyValues,
    name: &'static str,
}

impl ArchKeys<'_> {
    fn size(&mut self, key: &str, value: usize) {
        self.keys.size(&format!("{}.{key}", self.name), value);
    }

    fn f32(&mut self, key: &str, value: f64) {
        self.keys.f32(&format!("{}.{key}", self.name), value);
    }

    fn text(&mut self, key: &str, value: &str) {
        self.keys.text(&format!("{}.{key}", self.name), value);
    }
}

/// What is not in the keys of a config.
#[derive(Default)]
pub(super) struct Beside {
    /// Factors of the rotary embedding, which files have as tensors.
    pub(super) factors: Vec<Factors>,
    /// What is lost and hardly matters.
    pub(super) note: Option<String>,
}

/// Writes the keys of `config`, and returns what they do not say.
///
/// # Errors
/// For what no key can say.
pub(super) fn write(
    keys: &mut KeyValues,
    arch: &GgufArch,
    config: &ModelConfig,
    path: &Path,
) -> Result<Beside, ExportError> {
    let mut keys = ArchKeys { keys, name: arch.name };
    keys.size("block_count", config.n_layers);
    keys.size("context_length", config.max_position_embeddings);
    keys.size("embedding_length", config.hidden_size);
    keys.size("feed_forward_length", config.intermediate_size);
    keys.size("vocab_size", config.vocab_size);
    keys.size("attention.head_count", config.n_q_heads);
    keys.size("attention.head_count_kv", config.n_kv_heads);
    keys.size("attention.key_length", config.head_dim);
    keys.size("attention.value_length", config.head_dim);
    keys.f32("attention.layer_norm_rms_epsilon", f64::from(config.rms_norm_eps));
    keys.size("rope.dimension_count", config.rope.rotary_dim);
    keys.f32("rope.freq_base", config.rope.theta);
    windows(&mut keys, config, path)?;
    rope_scaling(&mut keys, &config.rope, path)
}

/// Files of Phi 3 and Gemma 3 say 0 where there is no window; where nothing is said readers guess.
fn windows(keys: &mut ArchKeys<'_>, config: &ModelConfig, path: &Path) -> Result<(), ExportError> {
    let says_none = matches!(config.architecture, Architecture::Phi3 | Architecture::Gemma3);
    let Some(local) = &config.local else {
        if let Some(window) = config.sliding_window.or(says_none.then_some(0)) {
            keys.size("attention.sliding_window", window);
        }
        return Ok(());
    };
    keys.size("attention.sliding_window", local.window);
    let pattern = pattern(&local.is_local).ok_or_else(|| ExportError::Config {
        path: path.to_owned(),
        field: "layer_types",
        value: "a list in which full attention does not come at even distances".to_owned(),
    })?;
    if pattern != GEMMA3_PATTERN {
        keys.size("attention.sliding_window_pattern", pattern);
    }
    if local.rope.theta != 10_000.0 {
        keys.f32("rope.freq_base_swa", local.rope.theta);
    }
    Ok(())
}

/// The number of layers after which one sees all, if there is one for the whole list.
fn pattern(is_local: &[bool]) -> Option<usize> {
    // Without such a layer any number beyond the list says so; that of published models, if it is.
    let none = GEMMA3_PATTERN.max(is_local.len() + 1);
    let pattern = is_local.iter().position(|is_local| !is_local).map_or(none, |at| at + 1);
    let is_right = |(at, is_local): (usize, &bool)| *is_local != (at + 1).is_multiple_of(pattern);
    is_local.iter().enumerate().all(is_right).then_some(pattern)
}

fn rope_scaling(
    keys: &mut ArchKeys<'_>,
    rope: &RopeConfig,
    path: &Path,
) -> Result<Beside, ExportError> {
    let refuse = |value: &str| ExportError::Config {
        path: path.to_owned(),
        field: "rope_scaling",
        value: value.to_owned(),
    };
    const ORIGINAL: &str = "rope.scaling.original_context_length";
    match &rope.scaling {
        RopeScaling::Default => {}
        RopeScaling::Dynamic { original_max_positions, .. } => {
            let note = format!(
                "RoPE is stretched in contexts beyond {original_max_positions} tokens in this \
                 folder, and not in a GGUF file"
            );
            return Ok(Beside { note: Some(note), ..Beside::default() });
        }
        RopeScaling::Linear { factor } => {
            keys.text("rope.scaling.type", "linear");
            keys.f32("rope.scaling.factor", *factor);
        }
        RopeScaling::Llama3 { .. } | RopeScaling::Factors { .. } => {
            let factors = vec![Factors { name: "rope_freqs.weight", values: divisors(rope) }];
            return Ok(Beside { factors, note: None });
        }
        RopeScaling::Yarn { truncate: false, .. } => {
            return Err(refuse("yarn without truncate"));
        }
        RopeScaling::Yarn {
            factor,
            attention_factor,
            beta_fast,
            beta_slow,
            original_max_positions,
            ..
        } => {
            keys.text("rope.scaling.type", "yarn");
            keys.f32("rope.scaling.factor", *factor);
            keys.size(ORIGINAL, *original_max_positions);
            keys.f32("rope.scaling.yarn_beta_fast", *beta_fast);
            keys.f32("rope.scaling.yarn_beta_slow", *beta_slow);
            // Readers multiply it on top of the factor of the paper.
            let paper = if *factor <= 1.0 { 1.0 } else { 0.1 * factor.ln() + 1.0 };
            if (attention_factor / paper - 1.0).abs() > 1e-6 {
                keys.f32("rope.scaling.attn_factor", attention_factor / paper);
            }
        }
        RopeScaling::LongRope {
            short_factor,
            long_factor,
            attention_factor,
            original_max_positions,
        } => {
            keys.text("rope.scaling.type", "longrope");
            keys.size(ORIGINAL, *original_max_positions);
            keys.f32("rope.scaling.attn_factor", *attention_factor);
            let factors = |name, values: &[f64]| Factors { name, values: values.to_vec() };
            let factors = vec![
                factors("rope_factors_long.weight", long_factor),
                factors("rope_factors_short.weight", short_factor),
            ];
            return Ok(Beside { factors, note: None });
        }
    }
    Ok(Beside::default())
}

/// What each frequency is divided by.
fn divisors(rope: &RopeConfig) -> Vec<f64> {
    let plain = RopeConfig { scaling: RopeScaling::Default, ..rope.clone() };
    // The length matters to other kinds of scaling alone.
    let [plain, scaled] = [&plain, rope].map(|rope| RopeTable::new(rope, 1));
    plain.inv_freq().iter().zip(scaled.inv_freq()).map(|(plain, scaled)| plain / scaled).collect()
}
