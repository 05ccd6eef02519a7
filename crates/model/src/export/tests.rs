//! Folders as files: the same weights to the bit, the same tokens, and what is refused.

use std::fs;
use std::path::{Path, PathBuf};

use longview_core::quant::QuantType;
use longview_core::{DType, LayerId, decode_f32, encode_f32};
use serde_json::{Value, json};

use super::check::compare_tokens;
use super::keys::{KeyValues, header};
use super::{ExportType, GgufExport, tokenizer};
use crate::chat::{ChatMessage, RenderOptions};
use crate::config::RopeScaling;
use crate::folder::ModelFolder;
use crate::gguf::{Header, tokenizer_of};
use crate::testing::{TempFolder, fixture};
use crate::tokenizer::{Specials, Tokenizer, TokenizerConfig};
use crate::weights::{ExpectedTensor, FINAL_NORM, TensorPart, layer_tensors};

/// The bytes of a file.
fn written(folder: &ModelFolder, ty: ExportType) -> Vec<u8> {
    let export = GgufExport::plan(folder, ty).map_err(|error| error.to_string()).unwrap();
    let (mut bytes, mut told) = (Vec::new(), 0);
    export.write(&mut bytes, &mut |done| told = done).unwrap();
    assert_eq!((bytes.len() as u64, told), (export.n_bytes(), export.n_bytes()));
    bytes
}

fn exported(folder: &ModelFolder, ty: ExportType, place: &TempFolder) -> ModelFolder {
    let path = place.path().join("m.gguf");
    fs::write(&path, written(folder, ty)).unwrap();
    ModelFolder::open(&path).map_err(|error| error.to_string()).unwrap()
}

fn refusal(folder: &Path, ty: ExportType) -> String {
    let folder = ModelFolder::open(folder).map_err(|error| error.to_string()).unwrap();
    GgufExport::plan(&folder, ty).map(drop).unwrap_err().to_string()
}

fn needle() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle")
}

/// Every matrix and bias that a device gets, by what it is for.
fn parts(folder: &ModelFolder) -> Vec<(String, TensorPart)> {
    let (config, mut found) = (&folder.config, Vec::new());
    for n in 0..config.n_layers as u32 {
        let layer = layer_tensors(config, LayerId(n));
        let linears = [
            ("q", layer.q),
            ("k", layer.k),
            ("v", layer.v),
            ("o", layer.o),
            ("gate", layer.gate),
            ("up", layer.up),
            ("down", layer.down),
        ];
        for (name, linear) in linears {
            found.push((format!("{n} {name}"), linear.weight));
            found.extend(linear.bias.map(|bias| (format!("{n} {name} bias"), bias)));
        }
    }
    let (layout, d) = (&config.architecture.traits().layout, config.hidden_size);
    let shape = [config.vocab_size, d];
    found.push(("embedding".to_owned(), TensorPart::of(layout.embedding, &shape)));
    if !config.tie_word_embeddings {
        found.push(("output".to_owned(), TensorPart::of(layout.lm_head, &shape)));
    }
    found
}

/// The values of the norms, with the 1 that some checkpoints leave out.
fn norms(folder: &ModelFolder) -> Vec<Vec<f32>> {
    let config = &folder.config;
    let of_layer = |n: u32| {
        let layer = layer_tensors(config, LayerId(n));
        let some = [layer.q_norm, layer.k_norm, layer.o_norm, layer.down_norm];
        [layer.input_norm, layer.post_norm].into_iter().chain(some.into_iter().flatten())
    };
    let last = ExpectedTensor { name: FINAL_NORM.to_owned(), shape: vec![config.hidden_size] };
    let all = (0..config.n_layers as u32).flat_map(of_layer).chain([last]);
    let value = |tensor: ExpectedTensor| {
        let source = folder.tensors.source(&tensor.name).unwrap();
        let one = if config.norm_plus_one { 1.0 } else { 0.0 };
        decode_f32(source.dtype, source.bytes.as_ref()).iter().map(|x| one + x).collect()
    };
    all.map(value).collect()
}

