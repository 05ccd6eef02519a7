//! A policy is an index, a budget and a residency; presets name the published combinations.
//!
//! Users fill in [`PolicyOptions`]; [`Policy::resolve`] turns them into one validated [`Policy`] or
//! says which combination cannot work. Nothing else in the crate reads raw options. Each of the
//! three values answers questions about itself, so no other code lists presets or flags.

mod advice;
mod budget;
mod error;
mod index;
mod least_budget;
mod left_out;
mod limits;
mod options;
mod preset;
#[cfg(test)]
pub(crate) mod random;
mod range;
mod residency;
mod resolve;
mod resolved;
mod small_budget;
mod text;

pub use advice::PolicyAdvice;
pub use budget::{Budget, HeadBudgets, LayerBudgets};
pub use error::PolicyError;
pub use index::{
    BlockConfig, ClusterConfig, Index, IndexKind, LocalWindow, Preselect, Projection, Rank,
    Schedule, TokenConfig, TwoStage,
};
pub use left_out::{AttentionBound, Residual};
pub use limits::{DEEP_LAYERS, FLUSH_STEPS, INDEX_SEGMENT, MAX_CONTEXT, WHOLE_PROMPT_CONTEXT};
pub use options::{
    Attend, BudgetMode, BudgetOption, HeadSelect, Importance, LrqkDecode, LrqkInit, LrqkOrder,
    OPTIONS, OptionInfo, PolicyOptions, PoolOrder, Positions, Representative,
};
pub use preset::{Preset, PresetInfo};
pub use range::ValueRange;
pub use residency::{Eviction, KeptConfig, Residency, Statistic};
pub use resolved::Policy;
pub use small_budget::{AlwaysAttended, SmallBudget};
