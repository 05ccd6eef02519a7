//! Everything that runs the runtime, as one program: linked once, and what is generic over the
//! backend is compiled once for each backend.
//!
//! Beside it stands `no_alloc`, whose allocator counts for the whole process.

mod bench;
mod cuda;
mod cuda_counts;
mod drafts;
mod engine;
mod golden;
mod gpu;
mod gpu_suite;
mod mapped_rows;
mod oracles;
mod parity;
mod policy;
mod prefix;
mod presets;
mod published;
mod quantised;
mod session_file;
mod several_sequences;
mod sparse;
