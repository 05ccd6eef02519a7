//! Where the tokens of one KV head stood in its last decode step: attended or not, and on the
//! device or not.

use longview_core::{HeadId, LayerId};

/// Where a token stood for a KV head in the last decode step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenPlace {
    /// Not attended, and not on the device.
    #[default]
    Skipped = 0,
    /// Attended: one of the first tokens, which always are.
    Sink = 1,
    /// Attended: one of the last tokens, which no index holds yet.
    Recent = 2,
    /// Attended: it was on the device.
    Hit = 3,
    /// Attended: it was fetched for this step.
    Missed = 4,
    /// Not attended, and still on the device from an earlier step.
    Held = 5,
    /// Attended: it was drawn from those that were not chosen, and stood for several of them.
    Drawn = 6,
}

/// The KV head whose recall is followed, and the rows that its last step fetched.
#[derive(Debug)]
pub(crate) struct TrackedHead {
    pub layer: LayerId,
    pub head: HeadId,
    missed: Vec<u32>,
}

impl TrackedHead {
    pub fn new(layer: LayerId, head: HeadId) -> Self {
        Self { layer, head, missed: Vec::new() }
    }

    /// A step comes to `layer`.
    pub fn begin_layer(&mut self, layer: LayerId) {
        if layer == self.layer {
            self.missed.clear();
        }
    }

    /// No step stands any more.
    pub fn clear(&mut self) {
        self.missed.clear();
    }

    /// A row of the host store was not on the device.
    pub fn note_miss(&mut self, layer: LayerId, head: HeadId, row: usize) {
        if layer == self.layer && head == self.head {
            self.missed.push(row as u32);
        }
    }

    /// The rows of the host store that the last step fetched.
    pub fn missed(&self) -> &[u32] {
        &self.missed
    }
}

/// Marks tokens; those beyond the end, which a cut has taken back, are passed over.
pub(crate) fn mark(
    places: &mut [TokenPlace],
    tokens: impl IntoIterator<Item = u32>,
    place: TokenPlace,
) {
    for token in tokens {
        if let Some(cell) = places.get_mut(token as usize) {
            *cell = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_misses_of_the_tracked_head_in_its_last_step_are_known() {
        let mut tracked = TrackedHead::new(LayerId(2), HeadId(1));
        tracked.begin_layer(LayerId(2));
        tracked.note_miss(LayerId(2), HeadId(1), 40);
        tracked.note_miss(LayerId(2), HeadId(0), 41);
        tracked.note_miss(LayerId(1), HeadId(1), 42);
        assert_eq!(tracked.missed(), [40]);
        tracked.begin_layer(LayerId(3));
        assert_eq!(tracked.missed(), [40], "another layer leaves them");
        tracked.begin_layer(LayerId(2));
        assert_eq!(tracked.missed(), [0; 0], "the next step begins");
        tracked.note_miss(LayerId(2), HeadId(1), 7);
        tracked.clear();
        assert!(tracked.missed().is_empty());
    }

    #[test]
    fn tokens_behind_the_end_are_not_marked() {
        let mut places = [TokenPlace::Skipped; 3];
        mark(&mut places, [2, 3, 0], TokenPlace::Hit);
        assert_eq!(places, [TokenPlace::Hit, TokenPlace::Skipped, TokenPlace::Hit]);
    }
}
