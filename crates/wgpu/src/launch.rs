//! A dispatch in the making: which variant, which buffers, which parameters, how many workgroups.

use std::sync::Arc;

use bytemuck::Pod;
use longview_ops::{OpResult, View, ViewMut};
use smallvec::SmallVec;

use crate::backend::WgpuBackend;
use crate::bindings::Bindings;
use crate::gpu::PARAMS_SIZE;
use crate::raw_buffer::RawBuffer;
use crate::recorder::Dispatch;
use crate::shader::Variant;

/// One dispatch. Bindings are numbered from 1 in the order in which they are added; binding 0 holds
/// the parameters, in the order in which they are added, as the shader's `Params` lists them.
pub(crate) struct Launch<'a> {
    backend: &'a WgpuBackend,
    variant: Variant,
    bindings: Bindings,
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
            bindings: Bindings::default(),
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
        self.bindings.add(buffer, false);
        self
    }

    /// A buffer that the kernel writes (and may read).
    pub fn writes(mut self, buffer: &Arc<RawBuffer>) -> Self {
        self.bindings.add(buffer, true);
        self
    }

    /// Parameters in the layout of the shader's `Params`, behind those added before.
    pub fn params<P: Pod>(mut self, params: &P) -> Self {
        let bytes = bytemuck::bytes_of(params);
        self.params[self.n_params..self.n_params + bytes.len()].copy_from_slice(bytes);
        self.n_params += bytes.len();
        self
    }

    /// One parameter of 32 bits.
    ///
    /// # Panics
    /// If it does not fit: buffers hold fewer than 2^32 elements.
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
        let dispatch = Dispatch { variant: &self.variant, bindings: &self.bindings, params, grid };
        self.backend.record(&dispatch, self.bytes_read)
    }
}

/// Whether rows of `width` f32 elements that follow each other from these offsets can be read as
/// vectors of 4.
pub(crate) fn rows_are_vectors(width: u32, offsets: &[usize]) -> bool {
    width.is_multiple_of(4) && offsets.iter().all(|offset| offset.is_multiple_of(4))
}
