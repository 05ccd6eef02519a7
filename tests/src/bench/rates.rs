//! Rates that a device reaches at best.

/// A rate and how it was measured.
#[derive(Clone, Debug)]
pub(crate) struct Limit {
    /// GB/s or GFLOP/s.
    pub rate: f64,
    /// One word, beside shares.
    pub name: &'static str,
}

/// The yardsticks.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub memory: Limit,
    pub arithmetic: Limit,
    /// From host memory to the device; where it is one memory, that of memory.
    pub link: Limit,
    /// In words, for the head of the table.
    pub text: String,
}
