//! Bytes into text, in whatever encoding: by its mark, else as UTF-8, else by the habits of its
//! letters.

use chardetng::{EncodingDetector, Iso2022JpDetection, Utf8Detection};
use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE};

use super::error::TextError;

/// The part of a text that may be letters which no encoding has.
const MAX_WRONG: usize = 100;

/// The text, without a mark at its start, lines ended by `\n`.
pub(super) fn decode(bytes: &[u8]) -> Result<String, TextError> {
    decode_as(bytes, None)
}

/// The same, where somebody says what the encoding is.
pub(super) fn decode_as(
    bytes: &[u8],
    said: Option<&'static Encoding>,
) -> Result<String, TextError> {
    let marked = Encoding::for_bom(bytes).map(|(encoding, _)| encoding);
    let encoding = match marked.or_else(|| utf16_without_mark(bytes)) {
        Some(encoding) => encoding,
        None if std::str::from_utf8(bytes).is_ok() => UTF_8,
        None => said.unwrap_or_else(|| guess(bytes)),
    };
    let (text, _, _) = encoding.decode(bytes);
    let n_wrong = text.chars().filter(|c| is_wrong(*c)).count();
    if text.contains('\0') || n_wrong * MAX_WRONG > text.chars().count() {
        return Err(TextError::NotText { what: "a binary file".to_owned() });
    }
    Ok(text.replace("\r\n", "\n").replace('\r', "\n"))
}

/// What no text has but by a fault.
fn is_wrong(letter: char) -> bool {
    letter == char::REPLACEMENT_CHARACTER
        || (letter.is_control() && !matches!(letter, '\n' | '\r' | '\t' | '\x0c' | '\u{85}'))
}

/// Windows writes UTF-16 without a mark at times: every other byte of Latin letters is zero.
fn utf16_without_mark(bytes: &[u8]) -> Option<&'static Encoding> {
    let start = &bytes[..bytes.len().min(4096) & !1];
    let n_zero = |first: usize| start.iter().skip(first).step_by(2).filter(|b| **b == 0).count();
    let (even, odd, pairs) = (n_zero(0), n_zero(1), start.len() / 2);
    if odd * 10 > pairs * 6 && even * 10 < pairs {
        Some(UTF_16LE)
    } else if even * 10 > pairs * 6 && odd * 10 < pairs {
        Some(UTF_16BE)
    } else {
        None
    }
}

fn guess(bytes: &[u8]) -> &'static Encoding {
    let mut detector = EncodingDetector::new(Iso2022JpDetection::Allow);
    detector.feed(bytes, true);
    detector.guess(None, Utf8Detection::Allow)
}

#[cfg(test)]
mod tests {
    use encoding_rs::{GBK, SHIFT_JIS, WINDOWS_1252};

    use super::*;

    #[test]
    fn texts_come_out_of_many_encodings() {
        let french = "Où est le café près de la forêt ? Voilà l'élève, déjà là, à côté.";
        let (latin, _, _) = WINDOWS_1252.encode(french);
        assert_eq!(decode(&latin).unwrap(), french);
        let chinese = "这是一个很长的中文文本，用来检查编码的识别。我们在图书馆里读书。";
        assert_eq!(decode(&GBK.encode(chinese).0).unwrap(), chinese);
        let japanese = "これは日本語の文章です。図書館で本を読みました。とても面白いです。";
        assert_eq!(decode(&SHIFT_JIS.encode(japanese).0).unwrap(), japanese);
        let mut wide: Vec<u8> = "Grüße".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert_eq!(decode(&wide).unwrap(), "Grüße");
        wide.splice(0..0, [0xff, 0xfe]);
        assert_eq!(decode(&wide).unwrap(), "Grüße");
        assert_eq!(decode("\u{feff}a\r\nb\rc".as_bytes()).unwrap(), "a\nb\nc");
    }

    #[test]
    fn what_is_no_text_is_refused() {
        let noise: Vec<u8> = (0..4000u32).map(|i| (i * i * 31 + i / 7) as u8).collect();
        assert!(matches!(decode(&noise), Err(TextError::NotText { .. })));
        assert!(decode(b"a\0b").is_err());
    }
}