/// Folders of every architecture, but those whose rows are no whole blocks.
const WHOLE_BLOCKS: [&str; 16] = [
    "glm4-sandwich",
    "internlm2-fused",
    "internlm2-llama",
    "llama-bias",
    "llama-f16",
    "llama-f32",
    "llama-linear",
    "llama-mqa",
    "llama-sharded",
    "llama-yarn",
    "llama3-gqa",
    "mistral-gqa",
    "phi3-longrope",
    "phi4-partial",
    "qwen2-untied",
    "qwen3-tied",
];

#[test]
fn blocks_are_those_of_quantising_at_load() {
    let place = TempFolder::new();
    for name in WHOLE_BLOCKS {
        for ty in [QuantType::Q8_0, QuantType::Q4K, QuantType::Mxfp4] {
            let mut folder = ModelFolder::open(&fixture(name)).unwrap();
            let file = exported(&folder, ExportType::Quantised(ty), &place);
            folder.tensors.quantize(&folder.config, ty).unwrap();
            let (own, other) = (parts(&folder), parts(&file));
            assert_eq!(own.len(), other.len(), "{name}");
            for ((what, own), (as_what, other)) in own.iter().zip(&other) {
                assert_eq!(what, as_what, "{name}");
                let (own, other) = (folder.tensors.bits(own), file.tensors.bits(other));
                assert_eq!(own.0, other.0, "{name}: type of {what}");
                if what.ends_with("bias") {
                    continue;
                }
                assert!(own.0.is_some() && own.1 == other.1, "{name}, {ty}: {what}");
            }
            assert_eq!(norms(&folder), norms(&file), "{name}");
        }
    }
}

#[test]
fn plain_values_stay_as_they_are() {
    let place = TempFolder::new();
    for name in WHOLE_BLOCKS.into_iter().chain(["gemma3-old", "llama-head20"]) {
        let folder = ModelFolder::open(&fixture(name)).unwrap();
        let file = exported(&folder, ExportType::F32, &place);
        for ((what, own), (_, other)) in parts(&folder).iter().zip(&parts(&file)) {
            let [own, other] = [(&folder, own), (&file, other)].map(|(folder, part)| {
                let source = folder.tensors.part(part).unwrap();
                decode_f32(source.dtype, source.bytes.as_ref())
            });
            assert_eq!(own, other, "{name}: {what}");
        }
        assert_eq!(norms(&folder), norms(&file), "{name}");
        assert!(!file.config.norm_plus_one, "{name}");
    }
}

#[test]
fn a_file_becomes_another_with_all_its_keys() {
    let place = TempFolder::new();
    let folder = ModelFolder::open(&needle()).unwrap();
    let plain = exported(&folder, ExportType::F16, &place);
    let twice = written(&plain, ExportType::Quantised(QuantType::Q8_0));
    let once = written(&folder, ExportType::Quantised(QuantType::Q8_0));
    let [twice, once] = [twice, once].map(|bytes| Header::parse(&bytes, bytes.len() as u64));
    let (twice, once) = (twice.unwrap(), once.unwrap());
    assert_eq!(twice.metadata, once.metadata);
    assert_eq!(twice.tensors.len(), once.tensors.len());
    let quantised = exported(&folder, ExportType::Quantised(QuantType::Q8_0), &place);
    let error = GgufExport::plan(&quantised, ExportType::F16).map(drop).unwrap_err().to_string();
    assert!(error.contains("is quantised already, as q8_0"), "{error}");
}

#[test]
fn texts_and_ends_are_the_same() {
    let place = TempFolder::new();
    let folder = ModelFolder::open(&needle()).unwrap();
    let file = exported(&folder, ExportType::Bf16, &place);
    assert_eq!(folder.eos_token_ids(), file.eos_token_ids());
    let text = "<|im_start|>user\nIt's 1,234 o'clock!<|im_end|>\n";
    let ids =
        |folder: &ModelFolder| folder.tokenizer().unwrap().encode(text, Specials::Add).unwrap();
    assert_eq!(ids(&folder), ids(&file));
    let chat = |folder: &ModelFolder| {
        let messages = [ChatMessage::new("user", "hi")];
        folder.chat.as_ref().unwrap().render(&messages, &RenderOptions::default()).unwrap()
    };
    assert_eq!(chat(&folder), chat(&file));
}

