//! The window's state, and what changes it: actions of a person, events of the engine, arrivals of
//! files. Views only draw and collect actions.

mod ask;
mod keep;
mod line;
mod models;
mod open;
mod serve;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use eframe::egui::{self, Context};
use longview_library::Library;
use longview_library::documents::Documents;

use crate::dialogs::Dialogs;
use crate::document::{Stage, StepFigures};
use crate::engine::{
    Attention, Command, DocumentId, Engines, Event, Failure, FailureKind, Host, Step, Task, Wake,
    Worker,
};
use crate::files::{Arrival, Outbox, Purpose};
use crate::instance::First;
use crate::models::Models;
use crate::settings::Settings;
use crate::state::{Action, EngineState, Notice, Pane, Side, State};
use crate::store::{Places, Store};
use crate::{files, strings, theme, views};

/// The budget at first: for contexts up to 8,192 tokens, and above.
const FIRST_BUDGETS: [usize; 2] = [512, 1024];
/// Seconds for which a short message is shown.
const TOAST_S: f64 = 4.0;
/// How long the end of the program waits for the engine: it ends after its step, and keeps what was
/// read. A large document takes a while to write; what was kept on the way is there in any case.
pub const END_PATIENCE: Duration = Duration::from_secs(60);

/// How a window begins.
pub struct Start {
    /// Makes engines.
    pub engines: Engines,
    /// What was chosen, with what a command line says.
    pub settings: Settings,
    /// Asks for names of files.
    pub dialogs: Arc<dyn Dialogs>,
    /// Texts to open. Without one the sample is opened at the first start, when nothing is in the
    /// library.
    pub files: Vec<PathBuf>,
    /// Read them at once.
    pub reads: bool,
    /// Where documents are kept; none if the system has no place for it.
    pub library: Option<Documents>,
    /// Where models are kept and come from; likewise.
    pub models: Option<Arc<Library>>,
    /// Where settings and conversations are kept; likewise.
    pub places: Option<Places>,
    /// What serves the library to other programs, with the engines.
    pub host: Option<Host>,
    /// What of this could not be had, and why.
    pub failures: Vec<Failure>,
    /// The right to be the first window, to hear of later starts.
    pub first: Option<First>,
    /// Ask this once the first document is read.
    pub asks: Option<String>,
    /// Close the window once so many documents can be read.
    pub exits: Option<usize>,
    /// Close the window after the first answer.
    pub exits_answered: bool,
    /// How long the end of the window waits until what is read is kept.
    pub patience: Duration,
}

/// The window.
pub struct App {
    state: State,
    worker: Worker,
    engines: Engines,
    wake: Wake,
    dialogs: Arc<dyn Dialogs>,
    library: Option<Documents>,
    models: Option<Arc<Library>>,
    store: Option<Store>,
    host: Option<Host>,
    /// Whether the engine was made for prompts of other programs too.
    has_context_for_others: bool,
    outbox: Outbox,
    inbox: Receiver<Arrival>,
    /// The document of each task that has not ended.
    tasks: BTreeMap<Task, DocumentId>,
    /// The document that the engine holds.
    held: Option<DocumentId>,
    /// Ends the look at the hub that runs.
    cancel_look: Arc<AtomicBool>,
    /// Ends the download that runs.
    cancel_pull: Arc<AtomicBool>,
    /// Whether what is in the library decides what is shown.
    awaits_library: bool,
    reads: bool,
    asks: Option<String>,
    exits: Option<usize>,
    exits_answered: bool,
    has_answered: bool,
    patience: Duration,
    /// Whether later starts get a window of their own, because this one goes.
    is_closing: Arc<AtomicBool>,
    /// The document whose last question is asked again once its answer has stopped.
    asks_again: Option<DocumentId>,
    /// Whether settings or conversations could not be saved.
    is_unsaved: bool,
    /// A short message for the next frame.
    said: Option<String>,
    next_id: u64,
    next_notice: usize,
    actions: Vec<Action>,
}

