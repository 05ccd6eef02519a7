//! A checked linear layer: `out = x W^T (+ bias) (+ out)` without W and out.

/// What ops and kernels of every type of weights need.
pub(crate) struct Problem<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) n_in: usize,
    pub(crate) n_out: usize,
    pub(crate) bias: Option<&'a [f32]>,
    pub(crate) add: bool,
}
