//! How to open a device.

use crate::shader_level::ShaderLevel;

/// Which device, and what its shaders may use.
#[derive(Clone, Debug, Default)]
pub struct WgpuOptions {
    /// A number of [`crate::adapters`] or a part of a name; `None` leaves the choice to the system.
    pub adapter: Option<String>,
    /// The shader level; `None` takes the highest that computes right numbers.
    pub shader_level: Option<ShaderLevel>,
    /// Launches on a software device only what the result needs, and nothing to fill a device that
    /// has few threads: its workgroups with barriers are dear. Tests leave it off, so that they run
    /// what real devices run.
    pub spares_software: bool,
    /// Most bytes of a buffer that a kernel sees, where that is to be less than the adapter allows:
    /// for tests. `None` takes what the adapter allows.
    pub max_binding_bytes: Option<u64>,
    /// Notes which variants are launched, compiles none and computes nothing: for tests that ask
    /// what would run. Such a device does not test itself.
    pub lists_only: bool,
}