impl App {
    /// A window that opens its engine and its first document.
    pub fn new(ctx: &Context, start: Start) -> Self {
        theme::install(ctx);
        ctx.set_theme(start.settings.theme());
        ctx.set_zoom_factor(start.settings.zoom());
        let waker = ctx.clone();
        let wake: Wake = Arc::new(move || waker.request_repaint());
        let (sender, inbox) = mpsc::channel();
        let outbox = Outbox { sender, wake: Arc::clone(&wake) };
        let told = outbox.clone();
        let tell = move |message| {
            told.send(Arrival::Failed(Failure { kind: FailureKind::NotSaved, message }));
        };
        let open = (start.engines)(&start.settings.setup());
        let has_context_for_others = start.settings.serve.on;
        let mut app = Self {
            worker: Worker::start(&open, &wake),
            state: first_state(start.settings),
            engines: start.engines,
            wake,
            dialogs: start.dialogs,
            library: start.library,
            models: start.models,
            store: start.places.map(|places| Store::new(places, tell)),
            host: start.host,
            has_context_for_others,
            awaits_library: false,
            reads: start.reads,
            asks: start.asks,
            exits: start.exits,
            exits_answered: start.exits_answered,
            has_answered: false,
            patience: start.patience,
            is_closing: Arc::default(),
            asks_again: None,
            is_unsaved: false,
            said: None,
            outbox,
            inbox,
            tasks: BTreeMap::new(),
            held: None,
            cancel_look: Arc::default(),
            cancel_pull: Arc::default(),
            next_id: 1,
            next_notice: 0,
            actions: Vec::new(),
        };
        if let Some(first) = start.first {
            let outbox = app.outbox.clone();
            let is_closing = Arc::clone(&app.is_closing);
            first.listen(move |files| {
                let is_there = !is_closing.load(Ordering::Relaxed);
                if is_there {
                    outbox.send(Arrival::Handed(files));
                }
                is_there
            });
        }
        start.failures.into_iter().for_each(|failure| app.notice(failure, false));
        app.begin_serving();
        // Who waits for a document that can be read gets one.
        let wants_sample = app.exits.is_some() || app.asks.is_some() || app.library.is_none();
        if !start.files.is_empty() {
            app.open_paths(start.files);
        } else if wants_sample {
            app.open_sample();
        } else {
            app.awaits_library = true;
        }
        app.with_library(|library| Some(files::list(&library)));
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

    /// A new engine in place of one that ended, or of one that was made otherwise. Documents are
    /// counted again; the one that was read is opened from the library, or read again.
    fn restart(&mut self) {
        self.clear_host();
        self.has_context_for_others = self.state.settings.serve.on;
        let open = (self.engines)(&self.state.settings.setup());
        self.worker = Worker::start(&open, &self.wake);
        self.tasks.clear();
        self.state.engine = EngineState::Opening;
        self.state.notices.retain(|notice| !notice.is_end);
        if let Some(held) = self.held.take() {
            self.stand_in_line(held, 0);
        }
        for i in 0..self.state.documents.len() {
            let (id, text) =
                (self.state.documents[i].id, Arc::clone(&self.state.documents[i].text));
            let task = self.send(id, Command::Plan(id, text));
            let document = &mut self.state.documents[i];
            (document.stage, document.plan, document.map) = (Stage::Counting(task), None, None);
            for reply in document.replies_mut().filter(|reply| reply.task.is_some()) {
                reply.fail(strings::STOPPED);
            }
        }
    }

    fn notice(&mut self, failure: Failure, is_end: bool) {
        self.state.notices.retain(|notice| notice.failure != failure);
        self.state.notices.push(Notice { id: self.next_notice, failure, is_end });
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
            Action::OpenFile => self.choose_files(Purpose::Open),
            Action::OpenFolder => self.choose_folder(),
            Action::AddFiles(id) => self.choose_files(Purpose::Add(id)),
            Action::OpenAsOne(purpose, pieces) => self.open_as_one(purpose, pieces),
            Action::OpenEach(pieces) => pieces.into_iter().for_each(|piece| self.open_piece(piece)),
            Action::OpenSample => self.open_sample(),
            Action::OpenKept(id) => self.open_kept(id),
            Action::Rename(id, name) => self.rename(id, name),
            Action::Pin(id, on) => self.with_library(move |library| {
                Some(files::change(&library, |library| library.set_pinned(id, on)))
            }),
            Action::FreeSpace(id) => self.free_space(id),
            Action::Delete(id) => self.delete(id),
            Action::ShowDialog(dialog) => self.show_dialog(dialog),
            Action::Select(id) => self.select(id),
            Action::CloseDocument(id) => self.close(id),
            Action::Read => self.read(),
            Action::KeepAgain => self.keep_again(),
            Action::SaveAgain => self.save_again(),
            Action::LeaveLine(id) => self.state.line.retain(|waiting| *waiting != id),
            Action::Pause(on) => self.pause(on),
            Action::StopReading => self.stop_reading(),
            Action::Ask => self.ask(),
            Action::Edit(at) => self.edit(at),
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
                self.state.settings.set_theme(theme);
                ctx.set_theme(theme);
                self.keep_settings();
            }
            Action::Look(text) => self.look(text),
            Action::CancelLook => self.cancel_look(),
            Action::ChooseModel(is_folder) => self.choose_model(is_folder),
            Action::Pull => self.pull(),
            Action::CancelPull => self.cancel_pull(),
            Action::UseModel(source) => self.use_model(source),
            Action::DeleteModel(name) => self.delete_model(&name),
            Action::Choose(settings) => self.choose(ctx, *settings),
            Action::Serve(serve) => self.serve(serve),
            Action::Restart => self.restart(),
            Action::Repair => self.repair(),
            Action::Dismiss(id) => self.state.notices.retain(|notice| notice.id != id),
        }
    }

    fn arrived(&mut self, ctx: &Context, arrival: Arrival) {
        match arrival {
            Arrival::Pieces(purpose, pieces) => self.pieces(purpose, pieces),
            Arrival::Text { title, sources, text } => self.open_text(title, text.into(), sources),
            Arrival::Conversation(id, exchanges) => self.remember(id, exchanges),
            Arrival::Handed(paths) => {
                ctx.send_viewport_cmd(egui::ViewportCommand::Minimized(false));
                ctx.send_viewport_cmd(egui::ViewportCommand::Focus);
                // Some desktops let no program come forward by itself: they mark its window.
                ctx.send_viewport_cmd(egui::ViewportCommand::RequestUserAttention(
                    egui::UserAttentionType::Informational,
                ));
                self.open_paths(paths);
            }
            Arrival::Models(here) => self.state.models.here = Some(here),
            Arrival::Looked(name, found) => self.looked(&name, found),
            Arrival::Pulling(name, pull) => self.pulling(ctx, &name, pull),
            Arrival::Chosen(source) => self.use_model(source),
            Arrival::Kept(document, id, name) => self.kept(document, id, name),
            Arrival::NotKept(document, failure) => {
                let mut documents = self.state.documents.iter_mut();
                if let Some(document) = documents.find(|found| found.id == document) {
                    (document.is_refused, document.keeps_again) = (true, false);
                }
                self.notice(failure, false);
                self.open_what_was_read();
            }
            Arrival::Library(kept) => self.listed(kept),
            Arrival::Saved(path) => self.toast(ctx, strings::exported(&path)),
            Arrival::Serving(serving) => self.serving(ctx, serving),
            Arrival::Said(text) => self.toast(ctx, text),
            Arrival::Failed(failure) => {
                self.is_unsaved |= failure.kind == FailureKind::NotSaved;
                self.notice(failure, false);
            }
        }
    }

    fn heard(&mut self, event: Event) {
        match event {
            Event::Ready(model) => {
                // The last layer is where answers are found.
                self.state.map_place = (model.n_layers - 1, model.n_kv_heads - 1);
                self.state.engine = EngineState::Ready(model);
            }
            Event::Step(_, Step::Shared) => {}
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
            }
            Step::NotKept => document.stage = Stage::Planned,
            Step::Reading(progress) => {
                if let Some(reading) = document.reading() {
                    reading.progress = Some(progress);
                }
            }
            Step::Read(state) => {
                let (id, not_kept) = (document.id, state.not_kept.clone());
                let (is_complete, was_kept) = (state.is_complete(), state.was_kept);
                document.stage = Stage::Read(state);
                self.held = Some(id);
                self.forget_held(id);
                // What was opened in part and stands in line is read on.
                if is_complete || !was_kept {
                    self.state.line.retain(|waiting| *waiting != id);
                }
                if is_complete {
                    self.succeed(id);
                }
                // What is shown meanwhile is opened again, unless another one is to be read.
                if self.state.current != Some(id) && self.state.line.is_empty() {
                    self.open_what_was_read();
                }
                self.state.focuses_question = self.state.current == Some(id);
                not_kept.into_iter().for_each(|failure| self.notice(failure, false));
                if is_complete && self.state.current == Some(id) {
                    self.ask_first();
                }
                self.with_library(|library| Some(files::list(&library)));
            }
            Step::Answering(step) => {
                document.history.push(StepFigures::of(&step));
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
                let id = document.id;
                self.keep_conversation(id);
                self.has_answered = true;
                // The budget was changed meanwhile.
                if self.asks_again.take() == Some(id) && self.state.current == Some(id) {
                    self.ask_last_again();
                }
            }
            Step::Shared => {}
        }
        self.serve_line();
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
            return self.serve_line();
        } else {
            // Not tried again by itself: it would fail again.
            document.stage = Stage::Planned;
            self.state.line.retain(|waiting| *waiting != id);
        }
        self.notice(failure, false);
        self.serve_line();
    }

    /// The engine's thread is gone: what ran is over, and what was said stays.
    fn ended(&mut self, failure: Failure) {
        self.state.engine = EngineState::Gone;
        self.tasks.clear();
        let kind = failure.kind.of_end();
        let (title, _) = strings::failure(kind);
        for document in &mut self.state.documents {
            for reply in document.replies_mut().filter(|reply| reply.task.is_some()) {
                reply.fail(title);
            }
            if !matches!(document.stage, Stage::Refused(_)) {
                document.stage = Stage::Planned;
            }
        }
        self.notice(Failure { kind, ..failure }, true);
    }

    /// Whether the engine is there and has looked at so many documents.
    fn has_started(&self, n_documents: usize) -> bool {
        let is_ready = matches!(self.state.engine, EngineState::Ready(_));
        let is_planned = |stage: &Stage| matches!(stage, Stage::Planned | Stage::Read(_));
        let documents = self.state.documents.iter().filter(|d| is_planned(&d.stage));
        is_ready && documents.count() >= n_documents
    }

    fn take_dropped_files(&mut self, ctx: &Context) {
        let files = ctx.input(|input| input.raw.dropped_files.clone());
        if !files.is_empty() {
            self.open_paths(files.iter().map(|file| file.path().to_path_buf()).collect());
        }
    }
}

