//! What key-values and tensors mean.

use longview_core::LayerId;

use super::*;
use crate::arch::Architecture;
use crate::config::RopeScaling;
use crate::rope::RopeTable;

fn config(file: &Writer) -> ModelConfig {
    open_bytes(file.bytes()).map_err(|error| error.to_string()).unwrap().config
}

/// The same model under the name of another architecture.
fn renamed(arch: &str) -> Writer {
    let mut file = tiny().key("general.architecture", text(arch));
    for (key, _) in &mut file.keys {
        if let Some(rest) = key.strip_prefix("llama.") {
            *key = format!("{arch}.{rest}");
        }
    }
    file
}

#[test]
fn other_architectures_are_refused_by_name() {
    let message = refusal(&renamed("gemma2"));
    assert!(message.contains("architecture \"gemma2\" is not supported in GGUF files; llama,"));
    assert!(message.ends_with("gemma3 are; of Gemma, the third version is read"), "{message}");
    assert!(refusal(&renamed("mamba")).ends_with("phi3, glm4, chatglm, gemma3 are"));
    assert!(refusal(&renamed("clip")).contains("holds a projector for pictures (mmproj)"));
    let file = tiny().key("general.type", text("mmproj"));
    assert!(refusal(&file).contains("name the .gguf file of the language model"));
    for (key, value) in [("expert_count", u32(8)), ("attention.scale", f32(0.5))] {
        let message = refusal(&tiny().key(&format!("llama.{key}"), value));
        assert!(message.contains(&format!("llama.{key} is")), "{message}");
        assert!(message.contains("which is not supported: "), "{message}");
    }
    config(&tiny().key("llama.expert_count", u32(0)));
    assert!(refusal(&tiny().key("llama.attention.causal", truth(0))).contains("looks back alone"));
}

/// A Gemma 3 of one layer.
fn gemma3() -> Writer {
    let mut file = renamed("gemma3");
    for (part, n) in [
        ("attn_q_norm", 16),
        ("attn_k_norm", 16),
        ("post_attention_norm", 32),
        ("post_ffw_norm", 32),
    ] {
        file = file.tensor(&format!("blk.0.{part}.weight"), GgmlType::F32, &[n]);
    }
    file.key("gemma3.attention.sliding_window", u32(20))
        .key("gemma3.rope.freq_base", f32(1e6))
        .key("gemma3.rope.scaling.type", text("linear"))
        .key("gemma3.rope.scaling.factor", f32(8.0))
}

#[test]
fn gemma3_is_read_as_converters_write_it() {
    let model = open_bytes(gemma3().bytes()).map_err(|error| error.to_string()).unwrap();
    let config = &model.config;
    assert_eq!(config.architecture, Architecture::Gemma3);
    assert_eq!(config.activation, longview_ops::Activation::GeluTanh);
    assert_eq!(config.embedding_scale, 32f32.sqrt());
    assert_eq!(config.attention_scale(), 0.25);
    assert!(!config.norm_plus_one, "converters add it");
    assert_eq!(config.sliding_window, None, "it is no limit of the context");
    assert_eq!(config.window(LayerId(0)), Some(20));
    assert_eq!(
        (config.rope.theta, &config.rope.scaling),
        (1e6, &RopeScaling::Linear { factor: 8.0 })
    );
    let local = &config.local.as_ref().unwrap().rope;
    assert_eq!((local.theta, &local.scaling), (10_000.0, &RopeScaling::Default));
    // Each norm is the one that its name says.
    for (stored, name) in [
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ] {
        let stored = format!("blk.0.{stored}.weight");
        let tensor = gemma3().tensors.into_iter().find(|tensor| tensor.name == stored).unwrap();
        let source = model.tensors.source(&format!("model.layers.0.{name}.weight")).unwrap();
        assert_eq!(source.bytes.as_ref(), tensor.data);
    }
    let own = gemma3().key("gemma3.rope.freq_base_swa", f32(5000.0));
    assert_eq!(self::config(&own).local.unwrap().rope.theta, 5000.0);
    let every = gemma3().key("gemma3.attention.sliding_window_pattern", u32(1));
    assert_eq!(self::config(&every).local, None);
    let none = gemma3().key("gemma3.attention.sliding_window", u32(0));
    assert_eq!(self::config(&none).local, None);
    let capped = gemma3().key("gemma3.final_logit_softcapping", f32(30.0));
    assert!(refusal(&capped).contains("logits are not capped"));
    let mut lacking = gemma3();
    lacking.tensors.retain(|tensor| tensor.name != "blk.0.post_ffw_norm.weight");
    assert!(refusal(&lacking).contains("blk.0.post_ffw_norm.weight"));
}

