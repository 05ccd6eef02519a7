//! Bytes that grow at their end, and that copies share.
//!
//! What is read of them nearly always lies in one piece and is borrowed, which
//! `crate::store::SegmentedBytes` (of a fixed length, written anywhere, read by copying) does not
//! offer.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of which a copy has what was shared before without copying it. Each grows and is cut
/// without the others.
#[derive(Debug, Default)]
pub struct SharedBytes {
    /// Pieces that others may have too, with the byte that each ends before.
    shared: Vec<(usize, Arc<Vec<u8>>)>,
    /// Those behind them.
    own: Vec<u8>,
}

impl SharedBytes {
    /// None, with room for `n`.
    pub fn with_capacity(n: usize) -> Self {
        Self { shared: Vec::new(), own: Vec::with_capacity(n) }
    }

    fn n_shared(&self) -> usize {
        self.shared.last().map_or(0, |(end, _)| *end)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.n_shared() + self.own.len()
    }

    /// What is not shared: new bytes are added to it.
    pub fn own(&mut self) -> &mut Vec<u8> {
        &mut self.own
    }

    /// Some of them; a copy where they lie in several pieces.
    ///
    /// # Panics
    /// If there are not so many.
    pub fn get(&self, range: Range<usize>) -> Cow<'_, [u8]> {
        let piece = self.shared.partition_point(|(end, _)| *end <= range.start);
        let (first, bytes) = self.piece(piece);
        if range.end <= first + bytes.len() {
            return Cow::Borrowed(&bytes[range.start - first..range.end - first]);
        }
        let mut all = Vec::with_capacity(range.len());
        for piece in piece..=self.shared.len() {
            let (first, bytes) = self.piece(piece);
            let at = |byte: usize| byte.saturating_sub(first).min(bytes.len());
            all.extend_from_slice(&bytes[at(range.start)..at(range.end)]);
        }
        assert_eq!(all.len(), range.len(), "bytes {range:?} of {}", self.len());
        Cow::Owned(all)
    }

    /// All of them.
    pub fn all(&self) -> Cow<'_, [u8]> {
        self.get(0..self.len())
    }

    /// Where a piece begins, and its bytes.
    fn piece(&self, i: usize) -> (usize, &[u8]) {
        let first = i.checked_sub(1).map_or(0, |before| self.shared[before].0);
        let piece = self.shared.get(i);
        (first, piece.map_or(&self.own, |(end, bytes)| &bytes[..end - first]))
    }

    /// Keeps the first `n`.
    pub fn truncate(&mut self, n: usize) {
        self.own.truncate(n.saturating_sub(self.n_shared()));
        let whole = self.shared.partition_point(|(end, _)| *end <= n);
        if let Some((end, _)) = self.shared.get_mut(whole) {
            let first = whole.checked_sub(1);
            *end = n;
            let is_empty = first.map_or(0, |before| self.shared[before].0) == n;
            self.shared.truncate(whole + usize::from(!is_empty));
        }
    }

    /// Adds bytes behind all others without copying them.
    pub fn adopt(&mut self, bytes: Vec<u8>) {
        if bytes.is_empty() {
            return;
        }
        self.share();
        // They take the room that was kept for them.
        self.own = Vec::with_capacity(self.own.capacity().saturating_sub(bytes.len()));
        self.shared.push((self.len() + bytes.len(), Arc::new(bytes)));
    }

    /// Lets copies that are made from now on share all of them.
    pub fn share(&mut self) {
        if !self.own.is_empty() {
            let room = self.own.capacity() - self.own.len();
            let end = self.len();
            let mut own = std::mem::replace(&mut self.own, Vec::with_capacity(room));
            // Nothing is added to it any more: its room is the new list's.
            own.shrink_to_fit();
            self.shared.push((end, Arc::new(own)));
        }
    }
}

impl Clone for SharedBytes {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), own: with_its_room(&self.own) }
    }
}

