//! The CPU backend: vector kernels chosen once at start, a thread pool fit for decode, plain
//! weights read in place.
//!
//! - Instruction sets ([`Isa`]: portable, NEON, AVX2, AVX-512) are detected once; each can be
//!   forced ([`CpuOptions::isa`]). A kernel is written once, generic over `simd::Simd`, and
//!   compiled for each of them.
//! - An op runs when it is called, on the calling thread and, where it is large enough, on the
//!   pool's workers. How work is cut depends on shapes alone, so results are the same for any
//!   number of threads.
//! - After warm-up no op allocates: buffers are the caller's, scratch only grows.
//!
//! The trade-off taken everywhere but in products with quantised weights, and with weights of bf16
//! where that was asked for: full f32 arithmetic. Weights and KV rows of 16 bits are widened
//! exactly. Activations that are rounded to bf16 are multiplied by `vdpbf16ps`, which has twice the
//! peak (`kernels::pairs`), and as f32 where there is none. Quantised weights become tiles when
//! they are loaded, and products with them are dot products of bytes (`kernels::quant`,
//! `simd::bytes`).
//!
//! **Invariant**: `unsafe` stays in `simd`, `kernels`, `buffer`, `huge_pages`, `pages`, `pool`,
//! `team` and `supported_isa`; modules under `ops` are safe code that cuts slices and calls
//! kernels.

#[cfg(not(target_endian = "little"))]
compile_error!("buffers and weights are little-endian");

// A browser computes through `longview-wgpu`. Nobody builds this crate for it, so nothing here
// branches on it: a branch that no build compiles rots.
#[cfg(target_family = "wasm")]
compile_error!("the CPU backend needs threads and a clock: in a browser use longview-wgpu");

mod backend;
mod buffer;
mod contract;
mod copy;
mod error;
mod group;
mod huge_pages;
mod indices;
mod isa;
mod kernels;
mod limits;
mod machine;
mod ops;
#[cfg(all(target_os = "linux", not(address_sanitizer)))]
mod pages;
mod partials;
mod pool;
mod problem;
mod quantised;
mod queue;
mod rounded;
mod scratch;
mod search_tokens;
mod simd;
mod supported_isa;
mod sync;
mod team;
mod views;
mod weight;

// Tests of what is public, as of another crate. Compiled here, they run kernels with the standard
// library's checks of unsafe code, which the library that other crates link goes without.
#[cfg(test)]
extern crate self as longview_cpu;
#[cfg(test)]
#[path = "../tests/backend.rs"]
mod backend_tests;

pub use backend::{CpuBackend, CpuOptions};
pub use buffer::CpuBuffer;
pub use error::CpuError;
pub use huge_pages::{HugePages, huge_pages, return_large_memory};
pub use isa::Isa;
pub use limits::Limits;
pub use machine::{available_memory, physical_cores};
pub use weight::CpuWeight;
