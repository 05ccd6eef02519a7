//! The bytes of a model and a session, from options and policy, before anything is loaded.

use longview_core::LayerId;
use longview_model::folder::ModelFolder;
use longview_model::rope::RopeTable;
use longview_model::transformer::Workspace;
use longview_ops::Backend;
use longview_scheduler::{KvPlan, KvShape, MAX_CONTEXT, PolicyOptions, SequenceOptions};

use crate::error::EngineError;
use crate::memory::MemoryPlan;
use crate::options::EngineOptions;
use crate::policy::resolve_policy;

/// Most prompt tokens that are computed at a time: beyond, only memory grows.
pub const MAX_CHUNK_SIZE: usize = 1 << 16;

/// The bytes that `folder` and one session under `policy` take on this kind of device.
pub(crate) fn plan<B: Backend>(
    backend: &B,
    folder: &ModelFolder,
    options: &EngineOptions,
    policy_options: &PolicyOptions,
) -> Result<MemoryPlan, EngineError> {
    check_options(options)?;
    let (_, policy) = resolve_policy(policy_options, folder.config.n_layers, options.ctx_size)?;
    let quant_types = &backend.capabilities().quant_types;
    let unified = backend.capabilities().unified_memory;
    let sequence = options.sequence_options(backend.capabilities());
    sequence.check()?;
    check_buffers(folder, options, policy_options, &sequence)?;
    let kv = KvPlan::new(&kv_shape(folder, options), &policy, &sequence);
    let (tokens, rows) = step_size(options);
    Ok(MemoryPlan {
        weight_bytes: folder.tensors.device_bytes(&folder.config, quant_types),
        workspace_bytes: Workspace::<B>::device_bytes(&folder.config, tokens, rows),
        unified,
        kv,
    })
}

fn check_options(options: &EngineOptions) -> Result<(), EngineError> {
    if options.ctx_size == 0 || options.ctx_size > MAX_CONTEXT {
        return Err(EngineError::Context(options.ctx_size, MAX_CONTEXT));
    }
    if options.chunk_size > MAX_CHUNK_SIZE || options.chunk_size.min(options.tile_rows) == 0 {
        return Err(EngineError::ChunkSize(options.chunk_size, MAX_CHUNK_SIZE));
    }
    Ok(())
}

/// Fails where a session needs a larger buffer than the device has, and says how many tokens would
/// do with one of that size.
fn check_buffers(
    folder: &ModelFolder,
    options: &EngineOptions,
    policy: &PolicyOptions,
    sequence: &SequenceOptions,
) -> Result<(), EngineError> {
    let Some(available) = sequence.max_buffer_bytes else { return Ok(()) };
    let largest = |ctx_size: usize| {
        let options = EngineOptions { ctx_size, ..options.clone() };
        let (_, policy) = resolve_policy(policy, folder.config.n_layers, ctx_size)?;
        Ok(KvPlan::largest_buffer(&kv_shape(folder, &options), &policy, sequence))
    };
    let (what, needed) = largest(options.ctx_size)?;
    if needed <= available {
        return Ok(());
    }
    let fits = |tokens: usize| {
        let largest: Result<_, EngineError> = largest(tokens);
        largest.is_ok_and(|(_, bytes)| bytes <= available)
    };
    let (mut low, mut high) = (0, options.ctx_size);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if fits(middle) { low = middle } else { high = middle }
    }
    Err(EngineError::DeviceBuffer { what, needed, available, tokens: low })
}

/// Tokens and rows of logits of the largest step.
pub(crate) fn step_size(options: &EngineOptions) -> (usize, usize) {
    let rows = options.max_sequences.max(1) + options.max_drafted;
    (options.chunk_size.max(rows), rows)
}

pub(crate) fn kv_shape(folder: &ModelFolder, options: &EngineOptions) -> KvShape {
    shape_of(&folder.config, options)
}

