//! One queue's record of what to do, and its submission.

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use longview_ops::OpResult;
use wgpu::util::StagingBelt;

use crate::bindings::{Bindings, MAX_BINDINGS};
use crate::counters::Tally;
use crate::gpu::{Gpu, Kernel, PARAMS_SIZE};
use crate::pace::{COPIES, COPY_BYTES, Draft, Work};
use crate::raw_buffer::RawBuffer;
use crate::shader::Variant;

/// Dispatches after which the device is given what has gathered, so that it starts early.
const FLUSH_AFTER: usize = 256;
/// Uploaded bytes after which the same happens: the staging ring stays bounded.
const FLUSH_BYTES: usize = 16 << 20;
const STAGING_CHUNK: u64 = 4 << 20;

enum Command {
    Dispatch { kernel: Arc<Kernel>, group: wgpu::BindGroup, params: u32, grid: [u32; 3] },
    Upload { at: u64, len: u64, dst: wgpu::Buffer, dst_offset: u64 },
    Copy { src: wgpu::Buffer, src_offset: u64, dst: wgpu::Buffer, dst_offset: u64, len: u64 },
}

/// What a queue is asked to run.
pub(crate) struct Dispatch<'a> {
    pub variant: &'a Variant,
    pub bindings: &'a Bindings,
    /// At most [`PARAMS_SIZE`] bytes.
    pub params: &'a [u8],
    /// Workgroups.
    pub grid: [u32; 3],
}

pub(crate) struct Recorder {
    commands: Vec<Command>,
    /// Parameters of the recorded dispatches, each at a multiple of the stride.
    params: Vec<u8>,
    uploads: Vec<u8>,
    n_dispatches: usize,
    /// The work of these, where submits are bounded by time.
    draft: Draft,
    param_buffer: wgpu::Buffer,
    param_stride: usize,
    belt: StagingBelt,
    groups: HashMap<GroupKey, (wgpu::BindGroup, Vec<std::sync::Weak<RawBuffer>>)>,
    dropped_seen: u64,
}

/// A layout and the buffers bound, by number.
type GroupKey = (u64, [u64; MAX_BINDINGS]);

impl Recorder {
    pub fn new(gpu: &Gpu) -> Self {
        let alignment = gpu.limits.min_uniform_buffer_offset_alignment as usize;
        let param_stride = (PARAMS_SIZE as usize).next_multiple_of(alignment);
        let param_buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("parameters"),
            size: (param_stride * FLUSH_AFTER) as u64,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        Self {
            commands: Vec::with_capacity(2 * FLUSH_AFTER),
            params: Vec::with_capacity(param_stride * FLUSH_AFTER),
            uploads: Vec::new(),
            n_dispatches: 0,
            draft: Draft::default(),
            param_buffer,
            param_stride,
            belt: StagingBelt::new(gpu.device.clone(), STAGING_CHUNK),
            groups: HashMap::new(),
            dropped_seen: 0,
        }
    }

    pub fn dispatch(&mut self, gpu: &Gpu, dispatch: &Dispatch<'_>) -> OpResult<()> {
        let Dispatch { variant, bindings, params, grid } = *dispatch;
        let kernel = gpu.kernel(variant, bindings.writes());
        let group = self.group(gpu, &kernel, bindings);
        let (work, units) = (kernel.work, grid.iter().map(|n| u64::from(*n)).product());
        self.make_room(gpu, work, units)?;
        let at = self.params.len();
        self.params.extend_from_slice(params);
        self.params.resize(at + self.param_stride, 0);
        self.commands.push(Command::Dispatch { kernel, group, params: at as u32, grid });
        self.n_dispatches += 1;
        Tally::add(&gpu.tally.dispatches, 1);
        if self.ends(gpu, work, units) || self.n_dispatches == FLUSH_AFTER {
            return self.submit(gpu);
        }
        Ok(())
    }

    /// Submits what gathered, where this much more would take too long.
    fn make_room(&mut self, gpu: &Gpu, work: Work, units: u64) -> OpResult<()> {
        match &gpu.pace {
            Some(pace) if pace.is_full(&self.draft, work, units) => self.submit(gpu),
            _ => Ok(()),
        }
    }

    /// Adds to the time of the submit. Whether it ends here.
    fn ends(&mut self, gpu: &Gpu, work: Work, units: u64) -> bool {
        gpu.pace.as_ref().is_some_and(|pace| pace.add(&mut self.draft, work, units))
    }

    /// Bytes of the host into a buffer; offset and length are multiples of 4.
    pub fn upload(
        &mut self,
        gpu: &Gpu,
        dst: &RawBuffer,
        dst_offset: u64,
        bytes: &[u8],
    ) -> OpResult<()> {
        let units = bytes.len().div_ceil(COPY_BYTES) as u64;
        self.make_room(gpu, COPIES, units)?;
        let at = self.uploads.len() as u64;
        self.uploads.extend_from_slice(bytes);
        let (dst, len) = (dst.buffer.clone(), bytes.len() as u64);
        self.commands.push(Command::Upload { at, len, dst, dst_offset });
        if self.ends(gpu, COPIES, units) || self.uploads.len() >= FLUSH_BYTES {
            return self.submit(gpu);
        }
        Ok(())
    }

