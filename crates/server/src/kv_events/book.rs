//! Which blocks were told, and what has to be told of them next.

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// Tokens of a block.
pub(super) const BLOCK_TOKENS: usize = 64;
/// Blocks of one event, at most: 65,536 tokens.
const MAX_BLOCKS: usize = 1024;
/// What hashes of blocks begin with: another way to make them gets another one.
const HASHED: &[u8] = b"longview kv block 1";

/// Where the rows of a block lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Tier {
    Device,
    Host,
    Disk,
}

impl Tier {
    /// Its name in an event.
    pub(super) fn medium(self) -> &'static str {
        match self {
            Self::Device => "GPU",
            Self::Host => "CPU",
            Self::Disk => "DISK",
        }
    }
}

/// The whole blocks of one context. A block's hash covers all tokens before it, so that equal
/// hashes are equal prefixes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chain {
    tokens: Vec<u32>,
    hashes: Vec<u64>,
}

impl Chain {
    pub(super) fn of(tokens: &[u32]) -> Self {
        let tokens = &tokens[..tokens.len() / BLOCK_TOKENS * BLOCK_TOKENS];
        let mut parent = 0;
        let mut hash = |block: &[u32]| {
            let mut hasher = blake3::Hasher::new();
            hasher.update(HASHED).update(&u64::to_le_bytes(parent));
            let bytes: Vec<u8> = block.iter().flat_map(|token| token.to_le_bytes()).collect();
            let mut first = [0; 8];
            hasher.update(&bytes).finalize_xof().fill(&mut first);
            parent = u64::from_le_bytes(first);
            parent
        };
        let hashes = tokens.chunks_exact(BLOCK_TOKENS).map(&mut hash).collect();
        Self { tokens: tokens.to_vec(), hashes }
    }
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Nothing of before is there any more.
    Cleared,
    /// Consecutive blocks are there.
    Stored { tier: Tier, chain: Arc<Chain>, blocks: Range<usize> },
    /// Blocks are not there any more.
    Removed { tier: Tier, hashes: Vec<u64> },
}

impl Event {
    /// Hashes of its blocks.
    pub(super) fn hashes(&self) -> &[u64] {
        match self {
            Self::Cleared => &[],
            Self::Stored { chain, blocks, .. } => &chain.hashes[blocks.clone()],
            Self::Removed { hashes, .. } => hashes,
        }
    }

    /// The block before its first one.
    pub(super) fn parent(&self) -> Option<u64> {
        match self {
            Self::Stored { chain, blocks, .. } => Some(chain.hashes[blocks.start.checked_sub(1)?]),
            _ => None,
        }
    }

    /// Tokens of its blocks, one behind the other.
    pub(super) fn tokens(&self) -> &[u32] {
        match self {
            Self::Stored { chain, blocks, .. } => {
                &chain.tokens[blocks.start * BLOCK_TOKENS..blocks.end * BLOCK_TOKENS]
            }
            _ => &[],
        }
    }
}

/// What was told so far.
#[derive(Default)]
pub(super) struct Book {
    tiers: BTreeMap<Tier, Told>,
}

#[derive(Default)]
struct Told {
    chains: Vec<Arc<Chain>>,
    hashes: HashSet<u64>,
}

impl Book {
    /// A tier holds these contexts now, and no others. Returns what is new of that: what came
    /// before what went, and of each context its beginning first.
    pub(super) fn update(&mut self, tier: Tier, chains: Vec<Arc<Chain>>) -> Vec<Event> {
        let told = self.tiers.entry(tier).or_default();
        let mut events = Vec::new();
        let mut now = HashSet::new();
        for chain in &chains {
            let is_new =
                |i: usize| now.insert(chain.hashes[i]) && !told.hashes.contains(&chain.hashes[i]);
            let new: Vec<bool> = (0..chain.hashes.len()).map(is_new).collect();
            stored(tier, chain, &new, &mut events);
        }
        let mut gone = HashSet::new();
        let mut hashes = Vec::new();
        for chain in &told.chains {
            // The last first, so that no block is ever there without the one before it.
            let lost = chain.hashes.iter().rev().filter(|hash| !now.contains(*hash));
            hashes.extend(lost.filter(|hash| gone.insert(**hash)));
        }
        let removed = hashes.chunks(MAX_BLOCKS);
        events.extend(removed.map(|hashes| Event::Removed { tier, hashes: hashes.to_vec() }));
        *told = Told { chains, hashes: now };
        events
    }

    /// All that is there, for somebody who has heard nothing of it yet.
    pub(super) fn all(&self) -> Vec<Event> {
        let mut events = vec![Event::Cleared];
        for (tier, told) in &self.tiers {
            let mut said = HashSet::new();
            for chain in &told.chains {
                let new: Vec<bool> = chain.hashes.iter().map(|hash| said.insert(*hash)).collect();
                stored(*tier, chain, &new, &mut events);
            }
        }
        events
    }
}