#[test]
fn rows_of_q_and_k_are_put_back_for_llama_alone() {
    let read = |file: &Writer, name: &str| {
        let model = open_bytes(file.bytes()).unwrap();
        model.tensors.source(name).unwrap().bytes.as_ref().to_vec()
    };
    let (q, k, v) = ("q_proj", "k_proj", "v_proj");
    let name = |part: &str| format!("model.layers.0.self_attn.{part}.weight");
    let mut llama = tiny();
    // Rows that say who they are.
    for (tensor, n) in [(3, 32), (4, 16), (5, 16)] {
        llama.tensors[tensor].ty = 1;
        let value = |i: u16| half::f16::from_f32(f32::from(i / 32));
        llama.tensors[tensor].data = (0..n * 32).flat_map(|i| value(i).to_le_bytes()).collect();
    }
    let first = |bytes: Vec<u8>| -> Vec<f32> {
        let rows = bytes.chunks(64);
        rows.map(|row| half::f16::from_le_bytes([row[0], row[1]]).to_f32()).collect()
    };
    let halves = |head: usize| (0..16).map(move |i| (head * 16 + i % 8 * 2 + i / 8) as f32);
    let both: Vec<f32> = halves(0).chain(halves(1)).collect();
    assert_eq!(first(read(&llama, &name(q))), both);
    assert_eq!(first(read(&llama, &name(k))), both[..16]);
    let in_order: Vec<f32> = (0..32).map(|i| i as f32).collect();
    assert_eq!(first(read(&llama, &name(v))), in_order[..16]);

    let mut qwen = renamed("qwen2");
    qwen.tensors = llama.tensors;
    for (part, n) in [("q", 32), ("k", 16), ("v", 16)] {
        qwen = qwen.tensor(&format!("blk.0.attn_{part}.bias"), GgmlType::F32, &[n]);
    }
    assert_eq!(config(&qwen).architecture, Architecture::Qwen2);
    assert_eq!(first(read(&qwen, &name(q))), in_order);
}

#[test]
fn biases_of_llama_are_put_back_too() {
    let mut file = tiny();
    for (part, n) in [("q", 32), ("k", 16), ("v", 16), ("output", 32)] {
        file = file.tensor(&format!("blk.0.attn_{part}.bias"), GgmlType::F32, &[n]);
    }
    let model = open_bytes(file.bytes()).unwrap();
    assert!(model.config.qkv_bias && model.config.o_bias);
    let k = model.tensors.source("model.layers.0.self_attn.k_proj.bias").unwrap();
    let k: Vec<f32> =
        k.bytes.as_ref().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let halves: Vec<f32> = (0..16).map(|i| (i % 8 * 2 + i / 8) as f32).collect();
    assert_eq!(k, halves);
    let quantised = tiny().tensor("blk.0.attn_q.bias", GgmlType::Q8_0, &[32]);
    assert!(refusal(&quantised).contains("blk.0.attn_q.bias: type Q8_0"));
}

