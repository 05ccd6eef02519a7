//! Numbers that policies share, and the ranges of their options.

use std::ops::Bound;

use longview_ops::BlockReduceParams;

use super::range::ValueRange;
use crate::layout::LAST_QUERIES;

/// Longest context that positions can count, and so the most tokens of anything: sums of a few of
/// them fit a word of 64 bits and are cut off in one of 32.
pub const MAX_CONTEXT: usize = 1 << 30;

/// Steps between handing a full window to the clustering worker and using its clusters: a fixed
/// number, so that the worker has time and the tokens do not depend on how much it took.
pub const FLUSH_STEPS: usize = 4;

/// Models at least this deep attend to everything in their first two layers unless told otherwise,
/// where the paper does: attention there is spread too evenly for any selection, and two layers of
/// many cost little.
pub const DEEP_LAYERS: usize = 16;

/// Contexts up to this many tokens are clustered whole, as in the paper: segments cost the embedded
/// model two of 24 answers at 32K. Longer ones go in segments of 8,192, because the work of one
/// clustering is quadratic.
pub const WHOLE_PROMPT_CONTEXT: usize = 32_768;

/// Rows that an index other than clusters takes in at a time at the end of a prompt: as many as fit
/// into a small device beside everything else.
pub const INDEX_SEGMENT: usize = 8_192;

/// A prompt of up to so many rows is clustered as a whole, and again when it goes on: that takes
/// less time than reading a question.
pub(super) const ONE_RUN: usize = 2_048;

/// A prompt of up to so many rows is clustered in two runs, of which the second one is at most an
/// eighth: again, because a larger share costs answers.
pub(super) const TWO_RUNS: usize = 16_384;

/// Fewer rows than this at the end of a longer prompt are clustered in one run.
pub(super) const LAST_RUN: usize = 1_024;

/// Tokens, blocks or clusters of something that may be empty.
pub(super) const ANY_TOKENS: ValueRange = ValueRange::whole(0, MAX_CONTEXT);

/// Tokens, blocks or clusters of something that is there.
pub(super) const TOKENS: ValueRange = ValueRange::whole(1, MAX_CONTEXT);

/// Iterations, steps and threads that are there. K-means and LRQK's factors settle within tens of
/// iterations; a cache that lasts longer than a thousand steps, or a choice that holds for longer,
/// is that of another policy, and no machine runs more threads for the KV heads of a layer.
pub(super) const STEPS: ValueRange = ValueRange::whole(1, 1_024);

/// The same with none.
pub(super) const ANY_STEPS: ValueRange = ValueRange::whole(0, 1_024);

/// Layers: the deepest published models have fewer than 200.
pub(super) const LAYERS: ValueRange = ValueRange::whole(1, 1_024);

/// The same with none.
pub(super) const ANY_LAYERS: ValueRange = ValueRange::whole(0, 1_024);

/// Dimensions of a key: a head's width is at most a few hundred, and more are cut to it.
pub(super) const DIMENSIONS: ValueRange = ValueRange::whole(1, 65_536);

/// Neighbours that are pooled: the papers take 5 to 13, and every token costs as many.
pub(super) const NEIGHBOURS: ValueRange = ValueRange::Odd { most: 1_023 };

/// Keys that stand for a block: as many as the kernel that finds them holds.
pub(super) const KEYS: ValueRange = ValueRange::whole(1, BlockReduceParams::MAX_TOP as usize);

/// Queries at a prompt's end: as many as a prefill records.
pub(super) const QUERIES: ValueRange = ValueRange::whole(1, LAST_QUERIES);

/// A share that may be nothing or all.
pub(super) const SHARE: ValueRange =
    ValueRange::Between(Bound::Included(0.0), Bound::Included(1.0));

/// A share of which nothing and all mean nothing.
pub(super) const PART: ValueRange = ValueRange::Between(Bound::Excluded(0.0), Bound::Excluded(1.0));

/// A share that may be all.
pub(super) const NONZERO_SHARE: ValueRange =
    ValueRange::Between(Bound::Excluded(0.0), Bound::Included(1.0));

/// A distance, which may be without end.
pub(super) const DISTANCE: ValueRange = ValueRange::Between(Bound::Excluded(0.0), Bound::Unbounded);

/// A mean over its smallest part: at a thousand the last layer of a budget of 1,024 keeps one.
pub(super) const RATIO: ValueRange =
    ValueRange::Between(Bound::Excluded(1.0), Bound::Included(1_000.0));
