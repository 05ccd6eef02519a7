//! How a model is loaded.

use longview_ops::Activations;

/// How a model is loaded.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// The longest context that positions are computed for.
    pub planned_context: usize,
    /// What products with quantised weights, and with those of BF16, do to activations.
    pub activations: Activations,
}
