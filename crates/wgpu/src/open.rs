//! Opening a device at the highest level of shaders that computes right numbers.

use std::sync::{Arc, Mutex};

use longview_core::DType;
use longview_core::quant::QuantType;
use longview_ops::{Capabilities, Op, parity};

use crate::adapter;
use crate::backend::{Instant, WgpuBackend};
use crate::error::StartError;
use crate::gpu::Gpu;
use crate::memory;
use crate::options::WgpuOptions;
use crate::recorder::Recorder;
use crate::scratch::Scratch;
use crate::shader_level::ShaderLevel;
use crate::weight::WeightArena;

/// What the self-test runs at the start: one op of each kind of kernel.
const TESTED: &[Op] =
    &[Op::Matvec, Op::Matmul, Op::AttendList, Op::AttendChunk, Op::CentroidScores];

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
            let (device, queue) = adapter::open(&adapter, options.max_binding_bytes).await?;
            let mut gpu = Gpu::new(device, queue, info.clone(), level);
            gpu.fills = !(options.spares_software && gpu.is_software());
            let memory = memory::device_bytes(&adapter);
            let backend = Self::with_device(gpu, memory, options.clone());
            if options.lists_only {
                return Ok(backend);
            }
            match parity::spot_check(&backend, TESTED).await {
                Ok(()) => return Ok(backend),
                Err(message) => reason = message,
            }
        }
        let levels: Vec<_> = levels.into_iter().map(ShaderLevel::name).collect();
        Err(StartError::SelfTest { adapter: info.name, levels: levels.join(", "), reason })
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
            overlaps: false,
            matvec_max_rows: 8,
            chunk_rows_are_alike: false,
            kv_dtypes: vec![DType::F32, DType::F16, DType::BF16, DType::Q8],
            weight_dtypes: vec![DType::F32, DType::F16, DType::BF16],
            quant_types: QuantType::ALL.to_vec(),
            missing_ops: Vec::new(),
            memory_bytes,
        });
        let recorder = Mutex::new(Recorder::new(&gpu));
        Self {
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
