//! Parts that the library would follow into a panic, a hang or a wrong result.

use serde_json::{Value, json};

use super::*;
use crate::testing::fixture;

/// A small file with one field replaced.
fn with(field: &str, value: Value) -> Result<Growth, String> {
    let mut file = json!({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}});
    file[field] = value;
    check(file.to_string().as_bytes())
}

fn reason(field: &str, value: Value) -> String {
    with(field, value).unwrap_err()
}

#[test]
fn the_tokenizers_of_the_repository_pass() {
    let needle = fixture("../../models/needle/tokenizer.json");
    let others =
        ["tokenizer-bpe", "tokenizer-metaspace"].map(|f| fixture(f).join("tokenizer.json"));
    for path in [&needle].into_iter().chain(&others) {
        let growth = check(&std::fs::read(path).unwrap()).unwrap();
        assert!(growth.normalizer <= 3.0, "{growth:?}");
    }
}

#[test]
fn growth_is_the_product_of_all_parts() {
    let replace = |from: &str, to: &str| {
        let pattern = json!({"String": from});
        json!({"type": "Replace", "pattern": pattern, "content": to})
    };
    let sequence =
        |list: Value| with("normalizer", json!({"type": "Sequence", "normalizers": list}));
    let growth = |list: Value| sequence(list).map(|growth| growth.normalizer);
    assert_eq!(
        growth(json!([{"type": "Prepend", "prepend": "\u{2581}"}, replace(" ", "\u{2581}")])),
        Ok(3.0)
    );
    assert_eq!(growth(json!([replace("ab", "c"), {"type": "NFC"}])), Ok(3.0));
    let hundred = replace("a", &"a".repeat(100));
    assert_eq!(growth(json!([hundred])), Ok(100.0));
    let text = sequence(json!([hundred, hundred])).unwrap_err();
    assert_eq!(text, "normalizer: a text could become 10000 times as long, above the limit of 256");
    let nothing = json!({"type": "Replace", "pattern": {"Regex": "x*"}, "content": "ab"});
    assert_eq!(growth(json!([nothing])), Ok(3.0));
    let decoders = json!({"type": "Sequence", "decoders": [hundred, hundred]});
    assert!(reason("decoder", decoders).starts_with("decoder: a text could become 10000 times"));
}

#[test]
fn parts_of_no_known_form_are_named() {
    assert_eq!(reason("decoder", json!(7)), "decoder: 7 is not an object");
    assert_eq!(reason("decoder", json!({"a": 1})), "decoder: a part has no type");
    let text = reason("pre_tokenizer", json!({"type": "x\u{1b}".repeat(9999)}));
    assert!(text.len() < 1000 && !text.contains('\u{1b}'), "{text}");
    let mut nested = json!({"type": "NFC"});
    for _ in 0..7 {
        nested = json!({"type": "Sequence", "normalizers": [nested]});
    }
    assert!(reason("normalizer", nested).contains("within each other"));
    let many = json!({"type": "Sequence", "normalizers": vec![json!({"type": "NFC"}); 200]});
    assert!(reason("normalizer", many).contains("more than 100 parts"));
}

#[test]
fn patterns_are_bounded() {
    let split = |pattern: Value| {
        with("pre_tokenizer", json!({"type": "Split", "pattern": pattern, "behavior": "Isolated"}))
    };
    let regex = |text: &str| split(json!({"Regex": text})).map(drop);
    // The pattern of Llama 3.
    let published = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    assert_eq!(regex(published), Ok(()));
    assert!(regex("").unwrap_err().contains("it must have 1 to 6000"));
    assert!(regex(&"a".repeat(6001)).unwrap_err().contains("6001 bytes"));
    assert!(regex(&"(".repeat(41)).unwrap_err().contains("groups within groups"));
    assert!(regex("((?=a){1000}){1000}").unwrap_err().contains("multiply to more than 10000"));
    assert!(split(json!(5)).unwrap_err().contains("pattern must be an object"));
}

#[test]
fn vocabularies_give_each_token_an_id_of_its_own() {
    let model =
        |vocab: Value| reason("model", json!({"type": "BPE", "vocab": vocab, "merges": []}));
    assert_eq!(
        model(json!({"a": 3, "b": 3})),
        "model: two tokens of vocab have id 3; one is \"b\""
    );
    assert_eq!(
        model(json!({"a": 4_194_304})),
        "model: token \"a\" has id 4194304; ids must be below 4194304"
    );
    assert_eq!(model(json!({"a": -1})), "model: token \"a\" has id -1; it must be a whole number");
    assert_eq!(
        model(json!({"x".repeat(10_001): 1})),
        "model: token 1 has 10001 bytes, above the limit of 10000"
    );
    let unigram =
        |vocab: Value| reason("model", json!({"type": "Unigram", "vocab": vocab, "unk_id": 5}));
    assert_eq!(unigram(json!([["", 0.0]])), "model: piece 0 of vocab is empty");
    assert_eq!(unigram(json!([["a", "b"]])), "model: the score of piece 0 of vocab is no number");
    assert_eq!(
        unigram(json!([["a", 0.0]])),
        "model: unk_id is 5; it must be below the 1 entries of vocab"
    );
    assert_eq!(
        reason("added_tokens", json!([{"id": 9_000_000, "content": "<x>"}])),
        "added_tokens: token \"<x>\" has id 9000000; ids must be below 4194304"
    );
}

#[test]
fn post_processors_hold_the_text_once_and_tokens_that_exist() {
    let template = |single: Value, special: Value| {
        let pair = json!([{"Sequence": {"id": "A"}}, {"Sequence": {"id": "B"}}]);
        reason(
            "post_processor",
            json!({"type": "TemplateProcessing", "single": single, "pair": pair,
                   "special_tokens": special}),
        )
    };
    let (text, first) = (json!({"Sequence": {"id": "A"}}), json!({"SpecialToken": {"id": "<s>"}}));
    assert!(template(json!([text, text]), json!({})).ends_with("the text 2 times instead of once"));
    assert!(
        template(json!([first, text]), json!({})).contains("\"<s>\", which is no special token")
    );
    let empty = json!({"<s>": {"id": "<s>", "ids": [], "tokens": []}});
    assert!(template(json!([first, text]), empty).contains("ids must be a list of 1 to 1000"));
    let uneven = json!({"<s>": {"id": "<s>", "ids": [1, 2], "tokens": ["<s>"]}});
    assert!(template(json!([first, text]), uneven).contains("2 ids for 1 tokens"));
    let large = json!({"<s>": {"id": "<s>", "ids": [4_194_304], "tokens": ["<s>"]}});
    assert!(template(json!([first, text]), large).contains("ids must be below 4194304"));
}
