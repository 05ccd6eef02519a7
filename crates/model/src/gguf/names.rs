//! What GGUF calls the tensors that Hugging Face has other names for.

use super::config::GgufArch;

/// Tensors outside of the layers.
const GLOBAL: [(&str, &str); 3] = [
    ("token_embd.weight", "model.embed_tokens.weight"),
    ("output_norm.weight", "model.norm.weight"),
    ("output.weight", "lm_head.weight"),
];

/// Parts of a layer, without `blk.N.` or `model.layers.N.` and without `.weight` or `.bias`.
const LAYER: [(&str, &str); 14] = [
    ("attn_norm", "input_layernorm"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_qkv", "self_attn.qkv_proj"),
    ("attn_q_norm", "self_attn.q_norm"),
    ("attn_k_norm", "self_attn.k_norm"),
    ("attn_output", "self_attn.o_proj"),
    ("post_attention_norm", "post_self_attn_layernorm"),
    ("ffn_norm", "post_attention_layernorm"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
    ("post_ffw_norm", "post_mlp_layernorm"),
];

/// `ffn_up` where it holds the rows of the gate, too.
const STACKED_UP: (&str, &str) = ("ffn_up", "mlp.gate_up_proj");

/// Tensors of frequencies, which belong to the config, and an old copy of these.
const FREQUENCIES: [&str; 3] =
    ["rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"];
const OLD_FREQUENCIES: &str = ".attn_rot_embd.weight";

/// Whether `name` is no weight of the model.
pub(super) fn is_frequencies(name: &str) -> bool {
    FREQUENCIES.contains(&name) || name.ends_with(OLD_FREQUENCIES)
}

/// The name that Hugging Face has for `name`. What has none stands in `model.`, where the check
/// against the config finds it.
pub(super) fn to_hugging_face(name: &str, arch: &GgufArch) -> String {
    if let Some((_, found)) = GLOBAL.iter().find(|(gguf, _)| *gguf == name) {
        return (*found).to_owned();
    }
    let known = || {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        let stacked = arch.stacked_up && part == STACKED_UP.0;
        let mut all = arch.parts.iter().chain(&LAYER);
        let found = all.find(|(gguf, _)| *gguf == part).map(|(_, found)| *found)?;
        let found = if stacked { STACKED_UP.1 } else { found };
        let is_kind = matches!(kind, "weight" | "bias");
        let is_layer = !layer.is_empty() && layer.bytes().all(|byte| byte.is_ascii_digit());
        (is_kind && is_layer).then(|| format!("model.layers.{layer}.{found}.{kind}"))
    };
    known().unwrap_or_else(|| format!("model.{name}"))
}

/// The name that the file has for `name` of Hugging Face, for messages.
pub(super) fn from_hugging_face(name: &str, arch: &GgufArch) -> String {
    if let Some((found, _)) = GLOBAL.iter().find(|(_, other)| *other == name) {
        return (*found).to_owned();
    }
    let known = || {
        let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
        let (part, kind) = rest.rsplit_once('.')?;
        let all = arch.parts.iter().chain(&LAYER).chain([&STACKED_UP]);
        let found = all.into_iter().find(|(_, other)| *other == part)?.0;
        Some(format!("blk.{layer}.{found}.{kind}"))
    };
    let plain = || name.strip_prefix("model.").unwrap_or(name).to_owned();
    known().unwrap_or_else(plain)
}

/// The names of q, k and v where `name` holds all three.
pub(super) fn split_qkv(name: &str) -> Option<[String; 3]> {
    let (layer, kind) = name.split_once(".attn_qkv.")?;
    Some(["q", "k", "v"].map(|part| format!("{layer}.attn_{part}.{kind}")))
}

/// Whether the rows of `name` are q's or k's.
pub(super) fn is_rotated(name: &str) -> bool {
    let part = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.'));
    part.is_some_and(|(_, part)| {
        matches!(part, "attn_q.weight" | "attn_k.weight" | "attn_q.bias" | "attn_k.bias")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gguf::config::ARCHITECTURES;

    #[test]
    fn names_go_there_and_back() {
        for arch in &ARCHITECTURES {
            for (part, _) in LAYER {
                let name = format!("blk.17.{part}.weight");
                assert_eq!(from_hugging_face(&to_hugging_face(&name, arch), arch), name);
            }
            for (name, _) in GLOBAL {
                assert_eq!(from_hugging_face(&to_hugging_face(name, arch), arch), name);
            }
        }
        let name = |arch: &str, name: &str| {
            to_hugging_face(name, ARCHITECTURES.iter().find(|a| a.name == arch).unwrap())
        };
        assert_eq!(name("llama", "blk.0.ffn_up.bias"), "model.layers.0.mlp.up_proj.bias");
        assert_eq!(name("phi3", "blk.0.ffn_up.weight"), "model.layers.0.mlp.gate_up_proj.weight");
    }

    #[test]
    fn unknown_tensors_are_not_lost() {
        for name in ["blk.0.ffn_gate_exps.weight", "blk..attn_q.weight", "blk.x.attn_q.weight"] {
            let found = to_hugging_face(name, &ARCHITECTURES[0]);
            assert_eq!(found, format!("model.{name}"));
            assert_eq!(from_hugging_face(&found, &ARCHITECTURES[0]), name);
        }
    }
}
