//! Weights: matrices of plain numbers stay where the model file is mapped, quantised ones become
//! tiles, vectors become f32.

use longview_core::quant::{Order, TILE_ROWS, Tiles};
use longview_core::{DType, HostBytes, decode_f32};
use longview_ops::{Activations, Op, OpError, OpResult, QuantSource, WeightSource};

use crate::buffer::AlignedBytes;
use crate::error::NAME;
use crate::kernels::quant::Rounding;
use crate::rounded::Form;
use crate::supported_isa::SupportedIsa;
use crate::team::{Cost, Team};

/// A weight of the CPU backend.
pub struct CpuWeight {
    name: String,
    n_rows: usize,
    n_cols: usize,
    /// Whether products with plain numbers round activations to bf16.
    is_rounding: bool,
    data: Data,
}

enum Data {
    /// In place, aligned to its elements.
    Mapped(DType, HostBytes),
    /// Converted, or copied because it was not aligned.
    Owned(DType, AlignedBytes),
    /// Quantised.
    Tiled(TiledWeight),
}

/// A quantised matrix.
pub(crate) struct TiledWeight {
    pub(crate) tiles: Tiles,
    activations: Activations,
    bytes: AlignedBytes,
}

impl TiledWeight {
    /// How activations are rounded for it on `isa`; `None` where they are not.
    pub(crate) fn rounding(&self, isa: SupportedIsa) -> Option<Rounding> {
        Rounding::of(self.tiles.ty, self.activations, isa.is_biased())
    }

    /// All tiles.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes.as_ref()[..self.tiles.count() * self.tiles.tile_bytes()]
    }

    /// The values of row `row`.
    pub(crate) fn row(&self, row: usize, out: &mut [f32]) {
        let tile = self.tiles.tile_bytes();
        self.tiles.row(&self.bytes()[row / TILE_ROWS * tile..][..tile], row % TILE_ROWS, out);
    }
}

/// A matrix as kernels take it.
pub(crate) enum Matrix<'a> {
    /// Elements of this type.
    Plain(DType),
    /// Quantised.
    Tiled(&'a TiledWeight),
}

impl CpuWeight {
    /// Takes a weight over; an error says which tensor and why.
    pub(crate) fn load(source: WeightSource) -> OpResult<Self> {
        let WeightSource { name, dtype, n_rows, n_cols, bytes, activations } = source;
        let fail = |what: String| OpError::Weight { name: name.clone(), what };
        if !dtype.is_float() {
            return Err(fail(format!("data type {dtype} is not f32, f16 or bf16")));
        }
        let expected = n_rows.checked_mul(n_cols).and_then(|n| n.checked_mul(dtype.size()));
        if expected != Some(bytes.len()) {
            let have = bytes.len();
            return Err(fail(format!("{have} bytes for {n_rows} x {n_cols} elements of {dtype}")));
        }
        let is_aligned = (bytes.as_ref().as_ptr() as usize).is_multiple_of(dtype.size());
        let data = if n_rows == 1 {
            let wide = decode_f32(dtype, bytes.as_ref());
            copy(DType::F32, bytemuck::cast_slice(&wide)).ok_or(4 * n_cols)
        } else if is_aligned {
            Ok(Data::Mapped(dtype, bytes))
        } else {
            copy(dtype, bytes.as_ref()).ok_or(bytes.len())
        };
        let data = data.map_err(|bytes| no_memory(&name, bytes))?;
        let is_rounding = activations.rounds_to_bf16(dtype);
        Ok(Self { name, n_rows, n_cols, is_rounding, data })
    }

    /// Takes a quantised matrix over, with the help of `team`.
    pub(crate) fn load_quantised(source: QuantSource, team: &mut Team) -> OpResult<Self> {
        source.check()?;
        let QuantSource { name, ty, n_rows, n_cols, blocks, activations } = source;
        let tiles = Tiles { ty, n_rows, n_cols, order: Order::Together };
        let len = tiles.count() * tiles.tile_bytes();
        let mut bytes = AlignedBytes::zeroed(len).ok_or_else(|| no_memory(&name, len))?;
        let (rows, cost) = (blocks.as_ref(), Cost::bytes(len * 8));
        let all = &mut bytes.as_mut()[..len];
        team.for_chunks(all, tiles.tile_bytes(), cost, |_, i, tile| tiles.pack(rows, i, tile));
        let data = Data::Tiled(TiledWeight { tiles, activations, bytes });
        Ok(Self { name, n_rows, n_cols, is_rounding: false, data })
    }

