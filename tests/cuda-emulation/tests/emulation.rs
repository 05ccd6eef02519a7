//! The CUDA backend on the emulated device, and the emulation itself.

mod backend;
mod driver;
mod graphs;
mod kernels;
mod library;
mod primitives;
