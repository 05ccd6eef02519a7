//! A step or a change of a sequence that did not happen.

use longview_core::Grouped;
use longview_ops::OpError;

use super::session_file_error::SessionFileError;
use crate::policy::{PolicyError, Preset};

/// A step or a change of a sequence that did not happen.
#[derive(Debug, thiserror::Error)]
pub enum SchedulerError {
    /// The device refused.
    #[error(transparent)]
    Op(#[from] OpError),
    /// Options that cannot work together.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// More tokens than the sequence was planned for.
    #[error(
        "{} tokens do not fit a context of {}; start with --ctx-size {needed} or more",
        Grouped::from(*needed),
        Grouped::from(*capacity)
    )]
    ContextFull {
        /// Tokens that would be in the sequence.
        needed: usize,
        /// Tokens that fit.
        capacity: usize,
    },
    /// A chunk larger than the step's buffers.
    #[error("a chunk of {len} tokens exceeds the planned {chunk}")]
    Chunk {
        /// Tokens of the chunk.
        len: usize,
        /// Most tokens.
        chunk: usize,
    },
    /// In-place recall on a device that does not share memory with the host.
    #[error(
        "{backend} does not share memory with the host: in-place recall is not possible, \
         use a device cache"
    )]
    NotUnified {
        /// The backend.
        backend: &'static str,
    },
    /// A policy that needs what no prefill of this sequence recorded.
    #[error(
        "--policy {policy} needs {what}, which this sequence does not have: give the text to it \
         again under that policy"
    )]
    NoStatistics {
        /// The policy.
        policy: Preset,
        /// What is missing.
        what: &'static str,
    },
    /// What was recorded of the prompt is no number: neither are keys or queries.
    #[error(
        "the sums of q q^T and k k^T have what is no number in them: the weights, the keys and \
         values of a session that was opened, or the arithmetic are broken"
    )]
    NonFinite,
    /// A session file.
    #[error(transparent)]
    Session(#[from] SessionFileError),
    /// Threads that could not be started.
    #[error("--host-threads {threads}: {reason}; try a smaller number")]
    HostThreads {
        /// How many.
        threads: usize,
        /// What the system said.
        reason: String,
    },
    /// Speculative recall of a choice that the host must see, or that is not made in every step.
    #[error(
        "--recall speculative: --policy {policy} as given attends on the host, follows its steps, \
         counts its mass or bounds, or chooses for several layers or steps or a layer \
         ahead; use --recall exact"
    )]
    CannotSpeculate {
        /// The policy.
        policy: Preset,
    },
    /// Speculative recall where nothing is fetched.
    #[error(
        "--recall speculative: this device attends keys and values where they are, so no fetch is \
         there to be ahead of; use --recall exact, or a device with memory of its own \
         (--simulate-device makes the CPU one)"
    )]
    NothingToSpeculate,
    /// Sparse prefill under a policy that records what all queries attend.
    #[error(
        "--prefill sparse does not compute the attention of all queries that {policy} keeps: use \
         --prefill exact, or another policy"
    )]
    SparsePolicy {
        /// The policy.
        policy: Preset,
    },
    /// Sparse prefill with tiles of the past that hold no mean.
    #[error(
        "--prefill sparse: tiles of {tile} rows of the past are too small: make them {least} rows \
         or more, or use --prefill exact"
    )]
    NoSparsePrefill {
        /// Rows of a tile.
        tile: usize,
        /// Rows that it must have.
        least: usize,
    },
    /// The indexing of a prompt was ended by its caller.
    #[error("the index of what was read is not made: it was stopped")]
    Stopped,
    /// Drafted tokens under a policy that cannot take one back.
    #[error(
        "--draft lookup: --policy {policy} as given {why}, so that no token can be taken back; \
         use --draft off"
    )]
    CannotDraft {
        /// The policy.
        policy: Preset,
        /// What it does.
        why: &'static str,
    },
    /// Drafted tokens where a step recalls what the one before selected.
    #[error(
        "--draft lookup: under --recall speculative a step recalls what the one before selected, \
         so that no token can be taken back; use --recall exact, or --draft off"
    )]
    CannotDraftSpeculatively,
    /// A threshold of cosines that is none.
    #[error("--recall-gate {0}: must be a number from -1 (never run again) to above 1 (always)")]
    RecallGate(f32),
    /// A step that may have to be run again, and another call before that was found out.
    #[error(
        "the last step recalled by the query before: read whether it stands \
         (Sequence::write_back) before going on"
    )]
    VerdictUnread,
}
