//! The engine as the window knows it: a trait, the values that it speaks, and the thread that runs
//! it.
//!
//! The window never waits for the engine. It sends [`Command`]s to a [`Worker`] and looks for
//! [`Event`]s once a frame; the worker's thread asks for a frame whenever there is one. Behind the
//! trait stands [`local`], the real one, or a script in tests.

mod contract;
pub mod local;
mod server;
mod serving;
mod setup;
mod worker;

pub use longview_reader::{Answer, ContextMap, Finish, LeftOut, Passage};

pub use self::contract::{
    AnswerStep, Attention, DocumentEngine, DocumentId, Failure, FailureKind, Machine, ModelInfo,
    Parts, Question, ReadPlan, ReadProgress, ReadState,
};
pub use self::serving::{Host, LibraryServer, Published, Serve, Served, Serving, StartServer};
pub use self::setup::{EngineSetup, Engines, ModelSource};
pub use self::worker::{Command, Event, OpenEngine, Step, Task, Wake, Worker};
