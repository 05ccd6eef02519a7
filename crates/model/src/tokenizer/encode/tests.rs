//! Encoding and streaming against goldens of Hugging Face, and broken files.

use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::testing::{TempFolder, fixture};
use crate::tokenizer::{RawTemplates, TokenStream};

fn open(name: &str) -> (Tokenizer, Value) {
    let folder = fixture(name);
    let config = TokenizerConfig::open(&folder.join("tokenizer_config.json")).unwrap();
    let tokenizer = Tokenizer::open(&folder.join("tokenizer.json"), &config).unwrap();
    let golden = std::fs::read_to_string(folder.join("golden.json")).unwrap();
    (tokenizer, serde_json::from_str(&golden).unwrap())
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

const BOTH: [&str; 2] = ["tokenizer-bpe", "tokenizer-metaspace"];

#[test]
fn encoding_and_decoding_agree_with_transformers() {
    for name in BOTH {
        let (tokenizer, golden) = open(name);
        assert_eq!(tokenizer.vocab_size(), golden["vocab_size"].as_u64().unwrap() as usize);
        for case in golden["cases"].as_array().unwrap() {
            let text = case["text"].as_str().unwrap();
            let with = tokenizer.encode(text, Specials::Add).unwrap();
            assert_eq!(with, ids(&case["ids"]), "{name} {text:?}");
            let plain = tokenizer.encode(text, Specials::AsWritten).unwrap();
            assert_eq!(plain, ids(&case["plain_ids"]), "{name} {text:?}");
            assert_eq!(tokenizer.decode(&plain, false).unwrap(), case["decoded"], "{name}");
            let skipped = tokenizer.decode(&with, true).unwrap();
            assert_eq!(skipped, case["decoded_without_specials"], "{name} {text:?}");
        }
    }
}

#[test]
fn pieces_of_a_stream_join_to_the_text() {
    for name in BOTH {
        let (tokenizer, golden) = open(name);
        for case in golden["cases"].as_array().unwrap() {
            let ids = ids(&case["plain_ids"]);
            let mut stream = TokenStream::new(false);
            let mut pieces = String::new();
            for id in &ids {
                let piece = stream.push(&tokenizer, *id).unwrap();
                assert!(!piece.contains(REPLACEMENT), "{name} {:?}: {piece:?}", case["text"]);
                pieces.push_str(&piece);
            }
            pieces.push_str(&stream.finish(&tokenizer).unwrap());
            assert_eq!(pieces, case["decoded"], "{name}");
        }
    }
}

const REPLACEMENT: char = '\u{FFFD}';

#[test]
fn half_a_character_is_held_back_until_the_end() {
    let (tokenizer, _) = open("tokenizer-metaspace");
    let byte = |value: u8| tokenizer.token_id(&format!("<0x{value:02X}>")).unwrap();
    let mut stream = TokenStream::new(true);
    let bytes = "🙂".as_bytes();
    for value in &bytes[..3] {
        assert_eq!(stream.push(&tokenizer, byte(*value)).unwrap(), "");
    }
    let mut cut = stream.clone();
    assert_eq!(stream.push(&tokenizer, byte(bytes[3])).unwrap(), "🙂");
    assert_eq!(stream.finish(&tokenizer).unwrap(), "");
    assert!(cut.finish(&tokenizer).unwrap().chars().all(|c| c == REPLACEMENT));
}

#[test]
fn bytes_that_are_never_utf8_come_out_marked_and_the_stream_goes_on() {
    for name in BOTH {
        let (tokenizer, _) = open(name);
        let word = tokenizer.encode("keeper", Specials::AsWritten).unwrap();
        // 0xFF never occurs in UTF-8; "ÿ" is its sign in byte-level vocabularies.
        let bad = tokenizer.token_id("<0xFF>").or_else(|| tokenizer.token_id("ÿ")).unwrap();
        let mut stream = TokenStream::new(true);
        let mut pieces = String::new();
        for id in [word.clone(), vec![bad; 40], word.clone(), vec![bad], word.clone()].concat() {
            pieces.push_str(&stream.push(&tokenizer, id).unwrap());
        }
        pieces.push_str(&stream.finish(&tokenizer).unwrap());
        assert!(pieces.matches("keeper").count() == 3, "{name} {pieces:?}");
        assert!(pieces.contains(REPLACEMENT), "{name}");
    }
}

#[test]
fn special_tokens_are_skipped_in_a_stream() {
    let (tokenizer, _) = open("tokenizer-bpe");
    let ids = tokenizer.encode("The keeper<|im_end|> sees", Specials::Add).unwrap();
    let mut stream = TokenStream::new(true);
    let text: String =
        ids.iter().map(|id| stream.push(&tokenizer, *id).unwrap()).collect::<Vec<_>>().concat();
    assert_eq!(text, "The keeper sees");
}

#[test]
fn the_first_token_is_added_once_whoever_adds_it() {
    let (by_processor, _) = open("tokenizer-bpe");
    let (by_config, _) = open("tokenizer-metaspace");
    for tokenizer in [by_processor, by_config] {
        let bos = tokenizer.bos_id().unwrap();
        let name = tokenizer.special.bos.clone().unwrap();
        for text in ["", "a", &name, &format!("{name}a")] {
            let ids = tokenizer.encode(text, Specials::Add).unwrap();
            assert_eq!(ids.iter().filter(|id| **id == bos).count(), 1, "{text:?} {ids:?}");
            assert_eq!(ids[0], bos);
        }
    }
}

#[test]
fn tokens_beyond_the_model_are_refused() {
    let (tokenizer, _) = open("tokenizer-bpe");
    let too_small = tokenizer.with_vocab_size(100).map(drop).unwrap_err().to_string();
    assert!(
        too_small.ends_with(
            "tokenizer.json: the vocabulary of 420 is larger than vocab_size 100 of config.json; \
             the files belong to different models"
        ),
        "{too_small}"
    );
    let (mut tokenizer, _) = open("tokenizer-bpe");
    let added = tokenizers::AddedToken::from("<pad>", true);
    Arc::make_mut(&mut tokenizer.inner).add_special_tokens(&[added]);
    let tokenizer = tokenizer.with_vocab_size(420).unwrap();
    assert!(tokenizer.encode("keeper", Specials::Add).is_ok());
    let text = tokenizer.encode("a<pad>", Specials::Add).unwrap_err().to_string();
    assert!(
        text.ends_with(
            "tokenizer.json: the text contains \"<pad>\", token 420, but the model has embeddings \
             for ids below 420 only"
        ),
        "{text}"
    );
}

fn open_text(tokenizer: &str, config: &str) -> Result<Tokenizer, TokenizerError> {
    let folder = TempFolder::new();
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, tokenizer).unwrap();
    let config_path = folder.path().join("tokenizer_config.json");
    std::fs::write(&config_path, config).unwrap();
    Tokenizer::open(&path, &TokenizerConfig::open(&config_path)?)
}

