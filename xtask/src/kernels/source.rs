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

impl Target {
    /// What NVRTC calls a target that PTX is made for, and what its archive is called.
    pub(super) fn compute(&self) -> String {
        format!("compute_{}", self.arch)
    }
}

/// A file of kernels.
pub(super) struct Source {
    pub(super) stem: String,
    pub(super) text: String,
    pub(super) ships: bool,
}
