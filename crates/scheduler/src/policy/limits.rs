//! Numbers that policies share.

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
