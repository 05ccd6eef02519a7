//! A document that is open: its text, how far it is read, and what was asked about it.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread;

use eframe::egui::Context;
use longview_library::documents::{Id, Source};
use serde::{Deserialize, Serialize};

use crate::engine::{
    Answer, AnswerStep, Attention, ContextMap, DocumentId, Failure, Passage, ReadPlan,
    ReadProgress, ReadState, Task,
};
use crate::sample;
use crate::text::{self, Advances};

/// Questions that are suggested.
const SUGGESTED: usize = 4;
/// Texts of more bytes are cut into rows on a thread of their own.
const LARGE: usize = 256 << 10;

/// A document.
pub struct Document {
    /// Which.
    pub id: DocumentId,
    /// What it is called: as in the library, once it is there.
    pub title: String,
    /// Its name in the library, once it is there.
    pub kept: Option<Id>,
    /// Whether the library did not take it: nothing of it is there.
    pub is_refused: bool,
    /// Whether what was read of it is to be kept once the library has it.
    pub keeps_again: bool,
    /// The files that its text was made of, in order.
    pub sources: Vec<Source>,
    /// The file in which it came, if that has what a model read of it.
    pub session: Option<PathBuf>,
    /// The document of the library that this one is a longer version of, until it was read.
    pub replaces: Option<Id>,
    /// All of it.
    pub text: Arc<str>,
    /// Letters of it: in UTF-8 those of most scripts take two or three bytes.
    pub n_letters: usize,
    /// How far it is.
    pub stage: Stage,
    /// What reading takes, once that is known.
    pub plan: Option<ReadPlan>,
    /// What was asked, oldest first.
    pub conversation: Vec<Exchange>,
    /// What is being typed.
    pub draft: String,
    /// What was being typed before a question was to be changed.
    pub set_aside: String,
    /// The question that is being changed.
    pub editing: Option<usize>,
    /// Questions that it answers, in forms that are known.
    pub suggestions: Vec<String>,
    /// The passages that are shown.
    pub marks: Vec<Passage>,
    /// Which of them was gone to.
    pub mark: Option<usize>,
    /// Its rows on the screen.
    pub page: Page,
    /// Where its tokens stood in the last step that was drawn.
    pub map: Option<ContextMap>,
    /// Figures of the steps of the last answer, oldest first.
    pub history: Vec<StepFigures>,
}

/// What a step of an answer did.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepFigures {
    /// Steps a second so far.
    pub tokens_per_s: f64,
    /// Share of the recalled rows that were on the device; none if nothing was recalled.
    pub hit_rate: Option<f64>,
    /// Bytes that were fetched.
    pub fetched_bytes: u64,
}

impl StepFigures {
    /// Those of a step.
    pub fn of(step: &AnswerStep) -> Self {
        let all = step.hits + step.misses;
        Self {
            tokens_per_s: step.tokens_per_s,
            hit_rate: (all > 0).then(|| step.hits as f64 / all as f64),
            fetched_bytes: step.fetched_bytes,
        }
    }
}

/// How far a document is.
#[derive(Clone, Debug)]
pub enum Stage {
    /// Its tokens are being counted.
    Counting(Task),
    /// The library is asked for what was read of it before.
    Opening(Task),
    /// It can be read.
    Planned,
    /// It cannot.
    Refused(Failure),
    /// It is being read.
    Reading(Reading),
    /// It can be asked about.
    Read(ReadState),
}

/// A document that is being read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The engine's task.
    pub task: Task,
    /// How far it is; nothing before the first chunk.
    pub progress: Option<ReadProgress>,
    /// A person paused it.
    pub is_paused: bool,
    /// A person ended it, and it ends with the chunk.
    pub is_stopping: bool,
}

/// A question with its answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Exchange {
    /// What was asked.
    pub question: String,
    /// The answer, and perhaps that of full attention.
    pub replies: Vec<Reply>,
}

/// An answer, growing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// What its steps may attend.
    pub attention: Attention,
    /// While the engine works on it.
    #[serde(skip)]
    pub task: Option<Task>,
    /// What was said so far.
    pub text: String,
    /// Tokens of it, and steps a second.
    #[serde(skip)]
    pub figures: Option<(usize, f64)>,
    /// What there is to say at the end.
    pub answer: Option<Answer>,
    /// Why there is no answer, or no other one.
    pub failure: Option<String>,
    /// The answer before, which stays if there will be no other one.
    #[serde(skip)]
    pub before: Option<Box<Reply>>,
}

impl Reply {
    /// An answer that was asked for.
    pub fn new(attention: Attention, task: Task) -> Self {
        Self { task: Some(task), ..Self::kept(attention, String::new(), None) }
    }

    /// One of another day.
    pub fn kept(attention: Attention, text: String, answer: Option<Answer>) -> Self {
        let figures = answer.as_ref().map(|answer| (answer.tokens, answer.tokens_per_s));
        Self { attention, task: None, text, figures, answer, failure: None, before: None }
    }

    /// Adds a step.
    pub fn step(&mut self, step: &AnswerStep) {
        self.text.push_str(&step.text);
        self.figures = Some((step.tokens, step.tokens_per_s));
    }

    /// There will be no answer: the one before comes back.
    pub fn fail(&mut self, why: &str) {
        if let Some(before) = self.before.take() {
            *self = *before;
        }
        (self.task, self.failure) = (None, Some(why.to_owned()));
    }

