//! Inputs that stand for two files.

/// The parts of an input that stands for two files: a byte that is in no text lies between them.
pub(crate) fn two_files(bytes: &[u8]) -> (&[u8], Option<&[u8]>) {
    match bytes.iter().position(|byte| *byte == 0) {
        Some(at) => (&bytes[..at], Some(&bytes[at + 1..])),
        None => (bytes, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zero_parts_two_files() {
        assert_eq!(two_files(b"ab\0c\0"), (&b"ab"[..], Some(&b"c\0"[..])));
        assert_eq!(two_files(b"ab"), (&b"ab"[..], None));
    }
}
