//! The window's state, and what changes it: actions of a person, events of the engine, arrivals of
//! files. Views only draw and collect actions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};

use eframe::egui::{self, Context, ThemePreference};
use longview_library::documents::{Documents, Id};

use crate::document::{Document, Exchange, Reading, Reply, Stage};
use crate::engine::{
    Attention, Command, DocumentId, Event, Failure, FailureKind, OpenEngine, Question, Step, Task,
    Wake, Worker,
};
use crate::files::{Arrival, Dialogs, Outbox};
use crate::state::{Action, EngineState, Notice, Pane, Side, State};
use crate::{export, files, sample, strings, theme, views};

/// The budget at first: for contexts up to 8,192 tokens, and above.
const FIRST_BUDGETS: [usize; 2] = [512, 1024];
/// The seed of the sample document.
const SAMPLE_SEED: u64 = 1;
/// Seconds for which a short message is shown.
const TOAST_S: f64 = 4.0;

/// How a window begins.
pub struct Start {
    /// Makes the engine.
    pub open: OpenEngine,
    /// Asks for names of files.
    pub dialogs: Arc<dyn Dialogs>,
    /// A text to open; without one the sample is.
    pub file: Option<PathBuf>,
    /// Where documents are kept; none if the system has no place for it.
    pub library: Option<Documents>,
    /// Close the window once the first document can be read.
    pub exits: bool,
}

/// The window.
pub struct App {
    state: State,
    worker: Worker,
    open: OpenEngine,
    wake: Wake,
    dialogs: Arc<dyn Dialogs>,
    library: Option<Documents>,
    outbox: Outbox,
    inbox: Receiver<Arrival>,
    /// The document of each task that has not ended.
    tasks: BTreeMap<Task, DocumentId>,
    /// The document that the engine holds.
    held: Option<DocumentId>,
    /// Read this one as soon as it is planned: it was read when the engine stopped.
    read_again: Option<DocumentId>,
    exits: bool,
    next_id: u64,
    next_notice: usize,
    actions: Vec<Action>,
}

impl App {
    /// A window that opens its engine and its first document.
    pub fn new(ctx: &Context, start: Start) -> Self {
        theme::install(ctx);
        let waker = ctx.clone();
        let wake: Wake = Arc::new(move || waker.request_repaint());
        let (sender, inbox) = mpsc::channel();
        let outbox = Outbox { sender, wake: Arc::clone(&wake) };
        let mut app = Self {
            state: State {
                engine: EngineState::Opening,
                documents: Vec::new(),
                kept: Vec::new(),
                wanted: String::new(),
                dialog: None,
                current: None,
                notices: Vec::new(),
                budget: FIRST_BUDGETS[0],
                budget_is_chosen: false,
                map_place: (0, 0),
                pane: Pane::Document,
                side: Side::Answers,
                shows_shortcuts: false,
                focuses_question: false,
                toast: None,
                theme: ThemePreference::System,
            },
            worker: Worker::start(&start.open, &wake),
            open: start.open,
            wake,
            dialogs: start.dialogs,
            library: start.library,
            exits: start.exits,
            outbox,
            inbox,
            tasks: BTreeMap::new(),
            held: None,
            read_again: None,
            next_id: 1,
            next_notice: 0,
            actions: Vec::new(),
        };
        app.with_library(|library| Some(files::list(&library)));
        match start.file {
            Some(path) => app.outbox.later(move || Some(files::read(&path))),
            None => app.open_sample(),
        }
        app
    }

    /// What the views see, for tests.
    pub fn state(&self) -> &State {
        &self.state
    }

    fn send(&mut self, document: DocumentId, command: Command) -> Task {
        let task = self.worker.send(command);
        self.tasks.insert(task, document);
        task
    }

    /// Does something with the library beside the window.
    fn with_library(&self, work: impl FnOnce(Documents) -> Option<Arrival> + Send + 'static) {
        if let Some(library) = self.library.clone() {
            self.outbox.later(move || work(library));
        }
    }

    fn open_kept(&mut self, id: Id) {
        if let Some(open) = self.state.documents.iter().find(|d| d.kept == Some(id)) {
            self.select(open.id);
            return;
        }
        let found = self.state.kept.iter().find(|kept| kept.id == id);
        let Some(title) = found.map(|kept| kept.name.clone()) else { return };
        self.with_library(move |library| match library.text(id) {
            Ok(text) => Some(Arrival::Text { title, text }),
            Err(error) => Some(files::refused(&error)),
        });
    }

