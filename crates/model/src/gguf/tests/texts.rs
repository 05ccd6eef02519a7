//! Tokenizers that say what they must not, or leave something out.

use super::*;

/// A SentencePiece model of these pieces, each as good as the next one.
fn pieces(tokens: &[&str]) -> Writer {
    let mut file = tiny()
        .key("tokenizer.ggml.model", text("llama"))
        .key("tokenizer.ggml.tokens", texts(tokens))
        .key("tokenizer.ggml.scores", f32s(&vec![-1.0; tokens.len()]))
        .without("tokenizer.ggml.token_type")
        .without("tokenizer.ggml.merges")
        .without("tokenizer.ggml.eos_token_id");
    file.tensors.remove(0);
    file.tensor("token_embd.weight", GgmlType::Q8_0, &[32, tokens.len() as u64])
}

#[test]
fn lists_that_are_missing_are_named() {
    for key in ["tokens", "merges"] {
        let key = format!("tokenizer.ggml.{key}");
        let message = refusal(&tiny().without(&key));
        let expected = format!("m.gguf: {key} is missing; it cannot be guessed, convert the model");
        assert!(message.starts_with(&expected), "{message}");
    }
    let message = refusal(&pieces(&["<unk>", "a"]).without("tokenizer.ggml.scores"));
    assert!(message.contains("tokenizer.ggml.scores is missing"), "{message}");
}

#[test]
fn a_vocabulary_is_no_longer_than_the_embedding() {
    let eight = ["<|end|>", "a", "b", "ab", "Ġ", "Ġab", "c", "d"];
    assert_eq!(
        refusal(&tiny().key("tokenizer.ggml.tokens", texts(&eight))),
        "m.gguf: tokenizer.ggml.tokens is a list of 8 texts; it must be no longer than the 7 rows \
         of token_embd.weight"
    );
    let message = refusal(&tiny().key("tokenizer.ggml.token_type", i32s(&[3, 1, 1])));
    assert!(message.ends_with("token_type is a list of 3 numbers; it must be a list of 7 numbers"));
}

#[test]
fn a_token_at_the_end_of_a_text_is_refused_and_false_is_not() {
    assert_eq!(
        refusal(&tiny().key("tokenizer.ggml.add_eos_token", truth(1))),
        "m.gguf: tokenizer.ggml.add_eos_token is true, which is not supported: no token is added \
         to the end of a text"
    );
    use_all(tiny().key("tokenizer.ggml.add_eos_token", truth(0)).bytes()).unwrap();
    let message = refusal(&tiny().key("tokenizer.ggml.add_eos_token", u32(0)));
    assert!(message.ends_with("tokenizer.ggml.add_eos_token is 0; it must be true or false"));
}

/// A piece is cut at each of its letters, and each cut is looked up as a whole.
#[test]
fn pieces_whose_cuts_would_take_minutes_are_refused() {
    let long = "x".repeat(70_000);
    assert_eq!(
        refusal(&pieces(&["<unk>", &long])),
        "m.gguf: tokenizer.ggml.tokens, entry 0: its pieces are too long for SentencePiece"
    );
    // Twelve pieces of a thousand bytes make twelve million.
    let fine: Vec<String> = (0..12).map(|i| format!("{i:>1000}")).collect();
    let fine: Vec<&str> = fine.iter().map(String::as_str).collect();
    open_bytes(pieces(&fine).bytes()).map(drop).unwrap();
}

#[test]
fn tokens_without_a_kind_are_plain_and_empty_ones_get_a_name() {
    let model = open_bytes(pieces(&["<unk>", "<s>", "", "▁", "a", "▁a", ""]).bytes()).unwrap();
    let tokenizer = model.tokenizer.unwrap();
    // Without a kind nothing is a sign of the model's own: token 1 begins a text by its number.
    let ids = tokenizer.encode("a", Specials::AsWritten).unwrap();
    assert_eq!(ids, [5]);
    assert_eq!(tokenizer.token_id("[EMPTY_2]"), Some(2));
    assert_eq!(tokenizer.token_id("[EMPTY_6]"), Some(6));
    assert_eq!(tokenizer.vocab_size(), 7);
}

#[test]
fn added_tokens_are_never_cut_and_are_no_signs() {
    let kinds = i32s(&[3, 1, 1, 4, 1, 1, 1]);
    let file = tiny().key("tokenizer.ggml.token_type", kinds);
    let file = file.key("tokenizer.ggml.merges", texts(&["Ġ ab"]));
    let tokenizer = open_bytes(file.bytes()).unwrap().tokenizer.unwrap();
    // No merge makes it, and skipping signs leaves it.
    assert_eq!(tokenizer.encode("cab<|end|>", Specials::AsWritten).unwrap(), [6, 3, 0]);
    assert_eq!(tokenizer.decode(&[6, 3, 0], true).unwrap(), "cab");
}

#[test]
fn every_token_that_may_end_an_answer_does() {
    let ends = |file: &Writer| open_bytes(file.bytes()).unwrap().generation.eos_token_ids;
    let file = tiny().key("tokenizer.ggml.eot_token_id", u32(6));
    assert_eq!(ends(&file.clone().key("tokenizer.ggml.eom_token_id", u32(2))), [0, 2, 6]);
    let named = ["</s>", "a", "b", "ab", "Ġ", "Ġab", "<|im_end|>"];
    let named = tiny().key("tokenizer.ggml.tokens", texts(&named));
    assert_eq!(ends(&named), [0], "a plain token is a part of an answer, whatever it is called");
    let signs = named.key("tokenizer.ggml.token_type", i32s(&[3, 1, 1, 1, 1, 1, 3]));
    assert_eq!(ends(&signs), [0, 6]);
    let message = refusal(&tiny().key("tokenizer.ggml.eot_token_id", text("6")));
    assert!(message.ends_with("eot_token_id is \"6\"; it must be a whole number from 0 to 6"));
}
