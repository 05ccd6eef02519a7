//! The scheduler: which KV rows each head attends, where they are, and what must move.
//!
//! A policy is an index, a budget and a residency ([`Policy`]). A [`Sequence`] keeps every KV row
//! in a [`HostTier`], an index over them, and the device rows that steps attend; a [`Step`] carries
//! one layer after the other through store, select, resolve, fetch and attend. Generic over the
//! device ([`longview_ops::Backend`]) and the host tier; knows neither model nor tokenizer, reads
//! no environment and takes its seeds as arguments.

mod adaptive;
mod ahead;
mod cache;
mod certificate;
mod chunk;
mod clusterer;
mod error;
mod held;
mod host_attention;
mod importance;
mod index;
mod indexing;
#[path = "index/job_queue.rs"]
mod job_queue;
mod keep;
mod layer;
mod mirror;
mod observe;
mod plan;
mod policy;
pub mod projection;
mod refine;
mod resolver;
mod rows;
mod select;
mod sequence;
mod session_file;
mod shape;
mod sight;
mod speculate;
mod stats;
mod step;
mod tail;
mod tier;
mod turn;
mod watch;

pub use cache::{ClusterCache, Miss, Want};
pub use certificate::Bounds;
pub use clusterer::{ClusterJob, ClusterTask, ClusterWorker, HeadClusters, TaskKind};
pub use error::SchedulerError;
pub use index::{HeadIndex, LayerIndex};
pub use keep::head_capacities;
pub use layer::{LAST_QUERIES, Layer, LayerMode, Recorded};
pub use mirror::ReadParts;
pub use plan::KvPlan;
pub use policy::{
    Attend, BlockConfig, BudgetMode, BudgetOption, ClusterConfig, DEEP_LAYERS, FLUSH_STEPS,
    HeadSelect, Importance, IndexConfig, IndexKind, KeepConfig, LrqkDecode, LrqkInit, LrqkOrder,
    OPTIONS, OptionInfo, Policy, PolicyError, PolicyOptions, PoolOrder, Positions, Preselect,
    Preset, PresetInfo, Projection, Rank, Refine, Representative, Residency, Statistic, Tail,
    TokenConfig, WHOLE_PROMPT_CONTEXT,
};
pub use sequence::{FillRows, Placement, Sequence, SequenceOptions, TierKind};
pub use session_file::{
    BLOCK_BYTES, DamagedPart, Difference, Digest, FORMAT_VERSION, Fingerprint, FingerprintPart,
    SaveOptions, SessionContent, SessionFile, SessionFileError, SessionHeader, SessionReader,
};
pub use shape::KvShape;
pub use sight::TokenPlace;
pub use speculate::{RecallMode, StepVerdict};
pub use stats::Stats;
pub use step::{LayerTensors, SpanMode, Step, StepScratch, StepSpan};
pub use tier::{HostBytesMut, HostTier, MappedTier, OpenBytes, PlainTier, RowRange};
pub use watch::Watched;