    fn delete(&mut self, id: Id) {
        let open = self.state.documents.iter().find(|d| d.kept == Some(id)).map(|d| d.id);
        if let Some(open) = open {
            self.close(open);
        }
        self.with_library(move |library| {
            Some(files::change(&library, |library| library.remove(id).map(|_| ())))
        });
    }

    fn rename(&mut self, id: Id, name: String) {
        for document in self.state.documents.iter_mut().filter(|d| d.kept == Some(id)) {
            document.title.clone_from(&name);
        }
        self.with_library(move |library| {
            Some(files::change(&library, |library| library.rename(id, &name)))
        });
    }

    fn open_sample(&mut self) {
        self.open_text(strings::SAMPLE_TITLE.to_owned(), sample::document(SAMPLE_SEED).into());
    }

    fn open_text(&mut self, title: String, text: Arc<str>) {
        let same = self.state.documents.iter().find(|d| d.title == title && d.text == text);
        if let Some(id) = same.map(|document| document.id) {
            self.select(id);
            return;
        }
        let id = DocumentId(self.next_id);
        self.next_id += 1;
        let task = self.send(id, Command::Plan(id, Arc::clone(&text)));
        let (kept_title, kept_text) = (title.clone(), Arc::clone(&text));
        self.with_library(move |library| Some(files::keep(&library, id, &kept_title, &kept_text)));
        self.state.documents.push(Document::new(id, title, text, task));
        self.select(id);
    }

    fn select(&mut self, id: DocumentId) {
        self.state.current = Some(id);
        self.state.pane = Pane::Document;
        self.open_what_was_read();
    }

    /// Looks in the library for what was read of the document that is shown, unless the engine
    /// holds it, or works on another one.
    fn open_what_was_read(&mut self) {
        if self.state.is_busy() || self.library.is_none() {
            return;
        }
        let Some(document) = self.state.document() else { return };
        let (id, text) = (document.id, Arc::clone(&document.text));
        if document.kept.is_none() || !matches!(document.stage, Stage::Planned) {
            return;
        }
        let task = self.send(id, Command::Open(id, text));
        if let Some(document) = self.state.document() {
            document.stage = Stage::Opening(task);
        }
    }

    fn close(&mut self, id: DocumentId) {
        self.stop_tasks_of(id);
        self.state.documents.retain(|document| document.id != id);
        if self.state.current == Some(id) {
            self.state.current = self.state.documents.last().map(|document| document.id);
        }
    }

    fn stop_tasks_of(&mut self, id: DocumentId) {
        // A stop reaches all tasks up to its own.
        if let Some((task, _)) = self.tasks.iter().rfind(|(_, document)| **document == id) {
            self.worker.stop(*task);
        }
    }

    /// Reads the document that is shown, or what is left of it.
    fn read(&mut self) {
        let Some(document) = self.state.document() else { return };
        if document.plan.is_some_and(|plan| plan.short_of.is_some()) {
            return;
        }
        let (id, text) = (document.id, Arc::clone(&document.text));
        let goes_on = match &document.stage {
            Stage::Planned => false,
            Stage::Read(state) if !state.is_complete() => self.held == Some(id),
            _ => return,
        };
        self.forget_held(id);
        let command = if goes_on { Command::ReadOn(id) } else { Command::Read(id, text) };
        let task = self.send(id, command);
        self.held = Some(id);
        if let Some(document) = self.state.document() {
            let (is_paused, is_stopping) = (false, false);
            document.stage =
                Stage::Reading(Reading { task, progress: None, is_paused, is_stopping });
        }
    }

    /// The engine holds one document: the one before has to be read again.
    fn forget_held(&mut self, next: DocumentId) {
        for document in self.state.documents.iter_mut().filter(|document| document.id != next) {
            if matches!(document.stage, Stage::Read(_)) {
                document.stage = Stage::Planned;
            }
        }
    }

    fn pause(&mut self, on: bool) {
        let Some(reading) = self.state.document().and_then(Document::reading) else { return };
        reading.is_paused = on;
        let task = reading.task;
        self.worker.pause(task, on);
    }

    fn stop_reading(&mut self) {
        let Some(reading) = self.state.document().and_then(Document::reading) else { return };
        reading.is_stopping = true;
        let task = reading.task;
        self.worker.stop(task);
    }