impl Drop for App {
    /// What is read is kept as far as it is, and what is said of an answer, before all ends.
    fn drop(&mut self) {
        self.is_closing.store(true, Ordering::Relaxed);
        if let Some(host) = &self.host {
            host.end();
        }
        // An engine that does nothing has nothing to keep, and one that opens cannot be stopped.
        let is_busy = self.state.is_busy();
        self.worker.finish(if is_busy { self.patience } else { Duration::ZERO });
        while let Some(event) = self.worker.next_event() {
            if let Event::Step(..) = event {
                self.heard(event);
            }
        }
        if self.is_unsaved {
            self.save_again();
        }
    }
}

fn first_state(settings: Settings) -> State {
    State {
        engine: EngineState::Opening,
        documents: Vec::new(),
        kept: Vec::new(),
        wanted: String::new(),
        dialog: None,
        line: Vec::new(),
        models: Models::default(),
        current: None,
        notices: Vec::new(),
        budget: settings.budget().unwrap_or(FIRST_BUDGETS[0]),
        budget_is_chosen: settings.budget.is_some(),
        settings,
        serving: None,
        map_place: (0, 0),
        pane: Pane::Document,
        side: Side::Answers,
        shows_shortcuts: false,
        focuses_question: false,
        toast: None,
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
        // Without an engine there will be no answer.
        let is_over = self.has_answered || self.state.engine == EngineState::Gone;
        let is_answered = self.exits_answered && is_over;
        if is_answered || self.exits.is_some_and(|n| self.has_started(n)) {
            ctx.send_viewport_cmd(egui::ViewportCommand::Close);
        }
        if ctx.input(|input| input.viewport().close_requested()) {
            // What is still to be kept is kept out of sight.
            ctx.send_viewport_cmd(egui::ViewportCommand::Visible(false));
        }
        if let Some(text) = self.said.take() {
            self.toast(ctx, text);
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
        // A link may stand in an answer.
        ctx.output_mut(|output| output.commands.retain(views::markdown::may_do));
    }
}