#[test]
fn broken_files_are_named() {
    let message = |tokenizer: &str, config: &str| {
        open_text(tokenizer, config).map(drop).unwrap_err().to_string()
    };
    for bad in ["", "{", "{}", "{\"model\": {\"type\": \"BPE\"}}", "[1]"] {
        let text = message(bad, "{}");
        assert!(text.contains("tokenizer.json: is not a tokenizer ("), "{text}");
        assert!(text.ends_with("; download the file again"), "{text}");
    }
    let text = message("{}", "[1]");
    assert!(text.contains("tokenizer_config.json: is not a tokenizer config ("), "{text}");
    let text = message("{}", "{\"bos_token\": 7}");
    assert!(
        text.ends_with(
            "tokenizer_config.json: bos_token is 7; it must be a token, as a text or as an object \
             with content; correct it or download the file again"
        ),
        "{text}"
    );
    let text = message("{}", "{\"chat_template\": [{\"name\": \"a\"}]}");
    assert!(text.contains("chat_template is a list of 1; it must be a template, or"), "{text}");
    let missing = Tokenizer::open(Path::new("/nowhere/tokenizer.json"), &Default::default());
    let text = missing.map(drop).unwrap_err().to_string();
    assert!(text.starts_with("/nowhere/tokenizer.json: cannot be read ("), "{text}");
    let whole = std::fs::read_to_string(fixture("tokenizer-bpe").join("tokenizer.json")).unwrap();
    let text = message(&whole, "{\"add_bos_token\": true, \"bos_token\": \"<none>\"}");
    assert!(
        text.ends_with("add_bos_token is set, but bos_token \"<none>\" is not in the vocabulary"),
        "{text}"
    );
}