#[test]
fn phi3_and_glm4_have_gate_and_up_in_one() {
    let with = |mut file: Writer, name: &str, sizes: &[u64]| {
        file.tensors.retain(|tensor| tensor.name != name);
        file.tensor(name, GgmlType::Q8_0, sizes)
    };
    let without = |mut file: Writer, names: &[&str]| {
        file.tensors.retain(|tensor| !names.contains(&&tensor.name[..]));
        file
    };
    let phi = with(renamed("phi3"), "blk.0.ffn_up.weight", &[32, 64]);
    let phi = with(phi, "blk.0.attn_qkv.weight", &[32, 64]);
    let phi = without(
        phi,
        &[
            "blk.0.ffn_gate.weight",
            "blk.0.attn_q.weight",
            "blk.0.attn_k.weight",
            "blk.0.attn_v.weight",
        ],
    );
    assert_eq!(
        config(&phi.clone().key("phi3.attention.sliding_window", u32(0))).sliding_window,
        None
    );
    let windowed = phi.key("phi3.attention.sliding_window", u32(20));
    assert_eq!(config(&windowed).sliding_window, Some(20));
    let glm = with(renamed("glm4"), "blk.0.ffn_up.weight", &[32, 64]);
    let glm = without(glm, &["blk.0.ffn_gate.weight"])
        .key("glm4.rope.dimension_count", u32(8))
        .tensor("blk.0.post_attention_norm.weight", GgmlType::F32, &[32])
        .tensor("blk.0.post_ffw_norm.weight", GgmlType::F32, &[32]);
    let glm = config(&glm);
    assert_eq!((glm.architecture, glm.rope.rotary_dim), (Architecture::Glm4, 8));
}

/// A GLM-4 of the first layout, whose rows of q, k and v say who they are.
fn chatglm(ty: GgmlType) -> Writer {
    let mut file = renamed("chatglm")
        .key("chatglm.rope.dimension_count", u32(8))
        .key("tokenizer.ggml.pre", text("chatglm-bpe"));
    file.tensors.retain(|tensor| {
        !["attn_q.", "attn_k.", "attn_v.", "ffn_gate.", "ffn_up."]
            .iter()
            .any(|part| tensor.name.contains(part))
    });
    file.tensor("blk.0.attn_qkv.weight", ty, &[32, 64])
        .tensor("blk.0.attn_qkv.bias", GgmlType::F32, &[64])
        .tensor("blk.0.ffn_up.weight", ty, &[32, 64])
}

