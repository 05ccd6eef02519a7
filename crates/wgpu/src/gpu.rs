//! The open device: what all queues of it share.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use longview_ops::{OpError, OpResult};

use crate::counters::Tally;
use crate::lock::lock;
use crate::pace::{Pace, Work};
#[cfg(not(target_arch = "wasm32"))]
use crate::pipeline_file::PipelineFile;
use crate::raw_buffer::RawBuffer;
use crate::shader::{self, Variant};
use crate::shader_level::ShaderLevel;

/// Bytes of one dispatch's parameters, at most.
pub(crate) const PARAMS_SIZE: u64 = 256;
/// Places in a buffer that several weights share begin at multiples of this: whole vectors, and
/// what a binding may need one day.
pub(crate) const STORAGE_ALIGNMENT: u64 = 256;

/// Fresh pipelines that are worth a file.
#[cfg(not(target_arch = "wasm32"))]
const SAVED_AT_ONCE: u64 = 8;

pub(crate) struct Gpu {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub limits: wgpu::Limits,
    pub features: wgpu::Features,
    pub info: wgpu::AdapterInfo,
    pub level: ShaderLevel,
    /// Whether work is cut into more pieces than it needs, so that the device is full.
    pub fills: bool,
    pub tally: Arc<Tally>,
    /// Where submits are bounded by time.
    pub pace: Option<Arc<Pace>>,
    #[cfg(not(target_arch = "wasm32"))]
    pub pipelines: Option<PipelineFile>,
    /// Pipelines that had been compiled when they were last kept.
    #[cfg(not(target_arch = "wasm32"))]
    saved_pipelines: AtomicU64,
    #[cfg(test)]
    pub broken: Option<crate::options::Broken>,
    kernels: Mutex<HashMap<Variant, Arc<Kernel>>>,
    /// Launched where nothing is compiled.
    listed: Mutex<HashSet<Variant>>,
    layouts: Mutex<HashMap<Vec<bool>, Arc<Layout>>>,
    lost: Arc<Mutex<Option<String>>>,
    next_id: AtomicU64,
}

/// A compiled variant.
pub(crate) struct Kernel {
    /// Its number, by which its work is measured.
    pub work: Work,
    /// How often it was launched.
    launches: AtomicU64,
    pub pipeline: wgpu::ComputePipeline,
    pub layout: Arc<Layout>,
}

/// Parameters at binding 0, then storage buffers, of which some are written.
pub(crate) struct Layout {
    pub id: u64,
    pub groups: wgpu::BindGroupLayout,
    #[cfg(not(target_arch = "wasm32"))]
    writes: Vec<bool>,
    pipeline: wgpu::PipelineLayout,
}

impl Kernel {
    fn launches(&self) -> u64 {
        self.launches.load(Ordering::Relaxed)
    }
}

