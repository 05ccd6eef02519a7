//! The rows of a layer that attends to everything, in as many device buffers as they need.

use std::ops::Range;

/// Rows that lie in one buffer, where it holds as many: sparse prefill has means of them.
const TOGETHER: usize = 32;

/// Buffers of one size, each with the next rows of every head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Buffers; at least one.
    pub n: usize,
    /// Rows of a head in each of them.
    pub rows: usize,
}

/// Rows that lie in one buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentRows {
    /// Which buffer.
    pub segment: usize,
    /// Where in it.
    pub rows: Range<usize>,
    /// How many of the rows asked for come before.
    pub before: usize,
}

impl Segments {
    /// For `rows` rows of each head, which take `row_bytes` in all heads together, in buffers of at
    /// most `most` bytes where that is a limit. A row of all heads is never cut, even where it is
    /// larger.
    pub fn new(row_bytes: usize, rows: usize, most: Option<u64>) -> Self {
        let most = most.and_then(|most| most.checked_div(row_bytes as u64));
        let most = most.map_or(rows, |most| usize::try_from(most).unwrap_or(rows)).max(1);
        if rows <= most {
            return Self { n: 1, rows };
        }
        let whole = if most < TOGETHER { 1 } else { TOGETHER };
        let n = rows.div_ceil(most / whole * whole);
        Self { n, rows: rows.div_ceil(n).next_multiple_of(whole) }
    }

    /// Rows of a head in all of them: as many as asked for, or a few more.
    pub fn total(&self) -> usize {
        self.n * self.rows
    }
}

/// Where `rows` lie in buffers that have `stride` rows each.
pub(crate) fn segment_rows(
    rows: Range<usize>,
    stride: usize,
) -> impl Iterator<Item = SegmentRows> + Clone {
    let stride = stride.max(1);
    let segments =
        if rows.is_empty() { 0..0 } else { rows.start / stride..rows.end.div_ceil(stride) };
    segments.map(move |segment| {
        let first = segment * stride;
        let (start, end) = (rows.start.max(first), rows.end.min(first + stride));
        SegmentRows { segment, rows: start - first..end - first, before: start - rows.start }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_as_few_and_as_even_as_the_limit_allows() {
        let of = |rows, most| {
            let segments = Segments::new(64, rows, most);
            (segments.n, segments.rows)
        };
        assert_eq!(of(24, None), (1, 24));
        assert_eq!(of(24, Some(24 * 64)), (1, 24));
        assert_eq!(of(24, Some(24 * 64 - 1)), (2, 12));
        assert_eq!(of(25, Some(12 * 64 + 63)), (3, 9), "27 rows hold 25");
        assert_eq!(of(3, Some(1)), (3, 1), "a row is never cut");
        assert_eq!(of(0, Some(640)), (1, 0));
        assert_eq!(of(5, Some(u64::MAX)), (1, 5));
        assert_eq!(of(1000, Some(400 * 64)), (3, 352), "32 rows lie together");
        assert_eq!(of(1000, Some(40 * 64)), (32, 32));
    }

    #[test]
    fn rows_are_cut_where_a_buffer_ends() {
        let of = |rows, stride| -> Vec<_> {
            segment_rows(rows, stride).map(|s| (s.segment, s.rows, s.before)).collect()
        };
        assert_eq!(of(0..4, 4), [(0, 0..4, 0)]);
        assert_eq!(of(2..9, 4), [(0, 2..4, 0), (1, 0..4, 2), (2, 0..1, 6)]);
        assert_eq!(of(4..5, 4), [(1, 0..1, 0)]);
        assert_eq!(of(4..4, 4), []);
    }
}