    fn ask(&mut self) {
        let attention = Attention::Budget(self.state.budget);
        let Some(document) = self.state.document() else { return };
        let question = document.draft.trim().to_owned();
        if question.is_empty() || document.read_state().is_none() || document.is_answering() {
            return;
        }
        document.draft.clear();
        document.conversation.push(Exchange { question, replies: Vec::new() });
        let at = document.conversation.len() - 1;
        self.ask_in(at, attention);
    }

    /// Asks the question of an exchange. An answer of the same kind is replaced.
    fn ask_in(&mut self, at: usize, attention: Attention) {
        let map = self.state.map_place;
        let Some(document) = self.state.document() else { return };
        if document.read_state().is_none() || document.is_answering() {
            return;
        }
        let (id, exchange) = (document.id, document.conversation.get(at));
        let Some(text) = exchange.map(|exchange| exchange.question.clone()) else { return };
        let question = Question { text, attention, map };
        let task = self.send(id, Command::Ask(id, question));
        let Some(exchange) = self.state.document().and_then(|d| d.conversation.get_mut(at)) else {
            return;
        };
        let is_full = attention == Attention::Full;
        let is_same = |reply: &Reply| (reply.attention == Attention::Full) == is_full;
        let before = exchange.replies.iter().position(is_same).map(|i| exchange.replies.remove(i));
        let before = before.filter(|reply| reply.answer.is_some()).map(Box::new);
        let reply = Reply { before, ..Reply::new(attention, task) };
        exchange.replies.insert(if is_full { exchange.replies.len() } else { 0 }, reply);
    }

    fn ask_last_again(&mut self) {
        let attention = Attention::Budget(self.state.budget);
        let Some(document) = self.state.document() else { return };
        if let Some(last) = document.conversation.len().checked_sub(1) {
            self.ask_in(last, attention);
        }
    }

    fn stop_answer(&mut self) {
        let Some(document) = self.state.document() else { return };
        let task = document.replies_mut().filter_map(|reply| reply.task).max();
        if let Some(task) = task {
            self.worker.stop(task);
        }
    }

    fn show_passage(&mut self, exchange: usize, reply: usize, rank: usize) {
        self.state.pane = Pane::Document;
        let Some(document) = self.state.document() else { return };
        let reply = document.conversation.get(exchange).and_then(|e| e.replies.get(reply));
        let passages = reply.and_then(|reply| reply.answer.as_ref()).map(|a| a.passages.clone());
        document.show_passages(&passages.unwrap_or_default(), rank);
    }

    fn next_passage(&mut self) {
        let Some(document) = self.state.document() else { return };
        let marks = std::mem::take(&mut document.marks);
        let next = document.mark.map_or(0, |rank| rank + 1) % marks.len().max(1);
        document.show_passages(&marks, next);
    }

    fn export(&mut self) {
        let Some(document) = self.state.document() else { return };
        if document.last_answer().is_none() {
            return;
        }
        let (text, dialogs) = (export::markdown(document), Arc::clone(&self.dialogs));
        let stem = document.title.rsplit_once('.').map_or(&*document.title, |(stem, _)| stem);
        let name = format!("{stem}.answers.md");
        self.outbox.later(move || Some(files::write(&dialogs.save(&name)?, &text)));
    }

    fn open_file(&mut self) {
        let dialogs = Arc::clone(&self.dialogs);
        self.outbox.later(move || Some(files::read(&dialogs.open()?)));
    }

    /// A new engine in place of one that ended. Documents are counted again, and the one that was
    /// read is read again.
    fn restart(&mut self) {
        self.worker = Worker::start(&self.open, &self.wake);
        self.tasks.clear();
        self.state.engine = EngineState::Opening;
        self.state.notices.retain(|notice| notice.failure.kind != FailureKind::EngineStopped);
        self.read_again = self.held.take();
        for i in 0..self.state.documents.len() {
            let (id, text) =
                (self.state.documents[i].id, Arc::clone(&self.state.documents[i].text));
            let task = self.send(id, Command::Plan(id, text));
            self.state.documents[i].stage = Stage::Counting(task);
        }
    }

    fn notice(&mut self, failure: Failure) {
        self.state.notices.retain(|notice| notice.failure != failure);
        self.state.notices.push(Notice { id: self.next_notice, failure });
        self.next_notice += 1;
    }

