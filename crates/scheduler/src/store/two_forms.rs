//! Rows that the host store has twice: rounded to 8 bits, and, the first and the most recent ones,
//! as they were written.

use longview_ops::Backend;

use crate::layout::DeviceLayout;

/// The two forms of a layer's rows, where kernels read them.
pub struct TwoForms<'a, B: Backend> {
    /// All rows, of 8 bits: `[Hkv, capacity]`.
    pub rounded: &'a B::Buffer,
    /// First and recent rows as they were written: `[Hkv, rows of the layout]`.
    pub exact: &'a B::Buffer,
    /// Where a row lies among the exact ones.
    pub layout: DeviceLayout,
    /// The first row behind the first ones that is there in full, with all that follow.
    pub first_exact: usize,
}

/// [`TwoForms`], to be written.
pub struct TwoFormsMut<'a, B: Backend> {
    /// As [`TwoForms::rounded`].
    pub rounded: &'a mut B::Buffer,
    /// As [`TwoForms::exact`].
    pub exact: &'a mut B::Buffer,
    /// As [`TwoForms::layout`].
    pub layout: DeviceLayout,
}
