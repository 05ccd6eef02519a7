//! Recall: which rows a query selects from the index, where they are, and how they are attended.

mod bound;
mod cache;
mod confidence;
mod device_cache;
mod device_rest;
mod draw;
mod host_attention;
mod host_result;
mod layer_prefetch;
mod path;
mod resident_lists;
mod residual;
mod sampled;
mod sampled_bound;
mod search;
mod selector;
mod speculation;
#[cfg(test)]
mod testing;
mod two_stage;
mod unread;

pub(crate) use bound::Bounded;
pub use cache::{ClusterCache, Miss, Want};
pub use confidence::SAMPLED_CONFIDENCE;
pub(crate) use device_cache::DeviceLookup;
pub(crate) use draw::{DrawPlace, Purpose};
pub(crate) use host_attention::HostSelection;
pub(crate) use layer_prefetch::LayerPrefetch;
pub(crate) use path::{RecallPath, RecallSetup};
pub(crate) use resident_lists::resident_lists_bytes;
pub(crate) use residual::{RESIDUAL_PARTS, residual_bytes};
pub(crate) use sampled::{Choice, sampled_bytes};
pub(crate) use sampled_bound::SampledBound;
pub(crate) use search::Searched;
pub(crate) use selector::Lookup;
pub use speculation::{RecallMode, StepVerdict};
pub(crate) use two_stage::token_stage_bytes;
pub(crate) use unread::Unread;