#[test]
fn truncation_in_the_file_is_not_obeyed() {
    let path = fixture("tokenizer-bpe").join("tokenizer.json");
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    json["truncation"] = json!({
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0
    });
    let tokenizer = open_text(&json.to_string(), "{}").unwrap();
    let long = "keeper ".repeat(50);
    assert!(tokenizer.encode(&long, Specials::AsWritten).unwrap().len() >= 50);
}

fn parse_config(text: &str) -> TokenizerConfig {
    TokenizerConfig::parse(text, Path::new("tokenizer_config.json")).unwrap()
}

#[test]
fn special_tokens_are_read_in_both_spellings() {
    let config = parse_config(
        r#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>",
            "pad_token": null, "chat_template": [{"name": "default", "template": "x"}]}"#,
    );
    assert_eq!(config.special.bos.as_deref(), Some("<s>"));
    assert_eq!(config.special.eos.as_deref(), Some("</s>"));
    assert_eq!(config.special.pad, None);
    assert!(matches!(config.templates, Some(RawTemplates::Named(list)) if list.len() == 1));
}

#[test]
fn a_normalizer_that_lets_texts_grow_is_stopped_in_time() {
    let path = fixture("tokenizer-bpe").join("tokenizer.json");
    let mut json: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    json["normalizer"] =
        json!({"type": "Replace", "pattern": {"String": "a"}, "content": "b".repeat(200)});
    let tokenizer = open_text(&json.to_string(), "{}").unwrap();
    assert!(tokenizer.encode("a ship", Specials::AsWritten).is_ok());
    let text = "a".repeat(1 << 20);
    let reason = tokenizer.encode(&text, Specials::AsWritten).unwrap_err().to_string();
    assert!(
        reason.contains("its normalizer makes more than 8454144 bytes of a text of 1048576"),
        "{reason}"
    );
    // What the file could do and the text does not provoke is fine.
    assert!(tokenizer.encode(&"ship ".repeat(1000), Specials::AsWritten).is_ok());
}

#[test]
fn files_beyond_a_limit_and_what_is_no_file_are_refused() {
    let folder = TempFolder::new();
    let open = |path: &Path| {
        let opened = Tokenizer::open(path, &TokenizerConfig::default());
        opened.map(drop).unwrap_err().to_string()
    };
    assert!(open(folder.path()).ends_with("cannot be read (it is a folder)"));
    let large = folder.path().join("large.json");
    std::fs::File::create(&large).unwrap().set_len(400_000_001).unwrap();
    let text = open(&large);
    assert!(text.ends_with("(it has 400000001 bytes, above the limit of 400000000)"), "{text}");
}

#[test]
fn a_vocabulary_is_told_by_its_texts_alone() {
    let path = fixture("tokenizer-bpe").join("tokenizer.json");
    let bytes = std::fs::read(&path).unwrap();
    let digests = |bytes: &[u8], config: &TokenizerConfig| {
        let tokenizer = Tokenizer::parse(bytes, &path, config).unwrap();
        (tokenizer.digest(), tokenizer.vocabulary_digest())
    };
    let (whole, vocabulary) = digests(&bytes, &TokenizerConfig::default());
    let mut file: Value = serde_json::from_slice(&bytes).unwrap();
    let tight = serde_json::to_vec(&file).unwrap();
    let (other, same) = digests(&tight, &TokenizerConfig::default());
    assert_ne!(whole, other, "another file");
    assert_eq!(vocabulary, same, "of the same tokens");
    let added = file["added_tokens"].as_array_mut().unwrap();
    let content = added[0]["content"].as_str().unwrap().to_owned();
    added[0]["content"] = json!(format!("{content}x"));
    let (_, renamed) = digests(&serde_json::to_vec(&file).unwrap(), &TokenizerConfig::default());
    assert_ne!(vocabulary, renamed, "a token of another text");
}
