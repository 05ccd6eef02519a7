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
    /// Opens the device with the limits that WebGPU guarantees and not with the adapter's: for
    /// tests, so that what passes there needs no more.
    pub webgpu_limits: bool,
    /// Most bytes of a buffer that a kernel sees, where that is to be less than the limits above
    /// allow: for tests. `None` takes what they allow.
    pub max_binding_bytes: Option<u64>,
    /// The longest time that one submit should take, so that a window on the same device can draw
    /// between two of them; a dispatch that takes longer is submitted by itself. `None` bounds
    /// submits by counts and bytes alone.
    pub submit_limit: Option<std::time::Duration>,
    /// Where compiled pipelines are kept from one start to the next, for drivers that do not keep
    /// them themselves; `None` keeps none. Made where it is missing, for this user alone.
    pub pipeline_folder: Option<std::path::PathBuf>,
    /// Notes which variants are launched, compiles none and computes nothing: for tests that ask
    /// what would run. Such a device does not test itself.
    pub lists_only: bool,
    /// A shader, by the name of its file, whose kernels are not run: for tests that count bytes and
    /// read no result of it. Such a device does not test itself either.
    pub left_out: Option<&'static str>,
    /// A shader that is wrong at one level.
    #[cfg(test)]
    pub(crate) broken: Option<Broken>,
}

/// What is wrong with a shader: one text of its file in place of another.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broken {
    pub level: ShaderLevel,
    pub stem: &'static str,
    pub from: &'static str,
    pub to: &'static str,
}