    fn toast(&mut self, ctx: &Context, text: String) {
        let until = ctx.input(|input| input.time) + TOAST_S;
        self.state.toast = Some((text, until));
        ctx.request_repaint_after_secs(TOAST_S as f32);
    }

    fn act(&mut self, ctx: &Context, action: Action) {
        let budget = Attention::Budget(self.state.budget);
        match action {
            Action::OpenFile => self.open_file(),
            Action::OpenSample => self.open_sample(),
            Action::OpenKept(id) => self.open_kept(id),
            Action::Rename(id, name) => self.rename(id, name),
            Action::Pin(id, on) => self.with_library(move |library| {
                Some(files::change(&library, |library| library.set_pinned(id, on)))
            }),
            Action::Delete(id) => self.delete(id),
            Action::ShowDialog(dialog) => self.state.dialog = dialog,
            Action::Select(id) => self.select(id),
            Action::CloseDocument(id) => self.close(id),
            Action::Read => self.read(),
            Action::Pause(on) => self.pause(on),
            Action::StopReading => self.stop_reading(),
            Action::Ask => self.ask(),
            Action::AskAgain(at) => self.ask_in(at, budget),
            Action::Compare(at) => self.ask_in(at, Attention::Full),
            Action::AskLastAgain => self.ask_last_again(),
            Action::StopAnswer => self.stop_answer(),
            Action::Copy(text) => {
                ctx.copy_text(text);
                self.toast(ctx, strings::COPIED.to_owned());
            }
            Action::Export => self.export(),
            Action::ShowPassage(exchange, reply, rank) => self.show_passage(exchange, reply, rank),
            Action::NextPassage => self.next_passage(),
            Action::Scroll(target) => {
                if let Some(document) = self.state.document() {
                    document.page.go_to = Some(target);
                }
            }
            Action::FocusQuestion => {
                (self.state.pane, self.state.side) = (Pane::Questions, Side::Answers);
                self.state.focuses_question = true;
            }
            Action::ShowPane(pane) => self.state.pane = pane,
            Action::ShowSide(side) => self.state.side = side,
            Action::ShowShortcuts(on) => self.state.shows_shortcuts = on,
            Action::Theme(theme) => {
                self.state.theme = theme;
                ctx.set_theme(theme);
            }
            Action::Restart => self.restart(),
            Action::Dismiss(id) => self.state.notices.retain(|notice| notice.id != id),
        }
    }

    fn arrived(&mut self, ctx: &Context, arrival: Arrival) {
        match arrival {
            Arrival::Text { title, text } => self.open_text(title, text.into()),
            Arrival::Kept(document, id) => {
                let mut documents = self.state.documents.iter_mut();
                if let Some(document) = documents.find(|found| found.id == document) {
                    document.kept = Some(id);
                }
                self.open_what_was_read();
                self.with_library(|library| Some(files::list(&library)));
            }
            Arrival::Library(kept) => self.state.kept = kept,
            Arrival::Saved(path) => self.toast(ctx, strings::exported(&path)),
            Arrival::Failed(failure) => self.notice(failure),
        }
    }

    fn heard(&mut self, event: Event) {
        match event {
            Event::Ready(model) => {
                // The last layer is where answers are found.
                self.state.map_place = (model.n_layers - 1, model.n_kv_heads - 1);
                self.state.engine = EngineState::Ready(model);
            }
            Event::Step(task, step) => self.stepped(task, step),
            Event::Failed(task, failure) => self.failed(task, failure),
            Event::Ended(failure) => self.ended(failure),
        }
    }

