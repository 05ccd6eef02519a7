//! The scheduler: which KV rows each head attends, where they are, and what must move.
//!
//! A policy is an index, a budget and a residency ([`Policy`]). A [`Sequence`] keeps every KV row
//! in a [`HostStore`], an index over them, and the device rows that steps attend; a [`Step`]
//! carries one layer after the other through store, select, look up, fetch and attend. Generic over
//! the device ([`longview_ops::Backend`]) and the host store; knows neither model nor tokenizer,
//! reads no environment and takes its seeds as arguments.
//!
//! The modules are rooms, each of which knows only those before it: `layout`, `policy`, `error`,
//! `stats`, `store`, `index`, then `recall`, `eviction` and `inspect`, which do not know each
//! other, `sequence`, and `session_file`.

mod error;
mod eviction;
mod index;
mod inspect;
mod layout;
mod policy;
mod recall;
mod sequence;
mod session_file;
mod stats;
mod store;

pub use error::{DamagedPart, Difference, SchedulerError, SessionFileError};
pub use eviction::head_capacities;
pub use index::{
    ClusterJob, ClusterTask, ClusterWorker, HeadClusters, HeadIndex, HeadVectors, LayerIndex,
    Recorded, TaskKind, projection,
};
pub use inspect::{TokenPlace, TracedLayer};
pub use layout::{
    DeviceLayout, HostRows, KvShape, LAST_QUERIES, LayerMode, LayerTensors, PrefillMode,
};
pub use policy::{
    AlwaysAttended, Attend, AttentionBound, BlockConfig, Budget, BudgetMode, BudgetOption,
    ClusterConfig, DEEP_LAYERS, Eviction, FLUSH_STEPS, HeadBudgets, HeadSelect, Importance, Index,
    IndexKind, KeptConfig, LayerBudgets, LocalWindow, LrqkDecode, LrqkInit, LrqkOrder, MAX_CONTEXT,
    OPTIONS, OptionInfo, Policy, PolicyAdvice, PolicyError, PolicyOptions, PoolOrder, Positions,
    Preselect, Preset, PresetInfo, Projection, Rank, Representative, Residency, Residual, Schedule,
    SmallBudget, Statistic, TokenConfig, TwoStage, ValueRange, WHOLE_PROMPT_CONTEXT,
};
pub use recall::{ClusterCache, Miss, RecallMode, SAMPLED_CONFIDENCE, StepVerdict, Want};
pub use sequence::{
    BlockCounts, FillRows, HostStoreKind, KvPlan, Layer, LayerState, Placement, PromptEnd,
    PromptLength, Recall, Sequence, SequenceOptions, SpanMode, Step, StepScratch, StepSpan,
    check_draft,
};
pub use session_file::{
    ComingSequence, Digest, FORMAT_VERSION, Fingerprint, FingerprintPart, SESSION_MAGIC,
    SaveOptions, SessionContent, SessionFile, SessionHeader, SessionReader, append_sequence,
    restore_sequence, restore_sequence_beside, save_sequence,
};
pub use stats::{Bounds, Stats};
pub use store::{
    EightBitStore, HostBytesMut, HostStore, MappedStore, OpenBytes, PlainStore, ReadParts,
    RoundedRows, RowRange, TwoForms, TwoFormsMut,
};
