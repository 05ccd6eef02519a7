//! Keys of a model that say what is not computed, or contradict each other.

use super::*;
use crate::config::RopeScaling;

fn config(file: &Writer) -> ModelConfig {
    open_bytes(file.bytes()).map_err(|error| error.to_string()).unwrap().config
}

fn rope(keys: &[(&str, crate::gguf::writer::Stored)]) -> Writer {
    let add = |file: Writer, (key, value): &(&str, _)| {
        file.key(&format!("llama.rope.{key}"), Clone::clone(value))
    };
    keys.iter().fold(tiny(), add)
}

#[test]
fn what_is_needed_is_named_where_it_is_missing() {
    for key in [
        "general.architecture",
        "llama.embedding_length",
        "llama.attention.head_count",
        "llama.context_length",
        "llama.attention.layer_norm_rms_epsilon",
        "llama.feed_forward_length",
        "llama.block_count",
    ] {
        let message = refusal(&tiny().without(key));
        assert!(message.starts_with(&format!("m.gguf: {key} is missing; it cannot be guessed")));
    }
    let mut file = tiny();
    file.tensors.remove(0);
    assert_eq!(
        refusal(&file),
        "m.gguf: holds no tensor token_embd.weight; name the .gguf file that has the weights"
    );
}

#[test]
fn keys_of_what_is_not_computed_must_be_numbers_that_do_nothing() {
    assert_eq!(
        refusal(&tiny().key("llama.logit_scale", text("0"))),
        "m.gguf: llama.logit_scale is not a number, which is not supported: logits are not scaled"
    );
    config(&tiny().key("llama.logit_scale", f32(0.0)));
    config(&tiny().key("llama.attention.causal", truth(1)));
}

#[test]
fn keys_and_values_have_one_width() {
    config(&tiny().key("llama.attention.value_length", u32(16)));
    assert_eq!(
        refusal(&tiny().key("llama.attention.value_length", u32(8))),
        "m.gguf: llama.attention.value_length is 8, which is not supported: keys and values have \
         one width"
    );
    let message = refusal(&tiny().key("llama.attention.key_length", u32(5000)));
    assert!(message.ends_with("key_length is 5000; it must be a whole number from 1 to 4096"));
}

#[test]
fn a_window_makes_a_llama_a_mistral() {
    let plain = config(&tiny());
    assert_eq!((plain.sliding_window, plain.n_kv_heads), (None, 1));
    let windowed = config(&tiny().key("llama.attention.sliding_window", u32(20)));
    assert_eq!(windowed.sliding_window, Some(20));
    let message = refusal(&tiny().key("llama.attention.sliding_window", f32(20.0)));
    assert!(
        message.ends_with("sliding_window is 20; it must be a whole number from 0 to 4294967295")
    );
    // As many as query heads where the file does not say.
    let message = refusal(&tiny().without("llama.attention.head_count_kv"));
    assert!(message.contains("attn_k.weight: shape [16, 32], the config gives [32, 32]"));
}

#[test]
fn an_older_file_has_linear_scaling_by_a_number_alone() {
    let linear = |factor| RopeScaling::Linear { factor };
    let scaling = |keys: &[(&str, _)]| config(&rope(keys)).rope.scaling;
    assert_eq!(scaling(&[("scale_linear", f32(4.0))]), linear(4.0));
    assert_eq!(scaling(&[("scaling.factor", f32(2.0))]), linear(2.0));
    assert_eq!(scaling(&[("scale_linear", f32(1.0))]), RopeScaling::Default);
    let none = ("scaling.type", text("none"));
    assert_eq!(scaling(&[none.clone(), ("scale_linear", f32(4.0))]), RopeScaling::Default);
    let linear_by_name = ("scaling.type", text("linear"));
    assert_eq!(scaling(&[linear_by_name, ("scale_linear", f32(8.0))]), linear(8.0));
}

#[test]
fn a_factor_of_yarn_stands_on_top_of_the_papers() {
    let attention = |factor: f32, own: f32| {
        let file = rope(&[
            ("scaling.type", text("yarn")),
            ("scaling.factor", f32(factor)),
            ("scaling.attn_factor", f32(own)),
            ("scaling.original_context_length", u32(16)),
        ]);
        match config(&file).rope.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            other => panic!("{other:?}"),
        }
    };
    let paper = 0.1 * 4_f64.ln() + 1.0;
    assert!((attention(4.0, 0.0) - paper).abs() < 1e-6, "0 says nothing");
    assert!((attention(4.0, 0.5) - 0.5 * paper).abs() < 1e-6);
    assert!((attention(1.0, 0.5) - 0.5).abs() < 1e-6, "nothing is stretched");
}

#[test]
fn factors_are_numbers_of_32_bits_and_few() {
    let halves = tiny().tensor("rope_freqs.weight", GgmlType::F16, &[8]);
    let message = refusal(&halves);
    assert!(message.contains("tensor rope_freqs.weight has the impossible shape [8]"), "{message}");
    let many = tiny().tensor("rope_factors_long.weight", GgmlType::F32, &[4097]);
    let message = refusal(&many);
    assert!(message.contains("tensor rope_factors_long.weight has the impossible shape [4097]"));
}
