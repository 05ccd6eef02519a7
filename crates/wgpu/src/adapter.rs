//! Adapters: which there are, and the opening of one.

use crate::error::StartError;
use crate::memory;
use crate::options::WgpuOptions;
use crate::shader_level::ShaderLevel;

/// What every kernel needs: WebGPU's guaranteed limits.
const NEEDED_STORAGE_BUFFERS: u32 = 8;
const NEEDED_INVOCATIONS: u32 = 256;
const NEEDED_SHARED: u32 = 16384;

/// One adapter, for `doctor`.
#[derive(Clone, Debug)]
pub struct AdapterReport {
    /// Its place in the list; `--adapter` takes it.
    pub index: usize,
    /// The product's name, as the driver gives it.
    pub name: String,
    /// Vulkan, Metal, DX12 or WebGPU.
    pub api: String,
    /// Discrete, integrated, CPU (software) and so on.
    pub kind: String,
    /// Driver and version.
    pub driver: String,
    /// Most bytes of one buffer that a kernel sees.
    pub max_binding: u64,
    /// Most bytes of one buffer.
    pub max_buffer: u64,
    /// Bytes of device memory, where the driver tells.
    pub memory: Option<u64>,
    /// Bytes of workgroup memory that one workgroup may have.
    pub shared_memory: u32,
    /// Smallest and largest subgroup, if there are subgroup operations.
    pub subgroup_sizes: Option<(u32, u32)>,
    /// Whether shaders may use f16.
    pub f16: bool,
}

impl AdapterReport {
    fn new(index: usize, adapter: &wgpu::Adapter) -> Self {
        let (info, limits, features) = (adapter.get_info(), adapter.limits(), adapter.features());
        let subgroups = features.contains(wgpu::Features::SUBGROUP);
        Self {
            index,
            name: info.name,
            api: info.backend.to_string(),
            kind: format!("{:?}", info.device_type),
            driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
            max_binding: limits.max_storage_buffer_binding_size,
            max_buffer: limits.max_buffer_size,
            memory: memory::device_bytes(adapter),
            shared_memory: limits.max_compute_workgroup_storage_size,
            subgroup_sizes: subgroups.then_some((info.subgroup_min_size, info.subgroup_max_size)),
            f16: features.contains(wgpu::Features::SHADER_F16),
        }
    }
}

/// The shader levels that an adapter's features allow, lowest first.
pub(crate) fn levels(adapter: &wgpu::Adapter) -> Vec<ShaderLevel> {
    let has = |feature| adapter.features().contains(feature);
    let mut levels = vec![ShaderLevel::Core];
    levels.extend(has(wgpu::Features::SHADER_F16).then_some(ShaderLevel::F16));
    levels.extend(has(wgpu::Features::SUBGROUP).then_some(ShaderLevel::Subgroups));
    levels
}

fn instance() -> wgpu::Instance {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle_from_env();
    descriptor.backends &= wgpu::Backends::PRIMARY;
    wgpu::Instance::new(descriptor)
}

/// All adapters, in the order of their numbers. Empty in a browser, which shows none.
pub async fn adapters() -> Vec<AdapterReport> {
    let found = instance().enumerate_adapters(wgpu::Backends::PRIMARY).await;
    found.iter().enumerate().map(|(i, a)| AdapterReport::new(i, a)).collect()
}

/// The adapter that was asked for (a number or a part of its name), or the one that the system
/// thinks fastest.
pub(crate) async fn choose(wanted: Option<&str>) -> Result<wgpu::Adapter, StartError> {
    let instance = instance();
    let Some(wanted) = wanted else {
        let options = wgpu::RequestAdapterOptions {
            power_preference: wgpu::PowerPreference::HighPerformance,
            ..Default::default()
        };
        let adapter = instance.request_adapter(&options).await;
        return adapter.map_err(|e| StartError::NoAdapter { reason: e.to_string() });
    };
    let mut found = instance.enumerate_adapters(wgpu::Backends::PRIMARY).await;
    if found.is_empty() {
        let reason = format!("the list is empty, so none matches '{wanted}'");
        return Err(StartError::NoAdapter { reason });
    }
    let names: Vec<String> = found.iter().map(|a| a.get_info().name).collect();
    let place = match wanted.parse::<usize>() {
        Ok(index) => (index < found.len()).then_some(index),
        Err(_) => {
            let wanted = wanted.to_lowercase();
            names.iter().position(|name| name.to_lowercase().contains(&wanted))
        }
    };
    match place {
        Some(place) => Ok(found.swap_remove(place)),
        None => {
            let list: Vec<_> =
                names.iter().enumerate().map(|(i, name)| format!("{i} {name}")).collect();
            Err(StartError::NoSuchAdapter { wanted: wanted.into(), found: list.join(", ") })
        }
    }
}

/// Opens a device with every feature that a shader level may use and the adapter's own limits, but
/// where the options ask for less.
pub(crate) async fn open(
    adapter: &wgpu::Adapter,
    options: &WgpuOptions,
) -> Result<(wgpu::Device, wgpu::Queue), StartError> {
    let (info, mut limits) = (adapter.get_info(), adapter.limits());
    if options.webgpu_limits {
        limits = wgpu::Limits::default().or_worse_values_from(&limits);
    }
    let allowed = limits.max_storage_buffer_binding_size;
    limits.max_storage_buffer_binding_size =
        options.max_binding_bytes.map_or(allowed, |bytes| bytes.min(allowed));
    let least = |what: &'static str, found: u32, needed: u32| {
        if found >= needed {
            return Ok(());
        }
        Err(StartError::Limits {
            adapter: info.name.clone(),
            what,
            found: found.into(),
            needed: needed.into(),
        })
    };
    least(
        "storage buffers per kernel",
        limits.max_storage_buffers_per_shader_stage,
        NEEDED_STORAGE_BUFFERS,
    )?;
    least(
        "invocations per workgroup",
        limits.max_compute_invocations_per_workgroup,
        NEEDED_INVOCATIONS,
    )?;
    least("bytes of workgroup memory", limits.max_compute_workgroup_storage_size, NEEDED_SHARED)?;
    let optional = wgpu::Features::SHADER_F16
        | wgpu::Features::SUBGROUP
        | wgpu::Features::TIMESTAMP_QUERY
        | wgpu::Features::PIPELINE_CACHE;
    let device = adapter
        .request_device(&wgpu::DeviceDescriptor {
            label: Some("longview"),
            required_features: adapter.features() & optional,
            required_limits: limits,
            experimental_features: wgpu::ExperimentalFeatures::disabled(),
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        })
        .await;
    device.map_err(|e| StartError::Device { adapter: info.name, reason: e.to_string() })
}
