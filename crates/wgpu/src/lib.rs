//! The WGSL backend: every op of the contract as a shader, on Vulkan, Metal, DX12 and, in the
//! browser, WebGPU.
//!
//! How a call becomes work on the GPU: an op checks its descriptor, picks a *variant* of its shader
//! (a stem, an entry point and a list of constants), and records a dispatch. Records are played
//! into one command buffer when somebody reads, submits, or many have gathered. What the host
//! writes goes through a staging ring and is played in its place among the dispatches, so the order
//! of calls is the order on the device. Everything that a step needs again is kept: pipelines by
//! variant, bind groups by buffers, staging chunks by size.
//!
//! Shaders lie in the workspace's `shaders/`, one stem per op; see [`shader`] for the include step.

mod adapter;
mod attention;
mod backend;
mod bindings;
mod buffer;
#[cfg(not(target_arch = "wasm32"))]
mod cache_file;
mod contract;
mod counters;
mod error;
mod fused;
mod gpu;
#[cfg(not(target_arch = "wasm32"))]
mod kernel_list;
mod launch;
mod linear;
mod lock;
mod memory;
mod open;
mod ops;
mod options;
mod pace;
#[cfg(not(target_arch = "wasm32"))]
mod pipeline_file;
mod quantised;
mod raw_buffer;
mod readback;
mod recorder;
mod score_select;
mod scratch;
pub mod shader;
mod shader_level;
#[cfg(test)]
mod small_bindings;
#[cfg(test)]
mod testing;
mod variants;
mod weight;

pub use adapter::{AdapterReport, adapters};
pub use backend::{DeviceInfo, WgpuBackend};
pub use buffer::WgpuBuffer;
pub use counters::Counters;
pub use error::StartError;
pub use options::WgpuOptions;
pub use shader_level::ShaderLevel;
pub use variants::{ShaderValue, ShaderVariant, variants};
pub use weight::WgpuWeight;
