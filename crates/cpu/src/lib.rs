//! The CPU backend: vector kernels chosen once at start, a thread pool fit for decode, weights read
//! in place.
//!
//! - [`Isa`] tiers (portable, NEON, AVX2, AVX-512) are detected once; each can be forced
//!   ([`CpuOptions::isa`]). A kernel is written once, generic over `simd::Simd`, and compiled for
//!   every tier.
//! - An op runs when it is called, on the calling thread and, where it is large enough, on the
//!   pool's workers. How work is cut depends on shapes alone, so results are the same for any
//!   number of threads.
//! - After warm-up no op allocates: buffers are the caller's, scratch only grows.
//!
//! The trade-off taken everywhere: full f32 arithmetic. Weights and KV rows of 16 bits are widened
//! exactly; activations are never rounded to bf16 for `vdpbf16ps`, although that would double the
//! peak.
//!
//! **Invariant**: `unsafe` stays in `simd`, `kernels`, `buffer`, `pool`, `team` and `isa`; modules
//! under `ops` are safe code that cuts slices and calls kernels.

#[cfg(not(target_endian = "little"))]
compile_error!("buffers and weights are little-endian");

mod backend;
mod buffer;
mod isa;
mod kernels;
mod limits;
mod machine;
mod ops;
#[cfg(not(target_arch = "wasm32"))]
mod pool;
mod scratch;
mod simd;
#[cfg(not(target_arch = "wasm32"))]
mod sync;
mod team;
mod weight;

pub use backend::{CpuBackend, CpuOptions};
pub use buffer::CpuBuffer;
pub use isa::Isa;
pub use limits::Limits;
pub use weight::CpuWeight;

/// The backend's name on command lines and in errors.
pub(crate) const NAME: &str = "cpu";

/// Why the backend could not start.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// A tier was forced that this machine lacks.
    #[error(
        "this processor has no {isa}: leave the instruction set to the program, or use portable"
    )]
    MissingIsa {
        /// The tier.
        isa: Isa,
    },
    /// The operating system refused a thread.
    #[error("cannot start {threads} threads: {source}")]
    Threads {
        /// How many were asked for.
        threads: usize,
        /// What the system said.
        source: std::io::Error,
    },
}
