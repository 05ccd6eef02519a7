//! The map of the context: one cell for a run of tokens, and what became of it in a step.

use longview_scheduler::TokenPlace;

/// Cells at most; a longer context has more tokens in a cell.
pub const MOST_CELLS: usize = 4096;

/// What a KV head attended in a step, for drawing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextMap {
    /// Tokens of a cell; the last may have fewer.
    pub cell_tokens: usize,
    /// One byte a cell: the [`TokenPlace`] among its tokens that tells most, a fetched row before a
    /// drawn one, this before a hit, a hit before recent tokens and sinks, and these before what
    /// was not attended.
    pub kinds: Vec<u8>,
    /// Tokens of each [`TokenPlace`], by its number: cells of several tokens do not tell.
    pub counts: [usize; 7],
}

impl ContextMap {
    /// Cells for these tokens.
    pub fn of(places: &[TokenPlace]) -> Self {
        let cell_tokens = places.len().div_ceil(MOST_CELLS).max(1);
        let cells = places.chunks(cell_tokens);
        let most_telling = |cell: &[TokenPlace]| cell.iter().copied().max_by_key(|p| weight(*p));
        let kinds = cells.filter_map(most_telling).map(|place| place as u8).collect();
        let mut counts = [0; 7];
        places.iter().for_each(|place| counts[*place as usize] += 1);
        Self { cell_tokens, kinds, counts }
    }
}

fn weight(place: TokenPlace) -> u8 {
    match place {
        TokenPlace::Skipped => 0,
        TokenPlace::Held => 1,
        TokenPlace::Sink => 2,
        TokenPlace::Recent => 3,
        TokenPlace::Hit => 4,
        TokenPlace::Drawn => 5,
        TokenPlace::Missed => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_contexts_have_a_cell_for_each_token() {
        let places = [TokenPlace::Sink, TokenPlace::Skipped, TokenPlace::Hit, TokenPlace::Recent];
        let map = ContextMap::of(&places);
        assert_eq!((map.cell_tokens, map.kinds), (1, vec![1, 0, 3, 2]));
        assert_eq!(map.counts, [1, 1, 1, 1, 0, 0, 0]);
        assert!(ContextMap::of(&[]).kinds.is_empty());
    }

    #[test]
    fn a_cell_of_several_tokens_shows_what_tells_most() {
        let mut places = vec![TokenPlace::Skipped; 2 * MOST_CELLS + 1];
        (places[0], places[1]) = (TokenPlace::Sink, TokenPlace::Held);
        (places[3], places[4]) = (TokenPlace::Hit, TokenPlace::Missed);
        (places[6], places[7]) = (TokenPlace::Hit, TokenPlace::Drawn);
        let map = ContextMap::of(&places);
        assert_eq!(map.cell_tokens, 3);
        assert_eq!(map.kinds[..4], [1, 4, 6, 0]);
        assert_eq!(map.kinds.len(), places.len().div_ceil(3));
        assert_eq!(map.counts, [2 * MOST_CELLS - 5, 1, 0, 2, 1, 1, 1]);
    }
}