    fn stepped(&mut self, task: Task, step: Step) {
        let is_last =
            matches!(step, Step::Planned(_) | Step::NotKept | Step::Read(_) | Step::Answered(_));
        let id = if is_last { self.tasks.remove(&task) } else { self.tasks.get(&task).copied() };
        let Some(document) =
            id.and_then(|id| self.state.documents.iter_mut().find(|document| document.id == id))
        else {
            return;
        };
        match step {
            Step::Planned(plan) => {
                document.plan = Some(plan);
                document.stage = Stage::Planned;
                if !self.state.budget_is_chosen {
                    self.state.budget = FIRST_BUDGETS[usize::from(plan.context > 8192)];
                }
                // What was kept is there sooner than what is read again.
                self.open_what_was_read();
                self.read_again_if_wanted();
            }
            Step::NotKept => {
                document.stage = Stage::Planned;
                self.read_again_if_wanted();
            }
            Step::Reading(progress) => {
                if let Some(reading) = document.reading() {
                    reading.progress = Some(progress);
                }
            }
            Step::Read(state) => {
                let (id, not_kept) = (document.id, state.not_kept.clone());
                document.stage = Stage::Read(state);
                self.held = Some(id);
                self.forget_held(id);
                self.read_again.take_if(|wanted| *wanted == id);
                self.state.focuses_question = self.state.current == Some(id);
                not_kept.into_iter().for_each(|failure| self.notice(failure));
                self.with_library(|library| Some(files::list(&library)));
            }
            Step::Answering(step) => {
                if let Some(reply) = document.reply(task) {
                    reply.step(&step);
                }
                if step.map.is_some() {
                    document.map = step.map;
                }
            }
            Step::Answered(answer) => {
                let passages = answer.passages.clone();
                if let Some(reply) = document.reply(task) {
                    reply.text.clone_from(&answer.text);
                    reply.figures = Some((answer.tokens, answer.tokens_per_s));
                    (reply.task, reply.answer, reply.before) = (None, Some(answer), None);
                }
                // Seen at once; whoever reads elsewhere in the document is not taken away for more.
                document.show_passages(&passages, 0);
            }
        }
    }

    fn read_again_if_wanted(&mut self) {
        let wanted = self.read_again.filter(|id| {
            let mut documents = self.state.documents.iter();
            documents.any(|d| d.id == *id && matches!(d.stage, Stage::Planned))
        });
        if let Some(id) = wanted {
            self.read_again = None;
            self.state.current = Some(id);
            self.read();
        }
    }

    fn failed(&mut self, task: Task, failure: Failure) {
        let Some(id) = self.tasks.remove(&task) else { return };
        let document = self.state.documents.iter_mut().find(|document| document.id == id);
        let Some(document) = document else { return };
        if let Some(reply) = document.reply(task) {
            reply.fail(&failure.to_string());
        } else if matches!(document.stage, Stage::Counting(_)) {
            // What is wrong with the document stands where it would be read.
            document.stage = Stage::Refused(failure);
            return;
        } else {
            document.stage = Stage::Planned;
        }
        self.notice(failure);
    }

    /// The engine's thread is gone: what ran is over, and what was said stays.
    fn ended(&mut self, failure: Failure) {
        self.state.engine = EngineState::Gone;
        self.tasks.clear();
        let (title, _) = strings::failure(failure.kind);
        for document in &mut self.state.documents {
            for reply in document.replies_mut().filter(|reply| reply.task.is_some()) {
                reply.fail(title);
            }
            if !matches!(document.stage, Stage::Refused(_)) {
                document.stage = Stage::Planned;
            }
        }
        self.notice(Failure { kind: FailureKind::EngineStopped, ..failure });
    }

    /// Whether the engine is there and has looked at the document.
    fn has_started(&mut self) -> bool {
        let is_ready = matches!(self.state.engine, EngineState::Ready(_));
        let document = self.state.document();
        is_ready && document.is_some_and(|d| matches!(d.stage, Stage::Planned | Stage::Read(_)))
    }

    fn take_dropped_files(&mut self, ctx: &Context) {
        for file in ctx.input(|input| input.raw.dropped_files.clone()) {
            let path = file.path().to_path_buf();
            self.outbox.later(move || Some(files::read(&path)));
        }
    }
}

impl eframe::App for App {
    fn logic(&mut self, ctx: &Context, _frame: &mut eframe::Frame) {
        while let Some(event) = self.worker.next_event() {
            self.heard(event);
        }
        while let Ok(arrival) = self.inbox.try_recv() {
            self.arrived(ctx, arrival);
        }
        if self.exits && self.has_started() {
            ctx.send_viewport_cmd(egui::ViewportCommand::Close);
        }
        let now = ctx.input(|input| input.time);
        self.state.toast.take_if(|(_, until)| *until <= now);
    }

    fn ui(&mut self, ui: &mut egui::Ui, _frame: &mut eframe::Frame) {
        let ctx = ui.ctx().clone();
        self.take_dropped_files(&ctx);
        let mut actions = std::mem::take(&mut self.actions);
        views::shortcuts::collect(&ctx, &mut self.state, &mut actions);
        views::window(ui, &mut self.state, &mut actions);
        for action in actions.drain(..) {
            self.act(&ctx, action);
            // What follows from it is seen in the next frame.
            ctx.request_repaint();
        }
        self.actions = actions;
    }
}
