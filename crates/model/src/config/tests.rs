//! Configs of every architecture and spelling, and each way that one can be wrong.

use serde_json::{Value, json};

use super::*;

fn llama() -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 128,
        "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 256, "hidden_act": "silu", "max_position_embeddings": 512,
        "rope_theta": 500000.0, "bos_token_id": 1, "eos_token_id": [2, 3]
    })
}

fn with(changes: Value) -> Value {
    let mut config = llama();
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn parse(changes: Value) -> ModelConfig {
    ModelConfig::from_json(&with(changes).to_string()).unwrap()
}

fn message(changes: Value) -> String {
    ModelConfig::from_json(&with(changes).to_string()).unwrap_err().to_string()
}

#[test]
fn a_plain_llama_is_read() {
    let config = parse(json!({}));
    assert_eq!(config.architecture, Architecture::Llama);
    assert_eq!((config.head_dim, config.group_size()), (16, 2));
    assert_eq!(config.rope.theta, 500_000.0);
    assert_eq!(config.rope.scaling, RopeScaling::Default);
    assert_eq!((config.bos_token_id, config.eos_token_ids), (Some(1), vec![2, 3]));
    assert!(!config.qkv_bias && !config.o_bias && !config.mlp_bias && !config.qk_norm);
}

#[test]
fn architectures_differ_by_their_flags() {
    let biased = parse(json!({"attention_bias": true, "mlp_bias": true}));
    assert!(biased.qkv_bias && biased.o_bias && biased.mlp_bias);
    let qwen2 = parse(json!({"architectures": ["Qwen2ForCausalLM"]}));
    assert!(qwen2.qkv_bias && !qwen2.o_bias);
    let qwen3 = parse(json!({"architectures": ["Qwen3ForCausalLM"]}));
    assert!(qwen3.qk_norm && qwen3.head_dim == 128);
    let glm = parse(json!({"architectures": ["GlmForCausalLM"]}));
    assert!(glm.qkv_bias && !glm.o_bias && glm.head_dim == 128);
    let unbiased = parse(json!({"architectures": ["Glm4ForCausalLM"], "attention_bias": false}));
    assert!(!unbiased.qkv_bias);
    let internlm2 = parse(json!({"architectures": ["InternLM2ForCausalLM"]}));
    assert!(internlm2.qkv_bias && internlm2.o_bias && !internlm2.mlp_bias);
    let unbiased = parse(json!({"architectures": ["InternLM2ForCausalLM"], "bias": false}));
    assert!(!unbiased.qkv_bias && !unbiased.o_bias);
    // What a converted checkpoint leaves behind is not Llama's field.
    assert!(!parse(json!({"bias": true})).qkv_bias);
    let by_type = parse(json!({"architectures": null, "model_type": "mistral"}));
    assert_eq!(by_type.architecture, Architecture::Mistral);
}

/// Gemma 3 as its checkpoints say it, at a smaller size.
fn gemma3(changes: Value) -> Value {
    let mut config = json!({
        "architectures": ["Gemma3ForCausalLM"], "hidden_size": 640, "intermediate_size": 128,
        "num_hidden_layers": 7, "num_attention_heads": 4, "num_key_value_heads": 1,
        "vocab_size": 256, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 32,
        "query_pre_attn_scalar": 64, "sliding_window": 512, "torch_dtype": "bfloat16",
        "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "attn_logit_softcapping": null, "final_logit_softcapping": null
    });
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

fn gemma3_config(changes: Value) -> ModelConfig {
    ModelConfig::from_json(&gemma3(changes).to_string()).unwrap()
}

#[test]
fn gemma3_has_windows_two_ropes_and_a_scale() {
    let config = gemma3_config(json!({}));
    let windows: Vec<_> = (0..8).map(|layer| config.window(LayerId(layer))).collect();
    let local = Some(512);
    assert_eq!(windows, [local, local, local, local, local, None, local, None]);
    assert_eq!((config.sliding_window, config.max_exact_context()), (None, None));
    assert_eq!(config.rope.theta, 1e6);
    assert_eq!(config.rope.scaling, RopeScaling::Linear { factor: 8.0 });
    let own = config.local.as_ref().unwrap();
    assert_eq!((own.rope.theta, &own.rope.scaling), (1e4, &RopeScaling::Default));
    assert_eq!(config.activation, Activation::GeluTanh);
    assert!(config.qk_norm && config.norm_plus_one && config.tie_word_embeddings);
    assert_eq!(config.attention_scale(), 0.125);
    // The root of 640 is 25.298.., and has 8 bits in bf16.
    assert_eq!(config.embedding_scale, 25.25);
    assert_eq!(gemma3_config(json!({"torch_dtype": "float16"})).embedding_scale, 25.296875);
    let whole = gemma3_config(json!({"torch_dtype": null}));
    assert_eq!(whole.embedding_scale, 640f32.sqrt());
    assert_eq!(parse(json!({})).embedding_scale, 1.0);
}

#[test]
fn gemma3_in_the_spelling_of_later_versions() {
    let types = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"];
    let newer = |changes: Value| {
        let mut config = gemma3(json!({
            "num_hidden_layers": 4, "layer_types": types, "rope_scaling": null,
            "rope_theta": null, "rope_local_base_freq": null, "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 500000.0},
                "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 7000.0}
            }
        }));
        for (key, value) in changes.as_object().unwrap() {
            config[key] = value.clone();
        }
        ModelConfig::from_json(&config.to_string())
    };
    let config = newer(json!({})).unwrap();
    let windows: Vec<_> = (0..4).map(|layer| config.window(LayerId(layer))).collect();
    assert_eq!(windows, [None, Some(512), Some(512), None]);
    assert_eq!((config.rope.theta, &config.rope.scaling), (500_000.0, &RopeScaling::Default));
    let local = config.local.unwrap().rope;
    assert_eq!((local.theta, local.scaling), (7000.0, RopeScaling::Linear { factor: 2.0 }));
    let defaults = newer(json!({"rope_parameters": null})).unwrap();
    assert_eq!((defaults.rope.theta, defaults.local.unwrap().rope.theta), (1e6, 1e4));
    let all = newer(json!({"layer_types": vec!["full_attention"; 4]})).unwrap();
    assert_eq!(all.local, None);
    let refused = |changes: Value| newer(changes).unwrap_err().to_string();
    assert_eq!(
        refused(json!({"layer_types": ["full_attention"]})),
        "layer_types has 1 entries; it must be a list of 4 of sliding_attention and full_attention"
    );
    assert_eq!(
        refused(json!({"layer_types": vec!["chunked_attention"; 4]})),
        "layer_types contains \"chunked_attention\"; it must be a list of 4 of \
         sliding_attention and full_attention"
    );
}

#[test]
fn what_would_change_gemma3_is_refused() {
    let refused = |changes: Value| {
        ModelConfig::from_json(&gemma3(changes).to_string()).unwrap_err().to_string()
    };
    assert_eq!(
        refused(json!({"attn_logit_softcapping": 50.0})),
        "attn_logit_softcapping 50 is not supported: scores are not capped"
    );
    assert_eq!(
        refused(json!({"final_logit_softcapping": 30.0})),
        "final_logit_softcapping 30 is not supported: logits are not capped"
    );
    assert_eq!(
        refused(json!({"use_bidirectional_attention": true})),
        "use_bidirectional_attention true is not supported: attention looks back alone"
    );
    assert_eq!(
        refused(json!({"hidden_activation": "silu"})),
        "hidden_act \"silu\" is not supported; Longview's MLP computes gelu_pytorch_tanh"
    );
    assert_eq!(
        refused(json!({"query_pre_attn_scalar": 0})),
        "query_pre_attn_scalar is 0; it must be a finite number of at least 1"
    );
    assert_eq!(
        refused(json!({"sliding_window": 0})),
        "sliding_window is 0; it must be from 1 to 1073741824"
    );
    let whole = refused(json!({"architectures": ["Gemma3ForConditionalGeneration"]}));
    assert!(whole.contains("\"Gemma3ForConditionalGeneration\" is not supported"), "{whole}");
}

#[test]
fn absent_kv_heads_mean_what_transformers_means() {
    let mut config = llama();
    config.as_object_mut().unwrap().remove("num_key_value_heads");
    assert_eq!(ModelConfig::from_json(&config.to_string()).unwrap().n_kv_heads, 4);
    assert_eq!(parse(json!({"num_key_value_heads": null})).n_kv_heads, 4);
}

#[test]
fn a_given_head_dim_wins() {
    assert_eq!(parse(json!({"head_dim": 20})).q_width(), 80);
    assert_eq!(
        message(json!({"head_dim": 15})),
        "the head width 15 is odd; RoPE needs pairs of components"
    );
    assert_eq!(
        message(json!({"hidden_size": 66})),
        "hidden_size 66 is not a multiple of num_attention_heads 4 and head_dim is absent; \
         set head_dim"
    );
}

#[test]
fn both_rope_spellings_agree() {
    let scaling = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 128
    });
    let old = parse(json!({"rope_scaling": scaling}));
    let mut parameters = scaling.clone();
    parameters["rope_theta"] = json!(500000.0);
    let new = parse(json!({"rope_parameters": parameters, "rope_theta": null}));
    assert_eq!(old.rope, new.rope);
    let both = parse(json!({
        "rope_theta": null, "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        "rope_parameters": {"rope_type": "default", "rope_theta": 7000.0}
    }));
    assert_eq!(both.rope.scaling, RopeScaling::Linear { factor: 2.0 });
    assert_eq!(both.rope.theta, 7000.0);
    let typed = parse(json!({"rope_scaling": {"type": "linear", "factor": 2}}));
    assert_eq!(typed.rope.scaling, RopeScaling::Linear { factor: 2.0 });
}

