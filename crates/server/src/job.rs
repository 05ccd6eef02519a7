//! What goes between handlers and the engine's thread.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use longview_engine::{BlockCounts, PrefillMode};
use longview_library::documents::Id;
use longview_reader::LeftOut;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::asked::How;
use crate::error::ApiError;
use crate::keys::Scope;
use crate::look::{Seen, StepLook};
use crate::request_id::RequestId;

/// Events that wait for a client before its answer is not computed further.
pub(crate) const MAX_EVENTS: usize = 256;

/// To the engine's thread.
pub(crate) enum Message {
    /// A prompt to answer, or a document to read.
    Job(Box<Job>),
    /// A context that is to be removed, and the tokens of its text. The answer comes when no
    /// request uses it that came before.
    Remove { scope: Scope, id: Id, ids: Vec<u32>, unused: oneshot::Sender<()> },
    /// A context that was removed, and the tokens of its text.
    Forget { scope: Scope, id: Id, ids: Vec<u32> },
    /// What a slot held goes from memory; the answer comes when it has.
    Erase { scope: Scope, tokens: Arc<[u32]>, erased: oneshot::Sender<()> },
    /// Nothing else comes: what runs may end.
    Drain,
}

/// A request.
pub(crate) struct Job {
    /// Whose it is: what others have read is not used for it.
    pub(crate) scope: Scope,
    /// What the client and the log call it.
    pub(crate) request_id: Option<RequestId>,
    pub(crate) ids: Vec<u32>,
    pub(crate) how: How,
    pub(crate) events: mpsc::Sender<Event>,
    /// A document that is to be kept.
    pub(crate) document: Option<KeptText>,
    /// What of it lies on the disk.
    pub(crate) on_disk: OnDisk,
    /// When it came.
    pub(crate) since: Instant,
    /// Its place among those that run and wait; given back when the request ends, however it does.
    pub(crate) _place: OwnedSemaphorePermit,
}

/// Whether a session on the disk was looked for that a prompt goes on from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OnDisk {
    /// Not yet.
    NotAsked,
    /// It is looked for in shared storage, and comes from there.
    Fetching(Id),
    /// What shared storage has of it is here.
    Fetched,
    /// This file is being opened.
    Opening(Id),
    /// Nothing else is needed from there.
    Done,
}

/// A text of the library.
#[derive(Clone)]
pub(crate) struct KeptText {
    pub(crate) id: Id,
    pub(crate) text: String,
}

/// From the engine's thread, for one request.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A part of the prompt was read.
    Progress(Progress),
    /// A part of an answer; with its tokens where they are wanted.
    Piece {
        choice: usize,
        text: String,
        logprobs: Vec<TokenProb>,
        tokens: Vec<u32>,
        /// What the request took so far, where it asked for that.
        timings: Option<Box<Summary>>,
    },
    /// What a step of an answer recalled, where that was asked for.
    Step(StepLook),
    /// An answer is complete; `stop`: by this text of the request.
    Finished { choice: usize, reason: &'static str, stop: Option<String> },
    /// All answers are.
    Done(Summary),
    /// There will be no more of it.
    Failed(ApiError),
}

/// How far a prompt was read, as llama.cpp says it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) total: usize,
    pub(crate) cached: usize,
    pub(crate) processed: usize,
    pub(crate) time_ms: u64,
    /// Whether it is told with timings.
    pub(crate) is_timed: bool,
}

/// A request that runs.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    pub(crate) scope: Scope,
    /// How many requests of its scope ran before it.
    pub(crate) task: u64,
    pub(crate) n_prompt: usize,
    pub(crate) n_cached: usize,
    /// Tokens of the prompt that were read, beside those that were known.
    pub(crate) n_read: usize,
    pub(crate) n_decoded: usize,
    pub(crate) policy: String,
    /// What is being done for it.
    pub(crate) state: SlotState,
    /// How its prompt is read.
    pub(crate) prefill: PrefillMode,
    /// What was attended where tokens were read sparsely.
    pub(crate) blocks: BlockCounts,
    /// The context that is built of it.
    pub(crate) builds: Option<Id>,
}

/// What is being done for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    /// Its prompt is read.
    Reading,
    /// All that is read of it: what the policy keeps of it is made.
    Indexing,
    /// Tokens are generated.
    Answering,
}

impl SlotState {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Reading => "reading",
            Self::Indexing => "indexing",
            Self::Answering => "answering",
        }
    }
}

/// Requests that run, as the engine's thread says.
pub(crate) type Slots = Arc<Mutex<Vec<Slot>>>;

/// A token and its probability among others.
#[derive(Clone, Debug)]
pub(crate) struct TokenProb {
    pub(crate) id: u32,
    pub(crate) logprob: f32,
    pub(crate) top: Vec<(u32, f32)>,
    /// Whether these are probabilities after all cuts, and no logarithms of the model's own.
    pub(crate) is_drawn: bool,
}

/// What a request took.
#[derive(Clone, Debug, Default)]
pub(crate) struct Summary {
    pub(crate) n_prompt: usize,
    pub(crate) n_cached: usize,
    pub(crate) n_predicted: usize,
    /// Steps that computed tokens on trial, those tokens, and those of them that the answer had.
    pub(crate) n_drafts: usize,
    pub(crate) n_drafted: usize,
    pub(crate) n_accepted: usize,
    pub(crate) prompt_ms: f64,
    pub(crate) predicted_ms: f64,
    pub(crate) waited_ms: f64,
    pub(crate) policy: String,
    /// What its tokens were drawn from, where any were.
    pub(crate) seed: Option<u64>,
    /// How the context was read: the least exact way of any part of it.
    pub(crate) prefill: PrefillMode,
    /// What was attended where tokens of this request were read sparsely.
    pub(crate) blocks: BlockCounts,
    /// Mean tokens that a KV head of a layer attended in a step of the answer.
    pub(crate) attended: Option<f64>,
    /// How much of the attention its steps left out at most, where the policy bounds it.
    pub(crate) left_out: Option<LeftOut>,
    /// Tokens that there were at the end.
    pub(crate) n_tokens: usize,
    /// The tokens that the first answer left, where they are in a session.
    pub(crate) left: Option<Arc<[u32]>>,
    /// What was looked at.
    pub(crate) seen: Option<Seen>,
}
