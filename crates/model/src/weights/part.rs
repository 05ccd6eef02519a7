//! Weights as rows of stored tensors: some checkpoints keep several in one, or in another order.

use std::ops::Range;

/// A tensor that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedTensor {
    /// Its name in the file.
    pub name: String,
    /// `[rows, cols]`, or `[n]` for a vector.
    pub shape: Vec<usize>,
}

impl ExpectedTensor {
    pub(super) fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), shape: shape.to_vec() }
    }
}

/// Rows of a stored tensor (elements, of a vector), in the order in which a weight has them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorPart {
    /// The tensor as it is stored.
    pub tensor: ExpectedTensor,
    /// Runs of its rows, one after the other. One run is read in place, several are copied.
    pub rows: Vec<Range<usize>>,
}

impl TensorPart {
    /// All of `tensor`.
    pub(super) fn whole(tensor: ExpectedTensor) -> Self {
        let rows = 0..tensor.shape[0];
        Self { tensor, rows: vec![rows] }
    }

    /// All of the tensor `name`.
    pub(crate) fn of(name: &str, shape: &[usize]) -> Self {
        Self::whole(ExpectedTensor::new(name, shape))
    }

    /// Rows of the weight.
    pub fn n_rows(&self) -> usize {
        self.rows.iter().map(ExactSizeIterator::len).sum()
    }
}

/// `n` runs of `len` rows, the first at `first` and each `stride` rows after the last.
pub(super) fn strided(first: usize, len: usize, stride: usize, n: usize) -> Vec<Range<usize>> {
    (0..n).map(|i| first + i * stride).map(|start| start..start + len).collect()
}

/// `rows`, of heads of `head_dim`, with the first `rotary_dim` rows of each head re-ordered from
/// pairs `(2 i, 2 i + 1)` to pairs `(i, i + rotary_dim / 2)`.
pub(super) fn halves_of_neighbours(
    rows: Vec<Range<usize>>,
    head_dim: usize,
    rotary_dim: usize,
) -> Vec<Range<usize>> {
    let stored: Vec<usize> = rows.into_iter().flatten().collect();
    let from = |i: usize| match (i % head_dim, rotary_dim / 2) {
        (at, half) if at < half => i + at,
        (at, half) if at < rotary_dim => i + at + 1 - 2 * half,
        _ => i,
    };
    (0..stored.len()).map(|i| stored[from(i)]).map(|row| row..row + 1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_become_halves_and_the_rest_stays() {
        let rows = halves_of_neighbours(vec![10..18, 30..38], 8, 6);
        let order: Vec<usize> = rows.into_iter().flatten().collect();
        assert_eq!(order[..8], [10, 12, 14, 11, 13, 15, 16, 17]);
        assert_eq!(order[8..], [30, 32, 34, 31, 33, 35, 36, 37]);
    }

    #[test]
    fn strides_skip_what_is_between() {
        assert_eq!(strided(2, 3, 10, 3), [2..5, 12..15, 22..25]);
    }
}