#[test]
fn yarn_fills_in_what_the_paper_says() {
    let config = parse(json!({"rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128
    }}));
    let RopeScaling::Yarn { attention_factor, beta_fast, beta_slow, truncate, .. } =
        config.rope.scaling
    else {
        panic!("not yarn");
    };
    assert!((attention_factor - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12);
    assert_eq!((beta_fast, beta_slow, truncate), (32.0, 1.0, true));
}

/// Phi-3-mini-128k's scaling at a smaller size; every head has 8 pairs.
fn longrope(changes: Value) -> Value {
    let mut scaling = json!({
        "type": "longrope", "short_factor": vec![1.0; 8], "long_factor": vec![2.0; 8]
    });
    for (key, value) in changes.as_object().unwrap() {
        scaling[key] = value.clone();
    }
    json!({
        "architectures": ["Phi3ForCausalLM"], "rope_scaling": scaling,
        "max_position_embeddings": 131072, "original_max_position_embeddings": 4096
    })
}

#[test]
fn longrope_under_its_three_names() {
    for name in ["longrope", "su", "yarn"] {
        let config = parse(longrope(json!({"type": name})));
        let RopeScaling::LongRope { short_factor, long_factor, attention_factor, .. } =
            config.rope.scaling
        else {
            panic!("{name} is not longrope");
        };
        assert_eq!((short_factor, long_factor), (vec![1.0; 8], vec![2.0; 8]));
        assert!((attention_factor - 1.190_238_071_423_808_3).abs() < 1e-12);
    }
    let attention_factor = |changes| match parse(longrope(changes)).rope.scaling {
        RopeScaling::LongRope { attention_factor, .. } => attention_factor,
        _ => panic!("not longrope"),
    };
    assert_eq!(attention_factor(json!({"attention_factor": 1.25})), 1.25);
    assert_eq!(attention_factor(json!({"factor": 1.0})), 1.0);
    let stretched = (1.0 + 8f64.ln() / 4096f64.ln()).sqrt();
    assert_eq!(attention_factor(json!({"factor": 8.0})), stretched);
}

