//! The `precompiled_charsmap` of SentencePiece: a length, a trie of that many bytes, and the texts
//! that its leaves point to. The crate that follows it indexes without asking, so every path is
//! walked here once.

/// The longest text that a leaf points to, in bytes.
pub(super) fn longest(base64: &str) -> Result<usize, String> {
    let bytes = decode(base64).ok_or("precompiled_charsmap is not base64")?;
    let short = || format!("precompiled_charsmap has only {} bytes", bytes.len());
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or_else(short)?;
    let length = u32::from_le_bytes(*length) as usize / 4 * 4;
    let (trie, texts) = rest.split_at_checked(length).ok_or_else(short)?;
    let trie: Vec<usize> = trie.as_chunks::<4>().0.iter().map(unit).collect();
    let texts = std::str::from_utf8(texts);
    let texts = texts.map_err(|_| "the texts of precompiled_charsmap are not UTF-8")?;
    walk(&trie, texts).ok_or_else(|| "precompiled_charsmap points beyond its end".to_owned())
}

fn unit(bytes: &[u8; 4]) -> usize {
    u32::from_le_bytes(*bytes) as usize
}

/// Visits every node that a text can reach; `None` if one of them lies outside.
fn walk(trie: &[usize], texts: &str) -> Option<usize> {
    let offset = |unit: usize| (unit >> 10) << ((unit & (1 << 9)) >> 6);
    let (mut longest, mut seen) = (0, vec![false; trie.len()]);
    let mut open = vec![offset(*trie.first()?)];
    while let Some(node) = open.pop() {
        for letter in 1..=255 {
            let at = node ^ letter;
            let unit = *trie.get(at)?;
            if unit & ((1 << 31) | 0xFF) != letter || std::mem::replace(&mut seen[at], true) {
                continue;
            }
            let next = at ^ offset(unit);
            if (unit >> 8) & 1 == 1 {
                let start = trie.get(next)? & ((1 << 31) - 1);
                let text = texts.get(start..)?;
                longest = longest.max(text.find('\0').unwrap_or(text.len()));
            }
            open.push(next);
        }
    }
    Some(longest)
}

/// Base64 with its padding.
fn decode(text: &str) -> Option<Vec<u8>> {
    let text = text.as_bytes();
    if !text.len().is_multiple_of(4) {
        return None;
    }
    let padding = text.iter().rev().take_while(|byte| **byte == b'=').count().min(2);
    let (mut out, mut held, mut n_bits) = (Vec::with_capacity(text.len() / 4 * 3), 0_u32, 0);
    for byte in &text[..text.len() - padding] {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        held = held << 6 | u32::from(value);
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            out.push((held >> n_bits) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_decoded() {
        assert_eq!(decode("TWFu").unwrap(), b"Man");
        assert_eq!(decode("TWE=").unwrap(), b"Ma");
        assert_eq!(decode("TQ==").unwrap(), b"M");
        assert_eq!(decode("").unwrap(), b"");
        assert_eq!(decode("+/09az+/").unwrap(), [0xfb, 0xfd, 0x3d, 0x6b, 0x3f, 0xbf]);
        assert_eq!((decode("TQ="), decode("T!==")), (None, None));
        assert_eq!(longest("T!==").unwrap_err(), "precompiled_charsmap is not base64");
    }

    #[test]
    fn what_is_too_short_or_points_nowhere_is_refused() {
        assert!(longest("AAAA").unwrap_err().contains("only 3 bytes"));
        assert!(longest("AAAAAA==").unwrap_err().contains("points beyond"), "an empty trie");
        assert!(longest("/////w==").unwrap_err().contains("only 4 bytes"), "a length of 4 GiB");
    }

    #[test]
    fn texts_are_letters() {
        // No trie, then 0xff.
        let said = longest("AAAAAP8=").unwrap_err();
        assert_eq!(said, "the texts of precompiled_charsmap are not UTF-8");
    }

    /// A trie of 512 units in which "a" leads to `value`.
    fn trie_of_a(value: usize) -> Vec<usize> {
        let mut trie = vec![0; 512];
        // The root's children are at 256 and on; the value of "a" is at 256 ^ 'a' ^ 1.
        trie[0] = 256 << 10;
        let at = 256 ^ usize::from(b'a');
        trie[at] = 1 << 10 | 1 << 8 | usize::from(b'a');
        trie[at ^ 1] = 1 << 31 | value;
        trie
    }

    /// A charsmap as files have it: the bytes of the trie, the trie, the texts, in base64.
    fn charsmap(trie: &[usize], texts: &[u8]) -> String {
        const DIGITS: &[u8; 64] =
            b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut bytes = (trie.len() as u32 * 4).to_le_bytes().to_vec();
        bytes.extend(trie.iter().flat_map(|unit| (*unit as u32).to_le_bytes()));
        bytes.extend(texts);
        let mut text = String::new();
        for three in bytes.chunks(3) {
            let bits = three.iter().fold(0, |bits, byte| bits << 8 | usize::from(*byte));
            let bits = bits << (8 * (3 - three.len()));
            let digits = (0..=three.len()).map(|i| DIGITS[bits >> (18 - 6 * i) & 63] as char);
            text.extend(digits);
            text.push_str(&"=="[..3 - three.len()]);
        }
        text
    }

    #[test]
    fn a_whole_charsmap_tells_its_longest_text() {
        for texts in [&b"hello\0x"[..], b"hello\0xy", b"hello\0"] {
            assert_eq!(longest(&charsmap(&trie_of_a(0), texts)), Ok(5));
        }
        let beyond = longest(&charsmap(&trie_of_a(8), b"hello\0"));
        assert_eq!(beyond.unwrap_err(), "precompiled_charsmap points beyond its end");
        assert_eq!(longest(&charsmap(&vec![0; 512], b"")), Ok(0), "nothing is replaced");
    }

    #[test]
    fn leaves_point_to_texts() {
        assert_eq!(walk(&trie_of_a(0), "hello\0x"), Some(5));
        assert_eq!(walk(&trie_of_a(6), "hello\0x"), Some(1));
        assert_eq!(walk(&trie_of_a(8), "hello\0x"), None);
        assert_eq!(walk(&trie_of_a(1), "\u{e9}\0"), None, "inside a character");
        assert_eq!(walk(&trie_of_a(0)[..300], "hello\0x"), None);
    }
}
