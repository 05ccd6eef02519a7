//! Tokens that requests left behind, by the slots that they named.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::keys::Scope;

/// What slots hold, the newest last.
#[derive(Debug)]
pub(crate) struct Held {
    entries: VecDeque<(Scope, usize, Arc<[u32]>)>,
    most: usize,
}

impl Held {
    /// As many as there are contexts in memory: what is behind an older one is gone from there.
    pub(crate) fn new(most: usize) -> Self {
        Self { entries: VecDeque::new(), most: most.max(1) }
    }

    /// A request left this in a slot, in place of what was there.
    pub(crate) fn put(&mut self, scope: Scope, slot: usize, tokens: Arc<[u32]>) {
        self.take(scope, slot);
        self.entries.push_back((scope, slot, tokens));
        if self.entries.len() > self.most {
            self.entries.pop_front();
        }
    }

    /// What is in a slot.
    pub(crate) fn get(&self, scope: Scope, slot: usize) -> Option<Arc<[u32]>> {
        let mut own = self.entries.iter().filter(|entry| (entry.0, entry.1) == (scope, slot));
        own.next().map(|entry| Arc::clone(&entry.2))
    }

    /// Takes it out.
    pub(crate) fn take(&mut self, scope: Scope, slot: usize) -> Option<Arc<[u32]>> {
        let at = self.entries.iter().position(|entry| (entry.0, entry.1) == (scope, slot))?;
        self.entries.remove(at).map(|entry| entry.2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_hold_what_was_left_last_and_no_more_than_there_is_room_for() {
        let (own, mut held) = (Scope::default(), Held::new(2));
        assert_eq!(held.get(own, 0), None);
        for (slot, token) in [(0, 1), (0, 2), (1, 3)] {
            held.put(own, slot, [token].into());
        }
        assert_eq!(held.get(own, 0).as_deref(), Some(&[2][..]));
        held.put(own, 2, [4].into());
        assert_eq!(held.get(own, 0), None, "the oldest has gone");
        assert_eq!(held.take(own, 1).as_deref(), Some(&[3][..]));
        assert_eq!(held.get(own, 1), None);
    }
}
