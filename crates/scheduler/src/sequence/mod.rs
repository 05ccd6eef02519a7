//! One sequence: its rows, its layers, how a step goes through them, and how it grows, shrinks and
//! changes policy. The one room that knows all mechanisms; none of them knows it.

mod coded_slots;
mod decode;
mod device_lookup;
mod drafted;
mod drawn;
mod exact_rows;
#[cfg(test)]
mod fixture;
mod fork;
mod indexing;
mod inspection;
mod kept_layers;
mod known_prompt;
mod known_tokens;
mod kv_sequence;
mod layer_place;
mod layer_record;
mod layer_state;
mod options;
mod past_stream;
mod plan;
mod policy_change;
mod prefill;
mod prompt_end;
#[cfg(test)]
mod random_settings;
mod recovery;
mod resident_rows;
mod round;
mod scratch;
#[cfg(test)]
mod segmented_rows;
mod snapshot;
mod sparse;
mod sparse_means;
mod stale_rows;
mod step;
mod token_index;
mod token_order;
mod two_forms;

pub use drafted::check_draft;
pub use known_prompt::PromptLength;
pub use kv_sequence::{FillRows, Sequence};
pub(crate) use layer_place::{LayerToFill, LoadedLayer};
pub(crate) use layer_record::{
    LayerRecord, LayerStateRecord, PlacesRecord, RecallRecord, RecordedRecord, SelectionRecord,
};
pub use layer_state::{Layer, LayerState, Recall};
pub use options::{HostStoreKind, Placement, SequenceOptions};
pub use plan::KvPlan;
pub use prompt_end::PromptEnd;
pub use scratch::StepScratch;
pub(crate) use snapshot::Restored;
pub use sparse_means::BlockCounts;
pub use step::{SpanMode, Step, StepSpan};
