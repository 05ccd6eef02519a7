//! What is compiled, and for what.

/// A device that kernels are compiled for.
pub(super) struct Target {
    /// As in `sm_75`.
    pub(super) arch: &'static str,
    /// Whether the early toolkit knows it.
    pub(super) early: bool,
    /// Whether its PTX is embedded.
    pub(super) ships: bool,
}

/// A file of kernels.
pub(super) struct Source {
    pub(super) stem: String,
    pub(super) text: String,
    pub(super) ships: bool,
}
