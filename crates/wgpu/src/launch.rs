//! A dispatch in the making: which variant, which buffers, which parameters, how many workgroups.

use bytemuck::Pod;
use longview_ops::{OpResult, View, ViewMut};
use smallvec::SmallVec;
use std::sync::Arc;

use crate::backend::WgpuBackend;
use crate::buffer::RawBuffer;
use crate::gpu::PARAMS_SIZE;
use crate::shader::Define;

/// A shader with its constants: the key of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Variant {
    pub stem: &'static str,
    pub entry: &'static str,
    /// In line: a dispatch allocates nothing to look its pipeline up.
    pub defines: SmallVec<[Define; 8]>,
}

/// Most storage buffers of one kernel (WebGPU's guaranteed 8).
pub(crate) const MAX_BINDINGS: usize = 8;

/// One dispatch. Bindings are numbered from 1 in the order in which they are added; binding 0 holds
/// the parameters, in the order in which they are added, as the shader's `Params` lists them.
pub(crate) struct Launch<'a> {
    backend: &'a WgpuBackend,
    variant: Variant,
    pub(crate) buffers: [Option<Arc<RawBuffer>>; MAX_BINDINGS],
    pub(crate) writes: [bool; MAX_BINDINGS],
    pub(crate) n_buffers: usize,
    params: [u8; PARAMS_SIZE as usize],
    n_params: usize,
    bytes_read: u64,
}

impl<'a> Launch<'a> {
    /// Entry point `entry` of shader `stem`.
    pub fn new(backend: &'a WgpuBackend, stem: &'static str, entry: &'static str) -> Self {
        Self {
            backend,
            variant: Variant { stem, entry, defines: SmallVec::new() },
            buffers: [const { None }; MAX_BINDINGS],
            writes: [false; MAX_BINDINGS],
            n_buffers: 0,
            params: [0; PARAMS_SIZE as usize],
            n_params: 0,
            bytes_read: 0,
        }
    }

    /// A constant of the variant.
    pub fn define(mut self, name: &'static str, value: u32) -> Self {
        self.variant.defines.push((name, value));
        self
    }

    /// A buffer that the kernel reads.
    pub fn reads(mut self, buffer: &Arc<RawBuffer>) -> Self {
        self.buffers[self.n_buffers] = Some(Arc::clone(buffer));
        self.n_buffers += 1;
        self
    }

    /// A buffer that the kernel writes (and may read).
    pub fn writes(mut self, buffer: &Arc<RawBuffer>) -> Self {
        self.writes[self.n_buffers] = true;
        self.reads(buffer)
    }

    /// A block of parameters.
    pub fn params<P: Pod>(mut self, params: &P) -> Self {
        let bytes = bytemuck::bytes_of(params);
        self.params[self.n_params..self.n_params + bytes.len()].copy_from_slice(bytes);
        self.n_params += bytes.len();
        self
    }

    /// A parameter.
    pub fn u32(self, value: usize) -> Self {
        let value = u32::try_from(value).expect("buffers hold fewer than 2^32 elements");
        self.params(&value)
    }

    /// Binds what a view shows and passes its first element.
    pub fn view(self, view: &View<'_, WgpuBackend>) -> Self {
        self.reads(&view.buffer.raw).u32(view.offset)
    }

    /// As [`Launch::view`], to be written.
    pub fn view_mut(self, view: &ViewMut<'_, WgpuBackend>) -> Self {
        self.writes(&view.buffer.raw).u32(view.offset)
    }

    /// Bytes that this kernel has to read, for the tally.
    pub fn counts(mut self, bytes: u64) -> Self {
        self.bytes_read += bytes;
        self
    }

    /// Records the dispatch of `workgroups`; of none it does nothing.
    pub fn run(self, workgroups: usize) -> OpResult<()> {
        self.run_grid([workgroups, 1, 1])
    }

    /// Records a dispatch over a grid. The first dimension may exceed the device's limit if the
    /// second is 1: it is split over both, and `flat_index` puts it together.
    pub fn run_grid(self, grid: [usize; 3]) -> OpResult<()> {
        if grid.contains(&0) {
            return Ok(());
        }
        let most = self.backend.gpu.limits.max_compute_workgroups_per_dimension as usize;
        let grid = match grid {
            [n, 1, z] if n > most => {
                let rows = n.div_ceil(most);
                [n.div_ceil(rows), rows, z]
            }
            grid => grid,
        };
        let params = &self.params[..self.n_params];
        let grid = grid.map(|n| n as u32);
        self.backend.record(&self.variant, &self, params, grid, self.bytes_read)
    }
}