impl PartialEq for SharedBytes {
    fn eq(&self, other: &Self) -> bool {
        self.all() == other.all()
    }
}

/// A copy with the room that the list has, so that what is added to it allocates nothing.
pub(super) fn with_its_room<T: Copy>(list: &Vec<T>) -> Vec<T> {
    let mut copy = Vec::with_capacity(list.capacity());
    copy.extend_from_slice(list);
    copy
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;

    use super::*;

    /// Random growth, cuts and copies, each beside plain bytes.
    #[test]
    fn copies_grow_and_are_cut_without_each_other() {
        let mut rng = SplitMix64::new(7);
        let mut all = vec![(SharedBytes::with_capacity(40), Vec::<u8>::new())];
        for step in 0..2000 {
            let i = rng.below(all.len());
            let (bytes, plain) = &mut all[i];
            match rng.below(5) {
                4 => {
                    let new: Vec<u8> = (0..rng.below(9)).map(|_| rng.next_u64() as u8).collect();
                    plain.extend_from_slice(&new);
                    bytes.adopt(new);
                }
                0 => {
                    let n = rng.below(plain.len() + 1);
                    bytes.truncate(n);
                    plain.truncate(n);
                }
                1 if step % 3 == 0 => {
                    bytes.share();
                    let copy = (bytes.clone(), plain.clone());
                    let to = rng.below(5);
                    if to < all.len() {
                        all[to] = copy;
                    } else {
                        all.push(copy);
                    }
                }
                _ => {
                    let new: Vec<u8> = (0..rng.below(9)).map(|_| rng.next_u64() as u8).collect();
                    bytes.own().extend_from_slice(&new);
                    plain.extend_from_slice(&new);
                }
            }
            for (bytes, plain) in &all {
                assert_eq!((bytes.len(), &*bytes.all()), (plain.len(), &plain[..]), "{step}");
                let start = rng.below(plain.len() + 1);
                let end = start + rng.below(plain.len() - start + 1);
                assert_eq!(*bytes.get(start..end), plain[start..end], "{step}");
            }
        }
        assert!(all.len() > 3);
    }

    #[test]
    fn a_copy_of_what_is_shared_copies_nothing_and_keeps_the_room() {
        let mut bytes = SharedBytes::with_capacity(1000);
        bytes.own().extend_from_slice(&[1, 2, 3, 4]);
        bytes.share();
        let mut copy = bytes.clone();
        assert!(std::ptr::eq(bytes.all().as_ptr(), copy.all().as_ptr()));
        assert!(copy.own().capacity() >= 996 && bytes.own().capacity() >= 996);
        copy.own().push(5);
        assert_eq!((&*copy.all(), &*bytes.all()), (&[1, 2, 3, 4, 5][..], &[1, 2, 3, 4][..]));
        assert!(matches!(copy.get(1..4), Cow::Borrowed([2, 3, 4])));
        assert!(matches!(copy.get(4..5), Cow::Borrowed([5])));
        assert!(matches!(copy.get(3..5), Cow::Owned(_)));
    }

    #[test]
    fn bytes_that_are_adopted_stay_where_they_are_and_take_room() {
        let mut bytes = SharedBytes::with_capacity(1000);
        let new = vec![1, 2, 3];
        let place = new.as_ptr();
        bytes.adopt(new);
        assert!(std::ptr::eq(bytes.all().as_ptr(), place));
        bytes.own().push(4);
        assert_eq!(*bytes.all(), [1, 2, 3, 4]);
        assert_eq!(bytes.own().capacity(), 997);
        bytes.truncate(2);
        bytes.adopt(Vec::new());
        bytes.adopt(vec![9]);
        assert_eq!(&*bytes.all(), [1, 2, 9]);
    }

    #[test]
    #[should_panic(expected = "bytes 1..3 of 2")]
    fn bytes_that_there_are_not_are_refused() {
        let mut bytes = SharedBytes::default();
        bytes.own().extend_from_slice(&[1, 2]);
        let _ = bytes.get(1..3).len();
    }
}
