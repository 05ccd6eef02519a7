//! Opening a device at the highest level of shaders that computes right numbers.

use std::sync::{Arc, Mutex, PoisonError};

use longview_core::DType;
use longview_core::quant::QuantType;
use longview_ops::fused_case::fused_check;
use longview_ops::{Capabilities, Op, parity};

use crate::adapter;
use crate::backend::{Instant, WgpuBackend};
use crate::error::StartError;
use crate::gpu::Gpu;
#[cfg(not(target_arch = "wasm32"))]
use crate::kernel_list::KernelList;
use crate::memory;
use crate::options::WgpuOptions;
use crate::pace::Pace;
#[cfg(not(target_arch = "wasm32"))]
use crate::pipeline_file::PipelineFile;
use crate::recorder::Recorder;
use crate::scratch::Scratch;
use crate::shader_level::ShaderLevel;
#[cfg(not(target_arch = "wasm32"))]
use crate::variants;
use crate::weight::WeightArena;

/// What the self-test runs at the start beside the fused calls: one op of each kind of kernel.
const TESTED: &[Op] =
    &[Op::RmsNorm, Op::Matvec, Op::Matmul, Op::AttendList, Op::AttendChunk, Op::CentroidScores];

/// Whether the device computes right numbers: some cases of each kind of kernel, and the fused
/// calls of a decoded token.
async fn self_test(backend: &WgpuBackend) -> Result<(), String> {
    parity::spot_check(backend, TESTED).await?;
    fused_check(backend).await
}

/// A device of this process that passed its self-test, as far as the result can depend on it.
#[derive(PartialEq)]
struct Passed {
    info: wgpu::AdapterInfo,
    level: ShaderLevel,
    fills: bool,
    webgpu_limits: bool,
    max_binding_bytes: Option<u64>,
}

/// Devices that passed. What passed once is not tested again: a device that is opened in place of a
/// lost one, or beside another one, computes with the same driver.
static PASSED: Mutex<Vec<Passed>> = Mutex::new(Vec::new());

/// Tests a device, unless one that was opened in the same way has passed before.
async fn test_once(backend: &WgpuBackend) -> Result<(), String> {
    let (gpu, options) = (&backend.gpu, &backend.options);
    #[cfg(test)]
    if gpu.broken.is_some() {
        return self_test(backend).await;
    }
    let this = Passed {
        info: gpu.info.clone(),
        level: gpu.level,
        fills: gpu.fills,
        webgpu_limits: options.webgpu_limits,
        max_binding_bytes: options.max_binding_bytes,
    };
    if PASSED.lock().unwrap_or_else(PoisonError::into_inner).contains(&this) {
        return Ok(());
    }
    self_test(backend).await?;
    PASSED.lock().unwrap_or_else(PoisonError::into_inner).push(this);
    Ok(())
}

impl WgpuBackend {
    /// Opens a device: at the level asked for, or at the highest that computes right numbers.
    pub async fn new(options: &WgpuOptions) -> Result<Self, StartError> {
        Self::on(adapter::choose(options.adapter.as_deref()).await?, options).await
    }

    /// Opens a device of real hardware; `None` where there is no adapter or only a software one.
    pub async fn hardware(options: &WgpuOptions) -> Result<Option<Self>, StartError> {
        match adapter::choose(options.adapter.as_deref()).await {
            Err(StartError::NoAdapter { .. }) => Ok(None),
            Err(other) => Err(other),
            Ok(adapter) if adapter.get_info().device_type == wgpu::DeviceType::Cpu => Ok(None),
            Ok(adapter) => Self::on(adapter, options).await.map(Some),
        }
    }

    async fn on(adapter: wgpu::Adapter, options: &WgpuOptions) -> Result<Self, StartError> {
        let info = adapter.get_info();
        let levels = adapter::levels(&adapter);
        let levels = match options.shader_level {
            Some(level) if !levels.contains(&level) => {
                return Err(StartError::ShaderLevel {
                    adapter: info.name,
                    level: level.name(),
                    reason: "its features are missing".into(),
                });
            }
            Some(level) => vec![level],
            None => levels,
        };
        let mut reason = String::new();
        for &level in levels.iter().rev() {
            // A device of its own for each try: a kernel that fails may take the device with it.
            let (device, queue) = adapter::open(&adapter, options).await?;
            let mut gpu = Gpu::new(device, queue, info.clone(), level);
            gpu.pace = options.submit_limit.map(|limit| {
                let start = Instant::now();
                Arc::new(Pace::new(limit, move || start.elapsed()))
            });
            gpu.fills = !(options.spares_software && gpu.is_software());
            #[cfg(not(target_arch = "wasm32"))]
            if let Some(folder) = options.pipeline_folder.as_deref() {
                gpu.pipelines = PipelineFile::open(&gpu.device, &gpu.info, folder);
            }
            #[cfg(test)]
            {
                gpu.broken = options.broken.filter(|broken| broken.level == level);
            }
            let memory = memory::device_bytes(&adapter);
            let backend = Self::with_device(gpu, memory, options.clone());
            if options.lists_only || options.left_out.is_some() {
                return Ok(backend);
            }
            match test_once(&backend).await {
                Ok(()) => return Ok(backend.with_listed_kernels()),
                Err(message) => reason = message,
            }
        }
        let levels: Vec<_> = levels.into_iter().map(ShaderLevel::name).collect();
        Err(StartError::SelfTest { adapter: info.name, levels: levels.join(", "), reason })
    }

