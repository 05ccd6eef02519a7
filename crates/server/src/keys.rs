//! Keys of clients, and whose contexts a key sees.
//!
//! Each key has a scope: what was read for it is found, listed and removed under it alone, in
//! memory and on disk. Keys of one name share a scope, so that a key can be replaced by another.

use std::collections::BTreeMap;
use std::path::PathBuf;

use longview_library::documents::{Documents, DocumentsError};
use longview_library::shared::Share;
use tracing::warn;

/// Letters of a name.
const MAX_NAME: usize = 64;
/// What the folder of a key without a name begins with; no name begins so.
const NAMELESS: &str = "key-";
/// Hex digits of a key's hash in the name of its folder.
const DIGITS: usize = 16;
/// What the hash for a folder's name is made for: it says nothing about the one that is compared.
const FOLDER_PURPOSE: &str = "longview server 2026-11 folder of an API key";
/// Folder of the libraries of keys, in the library that the server was started with.
const FOLDER: &str = "keys";
/// Folder of the prompts of a scope, in its library.
const PROMPTS: &str = "prompts";

/// A key of a client, with the name of its scope. It holds no more of the key than hashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiKey {
    name: Option<String>,
    hash: blake3::Hash,
    folder: String,
}

/// A key that cannot be one. The text of the key is not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadKey {
    /// Nothing, or what no header can carry.
    #[error("a key must be letters, digits and signs without spaces, at least one")]
    Key,
    /// What stands before the first colon names a folder.
    #[error(
        "in NAME:KEY the name must be 1 to {MAX_NAME} of a-z, 0-9, '-' and '_', and not begin with \
         '{NAMELESS}'; a key without a name has no colon"
    )]
    Name,
}

/// One key under two names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("one key is given for '{first}' and for '{second}': each needs a key of its own")]
pub struct SharedKey {
    first: String,
    second: String,
}

impl ApiKey {
    /// A key, as `KEY` or as `NAME:KEY`.
    ///
    /// # Errors
    /// [`BadKey`].
    pub fn parse(text: &str) -> Result<Self, BadKey> {
        let (name, key) = match text.split_once(':') {
            Some((name, key)) => (Some(name), key),
            None => (None, text),
        };
        if key.is_empty() || !key.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(BadKey::Key);
        }
        let is_letter = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_');
        let is_name = |name: &str| {
            (1..=MAX_NAME).contains(&name.len())
                && name.bytes().all(is_letter)
                && !name.starts_with(NAMELESS)
        };
        if name.is_some_and(|name| !is_name(name)) {
            return Err(BadKey::Name);
        }
        let folder = name.map(str::to_owned).unwrap_or_else(|| {
            let hash = blake3::Hash::from(blake3::derive_key(FOLDER_PURPOSE, key.as_bytes()));
            format!("{NAMELESS}{}", &hash.to_hex()[..DIGITS])
        });
        Ok(Self { name: name.map(str::to_owned), hash: blake3::hash(key.as_bytes()), folder })
    }

    /// The name of its scope, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// Whose contexts a request sees: a number below that of all scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Scope(usize);

impl Scope {
    pub(crate) fn index(self) -> usize {
        self.0
    }
}

/// The keys of a server.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    keys: Vec<(blake3::Hash, Scope)>,
    /// The folder of each scope; `None`: the library that the server was started with.
    folders: Vec<Option<String>>,
}

impl Keys {
    /// Without keys, and with one that has no name, there is one scope: the whole library.
    pub(crate) fn new(given: &[ApiKey]) -> Result<Self, SharedKey> {
        let mut scopes: BTreeMap<&str, Scope> = BTreeMap::new();
        let mut keys: Vec<(blake3::Hash, Scope)> = Vec::new();
        let mut folders = Vec::new();
        for key in given {
            let next = Scope(scopes.len());
            let scope = *scopes.entry(&key.folder).or_insert(next);
            if scope == next {
                folders.push(Some(key.folder.clone()));
            }
            if let Some((_, other)) = keys.iter().find(|(hash, _)| *hash == key.hash)
                && *other != scope
            {
                let (first, second) = (folders[other.0].clone(), key.folder.clone());
                return Err(SharedKey { first: first.unwrap_or_default(), second });
            }
            keys.push((key.hash, scope));
        }
        let is_whole = given.iter().all(|key| key.name.is_none()) && folders.len() <= 1;
        if is_whole {
            folders = vec![None];
        }
        Ok(Self { keys, folders })
    }

    /// Of a server that everybody may ask.
    pub(crate) fn none() -> Self {
        Self { keys: Vec::new(), folders: vec![None] }
    }

    pub(crate) fn are_needed(&self) -> bool {
        !self.keys.is_empty()
    }

    pub(crate) fn scopes(&self) -> impl Iterator<Item = Scope> + use<> {
        (0..self.folders.len()).map(Scope)
    }