    /// How the matrix is kept.
    pub(crate) fn matrix(&self) -> Matrix<'_> {
        match &self.data {
            Data::Mapped(dtype, _) | Data::Owned(dtype, _) => Matrix::Plain(*dtype),
            Data::Tiled(tiled) => Matrix::Tiled(tiled),
        }
    }

    /// Of its elements.
    ///
    /// # Panics
    /// If the matrix is quantised.
    pub(crate) fn dtype(&self) -> DType {
        match self.matrix() {
            Matrix::Plain(dtype) => dtype,
            Matrix::Tiled(_) => panic!("weight {}: tiles have no elements", self.name),
        }
    }

    /// How products with it on `isa` take activations.
    ///
    /// # Panics
    /// If the matrix is quantised.
    pub(crate) fn form(&self, isa: SupportedIsa) -> Form {
        Form::of(self.is_rounding, self.dtype(), isa)
    }

    /// Rows of the matrix.
    pub(crate) fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// The elements of a plain matrix; `E` must be the Rust type of its elements.
    ///
    /// # Panics
    /// If the matrix is quantised.
    pub(crate) fn elements<E: bytemuck::Pod>(&self) -> &[E] {
        match &self.data {
            Data::Mapped(_, bytes) => bytemuck::cast_slice(bytes.as_ref()),
            Data::Owned(dtype, bytes) => {
                bytemuck::cast_slice(&bytes.as_ref()[..self.n_rows * self.n_cols * dtype.size()])
            }
            Data::Tiled(_) => panic!("weight {}: tiles have no elements", self.name),
        }
    }

    /// Fails with `op`'s shape error unless the weight is `[n_rows, n_cols]`.
    pub(crate) fn expect(&self, op: Op, n_rows: usize, n_cols: usize) -> OpResult<()> {
        if (self.n_rows, self.n_cols) == (n_rows, n_cols) {
            return Ok(());
        }
        let (name, r, c) = (&self.name, self.n_rows, self.n_cols);
        Err(OpError::shape(op, format!("weight {name} is {r} x {c}, expected {n_rows} x {n_cols}")))
    }

    /// Fails with `op`'s shape error unless rows have `n_cols` elements.
    pub(crate) fn expect_cols(&self, op: Op, n_cols: usize) -> OpResult<()> {
        self.expect(op, self.n_rows, n_cols)
    }
}

fn copy(dtype: DType, bytes: &[u8]) -> Option<Data> {
    let mut owned = AlignedBytes::zeroed(bytes.len())?;
    owned.as_mut()[..bytes.len()].copy_from_slice(bytes);
    Some(Data::Owned(dtype, owned))
}

fn no_memory(name: &str, bytes: usize) -> OpError {
    OpError::OutOfMemory { backend: NAME, label: name.to_owned(), bytes: bytes as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(dtype: DType, n_rows: usize, n_cols: usize, bytes: HostBytes) -> WeightSource {
        let (name, activations) = ("w".into(), Activations::F32);
        WeightSource { name, dtype, n_rows, n_cols, bytes, activations }
    }

    #[test]
    fn aligned_matrices_stay_in_place_and_others_are_copied() {
        let words: Vec<u8> = (0..36).collect();
        let bytes = HostBytes::from_vec(words.clone());
        let base = bytes.as_ref().as_ptr() as usize;
        for start in 0..4 {
            let part = bytes.slice(start..start + 32);
            let weight = CpuWeight::load(source(DType::F32, 2, 4, part)).unwrap();
            let kept: &[f32] = weight.elements();
            assert_eq!(bytemuck::cast_slice::<f32, u8>(kept), &words[start..start + 32]);
            assert_eq!(kept.as_ptr() as usize == base + start, (base + start).is_multiple_of(4));
        }
    }

    #[test]
    fn a_wrong_byte_count_names_the_tensor() {
        let bytes = HostBytes::from_vec(vec![0; 10]);
        let error = CpuWeight::load(source(DType::F16, 2, 3, bytes)).err().unwrap();
        assert_eq!(error.to_string(), "weight w: 10 bytes for 2 x 3 elements of f16");
    }
}