    /// Device to device; offsets and length are multiples of 4.
    pub fn copy(
        &mut self,
        src: &wgpu::Buffer,
        src_offset: u64,
        dst: &wgpu::Buffer,
        dst_offset: u64,
        len: u64,
    ) {
        let (src, dst) = (src.clone(), dst.clone());
        self.commands.push(Command::Copy { src, src_offset, dst, dst_offset, len });
    }

    /// Hands everything recorded to the device.
    pub fn submit(&mut self, gpu: &Gpu) -> OpResult<()> {
        gpu.check()?;
        if self.commands.is_empty() {
            return Ok(());
        }
        let mut encoder = gpu.device.create_command_encoder(&Default::default());
        let staged = self.stage(&mut encoder);
        let mut commands = self.commands.drain(..).peekable();
        while let Some(command) = commands.next() {
            match command {
                Command::Upload { at, len, dst, dst_offset } => {
                    let (chunk, base) = staged.as_ref().expect("uploads were staged");
                    encoder.copy_buffer_to_buffer(chunk, base + at, &dst, dst_offset, len);
                }
                Command::Copy { src, src_offset, dst, dst_offset, len } => {
                    encoder.copy_buffer_to_buffer(&src, src_offset, &dst, dst_offset, len);
                }
                Command::Dispatch { kernel, group, params, grid } => {
                    let mut pass = encoder.begin_compute_pass(&Default::default());
                    encode(&mut pass, &kernel, &group, params, grid);
                    while let Some(Command::Dispatch { kernel, group, params, grid }) =
                        commands.next_if(|next| matches!(next, Command::Dispatch { .. }))
                    {
                        encode(&mut pass, &kernel, &group, params, grid);
                    }
                }
            }
        }
        drop(commands);
        Tally::add(&gpu.tally.bytes_up, (self.params.len() + self.uploads.len()) as u64);
        Tally::add(&gpu.tally.submits, 1);
        self.params.clear();
        self.uploads.clear();
        self.n_dispatches = 0;
        self.belt.finish_and_recall_on_submit(&encoder);
        gpu.queue.submit([encoder.finish()]);
        if let Some(pace) = &gpu.pace {
            let number = pace.submitted(std::mem::take(&mut self.draft));
            let pace = Arc::clone(pace);
            gpu.queue.on_submitted_work_done(move || pace.done(number));
        }
        gpu.check()
    }

    /// Puts parameters and uploads into one piece of the staging ring, and the parameters into
    /// their buffer. Returns where the uploads lie.
    fn stage(&mut self, encoder: &mut wgpu::CommandEncoder) -> Option<(wgpu::Buffer, u64)> {
        let n_params = self.params.len();
        let size = (n_params + self.uploads.len()).next_multiple_of(4) as u64;
        let alignment = NonZeroU64::new(wgpu::MAP_ALIGNMENT).expect("a constant");
        let slice = self.belt.allocate(NonZeroU64::new(size)?, alignment);
        let (chunk, base) = (slice.buffer().clone(), slice.offset());
        let mut mapped = slice.get_mapped_range_mut().ok()?;
        mapped.slice(..n_params).copy_from_slice(&self.params);
        mapped.slice(n_params..n_params + self.uploads.len()).copy_from_slice(&self.uploads);
        drop(mapped);
        if n_params > 0 {
            encoder.copy_buffer_to_buffer(&chunk, base, &self.param_buffer, 0, n_params as u64);
        }
        Some((chunk, base + n_params as u64))
    }

    fn group(&mut self, gpu: &Gpu, kernel: &Kernel, bindings: &Bindings) -> wgpu::BindGroup {
        self.forget_dropped(gpu);
        let mut ids = [0; MAX_BINDINGS];
        let bound = || bindings.buffers();
        bound().zip(&mut ids).for_each(|(buffer, id)| *id = buffer.id);
        let key = (kernel.layout.id, ids);
        if let Some((group, _)) = self.groups.get(&key) {
            return group.clone();
        }
        let mut entries = vec![wgpu::BindGroupEntry {
            binding: 0,
            resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                buffer: &self.param_buffer,
                offset: 0,
                size: NonZeroU64::new(PARAMS_SIZE),
            }),
        }];
        for (i, buffer) in bound().enumerate() {
            let resource = buffer.buffer.as_entire_binding();
            entries.push(wgpu::BindGroupEntry { binding: i as u32 + 1, resource });
        }
        let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: None,
            layout: &kernel.layout.groups,
            entries: &entries,
        });
        Tally::add(&gpu.tally.bind_groups, 1);
        let held = bound().map(Arc::downgrade).collect();
        self.groups.insert(key, (group.clone(), held));
        group
    }

    /// Bind groups keep memory alive; those of buffers that nobody has any more go.
    fn forget_dropped(&mut self, gpu: &Gpu) {
        let dropped = gpu.tally.buffers_dropped.load(Ordering::Acquire);
        if dropped != self.dropped_seen {
            self.dropped_seen = dropped;
            self.groups.retain(|_, (_, held)| held.iter().all(|b| b.strong_count() > 0));
        }
    }
}

fn encode(
    pass: &mut wgpu::ComputePass<'_>,
    kernel: &Kernel,
    group: &wgpu::BindGroup,
    params: u32,
    grid: [u32; 3],
) {
    pass.set_pipeline(&kernel.pipeline);
    pass.set_bind_group(0, group, &[params]);
    pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
}
