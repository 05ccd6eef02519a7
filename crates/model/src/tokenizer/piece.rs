//! One token by itself: its text, and its bytes where they are no text.
//!
//! A tokenizer decodes to text, in which a part of a character is U+FFFD. What the bytes were is
//! still in the token's name, in one of the two ways that tokenizers have of writing bytes.

use super::encode::Tokenizer;
use super::error::TokenizerError;
use super::stream::REPLACEMENT;

/// A token by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its text; U+FFFD stands for bytes that are no character.
    pub text: String,
    /// Its bytes: those of the text, or of a part of a character.
    pub bytes: Vec<u8>,
}

impl Tokenizer {
    /// What a token stands for by itself, special tokens too.
    pub fn piece(&self, id: u32) -> Result<Piece, TokenizerError> {
        let text = self.decode(&[id], false)?;
        let is_part = text.contains(REPLACEMENT);
        let name = self.inner.id_to_token(id).filter(|_| is_part);
        let bytes = name.and_then(|name| fallback_byte(&name).or_else(|| level_bytes(&name)));
        let bytes = bytes.unwrap_or_else(|| text.as_bytes().to_vec());
        Ok(Piece { text, bytes })
    }
}

/// The byte of a token of SentencePiece for what its vocabulary lacks: `<0xE2>`.
fn fallback_byte(name: &str) -> Option<Vec<u8>> {
    let digits = name.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    u8::from_str_radix(digits, 16).ok().filter(|_| is_byte).map(|byte| vec![byte])
}

/// The bytes of a token of byte-level BPE, whose name has a character for each.
fn level_bytes(name: &str) -> Option<Vec<u8>> {
    name.chars().map(level_byte).collect()
}

/// GPT-2's alphabet: bytes that show something in Latin-1 are themselves, the others are the
/// characters from U+0100 on, in order.
fn level_byte(c: char) -> Option<u8> {
    let is_shown = |byte: u8| matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    match u8::try_from(u32::from(c)) {
        Ok(byte) => Some(byte).filter(|byte| is_shown(*byte)),
        Err(_) => {
            let nth = u32::from(c).checked_sub(0x100)? as usize;
            (0..=u8::MAX).filter(|byte| !is_shown(*byte)).nth(nth)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Value, json};

    use super::*;
    use crate::tokenizer::TokenizerConfig;

    fn tokenizer(vocab: &Value, decoder: &Value) -> Tokenizer {
        let model = json!({"type": "BPE", "vocab": vocab, "merges": [], "byte_fallback": true});
        let file = json!({"version": "1.0", "added_tokens": [], "normalizer": null,
            "pre_tokenizer": null, "post_processor": null, "decoder": decoder, "model": model});
        let bytes = file.to_string().into_bytes();
        Tokenizer::parse(&bytes, Path::new("t"), &TokenizerConfig::default()).expect("a tokenizer")
    }

    fn check(tokenizer: &Tokenizer, id: u32, text: &str, bytes: &[u8]) {
        let piece = Piece { text: text.to_owned(), bytes: bytes.to_vec() };
        assert_eq!(tokenizer.piece(id).expect("a token"), piece);
    }

    #[test]
    fn parts_of_characters_have_their_bytes() {
        let level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
            "use_regex": false});
        // The euro sign is e2 82 ac, of which 82 shows nothing and ac is itself.
        let vocab = json!({"âĤ": 0, "¬": 1, "Ġaâ": 2, "âĤ¬": 3, "<0xE2>": 4, "ï¿½": 5});
        let level = tokenizer(&vocab, &level);
        check(&level, 0, "\u{fffd}", b"\xe2\x82");
        check(&level, 1, "\u{fffd}", b"\xac");
        check(&level, 2, " a\u{fffd}", b" a\xe2");
        check(&level, 3, "€", "€".as_bytes());
        check(&level, 4, "<0xE2>", b"<0xE2>");
        check(&level, 5, "\u{fffd}", "\u{fffd}".as_bytes());
        let fallback = json!({"type": "ByteFallback"});
        let vocab = json!({"<0xE2>": 0, "<0x41>": 1, "a": 2, "\u{fffd}": 3});
        let fallback = tokenizer(&vocab, &fallback);
        check(&fallback, 0, "\u{fffd}", b"\xe2");
        check(&fallback, 1, "A", b"A");
        check(&fallback, 2, "a", b"a");
        check(&fallback, 3, "\u{fffd}", "\u{fffd}".as_bytes());
    }

    #[test]
    fn the_alphabet_of_bytes_is_whole() {
        let shown: Vec<char> = (0..=0x143).filter_map(char::from_u32).collect();
        let mut bytes: Vec<u8> = shown.into_iter().filter_map(level_byte).collect();
        bytes.sort_unstable();
        assert_eq!(bytes, (0..=u8::MAX).collect::<Vec<_>>());
        assert_eq!((level_byte('Ġ'), level_byte('Ċ')), (Some(b' '), Some(b'\n')));
        assert_eq!((level_byte(' '), level_byte('\u{fffd}')), (None, None));
    }
}