    /// The scope of a key. Hashes are compared in a time that does not depend on where they
    /// differ, and all of them, so that the time does not say either which key it is.
    pub(crate) fn scope_of(&self, given: &str) -> Option<Scope> {
        let given = blake3::hash(given.as_bytes());
        let mut found = None;
        for (hash, scope) in &self.keys {
            if *hash == given {
                found = Some(*scope);
            }
        }
        found
    }

    /// The library of each scope.
    pub(crate) fn libraries(&self, whole: &Documents) -> Result<Vec<Documents>, DocumentsError> {
        let open = |folder: &Option<String>| match folder {
            None => Ok(whole.clone()),
            Some(name) => {
                let path: PathBuf = whole.folder().join(FOLDER).join(name);
                Documents::open(&path)
            }
        };
        self.folders.iter().map(open).collect()
    }

    /// Where the prompts of each scope are kept, beside the contexts of its library: at most so
    /// many bytes of each. None where that is no byte, or where there is a library that cannot be
    /// written to.
    pub(crate) fn prompts(libraries: &[Documents], bytes: u64) -> Vec<Documents> {
        let open = |library: &Documents| {
            let prompts = Documents::open(&library.folder().join(PROMPTS))?;
            prompts.set_quota(Some(bytes))?;
            Ok(prompts)
        };
        let all: Result<Vec<_>, DocumentsError> = match bytes {
            0 => return Vec::new(),
            _ => libraries.iter().map(open).collect(),
        };
        all.unwrap_or_else(|error| {
            warn!("prompts are not kept on disk: {error}");
            Vec::new()
        })
    }

    /// Shared storage as each scope sees it.
    pub(crate) fn shares(&self, whole: &Share) -> Vec<Share> {
        let name = |folder: &Option<String>| whole.of_scope(folder.as_deref().unwrap_or_default());
        self.folders.iter().map(name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(texts: &[&str]) -> Keys {
        let all: Vec<_> = texts.iter().map(|text| ApiKey::parse(text).expect("a key")).collect();
        Keys::new(&all).expect("keys")
    }

    #[test]
    fn keys_are_read_and_what_is_none_is_refused() {
        let named = ApiKey::parse("alice:s3:cret").expect("a key");
        assert_eq!(named.name(), Some("alice"));
        assert_eq!(named.hash, blake3::hash(b"s3:cret"));
        assert_eq!(ApiKey::parse("word").expect("a key").name(), None);
        for text in ["", "alice:", "two words", "k\u{e9}y", "alice:a b"] {
            assert_eq!(ApiKey::parse(text), Err(BadKey::Key), "{text}");
        }
        let long = format!("{}:k", "a".repeat(65));
        for text in [":k", "../x:k", "Alice:k", "key-1:k", "a/b:k", long.as_str()] {
            assert_eq!(ApiKey::parse(text), Err(BadKey::Name), "{text}");
        }
        assert!(!format!("{named:?}").contains("s3:cret"));
    }

    #[test]
    fn each_name_is_a_scope_and_each_key_without_one_too() {
        let all = keys(&["alice:one", "bob:two", "alice:three", "four", "five"]);
        assert_eq!(all.scopes().count(), 4);
        let scope = |key: &str| all.scope_of(key);
        assert_eq!(scope("one"), scope("three"));
        let different = [scope("one"), scope("two"), scope("four"), scope("five")];
        for (i, scope) in different.iter().enumerate() {
            assert!(scope.is_some() && !different[..i].contains(scope), "{different:?}");
        }
        for other in ["", "on", "alice:one", "onetwo"] {
            assert_eq!(scope(other), None, "{other}");
        }
    }

    #[test]
    fn one_key_without_a_name_has_the_whole_library() {
        for given in [&[][..], &["word"], &["word", "word"]] {
            assert_eq!(keys(given).folders, [None], "{given:?}");
        }
        assert_eq!(keys(&["alice:one"]).folders, [Some("alice".to_owned())]);
        let two = keys(&["one", "two"]);
        assert!(two.folders.iter().all(Option::is_some) && two.folders[0] != two.folders[1]);
        let folder = two.folders[0].as_ref().expect("a folder");
        let hash = blake3::hash(b"one").to_hex();
        assert!(!hash.contains(&folder[NAMELESS.len()..]), "{folder}");
        assert_eq!(keys(&["two", "one"]).folders[1].as_ref(), Some(folder), "in any order");
    }

    #[test]
    fn a_key_of_two_names_is_refused() {
        let all: Vec<_> =
            ["alice:k", "bob:k"].iter().map(|text| ApiKey::parse(text).expect("a key")).collect();
        let error = Keys::new(&all).expect_err("it is refused");
        assert!(error.to_string().contains("'alice'") && !error.to_string().contains(":k"));
    }
}
