//! The engine's thread, and the window's end of the channels to it.

use std::collections::{BTreeSet, VecDeque};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use longview_reader::Answer;

use super::contract::{
    AnswerStep, DocumentEngine, DocumentId, Failure, FailureKind, ModelInfo, Question, ReadPlan,
    ReadProgress, ReadState,
};

/// Makes the engine, on its thread.
pub type OpenEngine =
    Arc<dyn Fn() -> Result<Box<dyn DocumentEngine>, Failure> + Send + Sync + 'static>;

/// Asks the window for a frame.
pub type Wake = Arc<dyn Fn() + Send + Sync + 'static>;

/// One command that was sent, to stop or pause it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Task(u64);

/// What the engine is to do.
#[derive(Clone, Debug)]
pub enum Command {
    /// Say what reading will take.
    Plan(DocumentId, Arc<str>),
    /// Open what was read of it before, in the library or else in this file.
    Open(DocumentId, Arc<str>, Option<PathBuf>),
    /// Read a document.
    Read(DocumentId, Arc<str>),
    /// Read what is left of it.
    ReadOn(DocumentId),
    /// Answer a question about it.
    Ask(DocumentId, Question),
    /// Give the server of the library what is open.
    Share,
}

/// What the engine says.
#[derive(Clone, Debug)]
pub enum Event {
    /// It is there.
    Ready(ModelInfo),
    /// A step of a task.
    Step(Task, Step),
    /// A task failed.
    Failed(Task, Failure),
    /// There is no engine (any more). Nothing follows.
    Ended(Failure),
}

/// What happens in a task.
#[derive(Clone, Debug)]
pub enum Step {
    /// What reading will take; the task has ended.
    Planned(ReadPlan),
    /// Nothing was read of it before; the task has ended.
    NotKept,
    /// A chunk was read.
    Reading(ReadProgress),
    /// Reading ended, perhaps early.
    Read(ReadState),
    /// A token.
    Answering(AnswerStep),
    /// The answer is complete, or was stopped.
    Answered(Answer),
    /// The server has what is open, if there is one.
    Shared,
}

/// Which tasks are to stop, and whether the running one pauses. Each task has its own number, so a
/// stop that comes too late never hits the next one.
#[derive(Default)]
struct Control {
    state: Mutex<Wishes>,
    changed: Condvar,
}

#[derive(Default)]
struct Wishes {
    /// Tasks that are to stop.
    stopped: BTreeSet<u64>,
    /// Whether all are.
    ends: bool,
    paused: Option<u64>,
}

/// The thread of an engine. Dropped, it stops what runs and ends by itself.
pub struct Worker {
    /// None once it is to end.
    commands: Option<Sender<(Task, Command)>>,
    events: Receiver<Event>,
    waiting: VecDeque<Event>,
    control: Arc<Control>,
    last: u64,
    has_ended: bool,
}

impl Worker {
    /// Starts a thread that opens an engine and waits for commands.
    pub fn start(open: &OpenEngine, wake: &Wake) -> Self {
        let (commands, inbox) = mpsc::channel();
        let (outbox, events) = mpsc::channel();
        let control = Arc::new(Control::default());
        let (open, wake, seen) = (Arc::clone(open), Arc::clone(wake), Arc::clone(&control));
        let thread = thread::Builder::new().name("engine".into());
        let work = move || {
            // However the thread ends, the window looks once more and finds the channel closed.
            let _last_wake = WakeAtEnd(Arc::clone(&wake));
            let say = Say { outbox, wake };
            match open() {
                Ok(engine) => serve(engine, &inbox, &say, &seen),
                Err(failure) => say.event(Event::Ended(failure)),
            }
        };
        let mut waiting = VecDeque::new();
        if let Err(error) = thread.spawn(work) {
            waiting.push_back(Event::Ended(stopped(&format!("no thread: {error}"))));
        }
        let commands = Some(commands);
        Self { commands, events, waiting, control, last: 0, has_ended: false }
    }

    /// Sends a command. An engine that has ended says so by [`Worker::next_event`].
    pub fn send(&mut self, command: Command) -> Task {
        self.last += 1;
        let task = Task(self.last);
        if let Some(commands) = &self.commands {
            let _ = commands.send((task, command));
        }
        task
    }

