//! How an engine is set up, apart from the policy.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use longview_core::DType;
use longview_model::config::{ModelConfig, RopeScaling};
use longview_model::transformer::LoadOptions;
use longview_ops::{Activations, Capabilities};
use longview_scheduler::{
    HostRows, HostStoreKind, Placement, PrefillMode, RecallMode, SequenceOptions,
};

/// What is chosen once, when a model is loaded.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Most tokens of a session; memory and RoPE are planned for it.
    pub ctx_size: usize,
    /// Prompt tokens computed at a time.
    pub chunk_size: usize,
    /// How prompts are read.
    pub prefill: PrefillMode,
    /// Storage of keys and values. [`DType::Q8`]: 8 bits in host memory and in the device cache,
    /// but for the first and the most recent ones, which are f16 as all others on a device are.
    pub kv_dtype: DType,
    /// Keep rows in separate device buffers of fixed size even where the device shares memory with
    /// the host, so that fetch, hits, misses and eviction are real.
    pub simulate_device: bool,
    /// Rows of a tile of the past that prefill streams to the device.
    pub tile_rows: usize,
    /// Let the device find hits and misses itself where its kernels read the host's memory over a
    /// bus; without, the host sees what each step chose, as probes need it.
    pub device_cache: bool,
    /// Where keys and values of layers that recall lie, on a device with memory of its own.
    pub kv_residency: KvResidency,
    /// Cluster on a thread beside other work.
    pub overlap: bool,
    /// Which query chooses what a step recalls. Speculation needs rows in separate device buffers:
    /// a device with memory of its own, or `simulate_device`.
    pub recall: RecallMode,
    /// Bytes of device memory to plan with, in place of what the device says it has.
    pub device_memory: Option<u64>,
    /// Most sequences in one step.
    pub max_sequences: usize,
    /// Most drafted tokens in one step, of all its sequences together; 0: none are ever drafted.
    pub max_drafted: usize,
    /// RoPE scaling in place of the model's own.
    pub rope: Option<RopeOverride>,
    /// Where all keys and values are kept.
    pub host_store: HostStoreKind,
    /// What products with quantised weights, and with those of BF16, do to activations.
    pub activations: Activations,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            ctx_size: 4096,
            chunk_size: 512,
            prefill: PrefillMode::Exact,
            kv_dtype: DType::F16,
            simulate_device: false,
            tile_rows: 2048,
            device_cache: true,
            kv_residency: KvResidency::default(),
            overlap: true,
            recall: RecallMode::Exact,
            device_memory: None,
            max_sequences: 1,
            max_drafted: 0,
            rope: None,
            host_store: HostStoreKind::Auto,
            activations: Activations::default(),
        }
    }
}

impl EngineOptions {
    /// How the model is loaded.
    pub(crate) fn load(&self) -> LoadOptions {
        LoadOptions { planned_context: self.ctx_size, activations: self.activations }
    }

    /// The type of rows as they are attended, and how the host store keeps them.
    pub(crate) fn rows(&self) -> (DType, HostRows) {
        match self.kv_dtype {
            DType::Q8 => (DType::F16, HostRows::EightBits),
            dtype => (dtype, HostRows::Plain),
        }
    }

    /// How sequences are laid out under these options on such a device.
    pub(crate) fn sequence_options(&self, device: &Capabilities) -> SequenceOptions {
        let unified_memory = device.unified_memory;
        let reads_rows = device.kv_dtypes.contains(&self.kv_dtype);
        let in_place = unified_memory && reads_rows && !self.simulate_device;
        SequenceOptions {
            placement: if in_place { Placement::InPlace } else { Placement::Device },
            store: self.host_store,
            prefill: self.prefill,
            chunk: self.chunk_size,
            tile: self.tile_rows,
            overlap: self.overlap,
            recall: self.recall,
            // Where kernels read host memory over a bus, the host need not know what is missing.
            device_cache: self.device_cache && !unified_memory,
            resident_rows: self.kv_residency == KvResidency::Device && !in_place,
            eight_bit_slots: device.kv_dtypes.contains(&DType::Q8),
            max_buffer_bytes: device.max_buffer_bytes,
        }
    }
}

/// Where keys and values of layers that recall lie, on a device with memory of its own. The host
/// has all of them in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvResidency {
    /// On the host: the device fetches what a step recalls, and keeps what the last steps recalled.
    #[default]
    Host,
    /// All of them on the device too: nothing is fetched.
    Device,
    /// [`KvResidency::Device`] where the device is known to have memory for it, else
    /// [`KvResidency::Host`]. Decided when the model is loaded, for the policy that it is loaded
    /// with and as many sessions as there may be in a step.
    Auto,
}

/// RoPE scaling that the user asks for, as llama.cpp's `--rope-scaling`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RopeOverride {
    /// As if the model had none.
    None,
    /// All frequencies divided.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// YaRN (Peng et al., 2023) with its published defaults.
    Yarn {
        /// The divisor of slow frequencies.
        factor: f64,
        /// The context that the model was trained for.
        original_context: usize,
    },
}

impl RopeOverride {
    pub(crate) fn apply(self, config: &mut ModelConfig) {
        config.rope.scaling = match self {
            RopeOverride::None => RopeScaling::Default,
            RopeOverride::Linear { factor } => RopeScaling::Linear { factor },
            RopeOverride::Yarn { factor, original_context } => RopeScaling::Yarn {
                factor,
                attention_factor: 0.1 * factor.ln() + 1.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate: true,
                original_max_positions: original_context,
            },
        };
    }
}

/// A flag that ends a running call at the next layer, or at the next iteration of a clustering.
/// Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CancelToken(Arc<AtomicBool>);

impl CancelToken {
    /// Asks the call to end.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Makes the token usable again.
    pub fn reset(&self) {
        self.0.store(false, Ordering::Relaxed);
    }

    /// What the scheduler looks at in the middle of an index.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.0)
    }

    /// Whether the call should end.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
