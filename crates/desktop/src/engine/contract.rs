//! What an engine is to the window: the calls, and the values that they speak.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use longview_reader::{Answer, ContextMap};
use serde::{Deserialize, Serialize};

/// Which document, for as long as the program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DocumentId(pub u64);

/// The model and the device that runs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelInfo {
    /// What to call it.
    pub name: String,
    /// The device.
    pub device: String,
    /// Whether it is the model inside the program, which knows few forms of questions.
    pub is_embedded: bool,
    /// Layers, and KV heads of each.
    pub n_layers: usize,
    /// KV heads of a layer.
    pub n_kv_heads: usize,
    /// The memory that there is for it.
    pub machine: Machine,
}

/// The memory of the machine, as it was when the device was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// Of the device; `None` if nobody knows.
    pub device_bytes: Option<u64>,
    /// Of the host, beside a device with memory of its own.
    pub host_bytes: Option<u64>,
    /// Whether both are the same.
    pub is_unified: bool,
}

/// Bytes that a document takes, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// Weights, on the device.
    pub weights: u64,
    /// Recalled keys and values, and the index, on the device.
    pub device_rows: u64,
    /// Buffers of a step, on the device.
    pub buffers: u64,
    /// All keys and values, in host memory.
    pub host_rows: u64,
    /// The host's copy of the index, in host memory.
    pub host_index: u64,
    /// What is kept in the library, on the disk: about, before it is read.
    pub disk: u64,
}

impl Parts {
    /// Bytes where the device computes.
    pub fn device_bytes(&self) -> u64 {
        self.weights + self.device_rows + self.buffers
    }

    /// Bytes in host memory.
    pub fn host_bytes(&self) -> u64 {
        self.host_rows + self.host_index
    }
}

/// What it takes to read a document, before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadPlan {
    /// Tokens of the document.
    pub tokens: usize,
    /// Tokens of the context that is made for it: questions and answers have room too.
    pub context: usize,
    /// The bytes that it takes.
    pub parts: Parts,
    /// Whether device and host memory are the same.
    pub is_unified: bool,
    /// What the memory that is too small holds, if one is.
    pub short_of: Option<u64>,
    /// Bytes that are free where it would be kept, if that is known.
    pub disk_free: Option<u64>,
}

impl ReadPlan {
    /// What is free on the disk, if that is too little to keep what will be read.
    pub fn disk_short_of(&self) -> Option<u64> {
        self.disk_free.filter(|free| *free < self.parts.disk)
    }
}

/// How far reading is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReadProgress {
    /// Tokens read.
    pub done: usize,
    /// Tokens of the document.
    pub total: usize,
    /// Tokens a second in this call, pauses left out.
    pub tokens_per_s: f64,
    /// Seconds left at this speed.
    pub left_s: f64,
}

/// How much of a document was read.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadState {
    /// Tokens read.
    pub tokens: usize,
    /// Tokens of the document.
    pub total: usize,
    /// Time of reading, or of opening what was read before.
    pub seconds: f64,
    /// Whether it was opened, and not read now.
    pub was_kept: bool,
    /// Why it is not in the library, where it was to be.
    pub not_kept: Option<Failure>,
}

impl ReadState {
    /// Whether all was read.
    pub fn is_complete(&self) -> bool {
        self.tokens == self.total
    }
}

/// What a step of an answer may attend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Attention {
    /// So many tokens, recalled by the policy of the settings.
    Budget(usize),
    /// All.
    Full,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// What is asked.
    pub text: String,
    /// What a step may attend.
    pub attention: Attention,
    /// The layer and the KV head to draw a map of.
    pub map: (usize, usize),
}

/// What a step of an answer says.
#[derive(Clone, Debug, PartialEq)]
pub struct AnswerStep {
    /// Text that became complete.
    pub text: String,
    /// Tokens of the answer so far; none while the question is read.
    pub tokens: usize,
    /// Steps a second so far.
    pub tokens_per_s: f64,
    /// Rows recalled in this step that were on the device.
    pub hits: u64,
    /// Rows that were fetched.
    pub misses: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Where the context's tokens stood.
    pub map: Option<ContextMap>,
}

/// What went wrong, in a form that a thread can hand over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What a person can do about it.
    pub kind: FailureKind,
    /// In the words of whoever failed.
    pub message: String,
}

/// What a person can do about a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureKind {
    /// There is no engine: its thread ended, or never came to life.
    EngineStopped,
    /// The device that was chosen is not there, or cannot be used.
    NoDevice,
    /// The device is gone.
    DeviceLost,
    /// Memory does not hold it.
    OutOfMemory,
    /// The document is longer than the model's context.
    TooLong,
    /// The model's files.
    Model,
    /// The library could not keep what was read.
    NotKept,
    /// There is no library: what is read is not kept.
    NoLibrary,
    /// The library is not as it was written.
    Damaged,
    /// Settings or conversations could not be written.
    NotSaved,
    /// The file of the settings could not be understood.
    Settings,
    /// Where models come from or lie is named wrongly.
    NoModels,
    /// The system has no dialog in which files are chosen.
    NoDialog,
    /// A file that is no text, or cannot be read or written.
    File,
    /// The port at which the library was to be served is another program's.
    PortTaken,
    /// The library could not be served.
    NotServed,
    /// What was asked for makes no sense.
    BadInput,
    /// Anything else.
    Other,
}

impl FailureKind {
    /// What the window calls the end of an engine that failed so. What a person can choose
    /// otherwise keeps its name.
    pub fn of_end(self) -> Self {
        match self {
            Self::NoDevice | Self::Model | Self::OutOfMemory => self,
            _ => Self::EngineStopped,
        }
    }

    /// Whether it is about the server for other programs.
    pub fn is_of_server(self) -> bool {
        matches!(self, Self::PortTaken | Self::NotServed)
    }
}

/// What reads documents and answers. It lives on one thread, which may wait for it.
pub trait DocumentEngine {
    /// What runs.
    fn model(&self) -> ModelInfo;

    /// What reading `text` will take.
    ///
    /// # Errors
    /// If it cannot be read at all, and why.
    fn plan(&mut self, text: &str) -> Result<ReadPlan, Failure>;

    /// Opens what was read of a document before and kept; `None` if nothing was. What is not in the
    /// library and is in `file`, a session file, goes into the library.
    ///
    /// # Errors
    /// If something was, and cannot be used.
    fn open(&mut self, text: &Arc<str>, file: Option<&Path>) -> Result<Option<ReadState>, Failure>;

    /// Reads a document in place of the one before, and keeps what was read, also where `hear`
    /// breaks off.
    ///
    /// # Errors
    /// Memory, the device, or the text.
    fn read(
        &mut self,
        document: DocumentId,
        text: &Arc<str>,
        hear: &mut dyn FnMut(ReadProgress) -> ControlFlow<()>,
    ) -> Result<ReadState, Failure>;

    /// Reads what is left of the document that is open.
    ///
    /// # Errors
    /// As [`DocumentEngine::read`].
    fn read_on(
        &mut self,
        hear: &mut dyn FnMut(ReadProgress) -> ControlFlow<()>,
    ) -> Result<ReadState, Failure>;

    /// Answers from what was read. `hear` may end the answer after any step.
    ///
    /// # Errors
    /// The device, the model, or a document that is not open.
    fn ask(
        &mut self,
        question: &Question,
        hear: &mut dyn FnMut(AnswerStep) -> ControlFlow<()>,
    ) -> Result<Answer, Failure>;

    /// Gives the server of this library what is open, so that both have it in memory once, or takes
    /// it back where there is no server.
    fn share(&mut self) {}
}
