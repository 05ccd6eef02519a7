//! Plain weights that become blocks while they are read, so that a model of 16 bits runs in 4 or 8.

use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::sync::Arc;
use std::thread;

use longview_core::quant::{QuantType, quantize};
use longview_core::{DType, RangeSource, decode_f32_into};

use super::error::WeightsError;
use super::expected::weight_tensors;
use super::set::TensorSet;
use super::stored::Stored;
use crate::config::ModelConfig;

/// Rows for which another thread is worth its start.
const ROWS_OF_A_THREAD: usize = 64;

impl TensorSet {
    /// From now on the matrices of `config` are handed over as blocks: of `ty`, or of a type near
    /// to it where llama.cpp takes that one too: embedding and output of 4 and 5 bits have 6 (a
    /// row of them decides about a token), and rows that are no whole blocks of 256 have blocks
    /// of 32.
    ///
    /// # Errors
    /// If a matrix is quantised already, or has rows that are no whole blocks of 32.
    pub fn quantize(&mut self, config: &ModelConfig, ty: QuantType) -> Result<(), WeightsError> {
        let layout = &config.architecture.traits().layout;
        for expected in weight_tensors(config) {
            let &[n_rows, n_cols] = &*expected.shape else { continue };
            let name = expected.name;
            let is_end = name == layout.embedding || name == layout.lm_head;
            let path = self.path.clone();
            let Some(tensor) = self.get_mut(&name) else { continue };
            if let Some(found) = tensor.quant_type() {
                if tensor.is_made() {
                    continue;
                }
                return Err(WeightsError::Quantised { path, name, ty: found });
            }
            let Some(dtype) = tensor.dtype else { continue };
            let Some(ty) = fitting(if is_end { of_ends(ty) } else { ty }, n_cols) else {
                return Err(WeightsError::NoBlocks { path, name, n_cols });
            };
            let rows = Made { stored: tensor.stored_at.clone(), dtype, ty, n_rows, n_cols };
            *tensor = tensor.clone().with_made_blocks(ty, Arc::new(rows));
        }
        Ok(())
    }
}

/// The type of embedding and output beside layers of `ty`.
fn of_ends(ty: QuantType) -> QuantType {
    match ty {
        QuantType::Q8_0 | QuantType::Q6K => ty,
        _ => QuantType::Q6K,
    }
}

/// `ty`, or what takes its place where rows are no whole blocks of it.
fn fitting(ty: QuantType, n_cols: usize) -> Option<QuantType> {
    let smaller = match ty {
        QuantType::Q4K => QuantType::Q5_0,
        QuantType::Q5K => QuantType::Q5_1,
        QuantType::Q6K => QuantType::Q8_0,
        _ => ty,
    };
    [ty, smaller].into_iter().find(|ty| n_cols > 0 && n_cols.is_multiple_of(ty.block_len()))
}

/// The blocks of a plain matrix, made when they are read.
struct Made {
    stored: Stored,
    dtype: DType,
    ty: QuantType,
    n_rows: usize,
    n_cols: usize,
}

impl Made {
    fn row_bytes(&self) -> usize {
        self.n_cols / self.ty.block_len() * self.ty.block_bytes()
    }

    /// Makes the blocks of `rows`.
    fn make(&self, rows: Range<usize>, out: &mut [u8]) -> io::Result<()> {
        let mut bytes = vec![0; self.n_cols * self.dtype.size()];
        let mut values = vec![0.0; self.n_cols];
        for (row, out) in rows.zip(out.chunks_exact_mut(self.row_bytes())) {
            let run = row * bytes.len()..(row + 1) * bytes.len();
            self.stored.read_runs(&[run], 0, &mut bytes)?;
            decode_f32_into(self.dtype, &bytes, &mut values);
            quantize(self.ty, &values, out);
        }
        Ok(())
    }

    /// The same on all cores.
    fn make_together(&self, rows: Range<usize>, out: &mut [u8]) -> io::Result<()> {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let step = rows.len().div_ceil(threads).max(ROWS_OF_A_THREAD);
        if step >= rows.len() {
            return self.make(rows, out);
        }
        let pieces = rows.clone().step_by(step).zip(out.chunks_mut(step * self.row_bytes()));
        thread::scope(|scope| {
            let start = |(first, out)| {
                let rows = first..rows.end.min(first + step);
                scope.spawn(move || self.make(rows, out))
            };
            let workers: Vec<_> = pieces.map(start).collect();
            let panicked = |_| Err(io::Error::other("quantising failed"));
            workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(panicked))
        })
    }
}

impl RangeSource for Made {
    fn size(&self) -> u64 {
        (self.n_rows * self.row_bytes()) as u64
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        if at.checked_add(out.len() as u64).is_none_or(|end| end > self.size()) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let (at, row_bytes) = (at as usize, self.row_bytes());
        let rows = at / row_bytes..(at + out.len()).div_ceil(row_bytes);
        if at.is_multiple_of(row_bytes) && out.len().is_multiple_of(row_bytes) {
            return self.make_together(rows, out);
        }
        let mut whole = vec![0; rows.len() * row_bytes];
        let from = at - rows.start * row_bytes;
        self.make_together(rows, &mut whole)?;
        out.copy_from_slice(&whole[from..from + out.len()]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use longview_core::{HostBytes, SplitMix64, encode_f32};

    use super::*;
    use crate::folder::ModelFolder;
    use crate::testing::fixture;

    #[test]
    fn blocks_are_those_of_each_row_wherever_reading_begins() {
        let (n_rows, n_cols, ty) = (200, 64, QuantType::Q4_0);
        let rng = &mut SplitMix64::new(9);
        let values: Vec<f32> = (0..n_rows * n_cols).map(|_| rng.next_normal()).collect();
        let stored = Stored::InMemory(HostBytes::from_vec(encode_f32(DType::F32, &values)));
        let made = Made { stored, dtype: DType::F32, ty, n_rows, n_cols };
        let mut expected = vec![0; made.size() as usize];
        quantize(ty, &values, &mut expected);
        for (at, len) in [(0, expected.len()), (36, 72), (37, 1), (100, 3000), (7200, 0)] {
            let mut found = vec![0; len];
            made.read_at(at as u64, &mut found).unwrap();
            assert_eq!(found, expected[at..at + len], "{len} bytes at {at}");
        }
        assert!(made.read_at(7199, &mut [0; 2]).is_err());
    }

    #[test]
    fn types_follow_what_a_row_allows() {
        assert_eq!(fitting(QuantType::Q4K, 1024), Some(QuantType::Q4K));
        assert_eq!(fitting(QuantType::Q4K, 576), Some(QuantType::Q5_0));
        assert_eq!(fitting(QuantType::Q6K, 576), Some(QuantType::Q8_0));
        assert_eq!(fitting(QuantType::Q8_0, 48), None);
        assert_eq!(of_ends(QuantType::Q4_0), QuantType::Q6K);
    }

    #[test]
    fn matrices_of_a_folder_become_blocks_once() {
        let mut folder = ModelFolder::open(&fixture("llama2-mha")).unwrap();
        let plain = folder.tensors.weight_bytes(&folder.config);
        for _ in 0..2 {
            folder.tensors.quantize(&folder.config, QuantType::Q8_0).unwrap();
        }
        let small = folder.tensors.device_bytes(&folder.config, &QuantType::ALL);
        assert!(100 * small < 54 * plain, "{small} of {plain} bytes of f16");
        assert_eq!(folder.tensors.device_bytes(&folder.config, &[]), plain);
    }
}
