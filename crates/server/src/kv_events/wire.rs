//! A batch of events as vLLM writes it: arrays without names of fields, whose first element says
//! what an event is.
//!
//! | what | elements |
//! |---|---|
//! | batch | seconds since 1970, events, rank |
//! | `BlockStored` | hashes, hash of the block before or nil, tokens, 64, nil, medium, nil |
//! | `BlockRemoved` | hashes, medium |
//! | `AllBlocksCleared` | |
//!
//! The two nils are a number and a name of an adapter of weights, of which there is none.

use serde::{Serialize, Serializer};

use super::book::{BLOCK_TOKENS, Event};

/// Ranks number the parts of a model that is run as several; here one runs all of it.
const RANK: u32 = 0;

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let none: Option<u64> = None;
        let hashes = self.hashes();
        match self {
            Self::Cleared => ("AllBlocksCleared",).serialize(serializer),
            Self::Stored { tier, .. } => {
                let (parent, tokens) = (self.parent(), self.tokens());
                let medium = tier.medium();
                ("BlockStored", hashes, parent, tokens, BLOCK_TOKENS, none, medium, none)
                    .serialize(serializer)
            }
            Self::Removed { tier, .. } => {
                ("BlockRemoved", hashes, tier.medium()).serialize(serializer)
            }
        }
    }
}

/// The bytes of a batch that is sent at `unix_s`.
pub(super) fn batch(unix_s: f64, events: &[Event]) -> Result<Vec<u8>, rmp_serde::encode::Error> {
    rmp_serde::to_vec(&(unix_s, events, RANK))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::kv_events::book::{Chain, Tier};

    #[test]
    fn bytes_are_those_that_vllm_writes() {
        // By hand, after the format of MessagePack.
        let cleared = batch(1.5, &[Event::Cleared]).expect("bytes");
        let mut wanted = vec![0x93, 0xcb];
        wanted.extend(1.5f64.to_be_bytes());
        wanted.extend([0x91, 0x91, 0xb0]);
        wanted.extend(b"AllBlocksCleared");
        wanted.push(0);
        assert_eq!(cleared, wanted);

        let chain = Arc::new(Chain::of(&[5; 128]));
        let stored = Event::Stored { tier: Tier::Disk, chain, blocks: 1..2 };
        let (parent, hash) = (stored.parent().expect("one"), stored.hashes()[0]);
        let mut wanted = vec![0x98, 0xab];
        wanted.extend(b"BlockStored");
        wanted.extend([&[0x91, 0xcf][..], &hash.to_be_bytes()].concat());
        wanted.extend([&[0xcf][..], &parent.to_be_bytes()].concat());
        wanted.extend([0xdc, 0, 64]);
        wanted.extend([5; 64]);
        wanted.extend([64, 0xc0, 0xa4]);
        wanted.extend(b"DISK\xc0");
        assert_eq!(rmp_serde::to_vec(&stored).expect("bytes"), wanted);

        let removed = Event::Removed { tier: Tier::Host, hashes: vec![u64::MAX] };
        let mut wanted = vec![0x93, 0xac];
        wanted.extend(b"BlockRemoved\x91\xcf\xff\xff\xff\xff\xff\xff\xff\xff\xa3CPU");
        assert_eq!(rmp_serde::to_vec(&removed).expect("bytes"), wanted);
    }
}
