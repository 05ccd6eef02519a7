//! The bytes of a model and a session, from options and policy, before anything is loaded.

use longview_core::LayerId;
use longview_model::folder::ModelFolder;
use longview_model::rope::RopeTable;
use longview_model::transformer::Workspace;
use longview_ops::Backend;
use longview_scheduler::{
    KvPlan, KvShape, MAX_CONTEXT, PolicyOptions, RecallMode, SequenceOptions,
};

use crate::error::EngineError;
use crate::memory::MemoryPlan;
use crate::options::{EngineOptions, KvResidency};
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
    let options = &settled(backend, folder, options, policy_options);
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

/// The options with [`KvResidency::Auto`] decided: all rows go to a device of which it is known
/// that three quarters of its memory hold them, for as many sessions as there may be in a step. Of
/// a device that takes the host's memory half of it has to hold what lies there as well.
pub(crate) fn settled<B: Backend>(
    backend: &B,
    folder: &ModelFolder,
    options: &EngineOptions,
    policy: &PolicyOptions,
) -> EngineOptions {
    if options.kv_residency != KvResidency::Auto {
        return options.clone();
    }
    let with = |kv_residency| EngineOptions { kv_residency, ..options.clone() };
    let on_device = with(KvResidency::Device);
    let memory = options.device_memory.or(backend.capabilities().memory_bytes);
    let others = options.max_sequences.saturating_sub(1) as u64;
    let fits = |plan: MemoryPlan| {
        let on_device = plan.device_bytes() + others * plan.kv.device_kv_bytes();
        let both = on_device + (1 + others) * plan.host_bytes();
        let has_own = !backend.capabilities().takes_host_memory;
        // What a driver says is often all that there is, whether free or not.
        let fits = |bytes: u64| {
            if has_own { on_device <= bytes / 4 * 3 } else { both <= bytes / 2 }
        };
        !plan.unified && memory.is_some_and(fits)
    };
    // Rows that are fetched ahead are not there.
    let is_exact = options.recall == RecallMode::Exact;
    let plan = plan(backend, folder, &on_device, policy);
    if is_exact && plan.is_ok_and(fits) { on_device } else { with(KvResidency::Host) }
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
        let (unified_memory, takes_host_memory) = (false, false);
        let limited =
            Capabilities { max_buffer_bytes, unified_memory, takes_host_memory, ..capabilities };
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
    fn rows_go_to_a_device_that_is_known_to_have_room_for_them() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/needle");
        let folder = ModelFolder::open(folder.as_ref()).expect("the embedded model");
        let auto = EngineOptions {
            ctx_size: 1 << 16,
            kv_residency: KvResidency::Auto,
            ..EngineOptions::default()
        };
        let policy = PolicyOptions::new(Preset::Longview);
        let of = |options: &EngineOptions| settled(&device(None), &folder, options, &policy);
        assert_eq!(of(&auto).kv_residency, KvResidency::Host, "nobody knows its memory");
        let given = |bytes| EngineOptions { device_memory: Some(bytes), ..auto.clone() };
        assert_eq!(of(&given(1 << 40)).kv_residency, KvResidency::Device);
        let on_device = EngineOptions { kv_residency: KvResidency::Device, ..auto.clone() };
        let plan = |options: &EngineOptions| {
            super::plan(&device(None), &folder, options, &policy).expect("a plan")
        };
        let (host, all) = (plan(&auto), plan(&on_device));
        assert!(all.kv.cache_bytes > 10 * host.kv.cache_bytes, "{all:?} and {host:?}");
        let needed = all.device_bytes();
        assert_eq!(of(&given(needed)).kv_residency, KvResidency::Host, "no room to spare");
        let roomy = needed / 3 * 4 + 16;
        assert_eq!(of(&given(roomy)).kv_residency, KvResidency::Device);
        let integrated =
            Capabilities { takes_host_memory: true, ..device(None).capabilities().clone() };
        let integrated = ReferenceBackend::with_capabilities(integrated);
        let of_integrated = |bytes| settled(&integrated, &folder, &given(bytes), &policy);
        let both = 2 * (needed + all.host_bytes());
        assert_eq!(of_integrated(both).kv_residency, KvResidency::Device);
        assert_eq!(of_integrated(both - 2).kv_residency, KvResidency::Host);
        let two = EngineOptions { max_sequences: 2, ..given(roomy) };
        assert_eq!(of(&two).kv_residency, KvResidency::Host, "one of two sessions");
        let recall = RecallMode::Speculative { gate: 0.9 };
        let ahead = EngineOptions { recall, ..given(1 << 40) };
        assert_eq!(of(&ahead).kv_residency, KvResidency::Host);
        assert_eq!(of(&on_device).kv_residency, KvResidency::Device, "as it was asked for");
        let unified = settled(&ReferenceBackend::new(), &folder, &given(1 << 40), &policy);
        assert_eq!(unified.kv_residency, KvResidency::Host, "rows are attended in place there");
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
