//! Names of documents and files: 32 bytes of BLAKE3, written as 64 hexadecimal digits.
//!
//! Every path of a library is made of these digits and of words of this crate, never of a user's
//! text. So no name leads out of the folder, none is reserved (`CON`, `aux.txt`), none is too long,
//! and two that differ in capitals alone do not exist.

use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// A hash, as a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Id([u8; 32]);

/// A text that is no [`Id`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no name of 64 hexadecimal digits in small letters")]
pub struct NoId;

impl Id {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// The hash of these parts, each with its length, so that no two lists have one hash.
    pub fn of_parts<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        Self(*hasher.finalize().as_bytes())
    }

    /// A name that no file has yet: files of sessions are never written over.
    pub(crate) fn fresh() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let place = std::ptr::from_ref(&NEXT) as usize;
        Self::of_parts([
            &now.as_nanos().to_le_bytes()[..],
            &std::process::id().to_le_bytes(),
            &n.to_le_bytes(),
            // Where the system put this program: another number in every process.
            &place.to_le_bytes(),
        ])
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first digits, for people.
    pub fn short(&self) -> String {
        self.to_string()[..SHORT].to_owned()
    }
}

/// Digits that people see and type.
const SHORT: usize = 10;

impl From<[u8; 32]> for Id {
    fn from(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl FromStr for Id {
    type Err = NoId;

    fn from_str(text: &str) -> Result<Self, NoId> {
        let digits = text.as_bytes();
        let is_small = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
        if digits.len() != 64 || !digits.iter().all(is_small) {
            return Err(NoId);
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let value = |digit: u8| char::from(digit).to_digit(16).unwrap_or(0) as u8;
            *byte = value(pair[0]) << 4 | value(pair[1]);
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Id {
    type Error = NoId;

    fn try_from(text: String) -> Result<Self, NoId> {
        text.parse()
    }
}

impl From<Id> for String {
    fn from(id: Id) -> Self {
        id.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_digits_and_come_back() {
        let id = Id::of(b"text");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.short().len(), SHORT);
        for bad in ["", "../../etc/passwd", &id.to_string()[1..], &id.to_string().to_uppercase()] {
            assert_eq!(bad.parse::<Id>(), Err(NoId), "{bad}");
        }
    }

    #[test]
    fn fresh_names_differ_and_parts_are_apart() {
        assert_ne!(Id::fresh(), Id::fresh());
        assert_ne!(Id::of_parts([&b"ab"[..], b"c"]), Id::of_parts([&b"a"[..], b"bc"]));
    }
}