#[test]
fn longrope_with_a_part_missing_is_refused() {
    let refused = |changes| message(longrope(changes));
    assert_eq!(
        refused(json!({"long_factor": null})),
        "long_factor is missing; it cannot be guessed, take config.json from the model's source"
    );
    assert_eq!(
        refused(json!({"short_factor": [1.0, 1.0]})),
        "short_factor has 2 entries; it must be a list of 8 numbers, one for each rotated pair"
    );
    assert_eq!(
        refused(json!({"short_factor": 1.0})),
        "short_factor is 1.0; it must be a list of 8 numbers, one for each rotated pair"
    );
    assert_eq!(
        refused(json!({"long_factor": [1, 1, 1, "x", 1, 1, 1, 1]})),
        "long_factor contains \"x\"; it must be a list of 8 numbers, one for each rotated pair"
    );
    assert_eq!(
        refused(json!({"long_factor": [1, 1, 1, 0, 1, 1, 1, 1]})),
        "long_factor is 0; it must be a finite number above 0"
    );
    let mut config = longrope(json!({}));
    config["original_max_position_embeddings"] = Value::Null;
    assert_eq!(
        message(config),
        "original_max_position_embeddings is missing; it cannot be guessed, take config.json from \
         the model's source"
    );
}

#[test]
fn a_part_of_each_head_rotates_where_the_architecture_allows_it() {
    let rotary_dim = |name: &str, part: Value| {
        let config = json!({
            "architectures": [name], "head_dim": 32, "partial_rotary_factor": part
        });
        parse(config).rope.rotary_dim
    };
    assert_eq!(rotary_dim("Phi3ForCausalLM", json!(0.75)), 24);
    assert_eq!(rotary_dim("Phi3ForCausalLM", Value::Null), 32);
    assert_eq!(rotary_dim("GlmForCausalLM", Value::Null), 16);
    assert_eq!(rotary_dim("Glm4ForCausalLM", json!(1.0)), 32);
    assert_eq!(rotary_dim("LlamaForCausalLM", json!(1.0)), 32);
    let in_map = parse(json!({
        "architectures": ["GlmForCausalLM"], "head_dim": 32, "partial_rotary_factor": 1.0,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25}
    }));
    assert_eq!(in_map.rope.rotary_dim, 8);
    let refused = |part: f64| {
        message(json!({"architectures": ["GlmForCausalLM"], "partial_rotary_factor": part}))
    };
    for part in [0.0, 1.5, -0.5] {
        let text = format!("partial_rotary_factor is {part}; it must be above 0 and at most 1");
        assert_eq!(refused(part), text);
    }
    for part in [0.005, 0.4] {
        assert_eq!(
            refused(part),
            format!(
                "partial_rotary_factor is {part}; it must be such that an even number of a head's \
                 components rotate"
            )
        );
    }
}

