//! What a model, a context length and a policy fix about where rows lie: dimensions, how layers
//! attend, the rows of a device buffer, and the tensors of a step.

mod device_layout;
mod kv_shape;
mod layer_mode;
mod layer_tensors;
mod prefill_mode;
mod segments;

pub use device_layout::DeviceLayout;
pub use kv_shape::{HostRows, KvShape};
pub use layer_mode::LayerMode;
pub use layer_tensors::LayerTensors;
pub(crate) use layer_tensors::{Query, SelectionId, attend_params};
pub use prefill_mode::PrefillMode;
pub use segments::Segments;
pub(crate) use segments::segment_rows;

/// Queries that a prefill records for policies that come later.
pub const LAST_QUERIES: usize = 128;

/// First tokens of a sequence whose queries and keys are summed: what later ones are compared by
/// then stays as it is, however long the sequence becomes.
pub const SUMMED_TOKENS: usize = 8_192;