/// Events for the blocks of a chain that are new.
fn stored(tier: Tier, chain: &Arc<Chain>, new: &[bool], events: &mut Vec<Event>) {
    let mut at = 0;
    for run in new.chunk_by(|before, after| before == after) {
        let end = at + run.len();
        if run.first() == Some(&true) {
            events.extend((at..end).step_by(MAX_BLOCKS).map(|start| {
                let blocks = start..end.min(start + MAX_BLOCKS);
                Event::Stored { tier, chain: Arc::clone(chain), blocks }
            }));
        }
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(tokens: Range<u32>) -> Arc<Chain> {
        Arc::new(Chain::of(&tokens.collect::<Vec<_>>()))
    }

    /// A text that goes on differently behind `n_common` tokens.
    fn other(n_common: u32, n: u32) -> Arc<Chain> {
        Arc::new(Chain::of(
            &(0..n).map(|i| if i < n_common { i } else { i + 7 }).collect::<Vec<_>>(),
        ))
    }

    #[test]
    fn blocks_are_whole_and_their_hashes_cover_what_is_before_them() {
        assert_eq!(chain(0..63).hashes.len(), 0);
        let (short, long) = (chain(0..130), chain(0..200));
        assert_eq!((short.hashes.len(), short.tokens.len()), (2, 128));
        assert_eq!(long.hashes[..2], short.hashes);
        // The same tokens in the second block, behind others.
        let apart = Chain::of(&[&[9; 64][..], &long.tokens[64..128]].concat());
        assert_ne!(apart.hashes[1], long.hashes[1]);
    }

    #[test]
    fn what_came_is_told_before_what_went_and_nothing_twice() {
        let mut book = Book::default();
        let (first, longer) = (chain(0..256), chain(0..384));
        let came = book.update(Tier::Host, vec![Arc::clone(&first)]);
        let [Event::Stored { tier: Tier::Host, blocks, .. }] = &came[..] else {
            panic!("{came:?}")
        };
        assert_eq!((blocks.clone(), came[0].parent()), (0..4, None));
        assert_eq!(came[0].tokens(), (0..256).collect::<Vec<_>>());
        assert!(book.update(Tier::Host, vec![Arc::clone(&first)]).is_empty());
        // What goes on from it adds its end alone.
        let more = book.update(Tier::Host, vec![Arc::clone(&longer)]);
        assert_eq!((more.len(), more[0].hashes()), (1, &longer.hashes[4..]));
        assert_eq!((more[0].parent(), more[0].tokens().len()), (Some(first.hashes[3]), 128));
        // Another text in its place: its own end comes, then the end of the other goes.
        let apart = other(128, 256);
        let changed = book.update(Tier::Host, vec![Arc::clone(&apart)]);
        assert_eq!(changed[0].hashes(), &apart.hashes[2..]);
        let [_, Event::Removed { tier: Tier::Host, hashes }] = &changed[..] else {
            panic!("{changed:?}")
        };
        assert_eq!(*hashes, longer.hashes[2..].iter().rev().copied().collect::<Vec<_>>());
    }

    #[test]
    fn tiers_do_not_know_of_each_other() {
        let mut book = Book::default();
        let text = chain(0..128);
        assert_eq!(book.update(Tier::Host, vec![Arc::clone(&text)]).len(), 1);
        assert_eq!(book.update(Tier::Disk, vec![Arc::clone(&text)]).len(), 1);
        let gone = book.update(Tier::Host, Vec::new());
        let wanted = text.hashes.iter().rev().copied().collect();
        assert_eq!(gone, [Event::Removed { tier: Tier::Host, hashes: wanted }]);
        let stored = Event::Stored { tier: Tier::Disk, chain: text, blocks: 0..2 };
        assert_eq!(book.all(), [Event::Cleared, stored]);
    }

    #[test]
    fn a_prefix_of_two_contexts_is_told_once_and_goes_with_the_last() {
        let mut book = Book::default();
        let (one, two) = (chain(0..192), other(128, 192));
        let came = book.update(Tier::Device, vec![Arc::clone(&one), Arc::clone(&two)]);
        let told: Vec<u64> = came.iter().flat_map(|event| event.hashes().to_vec()).collect();
        assert_eq!(told, [&one.hashes[..], &two.hashes[2..]].concat());
        assert_eq!(came[1].parent(), Some(one.hashes[1]));
        let all = book.all();
        assert_eq!(all.iter().map(|event| event.hashes().len()).sum::<usize>(), 4);
        let gone = book.update(Tier::Device, vec![two]);
        assert_eq!(gone[0].hashes(), &one.hashes[2..]);
        assert_eq!(book.update(Tier::Device, Vec::new())[0].hashes().len(), 3);
    }

    #[test]
    fn a_long_context_is_told_in_parts_that_follow_each_other() {
        let n = (MAX_BLOCKS * BLOCK_TOKENS * 2 + 3 * BLOCK_TOKENS) as u32;
        let text = chain(0..n);
        let events = Book::default().update(Tier::Host, vec![Arc::clone(&text)]);
        assert_eq!(events.len(), 3);
        for pair in events.windows(2) {
            assert_eq!(pair[1].parent(), pair[0].hashes().last().copied());
        }
        assert_eq!(events.concat_tokens(), text.tokens);
    }

    trait ConcatTokens {
        fn concat_tokens(&self) -> Vec<u32>;
    }

    impl ConcatTokens for Vec<Event> {
        fn concat_tokens(&self) -> Vec<u32> {
            self.iter().flat_map(|event| event.tokens().to_vec()).collect()
        }
    }
}
