//! Names in paths, in which clients write what a path cannot have as `%` and two digits.

/// The name that is meant; none where digits are missing or the bytes are no UTF-8.
pub(crate) fn decoded(word: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes().iter();
    while let Some(byte) = rest.next() {
        if *byte != b'%' {
            bytes.push(*byte);
            continue;
        }
        let high = char::from(*rest.next()?).to_digit(16)?;
        let low = char::from(*rest.next()?).to_digit(16)?;
        bytes.push((high * 16 + low) as u8);
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_clients_write_them() {
        for (word, name) in [
            ("book", "book"),
            ("a%20b", "a b"),
            ("caf%C3%A9", "café"),
            ("caf%c3%a9", "café"),
            ("café", "café"),
            ("a%2Fb", "a/b"),
            ("a+b", "a+b"),
            ("100%25", "100%"),
            ("%2520", "%20"),
            ("", ""),
        ] {
            assert_eq!(decoded(word).as_deref(), Some(name), "{word}");
        }
        for word in ["%", "%2", "a%zz", "%+1", "%C3", "%ff", "%C3%28"] {
            assert_eq!(decoded(word), None, "{word}");
        }
    }
}
