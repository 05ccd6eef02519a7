//! Keys, names and tags: what makes storage of others safe to read from.

use std::fmt;

use blake3::Hash;
use serde::de::DeserializeOwned;

use super::error::ShareError;

/// What the key is derived for: the same words used elsewhere give another one.
const PURPOSE: &str = "longview 2026-11 tags of shared documents";
/// Fewer bytes could be guessed.
const MIN_KEY: usize = 16;
/// Digits of a name: too many for two to be alike, and few enough for paths of files.
const NAME_DIGITS: usize = 24;
/// What stands between the tag of an object and its content.
const MIDDLE: u8 = b'\n';
/// Digits of a tag.
const TAG: usize = 64;

/// The key that all machines have that share documents, and the storage has not.
#[derive(Clone)]
pub struct ShareKey([u8; 32]);

impl ShareKey {
    /// A key of any text, without the blanks around it.
    ///
    /// # Errors
    /// [`ShareError::ShortKey`].
    pub fn new(text: &str) -> Result<Self, ShareError> {
        let text = text.trim().as_bytes();
        if text.len() < MIN_KEY {
            return Err(ShareError::ShortKey { n_bytes: text.len() });
        }
        Ok(Self(blake3::derive_key(PURPOSE, text)))
    }

    pub(super) fn scope(&self, name: &str) -> ScopeKey {
        let key = keyed(&self.0, &[b"scope", name.as_bytes()]);
        let folder = keyed(key.as_bytes(), &[b"folder"]).to_hex()[..NAME_DIGITS].to_owned();
        ScopeKey { key: *key.as_bytes(), folder }
    }
}

/// The key of one scope.
#[derive(Clone)]
pub(super) struct ScopeKey {
    key: [u8; 32],
    folder: String,
}

impl ScopeKey {
    /// Where its objects are.
    pub(super) fn folder(&self) -> &str {
        &self.folder
    }

    /// A name of what these parts say, which nobody without the key can make or compare.
    pub(super) fn name(&self, parts: &[&[u8]]) -> String {
        let parts: Vec<&[u8]> = [&b"name"[..]].into_iter().chain(parts.iter().copied()).collect();
        keyed(&self.key, &parts).to_hex()[..NAME_DIGITS].to_owned()
    }

    /// `body` with its tag before it, as the object of this name.
    pub(super) fn seal(&self, name: &str, body: &[u8]) -> Vec<u8> {
        let mut sealed = self.tag(name, body).to_hex().as_bytes().to_vec();
        sealed.push(MIDDLE);
        sealed.extend_from_slice(body);
        sealed
    }

    /// What [`ScopeKey::seal`] was given; `None` if the tag is not of this key, name and body.
    pub(super) fn open<'a>(&self, name: &str, sealed: &'a [u8]) -> Option<&'a [u8]> {
        let (tag, rest) = sealed.split_at_checked(TAG)?;
        let body = rest.strip_prefix(&[MIDDLE])?;
        let tag = Hash::from_hex(tag).ok()?;
        // Compared in constant time.
        (tag == self.tag(name, body)).then_some(body)
    }

    /// What an object says that [`ScopeKey::open`] opens. A later program may have written what
    /// this one cannot read.
    pub(super) fn open_record<T: DeserializeOwned>(&self, name: &str, sealed: &[u8]) -> Option<T> {
        self.open(name, sealed).and_then(|body| serde_json::from_slice(body).ok())
    }

    fn tag(&self, name: &str, body: &[u8]) -> Hash {
        keyed(&self.key, &[b"object", name.as_bytes(), body])
    }
}

/// Of these parts, each with its length, so that no two lists have one hash.
fn keyed(key: &[u8; 32], parts: &[&[u8]]) -> Hash {
    let mut hasher = blake3::Hasher::new_keyed(key);
    for part in parts {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    hasher.finalize()
}

impl fmt::Debug for ShareKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ShareKey(..)")
    }
}

impl fmt::Debug for ScopeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ScopeKey(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(text: &str) -> ShareKey {
        ShareKey::new(text).expect("long enough")
    }

    #[test]
    fn only_the_same_key_scope_name_and_body_open_it() {
        let scope = key("a key of some length").scope("alice");
        let sealed = scope.seal("a/b", b"body");
        assert_eq!(scope.open("a/b", &sealed), Some(&b"body"[..]));
        assert_eq!(scope.open("a/c", &sealed), None, "moved to another name");
        for other in
            [key("a key of some length").scope("bob"), key("another key, also long").scope("alice")]
        {
            assert_eq!(other.open("a/b", &sealed), None);
            assert_ne!(other.folder(), scope.folder());
            assert_ne!(other.name(&[b"x"]), scope.name(&[b"x"]));
        }
        for at in 0..sealed.len() {
            let mut bytes = sealed.clone();
            bytes[at] ^= 1;
            assert_eq!(scope.open("a/b", &bytes), None, "byte {at}");
            assert_eq!(scope.open("a/b", &sealed[..at]), None, "{at} bytes of it");
        }
    }

    #[test]
    fn short_keys_are_refused_and_keys_are_not_shown() {
        let error = ShareKey::new(" short \n").expect_err("refused").to_string();
        assert!(error.contains("5 bytes") && error.contains("openssl"), "{error}");
        let key = key("sixteen letters!");
        assert!(!format!("{key:?} {:?}", key.scope("")).contains("sixteen"));
        let same = ShareKey::new("sixteen letters!\n").expect("a key");
        assert_eq!(same.scope("").folder(), key.scope("").folder(), "a file ends with a new line");
    }
}