    /// The next event, if there is one. Never waits.
    pub fn next_event(&mut self) -> Option<Event> {
        if self.has_ended {
            return None;
        }
        let event = match self.waiting.pop_front() {
            Some(event) => event,
            None => match self.events.try_recv() {
                Ok(event) => event,
                Err(TryRecvError::Empty) => return None,
                // The thread panicked: whoever ends properly says so first.
                Err(TryRecvError::Disconnected) => Event::Ended(stopped("")),
            },
        };
        self.has_ended = matches!(event, Event::Ended(_));
        Some(event)
    }

    /// Ends a task after its current step, or before it begins.
    pub fn stop(&self, task: Task) {
        let mut wishes = self.control.wishes();
        wishes.stopped.insert(task.0);
        self.control.changed.notify_all();
    }

    /// Ends what runs after its step, and waits so long for the thread: what was read is kept then.
    /// What it says on the way are the last events.
    pub fn finish(&mut self, patience: Duration) {
        self.commands = None;
        self.control.end();
        let end = Instant::now() + patience;
        let left = || end.saturating_duration_since(Instant::now());
        while let Ok(event) = self.events.recv_timeout(left()) {
            self.waiting.push_back(event);
        }
    }

    /// Lets a task wait after its current step, or go on.
    pub fn pause(&self, task: Task, on: bool) {
        self.control.wishes().paused = on.then_some(task.0);
        self.control.changed.notify_all();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.control.end();
    }
}

impl Wishes {
    fn is_stopped(&self, task: Task) -> bool {
        self.ends || self.stopped.contains(&task.0)
    }
}

impl Control {
    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        // Nothing that holds the lock can leave it half changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets all tasks stop.
    fn end(&self) {
        self.wishes().ends = true;
        self.changed.notify_all();
    }

    /// What a task is to do after a step. Waits while it is paused.
    fn after_step(&self, task: Task) -> ControlFlow<()> {
        let mut wishes = self.wishes();
        while wishes.paused == Some(task.0) && !wishes.is_stopped(task) {
            wishes = self.changed.wait(wishes).unwrap_or_else(PoisonError::into_inner);
        }
        if wishes.is_stopped(task) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

struct WakeAtEnd(Wake);

impl Drop for WakeAtEnd {
    fn drop(&mut self) {
        (self.0)();
    }
}

struct Say {
    outbox: Sender<Event>,
    wake: Wake,
}

impl Say {
    /// A window that is gone hears nothing, and the loop ends with its commands.
    fn event(&self, event: Event) {
        let _ = self.outbox.send(event);
        (self.wake)();
    }

    fn step(&self, task: Task, step: Step) {
        self.event(Event::Step(task, step));
    }
}

fn serve(
    mut engine: Box<dyn DocumentEngine>,
    inbox: &Receiver<(Task, Command)>,
    say: &Say,
    control: &Control,
) {
    say.event(Event::Ready(engine.model()));
    while let Ok((task, command)) = inbox.recv() {
        // What was not begun is not worth waiting for.
        if control.wishes().ends {
            return;
        }
        match run(&mut *engine, task, &command, say, control) {
            Ok(step) => say.step(task, step),
            Err(failure) => say.event(Event::Failed(task, failure)),
        }
    }
}

fn run(
    engine: &mut dyn DocumentEngine,
    task: Task,
    command: &Command,
    say: &Say,
    control: &Control,
) -> Result<Step, Failure> {
    let mut on_read = |progress| {
        say.step(task, Step::Reading(progress));
        control.after_step(task)
    };
    let mut on_answer = |step| {
        say.step(task, Step::Answering(step));
        control.after_step(task)
    };
    match command {
        Command::Plan(_, text) => engine.plan(text).map(Step::Planned),
        Command::Open(_, text, file) => {
            let opened = engine.open(text, file.as_deref())?;
            Ok(opened.map_or(Step::NotKept, Step::Read))
        }
        Command::Read(document, text) => engine.read(*document, text, &mut on_read).map(Step::Read),
        Command::ReadOn(_) => engine.read_on(&mut on_read).map(Step::Read),
        Command::Ask(_, question) => engine.ask(question, &mut on_answer).map(Step::Answered),
        Command::Share => {
            engine.share();
            Ok(Step::Shared)
        }
    }
}

fn stopped(message: &str) -> Failure {
    Failure { kind: FailureKind::EngineStopped, message: message.to_owned() }
}