#[test]
fn unknown_models_are_named_with_what_is_known() {
    assert_eq!(
        message(json!({"architectures": ["MambaForCausalLM"]})),
        "architecture \"MambaForCausalLM\" is not supported; Longview runs LlamaForCausalLM, \
         MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, Phi3ForCausalLM, \
         GlmForCausalLM, Glm4ForCausalLM, InternLM2ForCausalLM, Gemma3ForCausalLM"
    );
    assert_eq!(
        message(json!({"hidden_act": "gelu"})),
        "hidden_act \"gelu\" is not supported; Longview's MLP computes silu"
    );
    assert_eq!(
        message(json!({"quantization_config": {"quant_method": "gptq"}})),
        "the checkpoint is quantised (gptq); Longview reads F32, F16 and BF16 weights: use the \
         unquantised checkpoint"
    );
}

#[test]
fn rope_that_cannot_be_computed_is_refused() {
    assert_eq!(
        message(json!({"rope_scaling": {"rope_type": "axial"}})),
        "rope type \"axial\" is not supported; Longview computes default, linear, dynamic, \
         llama3, yarn, longrope"
    );
    assert_eq!(
        message(json!({"partial_rotary_factor": 0.5})),
        "partial_rotary_factor 0.5 is not supported: every head is rotated in full, alike in \
         every layer"
    );
    assert_eq!(
        message(json!({"rope_scaling": {"type": "linear", "factor": 0.0}})),
        "rope factor is 0; it must be a finite number of at least 1"
    );
    assert_eq!(
        message(json!({"rope_scaling": {"type": "linear"}})),
        "factor is missing; it cannot be guessed, take config.json from the model's source"
    );
    assert_eq!(
        message(json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}})),
        "RoPE per layer type (full_attention) is not supported: every head is rotated in full, \
         alike in every layer"
    );
    assert_eq!(
        message(json!({"rope_theta": 0.0})),
        "rope_theta is 0; it must be a finite number above 1"
    );
}

