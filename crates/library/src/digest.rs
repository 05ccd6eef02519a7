//! The hashes by which the hub names the content of files.
//!
//! Large files are named by the SHA-256 of their bytes. Small ones are blobs of git, named by the
//! SHA-1 of a header and their bytes; as a name of what the hub itself listed over TLS it is a
//! check of the transfer, not of the author.

use std::fmt;

use ring::digest::{Context, SHA1_FOR_LEGACY_USE_ONLY, SHA256};

/// What a file's content is called: 40 or 64 hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct BlobId(String);

impl BlobId {
    /// A SHA-256.
    pub(crate) fn sha256(text: &str) -> Option<Self> {
        is_hex(text, 64).then(|| Self(text.to_owned()))
    }

    /// The SHA-1 of a blob of git.
    pub(crate) fn git(text: &str) -> Option<Self> {
        is_hex(text, 40).then(|| Self(text.to_owned()))
    }

    /// The digits, which are a plain file name.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A check of `n_bytes` bytes that should have this name.
    pub(crate) fn checksum(&self, n_bytes: u64) -> Checksum {
        if self.0.len() == 64 {
            return Checksum(Context::new(&SHA256));
        }
        let mut context = Context::new(&SHA1_FOR_LEGACY_USE_ONLY);
        context.update(format!("blob {n_bytes}\0").as_bytes());
        Checksum(context)
    }
}

impl fmt::Display for BlobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A commit of git: 40 hexadecimal digits.
pub(crate) fn is_commit(text: &str) -> bool {
    is_hex(text, 40)
}

fn is_hex(text: &str, n: usize) -> bool {
    text.len() == n && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The hash of bytes that come piece by piece.
pub(crate) struct Checksum(Context);

impl Checksum {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The digits.
    pub(crate) fn finish(self) -> String {
        let digest = self.0.finish();
        digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(id: BlobId, bytes: &[u8]) -> bool {
        let mut checksum = id.checksum(bytes.len() as u64);
        for byte in bytes {
            checksum.update(&[*byte]);
        }
        checksum.finish() == id.as_str()
    }

    #[test]
    fn contents_have_the_names_that_git_and_sha256sum_give() {
        let of_hello = BlobId::git("ce013625030ba8dba906f756967f9e9ca394464a").unwrap();
        assert!(hash(of_hello.clone(), b"hello\n") && !hash(of_hello, b"hello"));
        let sha = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        assert!(hash(BlobId::sha256(sha).unwrap(), b"hello\n"));
    }

    #[test]
    fn other_texts_are_no_names() {
        let digits = "c".repeat(40);
        assert!(BlobId::git(&digits).is_some() && BlobId::sha256(&digits).is_none());
        assert!(is_commit(&digits) && !is_commit("main"));
        for wrong in ["../../../../../../../../../../../../../x", &"C".repeat(40), &"g".repeat(40)]
        {
            assert_eq!(wrong.len(), 40);
            assert!(BlobId::git(wrong).is_none(), "{wrong}");
        }
    }
}