impl Gpu {
    pub fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        info: wgpu::AdapterInfo,
        level: ShaderLevel,
    ) -> Self {
        let lost = Arc::new(Mutex::new(None));
        let on_lost = Arc::clone(&lost);
        device.set_device_lost_callback(move |reason, message| {
            lock(&on_lost).get_or_insert(format!("{reason:?}: {message}"));
        });
        let on_error = Arc::clone(&lost);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            lock(&on_error).get_or_insert(error.to_string());
        }));
        Self {
            limits: device.limits(),
            features: device.features(),
            device,
            queue,
            info,
            level,
            fills: true,
            tally: Arc::default(),
            pace: None,
            #[cfg(not(target_arch = "wasm32"))]
            pipelines: None,
            #[cfg(not(target_arch = "wasm32"))]
            saved_pipelines: AtomicU64::new(0),
            #[cfg(test)]
            broken: None,
            kernels: Mutex::default(),
            listed: Mutex::default(),
            layouts: Mutex::default(),
            lost,
            next_id: AtomicU64::new(1),
        }
    }

    /// Whether the CPU computes. Browsers do not always say so other than by the name.
    pub fn is_software(&self) -> bool {
        let name = self.info.name.to_lowercase();
        self.info.device_type == wgpu::DeviceType::Cpu
            || ["swiftshader", "llvmpipe", "basic render"].iter().any(|n| name.contains(n))
    }

    /// Whether shaders may use f16.
    pub fn has_f16(&self) -> bool {
        self.level >= ShaderLevel::F16 && self.features.contains(wgpu::Features::SHADER_F16)
    }

    /// Whether shaders may use subgroup operations.
    pub fn has_subgroups(&self) -> bool {
        self.level >= ShaderLevel::Subgroups
    }

    /// Whether shaders may use dot products of bytes. No feature tells: browsers that lack them
    /// lack what higher levels need too, or else fail the self-test there.
    pub fn has_packed_dot(&self) -> bool {
        self.level > ShaderLevel::Core
    }

    /// The error of a device that is gone.
    pub fn check(&self) -> OpResult<()> {
        match &*lock(&self.lost) {
            None => Ok(()),
            Some(reason) => Err(OpError::DeviceLost { backend: "wgpu", reason: reason.clone() }),
        }
    }

    /// Destroys the device, as a driver fault would.
    pub fn destroy(&self) {
        lock(&self.lost).get_or_insert("destroyed".into());
        self.device.destroy();
    }

    /// Most bytes of a buffer that a kernel sees, in whole places of [`STORAGE_ALIGNMENT`]. Many
    /// drivers allow 2^31 - 4 bytes, and what asks for all of it is rounded up to whole places:
    /// rounded down here, it still fits.
    pub fn max_storage_bytes(&self) -> u64 {
        let most = self.limits.max_buffer_size.min(self.limits.max_storage_buffer_binding_size);
        most / STORAGE_ALIGNMENT * STORAGE_ALIGNMENT
    }

    /// Zeroed storage of `bytes`, rounded up to whole vectors of 16 bytes.
    pub fn storage(&self, bytes: u64, label: &str) -> OpResult<RawBuffer> {
        self.check()?;
        let size = bytes.max(16).checked_next_multiple_of(16).unwrap_or(u64::MAX);
        let no_memory =
            || OpError::OutOfMemory { backend: "wgpu", label: label.to_owned(), bytes: size };
        let most = self.max_storage_bytes();
        if size > most {
            // Not a matter of memory: less of something else would not help.
            let label = format!("{label}, as one buffer of this device has at most {most} bytes");
            return Err(OpError::OutOfMemory { backend: "wgpu", label, bytes: size });
        }
        let usage = wgpu::BufferUsages::STORAGE
            | wgpu::BufferUsages::COPY_SRC
            | wgpu::BufferUsages::COPY_DST;
        self.buffer(size, usage, label).ok_or_else(no_memory)
    }

    /// A buffer, or `None` where the device has no memory for it.
    pub fn buffer(&self, size: u64, usage: wgpu::BufferUsages, label: &str) -> Option<RawBuffer> {
        let descriptor =
            wgpu::BufferDescriptor { label: Some(label), size, usage, mapped_at_creation: false };
        // In a browser the answer comes later, through the lost device.
        #[cfg(target_arch = "wasm32")]
        let buffer = self.device.create_buffer(&descriptor);
        #[cfg(not(target_arch = "wasm32"))]
        let buffer = {
            let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
            let buffer = self.device.create_buffer(&descriptor);
            if pollster::block_on(scope.pop()).is_some() {
                return None;
            }
            buffer
        };
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        Some(RawBuffer::new(id, buffer, &self.tally))
    }

    /// How often each entry point was launched, over all its variants.
    pub fn launches(&self) -> BTreeMap<&'static str, u64> {
        let mut launches = BTreeMap::new();
        for (variant, kernel) in
            lock(&self.kernels).iter().filter(|(_, kernel)| kernel.launches() > 0)
        {
            *launches.entry(variant.entry).or_insert(0) += kernel.launches();
        }
        launches
    }

    /// The pipeline of a variant that is launched now; `writes` says for each storage binding
    /// whether it is written.
    pub fn kernel(&self, variant: &Variant, writes: &[bool]) -> Arc<Kernel> {
        if let Some(kernel) = lock(&self.kernels).get(variant) {
            kernel.launches.fetch_add(1, Ordering::Relaxed);
            return Arc::clone(kernel);
        }
        let kernel = Arc::new(self.compile(variant, writes));
        kernel.launches.fetch_add(1, Ordering::Relaxed);
        lock(&self.kernels).insert(variant.clone(), Arc::clone(&kernel));
        kernel
    }

    /// Compiles a variant that is expected to be launched. One that cannot be is left out.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn prepare(&self, variant: &Variant, writes: &[bool]) {
        if lock(&self.kernels).contains_key(variant) || self.check().is_err() {
            return;
        }
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        let kernel = Arc::new(self.compile(variant, writes));
        if pollster::block_on(scope.pop()).is_none() {
            lock(&self.kernels).entry(variant.clone()).or_insert(kernel);
        }
    }

    /// What was launched, with the bindings that each writes.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn used(&self) -> Vec<shader::Listed> {
        let kernels = lock(&self.kernels);
        let used = kernels.iter().filter(|(_, kernel)| kernel.launches() > 0);
        used.map(|(variant, kernel)| (variant.clone(), kernel.layout.writes.clone())).collect()
    }

    /// The entry points of what was compiled.
    #[cfg(test)]
    pub fn entries(&self) -> impl Iterator<Item = &'static str> {
        let kernels = lock(&self.kernels);
        kernels.keys().map(|variant| variant.entry).collect::<Vec<_>>().into_iter()
    }

    /// Notes a launch that does not run.
    pub fn list(&self, variant: &Variant) {
        lock(&self.listed).insert(variant.clone());
    }

    /// The variants that were noted since the last call.
    pub fn take_listed(&self) -> HashSet<Variant> {
        std::mem::take(&mut *lock(&self.listed))
    }

    fn compile(&self, variant: &Variant, writes: &[bool]) -> Kernel {
        let layout = self.layout(writes);
        let mut enables = Vec::new();
        if self.has_f16() {
            enables.push("f16");
        }
        if self.has_subgroups() && cfg!(target_arch = "wasm32") {
            // Browsers want the line; naga refuses it.
            enables.push("subgroups");
        }
        let mut defines = variant.defines.to_vec();
        defines.push(("HAS_F16", self.has_f16().into()));
        defines.push(("HAS_SUBGROUPS", self.has_subgroups().into()));
        defines.push(("HAS_PACKED_DOT", self.has_packed_dot().into()));
        let text = shader::expand(variant.stem, &defines, &enables);
        let text = text.unwrap_or_else(|e| panic!("{e}"));
        #[cfg(test)]
        let text = match self.broken.filter(|broken| broken.stem == variant.stem) {
            Some(broken) => text.replace(broken.from, broken.to),
            None => text,
        };
        let module = self.module(variant.stem, text);
        Tally::add(&self.tally.pipelines, 1);
        let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(variant.entry),
            layout: Some(&layout.pipeline),
            module: &module,
            entry_point: Some(variant.entry),
            compilation_options: wgpu::PipelineCompilationOptions {
                zero_initialize_workgroup_memory: false,
                ..Default::default()
            },
            cache: self.pipeline_cache(),
        });
        let work = self.next_id.fetch_add(1, Ordering::Relaxed);
        Kernel { work, launches: AtomicU64::new(0), pipeline, layout }
    }

    /// What was compiled at an earlier start.
    fn pipeline_cache(&self) -> Option<&wgpu::PipelineCache> {
        #[cfg(target_arch = "wasm32")]
        return None;
        #[cfg(not(target_arch = "wasm32"))]
        self.pipelines.as_ref().map(|pipelines| &pipelines.cache)
    }

    /// Keeps what was compiled for the next start, where that is much: a program may end at any
    /// moment.
    pub fn save_new_pipelines(&self) {
        #[cfg(not(target_arch = "wasm32"))]
        {
            let compiled = self.tally.pipelines.load(Ordering::Relaxed);
            if compiled >= self.saved_pipelines.load(Ordering::Relaxed) + SAVED_AT_ONCE {
                self.saved_pipelines.store(compiled, Ordering::Relaxed);
                self.save_pipelines();
            }
        }
    }

    /// Keeps what was compiled for the next start.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn save_pipelines(&self) {
        // A device that is gone gives nothing.
        if let Some(pipelines) = self.pipelines.as_ref().filter(|_| self.check().is_ok()) {
            pipelines.save();
        }
    }

    fn module(&self, label: &str, text: String) -> wgpu::ShaderModule {
        let source = wgpu::ShaderSource::Wgsl(text.into());
        let descriptor = wgpu::ShaderModuleDescriptor { label: Some(label), source };
        // Bounds stay checked: an index in a buffer is the caller's promise, and a broken promise
        // must not touch other memory. Loops are ours and end.
        let checks = wgpu::ShaderRuntimeChecks {
            force_loop_bounding: false,
            ..wgpu::ShaderRuntimeChecks::checked()
        };
        // SAFETY: every loop of every shader is bounded by a parameter or a constant.
        unsafe { self.device.create_shader_module_trusted(descriptor, checks) }
    }

    fn layout(&self, writes: &[bool]) -> Arc<Layout> {
        let mut layouts = lock(&self.layouts);
        if let Some(layout) = layouts.get(writes) {
            return Arc::clone(layout);
        }
        let entry = |binding: usize, ty: wgpu::BufferBindingType| wgpu::BindGroupLayoutEntry {
            binding: binding as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty,
                has_dynamic_offset: binding == 0,
                min_binding_size: if binding == 0 { NonZeroU64::new(PARAMS_SIZE) } else { None },
            },
            count: None,
        };
        let mut entries = vec![entry(0, wgpu::BufferBindingType::Uniform)];
        for (i, write) in writes.iter().enumerate() {
            entries.push(entry(i + 1, wgpu::BufferBindingType::Storage { read_only: !write }));
        }
        let groups = self.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: None,
            entries: &entries,
        });
        let pipeline = self.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: None,
            bind_group_layouts: &[Some(&groups)],
            immediate_size: 0,
        });
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let layout = Arc::new(Layout {
            id,
            groups,
            #[cfg(not(target_arch = "wasm32"))]
            writes: writes.to_vec(),
            pipeline,
        });
        layouts.insert(writes.to_vec(), Arc::clone(&layout));
        layout
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Drop for Gpu {
    fn drop(&mut self) {
        self.save_pipelines();
    }
}