#[test]
fn sizes_are_bounded_and_never_zero() {
    for field in ["num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size"] {
        let text = message(json!({field: 0}));
        assert!(text.starts_with(&format!("{field} is 0; it must be from 1 to")), "{text}");
    }
    assert_eq!(
        message(json!({"num_hidden_layers": 1025})),
        "num_hidden_layers is 1025; it must be from 1 to 1024"
    );
    assert_eq!(
        message(json!({"vocab_size": 4194305})),
        "vocab_size is 4194305; it must be from 1 to 4194304"
    );
    assert_eq!(
        message(json!({"num_attention_heads": 1025})),
        "num_attention_heads is 1025; it must be from 1 to 1024"
    );
    assert_eq!(
        message(json!({"num_key_value_heads": 3})),
        "num_attention_heads 4 is not a multiple of num_key_value_heads 3"
    );
    assert_eq!(
        message(json!({"rms_norm_eps": 0.0})),
        "rms_norm_eps is 0; it must be above 0 and below 1"
    );
    assert_eq!(
        message(json!({"hidden_size": null})),
        "hidden_size is missing; it cannot be guessed, take config.json from the model's source"
    );
}

#[test]
fn a_sliding_window_limits_the_context() {
    let mistral = |window: Value| {
        parse(json!({"architectures": ["MistralForCausalLM"], "sliding_window": window}))
    };
    assert_eq!(mistral(Value::Null).max_exact_context(), None);
    let first = mistral(json!(4096));
    assert_eq!(first.check_context(4096), Ok(()));
    assert_eq!(
        first.check_context(8192).unwrap_err().to_string(),
        "a context of 8,192 tokens is longer than this model's sliding window of 4,096; beyond it \
         the model was trained to forget, which Longview does not imitate: use -c 4096 or \
         less"
    );
    let phi3 = |window: Value| {
        parse(json!({"architectures": ["Phi3ForCausalLM"], "sliding_window": window}))
    };
    assert_eq!(phi3(json!(2047)).max_exact_context(), Some(2047));
    let absent = parse(json!({"architectures": ["Phi3ForCausalLM"]}));
    assert_eq!(absent.max_exact_context(), None);
    let qwen = |changes: Value| {
        let mut all = json!({"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64});
        for (key, value) in changes.as_object().unwrap() {
            all[key] = value.clone();
        }
        parse(all).max_exact_context()
    };
    assert_eq!(qwen(json!({"use_sliding_window": false})), None);
    assert_eq!(qwen(json!({"use_sliding_window": true, "max_window_layers": 1})), Some(64));
    assert_eq!(qwen(json!({"use_sliding_window": true, "max_window_layers": 2})), None);
}

#[test]
fn files_that_are_not_configs_are_named() {
    let missing = ModelConfig::open(Path::new("/nowhere/config.json")).unwrap_err().to_string();
    assert!(missing.starts_with("/nowhere/config.json: cannot be read ("), "{missing}");
    let text = ModelConfig::from_json("[1]").unwrap_err().to_string();
    assert!(text.starts_with("is not a model config: it must be a JSON object"), "{text}");
    let text = ModelConfig::from_json("").unwrap_err().to_string();
    assert!(text.contains("EOF"), "{text}");
}

#[test]
fn fields_of_another_type_are_named_with_their_value() {
    assert_eq!(
        message(json!({"hidden_size": "big"})),
        "hidden_size is \"big\"; it must be a whole number of at least 0"
    );
    assert_eq!(
        message(json!({"num_key_value_heads": -4})),
        "num_key_value_heads is -4; it must be a whole number of at least 0"
    );
    assert_eq!(
        message(json!({"eos_token_id": [1, "x"]})),
        "eos_token_id is a list of 2; it must be a token id from 0 to 4294967295, or a list of them"
    );
    let yarn = |changes: Value| message(json!({"rope_scaling": changes}));
    assert_eq!(
        yarn(json!({"rope_type": "yarn", "original_max_position_embeddings": 128})),
        "factor is missing; it cannot be guessed, take config.json from the model's source"
    );
    assert_eq!(
        yarn(json!({"rope_type": "yarn", "factor": "4"})),
        "factor is \"4\"; it must be a number"
    );
    assert_eq!(yarn(json!({"rope_type": 5, "factor": 4})), "rope_type is 5; it must be a text");
    assert!(message(json!({"rms_norm_eps": 1e-60})).ends_with("must be above 0 and below 1"));
    let name = "M\u{1b}[31m".repeat(100_000);
    let text = message(json!({"architectures": [name]}));
    assert!(text.len() < 1000 && !text.contains('\u{1b}'), "{text}");
}