/// The same model as a folder of Hugging Face, its tensors as they are in `file`.
fn chatglm_folder(file: &Writer) -> (TempFolder, ModelFolder) {
    let data = |name: &str| {
        let tensor = file.tensors.iter().find(|tensor| tensor.name == name).unwrap();
        (tensor.ty, tensor.data.clone())
    };
    let names = [
        ("model.embed_tokens.weight", "token_embd.weight", 0..7, &[7, 32][..]),
        ("model.norm.weight", "output_norm.weight", 0..32, &[32]),
        ("model.layers.0.input_layernorm.weight", "blk.0.attn_norm.weight", 0..32, &[32]),
        ("model.layers.0.post_attention_layernorm.weight", "blk.0.ffn_norm.weight", 0..32, &[32]),
        ("model.layers.0.self_attn.q_proj.weight", "blk.0.attn_qkv.weight", 0..32, &[32, 32]),
        ("model.layers.0.self_attn.k_proj.weight", "blk.0.attn_qkv.weight", 32..48, &[16, 32]),
        ("model.layers.0.self_attn.v_proj.weight", "blk.0.attn_qkv.weight", 48..64, &[16, 32]),
        ("model.layers.0.self_attn.q_proj.bias", "blk.0.attn_qkv.bias", 0..32, &[32]),
        ("model.layers.0.self_attn.k_proj.bias", "blk.0.attn_qkv.bias", 32..48, &[16]),
        ("model.layers.0.self_attn.v_proj.bias", "blk.0.attn_qkv.bias", 48..64, &[16]),
        ("model.layers.0.self_attn.o_proj.weight", "blk.0.attn_output.weight", 0..32, &[32, 32]),
        ("model.layers.0.mlp.gate_up_proj.weight", "blk.0.ffn_up.weight", 0..64, &[64, 32]),
        ("model.layers.0.mlp.down_proj.weight", "blk.0.ffn_down.weight", 0..32, &[32, 32]),
    ];
    let (mut header, mut all) = (serde_json::Map::new(), Vec::new());
    for (name, stored, rows, shape) in names {
        let (ty, bytes) = data(stored);
        let dtype = ["F32", "F16"].get(ty as usize).copied().unwrap_or("BF16");
        let row_bytes = bytes.len() / if stored.contains("qkv") { 64 } else { shape[0] };
        let bytes = &bytes[rows.start * row_bytes..rows.end * row_bytes];
        let offsets = [all.len(), all.len() + bytes.len()];
        let entry = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": offsets});
        header.insert(name.to_owned(), entry);
        all.extend(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let folder = TempFolder::new();
    let bytes = [&(header.len() as u64).to_le_bytes()[..], &header, &all].concat();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let config = serde_json::json!({
        "architectures": ["GlmForCausalLM"], "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "head_dim": 16, "vocab_size": 7, "rms_norm_eps": 1e-5_f32, "attention_bias": true,
        "max_position_embeddings": 64, "tie_word_embeddings": true, "partial_rotary_factor": 0.5,
    });
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    let model = ModelFolder::open(folder.path()).map_err(|error| error.to_string()).unwrap();
    (folder, model)
}

#[test]
fn chatglm_is_the_folder_of_the_same_model() {
    let mut file = chatglm(GgmlType::F16);
    // In a folder there are no blocks.
    file.tensors.remove(0);
    let file = file.tensor("token_embd.weight", GgmlType::F16, &[32, 7]);
    let model = open_bytes(file.bytes()).map_err(|error| error.to_string()).unwrap();
    let (_kept, folder) = chatglm_folder(&file);
    assert_eq!(model.config.architecture, Architecture::Glm);
    assert_eq!(model.config, folder.config);
    assert_eq!(model.config.rope.rotary_dim, 8);
    for tensor in crate::weights::expected_tensors(&model.config) {
        let [one, other] =
            [&model.tensors, &folder.tensors].map(|set| set.source(&tensor.name).unwrap());
        assert_eq!(one.bytes.as_ref(), other.bytes.as_ref(), "{}", tensor.name);
    }
    // Which rows are put into another order is the layout's business, and the same for both.
    let parts = [&model, &open_bytes(file.bytes()).unwrap()]
        .map(|m| crate::weights::layer_tensors(&m.config, LayerId(0)).q.weight);
    let rows = [&model.tensors, &folder.tensors].map(|set| set.part(&parts[0]).unwrap().bytes);
    assert_eq!(rows[0].as_ref(), rows[1].as_ref());
}

#[test]
fn blocks_of_chatglm_are_cut_between_rows() {
    let file = chatglm(GgmlType::Q8_0);
    let model = open_bytes(file.bytes()).map_err(|error| error.to_string()).unwrap();
    let whole = file.tensors.iter().find(|tensor| tensor.name.contains("qkv.weight")).unwrap();
    let mut values = vec![0.0; 64 * 32];
    dequantize(GgmlType::Q8_0, &whole.data, &mut values);
    for (part, rows) in [("q", 0..32), ("k", 32..48), ("v", 48..64)] {
        let name = format!("model.layers.0.self_attn.{part}_proj.weight");
        let source = model.tensors.source(&name).unwrap();
        let read: Vec<f32> = longview_core::decode_f32(source.dtype, source.bytes.as_ref());
        let expected: Vec<f32> = values[rows.start * 32..rows.end * 32]
            .iter()
            .map(|value| half::f16::from_f32(*value).to_f32())
            .collect();
        assert_eq!(read, expected, "{part}");
    }
    // As files of GLM-4's later folders have them.
    let mut apart = chatglm(GgmlType::Q8_0);
    apart.tensors.retain(|tensor| !tensor.name.contains("qkv"));
    for (part, n) in [("q", 32), ("k", 16), ("v", 16)] {
        apart = apart.tensor(&format!("blk.0.attn_{part}.weight"), GgmlType::Q8_0, &[32, n]);
        apart = apart.tensor(&format!("blk.0.attn_{part}.bias"), GgmlType::F32, &[n]);
    }
    use_all(apart.bytes()).unwrap();
    let mut short = chatglm(GgmlType::Q8_0);
    short.tensors.retain(|tensor| !tensor.name.contains("qkv.weight"));
    let short = short.tensor("blk.0.attn_qkv.weight", GgmlType::Q8_0, &[32, 63]);
    let message = refusal(&short);
    assert!(message.contains("blk.0.attn_qkv.weight: the config has no such tensor"), "{message}");
    let mut blocks = chatglm(GgmlType::Q8_0);
    blocks.tensors.retain(|tensor| !tensor.name.contains("qkv.bias"));
    let blocks = blocks.tensor("blk.0.attn_qkv.bias", GgmlType::Q8_0, &[64]);
    assert!(refusal(&blocks).contains("blk.0.attn_qkv.bias"), "{}", refusal(&blocks));
}

#[test]
fn scaling_of_rope_is_in_keys_or_in_tensors() {
    let plain = config(&tiny().key("llama.rope.freq_base", f32(5e5)));
    assert_eq!((plain.rope.theta, &plain.rope.scaling), (5e5, &RopeScaling::Default));
    let linear = tiny()
        .key("llama.rope.scaling.type", text("linear"))
        .key("llama.rope.scaling.factor", f32(4.0));
    assert_eq!(config(&linear).rope.scaling, RopeScaling::Linear { factor: 4.0 });
    let yarn = tiny()
        .key("llama.rope.scaling.type", text("yarn"))
        .key("llama.rope.scaling.factor", f32(4.0))
        .key("llama.rope.scaling.original_context_length", u32(16));
    let RopeScaling::Yarn { original_max_positions: 16, attention_factor, .. } =
        config(&yarn).rope.scaling
    else {
        panic!("no YaRN")
    };
    assert!((attention_factor - 1.138_629_4).abs() < 1e-6);
    let unknown = tiny().key("llama.rope.scaling.type", text("new"));
    assert!(refusal(&unknown).contains("llama.rope.scaling.type is new, which is not supported"));

    // Factors 0 to 7 would divide by zero.
    let message = refusal(&tiny().tensor("rope_freqs.weight", GgmlType::F32, &[8]));
    assert!(
        message.ends_with("it must be 8 numbers above 0, one for each rotated pair"),
        "{message}"
    );
}

#[test]
fn factors_of_rope_divide_frequencies() {
    let mut file = tiny().tensor("rope_freqs.weight", GgmlType::F32, &[8]);
    file.last().data =
        [1_f32, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let (plain, scaled) = (config(&tiny()), config(&file));
    let [plain, scaled] = [plain, scaled].map(|config| RopeTable::new(&config.rope, 64));
    let ratios: Vec<f64> =
        plain.inv_freq().iter().zip(scaled.inv_freq()).map(|(a, b)| a / b).collect();
    for (ratio, expected) in ratios.iter().zip([1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]) {
        assert!((ratio - expected).abs() < 1e-12, "{ratios:?}");
    }
    let both = file.clone().key("llama.rope.scaling.type", text("linear"));
    let both = both.key("llama.rope.scaling.factor", f32(2.0));
    assert!(refusal(&both).contains("is there beside another scaling"));
    file.last().sizes = vec![7];
    file.last().data.truncate(28);
    assert!(refusal(&file).contains("rope_freqs.weight is a list of 7 numbers"));
}

#[test]
fn longrope_has_its_factors_in_two_tensors() {
    let mut file = tiny()
        .key("llama.rope.scaling.attn_factor", f32(1.25))
        .key("llama.rope.scaling.original_context_length", u32(16));
    for (name, factor) in [("long", 4_f32), ("short", 2.0)] {
        file = file.tensor(&format!("rope_factors_{name}.weight"), GgmlType::F32, &[8]);
        file.last().data = factor.to_le_bytes().repeat(8);
    }
    let scaling = RopeScaling::LongRope {
        short_factor: vec![2.0; 8],
        long_factor: vec![4.0; 8],
        attention_factor: 1.25,
        original_max_positions: 16,
    };
    assert_eq!(config(&file).rope.scaling, scaling);
}

#[test]
fn unknown_tensors_are_named_as_the_file_has_them() {
    let message = refusal(&tiny().tensor("blk.0.ffn_gate_inp.weight", GgmlType::F32, &[32]));
    assert!(message.contains("1 tensor does not fit its metadata"), "{message}");
    assert!(message.contains("blk.0.ffn_gate_inp.weight: the config has no such tensor"));
    let message = refusal(&tiny().tensor("blk.0.attn_q.bias", GgmlType::F32, &[32]));
    assert!(message.contains("blk.0.attn_k.bias: missing"), "{message}");
}

#[test]
fn sentence_piece_scores_become_merges() {
    let words = ["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁ab", "ba"];
    let file = |tokens: &[&str]| {
        let mut file = tiny()
            .key("tokenizer.ggml.model", text("llama"))
            .key("tokenizer.ggml.tokens", texts(tokens))
            .key("tokenizer.ggml.token_type", i32s(&[2, 3, 3, 6, 1, 1, 1, 1, 1, 1]))
            .key("tokenizer.ggml.scores", f32s(&[0., 0., 0., 0., -4., -2., -3., -1., 0., -0.5]))
            .key("tokenizer.ggml.eos_token_id", u32(2))
            .without("tokenizer.ggml.merges");
        file.tensors.remove(0);
        file.tensor("token_embd.weight", GgmlType::Q8_0, &[32, 10])
    };
    let tokenizer = |file: &Writer| {
        open_bytes(file.bytes()).map_err(|error| error.to_string()).unwrap().tokenizer.unwrap()
    };
    let plain = tokenizer(&file(&words));
    // "ba" has a better score than "ab", and "▁ab" the best.
    assert_eq!(plain.encode("ab", Specials::Add).unwrap(), [1, 8]);
    assert_eq!(plain.encode("bab", Specials::AsWritten).unwrap(), [4, 9, 6]);
    assert_eq!(plain.encode("a\n</s>", Specials::AsWritten).unwrap(), [4, 5, 3, 2]);
    assert_eq!(plain.decode(&[8, 9], false).unwrap(), "abba");
    let bare = file(&words).key("tokenizer.ggml.add_space_prefix", truth(0));
    let bare = bare.key("tokenizer.ggml.add_bos_token", truth(0));
    assert_eq!(tokenizer(&bare).encode("ab", Specials::Add).unwrap(), [7]);
    let twice = file(&["<unk>", "<s>", "</s>", "<0x0A>", "▁", "a", "b", "ab", "▁ab", "a"]);
    let message = refusal(&twice);
    assert!(message.contains("tokenizer.ggml.tokens, entry 9: \"a\" is entry 5 already"));
    let message = refusal(&file(&words).key("tokenizer.ggml.scores", f32s(&[f32::NAN; 10])));
    assert!(message.contains("tokenizer.ggml.scores, entry 0: NaN is no score"), "{message}");
}

#[test]
fn tokenizers_are_told_apart_and_refused_by_name() {
    let digest = |file: &Writer| open_bytes(file.bytes()).unwrap().tokenizer.unwrap().digest();
    let one = digest(&tiny());
    assert_eq!(one, digest(&tiny().key("general.name", text("another name"))));
    assert_ne!(one, digest(&tiny().key("tokenizer.ggml.pre", text("smollm"))));
    assert_ne!(one, digest(&tiny().key("tokenizer.ggml.merges", texts(&["a b"]))));
    let message = refusal(&tiny().key("tokenizer.ggml.model", text("bert")));
    assert!(message.contains("tokenizer.ggml.model is \"bert\", which is not supported; gpt2"));
    let message = refusal(&tiny().key("tokenizer.ggml.merges", texts(&["a b", "ab"])));
    assert!(message.contains("tokenizer.ggml.merges, entry 1: \"ab\" is no pair of tokens"));
    assert!(refusal(&tiny().without("tokenizer.ggml.pre")).contains("pre is \"missing\""));
    assert!(refusal(&tiny().key("tokenizer.ggml.eos_token_id", u32(7))).contains("from 0 to 6"));
    let none = tiny().key("tokenizer.ggml.model", text("none"));
    assert!(open_bytes(none.bytes()).unwrap().tokenizer.is_none());
}