    /// A device that passed its test, with a thread that compiles what ran last time.
    #[cfg(not(target_arch = "wasm32"))]
    fn with_listed_kernels(mut self) -> Self {
        if let Some(folder) = &self.options.pipeline_folder {
            let list = KernelList::start(&self.gpu, folder, &variants::names());
            self.kernel_list = Some(Arc::new(list));
        }
        self
    }

    /// A browser has no such list.
    #[cfg(target_arch = "wasm32")]
    fn with_listed_kernels(self) -> Self {
        self
    }

    /// What the self-test says of each level that the adapter's features allow.
    pub async fn test_shader_levels(
        adapter: &str,
    ) -> Result<Vec<(ShaderLevel, Result<(), String>)>, StartError> {
        let mut results = Vec::new();
        for level in adapter::levels(&adapter::choose(Some(adapter)).await?) {
            let adapter = Some(adapter.to_owned());
            let options =
                WgpuOptions { adapter, shader_level: Some(level), ..WgpuOptions::default() };
            results.push((level, Self::new(&options).await.map(drop).map_err(|e| e.to_string())));
        }
        Ok(results)
    }

    fn with_device(gpu: Gpu, memory_bytes: Option<u64>, options: WgpuOptions) -> Self {
        let capabilities = Arc::new(Capabilities {
            device: format!("{} ({}), shader level {}", gpu.info.name, gpu.info.backend, gpu.level),
            reads_host_memory: false,
            unified_memory: false,
            takes_host_memory: matches!(
                gpu.info.device_type,
                wgpu::DeviceType::IntegratedGpu | wgpu::DeviceType::Cpu
            ),
            overlaps: false,
            matvec_max_rows: 8,
            chunk_rows_are_alike: false,
            orders_chunk_rows: false,
            kv_dtypes: vec![DType::F32, DType::F16, DType::BF16, DType::Q8],
            weight_dtypes: vec![DType::F32, DType::F16, DType::BF16],
            quant_types: QuantType::ALL.to_vec(),
            missing_ops: Vec::new(),
            memory_bytes,
            max_buffer_bytes: Some(gpu.max_storage_bytes()),
        });
        let recorder = Mutex::new(Recorder::new(&gpu));
        Self {
            #[cfg(not(target_arch = "wasm32"))]
            kernel_list: None,
            gpu: Arc::new(gpu),
            options,
            capabilities,
            weights: Arc::new(Mutex::new(WeightArena::of_matrices())),
            vectors: Arc::new(Mutex::new(WeightArena::of_vectors())),
            recorder,
            ring: Mutex::default(),
            scratch: Scratch::default(),
            start: Instant::now(),
        }
    }
}

/// These need an adapter, as `tests/backend.rs` does.
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use pollster::block_on;

    use super::*;
    use crate::options::Broken;
    use crate::testing;

    /// What decoding a token runs, of every kind of kernel.
    #[test]
    fn the_self_test_runs_the_decode_path() {
        let Some(backend) = testing::device() else { return };
        block_on(self_test(&backend)).expect("right numbers");
        let entries: BTreeSet<&str> = backend.gpu.entries().collect();
        let wanted = [
            "attend_chunk",
            "attend_list",
            "attend_merge",
            "gated",
            "logits",
            "matmul",
            "matvec",
            "pool",
            "project",
            "rms_norm",
            "round_rows",
            "tile_product",
        ];
        assert!(wanted.iter().all(|entry| entries.contains(entry)), "{entries:?}");
    }

    /// The error says what is wrong.
    fn refused(broken: Broken) -> String {
        let (shader_level, broken) = (Some(broken.level), Some(broken));
        let options = WgpuOptions { shader_level, broken, ..WgpuOptions::default() };
        match block_on(WgpuBackend::new(&options)) {
            Ok(_) => panic!("{broken:?} was not found"),
            Err(e) => e.to_string(),
        }
    }

    #[test]
    fn a_wrong_kernel_of_the_decode_path_lowers_the_level() {
        if testing::none_is_promised() {
            return;
        }
        let broken = Broken {
            level: ShaderLevel::Subgroups,
            stem: "shared/norm_matvec",
            from: "let sum = subgroupAdd(sums[t])",
            to: "let sum = subgroupMax(sums[t])",
        };
        assert!(refused(broken).contains("project of 1 rows"), "{}", refused(broken));
        let options = WgpuOptions { broken: Some(broken), ..WgpuOptions::default() };
        let backend = block_on(WgpuBackend::new(&options)).expect("a lower level");
        assert_eq!(backend.shader_level(), ShaderLevel::F16);
    }

    #[test]
    fn a_wrong_kernel_at_every_level_is_named() {
        if testing::none_is_promised() {
            return;
        }
        for level in ShaderLevel::ALL {
            let (stem, from) = ("shared/norm_matvec", "* up;");
            let gated = refused(Broken { level, stem, from, to: "+ up;" });
            assert!(gated.contains("norm_gated of 1 rows"), "{gated}");
            let (stem, from) = ("rms_norm", "* scale");
            let norm = refused(Broken { level, stem, from, to: "* 1.01 * scale" });
            assert!(norm.contains("rms_norm"), "{norm}");
        }
    }
}
