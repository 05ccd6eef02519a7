//! `tokenizer.json`, with `tokenizer_config.json` behind a zero where there is one.

use std::path::Path;

use longview_model::tokenizer::{
    Specials, TokenStream, Tokenizer, TokenizerConfig, TokenizerError,
};

use crate::input::two_files;
use crate::outcome::Outcome;

/// Words, digits, spaces, letters that normalizers change, a special token.
const TEXT: &str = "The keeper\n\u{e9}\u{1f642} sees 12345  ships.<|end|> \u{fb01}\u{130}x";

pub(super) fn run(bytes: &[u8]) -> Outcome {
    let (file, config) = two_files(bytes);
    let config = config.map(String::from_utf8_lossy);
    Outcome::of(use_all(file, config.as_deref()))
}

fn use_all(file: &[u8], config: Option<&str>) -> Result<(), TokenizerError> {
    let path = Path::new("tokenizer_config.json");
    let config = config.map(|text| TokenizerConfig::parse(text, path)).transpose()?;
    let config = config.unwrap_or_default();
    let tokenizer = Tokenizer::parse(file, Path::new("tokenizer.json"), &config)?;
    let tokenizer = tokenizer.with_vocab_size(300)?;
    let ids = tokenizer.encode(TEXT, Specials::Add)?;
    for range in tokenizer.offsets(TEXT)? {
        assert!(range.end <= TEXT.len() && range.start <= range.end, "a token at {range:?}");
    }
    tokenizer.decode(&ids, false)?;
    tokenizer.decode(&[0, 7, u32::MAX], true)?;
    let mut stream = TokenStream::new(true);
    for id in ids {
        stream.push(&tokenizer, id)?;
    }
    stream.finish(&tokenizer).map(drop)
}
