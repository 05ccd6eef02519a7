//! Rows of a plain tensor in another form, made when they are read: a tensor is never in memory
//! twice, whether it goes to a device or into a file.

use std::io;
use std::num::NonZero;
use std::ops::Range;
use std::slice;
use std::thread;

use half::{bf16, f16};
use longview_core::quant::{QuantType, quantize};
use longview_core::{DType, RangeSource, decode_f32_into};

use super::stored::Stored;

/// Values for which another thread is worth its start.
const VALUES_OF_A_THREAD: usize = 1 << 15;

/// How values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowForm {
    /// As f32: exact for every type that is read.
    F32,
    /// As the nearest f16; a value beyond its range is an error.
    F16,
    /// As the nearest bf16.
    Bf16,
    /// As quantised blocks.
    Blocks(QuantType),
}

impl RowForm {
    /// Bytes of `n` values, which are whole blocks.
    pub(crate) fn bytes(self, n: usize) -> usize {
        match self {
            RowForm::F32 => 4 * n,
            RowForm::F16 | RowForm::Bf16 => 2 * n,
            RowForm::Blocks(ty) => n / ty.block_len() * ty.block_bytes(),
        }
    }
}

/// Rows of a plain tensor, made when they are read.
pub(crate) struct MadeRows {
    pub(super) stored: Stored,
    pub(super) dtype: DType,
    pub(super) form: RowForm,
    pub(super) n_rows: usize,
    pub(super) n_cols: usize,
    /// Which stored row each row is; `None`: they are in order.
    pub(super) order: Option<Vec<usize>>,
    /// Added to every value, in f32.
    pub(super) offset: f32,
}

impl MadeRows {
    pub(crate) fn row_bytes(&self) -> usize {
        self.form.bytes(self.n_cols)
    }

    fn stored_row(&self, row: usize) -> usize {
        self.order.as_ref().map_or(row, |order| order[row])
    }

    /// Reads `rows`, rounds them to the form and writes them to `out`.
    fn make(&self, rows: Range<usize>, out: &mut [u8]) -> io::Result<()> {
        let mut bytes = vec![0; self.n_cols * self.dtype.size()];
        let mut values = vec![0.0; self.n_cols];
        for (row, out) in rows.zip(out.chunks_exact_mut(self.row_bytes())) {
            let at = self.stored_row(row) * bytes.len();
            let run = at..at + bytes.len();
            self.stored.read_runs(slice::from_ref(&run), 0, &mut bytes)?;
            decode_f32_into(self.dtype, &bytes, &mut values);
            if self.offset != 0.0 {
                values.iter_mut().for_each(|value| *value += self.offset);
            }
            self.put(&values, out)?;
        }
        Ok(())
    }

    fn put(&self, values: &[f32], out: &mut [u8]) -> io::Result<()> {
        match self.form {
            RowForm::F32 => {
                out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, x)| {
                    *out = x.to_le_bytes();
                });
            }
            RowForm::Bf16 => {
                out.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, x)| {
                    *out = bf16::from_f32(*x).to_le_bytes();
                });
            }
            RowForm::F16 => {
                for (out, x) in out.as_chunks_mut().0.iter_mut().zip(values) {
                    *out = half(*x)?.to_le_bytes();
                }
            }
            RowForm::Blocks(ty) => quantize(ty, values, out),
        }
        Ok(())
    }

    /// The same on all cores.
    fn make_together(&self, rows: Range<usize>, out: &mut [u8]) -> io::Result<()> {
        let threads = thread::available_parallelism().map_or(1, NonZero::get);
        let least = VALUES_OF_A_THREAD.div_ceil(self.n_cols.max(1));
        let step = rows.len().div_ceil(threads).max(least);
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
            let panicked = |_| Err(io::Error::other("another form could not be made"));
            workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(panicked))
        })
    }
}

/// A number as f16; one that f16 has no place for is an error rather than infinity.
fn half(value: f32) -> io::Result<f16> {
    let half = f16::from_f32(value);
    if half.is_finite() || !value.is_finite() {
        return Ok(half);
    }
    Err(io::Error::other(format!("holds {value}, beyond F16; BF16 holds it")))
}

impl RangeSource for MadeRows {
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
    use longview_core::{HostBytes, SplitMix64, decode_f32, encode_f32};

    use super::*;

    fn made(values: &[f32], n_cols: usize, form: RowForm) -> MadeRows {
        let stored = Stored::InMemory(HostBytes::from_vec(encode_f32(DType::F32, values)));
        let n_rows = values.len() / n_cols;
        MadeRows { stored, dtype: DType::F32, form, n_rows, n_cols, order: None, offset: 0.0 }
    }

    fn all(made: &MadeRows) -> Vec<u8> {
        let mut bytes = vec![0; made.size() as usize];
        made.read_at(0, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn blocks_are_those_of_each_row_wherever_reading_begins() {
        let (n_rows, n_cols, ty) = (1200, 64, QuantType::Q4_0);
        let rng = &mut SplitMix64::new(9);
        let values: Vec<f32> = (0..n_rows * n_cols).map(|_| rng.next_normal()).collect();
        let made = made(&values, n_cols, RowForm::Blocks(ty));
        let mut expected = vec![0; made.size() as usize];
        quantize(ty, &values, &mut expected);
        for (at, len) in [(0, expected.len()), (36, 72), (37, 1), (100, 3000), (43_200, 0)] {
            let mut found = vec![0; len];
            made.read_at(at as u64, &mut found).unwrap();
            assert_eq!(found, expected[at..at + len], "{len} bytes at {at}");
        }
        assert!(made.read_at(43_199, &mut [0; 2]).is_err());
    }

    #[test]
    fn rows_come_in_the_order_that_is_asked_for() {
        let values: Vec<f32> = (0..6).map(|i| i as f32).collect();
        let mut made = made(&values, 2, RowForm::Bf16);
        made.order = Some(vec![2, 0, 1]);
        made.offset = 1.0;
        assert_eq!(decode_f32(DType::BF16, &all(&made)), [5.0, 6.0, 1.0, 2.0, 3.0, 4.0]);
    }

    #[test]
    fn what_f16_does_not_hold_is_an_error() {
        let form = RowForm::F16;
        let largest = made(&[65_519.0, -1.0], 2, form);
        assert_eq!(decode_f32(DType::F16, &all(&largest)), [65_504.0, -1.0]);
        let error = made(&[1.0, 65_520.0], 2, form).read_at(0, &mut [0; 4]).unwrap_err();
        assert_eq!(error.to_string(), "holds 65520, beyond F16; BF16 holds it");
    }
}
