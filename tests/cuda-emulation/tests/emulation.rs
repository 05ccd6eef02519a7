//! The CUDA backend on the emulated device, and the emulation itself.

mod backend;
mod graphs;
mod kernels;
mod library;
mod primitives;