pub(crate) fn shape_of(
    config: &longview_model::config::ModelConfig,
    options: &EngineOptions,
) -> KvShape {
    let (kv_dtype, host_rows) = options.rows();
    KvShape {
        n_layers: config.n_layers,
        n_q_heads: config.n_q_heads,
        n_kv_heads: config.n_kv_heads,
        head_dim: config.head_dim,
        kv_dtype,
        host_rows,
        capacity: options.ctx_size,
        scale: config.attention_scale(),
        inv_freq: RopeTable::new(&config.rope, options.ctx_size).inv_freq().into(),
        windows: match config.local {
            Some(_) => (0..config.n_layers).map(|l| config.window(LayerId::new(l))).collect(),
            None => [].into(),
        },
    }
}

#[cfg(test)]
mod tests {
    use longview_ops::{Capabilities, ReferenceBackend};
    use longview_scheduler::Preset;

    use super::*;

    #[test]
    fn layers_have_the_windows_of_the_model() {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/");
        let shape = |name: &str| {
            let folder = ModelFolder::open(format!("{fixtures}{name}").as_ref()).expect("a model");
            kv_shape(&folder, &EngineOptions { ctx_size: 256, ..EngineOptions::default() })
        };
        let gemma3 = shape("gemma3-windows");
        let windows: Vec<_> = gemma3.layers().map(|layer| gemma3.window(layer)).collect();
        let local = Some(40);
        assert_eq!(windows, [local, local, local, local, local, None]);
        assert_eq!(gemma3.scale, (1.0 / 20f64.sqrt()) as f32);
        assert!(shape("qwen3-tied").windows.is_empty());
    }

    /// A device whose buffers have so many bytes, with memory of its own.
    fn device(max_buffer_bytes: Option<u64>) -> ReferenceBackend {
        let capabilities = ReferenceBackend::new().capabilities().clone();
        let unified_memory = false;
        let limited = Capabilities { max_buffer_bytes, unified_memory, ..capabilities };
        ReferenceBackend::with_capabilities(limited)
    }

    #[test]
    fn a_buffer_beyond_the_devices_limit_is_refused_with_the_tokens_that_would_do() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/needle");
        let folder = ModelFolder::open(folder.as_ref()).expect("the embedded model");
        let options = EngineOptions { ctx_size: 1 << 20, ..EngineOptions::default() };
        let limit = 4 << 20;
        let planned = |preset, ctx_size, limit| {
            let options = EngineOptions { ctx_size, ..options.clone() };
            plan(&device(limit), &folder, &options, &PolicyOptions::new(preset))
        };
        // All rows of a layer take 256 times as much, in as many buffers.
        planned(Preset::Full, 1 << 20, Some(limit)).expect("rows in several buffers");
        planned(Preset::Longview, 1 << 20, None).expect("no limit");
        let error = planned(Preset::Longview, 1 << 20, Some(limit)).unwrap_err();
        let EngineError::DeviceBuffer { what, needed, available, tokens } = error else {
            panic!("{error}")
        };
        assert!(needed > available && available == limit, "{what}: {needed}");
        let message = error.to_string();
        assert!(message.contains(&format!("--ctx-size {tokens}")), "{message}");
        planned(Preset::Longview, tokens, Some(limit)).expect("the tokens that were named");
        planned(Preset::Longview, tokens + 1, Some(limit)).unwrap_err();
    }

    #[test]
    fn queries_are_scaled_as_the_model_says() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/needle");
        let mut folder = ModelFolder::open(folder.as_ref()).expect("the embedded model");
        // Of some widths, 96 of Phi-3 among them, a root in f32 is another number.
        for head_dim in 1..=512 {
            folder.config.head_dim = head_dim;
            let scale = kv_shape(&folder, &EngineOptions::default()).scale;
            assert_eq!(scale, folder.config.attention_scale(), "head width {head_dim}");
            assert_eq!(scale, (1.0 / (head_dim as f64).sqrt()) as f32, "head width {head_dim}");
        }
    }
}
