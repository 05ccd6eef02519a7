//! Why a device could not be opened.

/// No device, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No adapter at all.
    #[error(
        "no GPU adapter was found ({reason}); install a Vulkan, Metal or DX12 driver, or use --device cpu"
    )]
    NoAdapter {
        /// What the system said.
        reason: String,
    },
    /// The adapter that was asked for is not there.
    #[error("no adapter matches '{wanted}'; there are: {found}")]
    NoSuchAdapter {
        /// What was asked for: a number or a part of a name.
        wanted: String,
        /// The adapters by name.
        found: String,
    },
    /// The adapter lacks what every kernel needs.
    #[error(
        "adapter {adapter} offers {what} {found}, but {needed} are needed; use another --adapter or --device cpu"
    )]
    Limits {
        /// The adapter's name.
        adapter: String,
        /// Which limit.
        what: &'static str,
        /// What it offers.
        found: u64,
        /// What is needed.
        needed: u64,
    },
    /// The shader level that was asked for is not there.
    #[error("adapter {adapter} has no shader level '{level}': {reason}")]
    ShaderLevel {
        /// The adapter's name.
        adapter: String,
        /// Its name.
        level: &'static str,
        /// What is missing.
        reason: String,
    },
    /// The driver refused.
    #[error("adapter {adapter} gave no device: {reason}")]
    Device {
        /// The adapter's name.
        adapter: String,
        /// What the driver said.
        reason: String,
    },
    /// None of the shader levels tried computes right numbers.
    #[error(
        "adapter {adapter} computes wrong numbers at shader level {levels} ({reason}); update its \
         driver, or use another --shader-level or --device cpu"
    )]
    SelfTest {
        /// The adapter's name.
        adapter: String,
        /// Their names.
        levels: String,
        /// Which test failed at the lowest of them.
        reason: String,
    },
}