#[test]
fn what_a_file_cannot_say_is_named() {
    let f16 = ExportType::F16;
    let message = refusal(&fixture("glm-partial"), f16);
    assert!(message.contains("GlmForCausalLM has no GGUF form"), "{message}");
    let message = refusal(&fixture("gemma3-windows"), f16);
    assert!(message.contains("query_pre_attn_scalar is 20, which a GGUF file cannot"), "{message}");
    let message = refusal(&fixture("gemma3-old"), ExportType::Quantised(QuantType::Q8_0));
    assert!(message.contains("has rows of 72 values"), "{message}");
    let folder = ModelFolder::open(&fixture("llama-dynamic")).unwrap();
    let export = GgufExport::plan(&folder, f16).unwrap();
    assert!(export.notes().iter().any(|note| note.contains("RoPE is stretched in contexts")));
}

/// The fixture `name` with some fields of its config changed.
fn changed(name: &str, change: impl Fn(&mut Value)) -> TempFolder {
    let folder = TempFolder::new();
    for entry in fs::read_dir(fixture(name)).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
    }
    let path = folder.path().join("config.json");
    let mut config: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut config);
    fs::write(&path, config.to_string()).unwrap();
    folder
}

#[test]
fn windows_at_uneven_distances_are_refused_and_others_kept() {
    let types = |list: &[bool]| -> Value {
        let name = |full: &bool| if *full { "full_attention" } else { "sliding_attention" };
        list.iter().map(name).collect()
    };
    let with = |list: &[bool]| changed("gemma3-old", |config| config["layer_types"] = types(list));
    let uneven = refusal(with(&[true, false, false, true]).path(), ExportType::F16);
    assert!(uneven.contains("layer_types is a list in which"), "{uneven}");
    for even in [[false, false, true, false], [false; 4], [true; 4]] {
        let folder = with(&even);
        let folder = ModelFolder::open(folder.path()).unwrap();
        let file = exported(&folder, ExportType::F16, &TempFolder::new());
        assert_eq!(folder.config.local, file.config.local, "{even:?}");
    }
}

#[test]
fn stretched_positions_are_carried() {
    let place = TempFolder::new();
    for (name, scaling) in
        [("phi3-longrope", None), ("llama-linear", Some(RopeScaling::Linear { factor: 4.0 }))]
    {
        let folder = ModelFolder::open(&fixture(name)).unwrap();
        let file = exported(&folder, ExportType::Bf16, &place);
        assert_eq!(file.config.max_position_embeddings, folder.config.max_position_embeddings);
        assert_eq!(file.config.sliding_window, folder.config.sliding_window, "{name}");
        if let Some(scaling) = scaling {
            assert_eq!(file.config.rope.scaling, scaling);
        }
    }
    let rounded = changed("llama-yarn", |config| {
        config["rope_parameters"]["truncate"] = json!(false);
    });
    let message = refusal(rounded.path(), ExportType::F16);
    assert!(message.contains("rope_scaling is yarn without truncate"), "{message}");
}

#[test]
fn values_beyond_f16_stop_the_file() {
    let folder = TempFolder::new();
    let values = encode_f32(DType::F32, &[1.0, 70_000.0]);
    let header =
        json!({"x": {"dtype": "F32", "shape": [1, 2], "data_offsets": [0, 8]}}).to_string();
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &values].concat();
    fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let set = crate::weights::TensorSet::open(folder.path()).unwrap();
    let part = TensorPart::of("x", &[1, 2]);
    let rows = |form| set.made_rows(&part, form, &|row| row, 0.0).unwrap();
    use longview_core::RangeSource;
    let error = rows(crate::weights::RowForm::F16).read_at(0, &mut [0; 4]).unwrap_err();
    assert_eq!(error.to_string(), "holds 70000, beyond F16; BF16 holds it");
    rows(crate::weights::RowForm::Bf16).read_at(0, &mut [0; 4]).unwrap();
}

/// A tokenizer, written and read back.
fn read_back(tokenizer: &Tokenizer) -> Result<(Tokenizer, Vec<String>), String> {
    let mut keys = KeyValues::default();
    let n_tokens = tokenizer.vocab_size() + 3;
    let notes = tokenizer::write(&mut keys, tokenizer, "llama", n_tokens)?;
    let bytes = header(&keys, [].into_iter());
    let header = Header::parse(&bytes, bytes.len() as u64).map_err(|e| e.to_string())?;
    let parts = tokenizer_of(&header.metadata, n_tokens, Path::new("m.gguf"));
    Ok((parts.map_err(|error| error.to_string())?.tokenizer.unwrap(), notes))
}

