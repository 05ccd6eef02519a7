//! The architectures that PTX is made for.

/// The architectures that PTX is made for; the driver compiles it for those above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// Turing (RTX 20, T4), the oldest that is supported.
    Compute75,
    /// Ampere and Ada: asynchronous copies, products of bf16.
    Compute80,
    /// Hopper and later.
    Compute90,
}

impl Target {
    /// Lowest first.
    pub const ALL: [Target; 3] = [Target::Compute75, Target::Compute80, Target::Compute90];

    /// As NVRTC calls it, and the archive of its PTX.
    pub fn name(self) -> &'static str {
        match self {
            Target::Compute75 => "compute_75",
            Target::Compute80 => "compute_80",
            Target::Compute90 => "compute_90",
        }
    }

    /// The lowest compute capability that runs it.
    pub fn capability(self) -> (u32, u32) {
        match self {
            Target::Compute75 => (7, 5),
            Target::Compute80 => (8, 0),
            Target::Compute90 => (9, 0),
        }
    }

    /// The highest that a device runs; `None` for one that is too old.
    pub fn of(capability: (u32, u32)) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|target| target.capability() <= capability)
    }
}
