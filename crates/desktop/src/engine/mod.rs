//! The engine as the window knows it: a trait, the values that it speaks, and the thread that runs
//! it.
//!
//! The window never waits for the engine. It sends [`Command`]s to a [`Worker`] and looks for
//! [`Event`]s once a frame; the worker's thread asks for a frame whenever there is one. Behind the
//! trait stands [`local`], the real one, or a script in tests.

mod contract;
pub mod local;
mod worker;

pub use longview_reader::{ContextMap, Finish};

pub use self::contract::{
    Answer, AnswerStep, Attention, DocumentEngine, DocumentId, Failure, FailureKind, ModelInfo,
    Passage, Question, ReadPlan, ReadProgress, ReadState,
};
pub use self::worker::{Command, Event, OpenEngine, Step, Task, Wake, Worker};