    /// The text as it is shown.
    pub fn shown(&self) -> &str {
        self.text.trim()
    }
}

impl Document {
    /// A document whose tokens are being counted.
    pub fn new(id: DocumentId, title: String, text: Arc<str>, task: Task) -> Self {
        Self {
            id,
            title,
            kept: None,
            is_refused: false,
            keeps_again: false,
            sources: Vec::new(),
            session: None,
            replaces: None,
            suggestions: sample::suggestions(&text, SUGGESTED),
            n_letters: text.chars().count(),
            text,
            stage: Stage::Counting(task),
            plan: None,
            conversation: Vec::new(),
            draft: String::new(),
            set_aside: String::new(),
            editing: None,
            marks: Vec::new(),
            mark: None,
            page: Page::default(),
            map: None,
            history: Vec::new(),
        }
    }

    /// Pages of its files, if all of them have pages.
    pub fn pages(&self) -> Option<u64> {
        let pages: Option<Vec<u64>> = self.sources.iter().map(|source| source.pages).collect();
        pages.filter(|pages| !pages.is_empty()).map(|pages| pages.iter().sum())
    }

    /// Whether it is to be read and is not yet.
    pub fn can_be_read(&self) -> bool {
        match &self.stage {
            Stage::Planned => self.plan.is_some_and(|plan| plan.short_of.is_none()),
            Stage::Read(state) => !state.is_complete(),
            _ => false,
        }
    }

    /// Whether all of it was read, and is not in the library though it was to be.
    pub fn is_unkept(&self) -> bool {
        let read = self.read_state().filter(|state| state.is_complete());
        read.is_some_and(|state| self.is_refused || state.not_kept.is_some())
    }

    /// What was read of it, if it can be asked about.
    pub fn read_state(&self) -> Option<&ReadState> {
        match &self.stage {
            Stage::Read(state) => Some(state),
            _ => None,
        }
    }

    /// The reading that is under way.
    pub fn reading(&mut self) -> Option<&mut Reading> {
        match &mut self.stage {
            Stage::Reading(reading) => Some(reading),
            _ => None,
        }
    }

    /// The reply that a task makes.
    pub fn reply(&mut self, task: Task) -> Option<&mut Reply> {
        self.replies_mut().find(|reply| reply.task == Some(task))
    }

    /// All replies, oldest first.
    pub fn replies_mut(&mut self) -> impl Iterator<Item = &mut Reply> {
        self.conversation.iter_mut().flat_map(|exchange| &mut exchange.replies)
    }

    /// Whether an answer is being written.
    pub fn is_answering(&self) -> bool {
        let mut replies = self.conversation.iter().flat_map(|exchange| &exchange.replies);
        replies.any(|reply| reply.task.is_some())
    }

    /// The last answer that is complete.
    pub fn last_answer(&self) -> Option<&Reply> {
        let mut replies = self.conversation.iter().rev().flat_map(|exchange| &exchange.replies);
        replies.find(|reply| reply.answer.is_some())
    }

    /// Marks the passages of an answer and goes to one of them.
    pub fn show_passages(&mut self, passages: &[Passage], rank: usize) {
        self.marks = passages.to_vec();
        self.mark = passages.get(rank).map(|_| rank);
        if let Some(passage) = passages.get(rank) {
            self.page.go_to = Some(Target::Byte(passage.place.start));
        }
    }

    /// The words of a passage, on one line.
    pub fn quote(&self, passage: &Passage) -> String {
        let words = self.text.get(passage.place.clone()).unwrap_or_default();
        words.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Where the page is to scroll.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// So that this byte is seen.
    Byte(usize),
    /// By so many screens; infinite to either end.
    Screens(f32),
}

/// The rows of a text for the width that it is shown in.
#[derive(Default)]
pub struct Page {
    rows: Arc<Vec<Range<usize>>>,
    /// For which the rows were made, or are being made.
    width: f32,
    coming: Option<Receiver<Vec<Range<usize>>>>,
    /// Where to scroll when the page is drawn next.
    pub go_to: Option<Target>,
    /// Points that are scrolled away above.
    pub offset: f32,
}

impl Page {
    /// The rows for `width`, or those of the width before while new ones are made.
    pub fn rows(
        &mut self,
        ctx: &Context,
        text: &Arc<str>,
        advances: &Advances,
        width: f32,
    ) -> Arc<Vec<Range<usize>>> {
        if let Some(rows) = self.coming.as_ref().and_then(|coming| coming.try_recv().ok()) {
            (self.rows, self.coming) = (Arc::new(rows), None);
        }
        if self.width != width {
            self.width = width;
            if text.len() < LARGE {
                self.coming = None;
                self.rows = Arc::new(text::rows(text, advances, width));
            } else {
                self.coming = Some(rows_later(ctx, text, advances, width));
            }
        }
        Arc::clone(&self.rows)
    }
}

fn rows_later(
    ctx: &Context,
    text: &Arc<str>,
    advances: &Advances,
    width: f32,
) -> Receiver<Vec<Range<usize>>> {
    let (sender, receiver) = mpsc::channel();
    let (ctx, text, advances) = (ctx.clone(), Arc::clone(text), advances.clone());
    // A page that asked for other rows meanwhile has dropped the receiver.
    thread::spawn(move || {
        let _ = sender.send(text::rows(&text, &advances, width));
        ctx.request_repaint();
    });
    receiver
}