/// The tokenizer of a fixture with its JSON changed.
fn tokenizer(name: &str, change: impl Fn(&mut Value)) -> Tokenizer {
    let path = fixture(name).join("tokenizer.json");
    let config = TokenizerConfig::open(&fixture(name).join("tokenizer_config.json")).unwrap();
    let mut json: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(&mut json);
    Tokenizer::parse(json.to_string().as_bytes(), &path, &config).unwrap()
}

#[test]
fn both_kinds_of_tokenizers_make_the_same_tokens() {
    // The vocabulary of the second was not made by SentencePiece: it has pieces that its merges
    // make in fewer ways than there are.
    for (name, lost) in [("tokenizer-bpe", None), ("tokenizer-metaspace", Some("14 of the 242"))] {
        let own = tokenizer(name, |_| {});
        let (read, _) = read_back(&own).unwrap();
        let note = compare_tokens(&own, &read).unwrap();
        assert_eq!(note.as_deref().map(|note| &note[..13]), lost, "{name}");
        assert_eq!(own.bos_id(), read.bos_id(), "{name}");
    }
    // In the newer form, which puts a space before the whole text alone.
    let own = tokenizer("tokenizer-metaspace", |json| {
        json["normalizer"] = Value::Null;
        json["pre_tokenizer"] = json!({"type": "Metaspace", "replacement": "▁",
            "prepend_scheme": "first", "split": false});
    });
    let (read, notes) = read_back(&own).unwrap();
    compare_tokens(&own, &read).unwrap();
    assert!(notes[0].contains("puts a space before a text that begins with none"), "{notes:?}");
}

#[test]
fn tokenizers_without_a_form_are_named() {
    let message = |own: &Tokenizer| read_back(own).map(drop).unwrap_err();
    let odd = tokenizer("tokenizer-bpe", |json| {
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = json!("a|b");
    });
    assert!(message(&odd).contains("way to cut a text into words has no name"));
    let lower =
        tokenizer("tokenizer-bpe", |json| json["normalizer"] = json!({"type": "Lowercase"}));
    assert!(message(&lower).contains("its normalizer is {\"type\":\"Lowercase\"}"));
    let lower = tokenizer("tokenizer-metaspace", |json| {
        json["normalizer"]["normalizers"][1] = json!({"type": "Lowercase"});
    });
    assert!(message(&lower).contains("its normalizer is {\"type\":\"Lowercase\"}"));
    let both = tokenizer("tokenizer-bpe", |json| {
        let piece = json["post_processor"]["single"][0].clone();
        json["post_processor"]["single"].as_array_mut().unwrap().push(piece);
    });
    assert!(message(&both).contains("puts tokens around a text"), "{}", message(&both));
}

#[test]
fn other_tokens_are_found_before_anything_is_written() {
    let own = tokenizer("tokenizer-bpe", |_| {});
    let other = tokenizer("tokenizer-bpe", |json| {
        json["model"]["merges"].as_array_mut().unwrap().truncate(9);
    });
    let error = compare_tokens(&own, &other).unwrap_err().to_string();
    assert!(error.contains("a reader would make other tokens of \"The quick"), "{error}");
}

#[test]
fn names_of_types_parse_back() {
    let quantised = QuantType::ALL.into_iter().map(ExportType::Quantised);
    for ty in [ExportType::F32, ExportType::F16, ExportType::Bf16].into_iter().chain(quantised) {
        assert_eq!(ty.to_string().parse(), Ok(ty));
        assert_eq!(ty.to_string().to_uppercase().parse(), Ok(ty));
    }
    let error = "q2_k".parse::<ExportType>().unwrap_err().to_string();
    assert!(error.starts_with("unknown type 'q2_k': use f32, f16, bf16, q4_0"), "{error}");
    let mix = "Q4_K_M".parse::<ExportType>().unwrap_err().to_string();
    assert!(mix.ends_with("a mix of llama.cpp's, whose main type is q4_k"), "{mix}");
}
