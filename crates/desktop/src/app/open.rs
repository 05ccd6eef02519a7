//! Documents that come, are shown, changed and closed.

use std::path::PathBuf;
use std::sync::Arc;

use longview_library::documents::{Documents, Id, Source};

use super::App;
use crate::dialogs::NoDialog;
use crate::document::{Document, Stage};
use crate::engine::{Command, DocumentId, FailureKind};
use crate::files::{self, Arrival, KeptDocument, Piece, Purpose};
use crate::state::{Dialog, Pane};
use crate::{sample, strings};

/// The seed of the sample document.
const SAMPLE_SEED: u64 = 1;

impl App {
    pub(super) fn open_kept(&mut self, id: Id) {
        if let Some(open) = self.state.documents.iter().find(|d| d.kept == Some(id)) {
            self.select(open.id);
            return;
        }
        let found = self.state.kept.iter().find(|kept| kept.id == id);
        let Some(title) = found.map(|kept| kept.name.clone()) else { return };
        self.with_library(move |library| match library.text(id) {
            Ok(text) => {
                let sources = library.get(id).ok().flatten().map(|d| d.sources);
                Some(Arrival::Text { title, text, sources: sources.unwrap_or_default() })
            }
            Err(error) => Some(files::refused(&error)),
        });
    }

    /// Removes what models have read of a document. It is closed first, or what is in memory of it
    /// would be kept again.
    pub(super) fn free_space(&mut self, id: Id) {
        self.close_kept(id);
        self.with_library(move |library| {
            let free = |library: &Documents| {
                let document = library.get(id)?;
                let mut sessions = document.iter().flat_map(|document| &document.sessions);
                sessions.try_for_each(|s| library.remove_session(id, s.file).map(|_| ()))
            };
            Some(files::change(&library, free))
        });
    }

    fn close_kept(&mut self, id: Id) {
        let open = self.state.documents.iter().find(|d| d.kept == Some(id)).map(|d| d.id);
        if let Some(open) = open {
            self.close(open);
        }
    }

    pub(super) fn delete(&mut self, id: Id) {
        self.close_kept(id);
        self.forget_conversation(id);
        self.with_library(move |library| {
            Some(files::change(&library, |library| library.remove(id).map(|_| ())))
        });
    }

    pub(super) fn rename(&mut self, id: Id, name: String) {
        // What is open is called so once the library has taken the name.
        self.with_library(move |library| {
            Some(files::change(&library, |library| library.rename(id, &name)))
        });
    }

    /// What is in the library now. What is open is called as it is there.
    pub(super) fn listed(&mut self, kept: Vec<KeptDocument>) {
        self.state.kept = kept;
        for new in &self.state.kept {
            let documents = self.state.documents.iter_mut();
            for document in documents.filter(|document| document.kept == Some(new.id)) {
                document.title.clone_from(&new.name);
            }
        }
        if !std::mem::take(&mut self.awaits_library) || !self.state.documents.is_empty() {
            return;
        }
        if self.state.kept.is_empty() {
            self.open_sample();
        } else {
            // What a narrow window shows at first.
            self.state.pane = Pane::List;
        }
    }

    /// A document is in the library, under this name.
    pub(super) fn kept(&mut self, document: DocumentId, id: Id, name: String) {
        let mut documents = self.state.documents.iter_mut();
        let (mut is_new, mut keeps_again) = (true, false);
        if let Some(document) = documents.find(|found| found.id == document) {
            is_new = document.kept.replace(id).is_none();
            (document.title, document.is_refused) = (name, false);
            keeps_again = std::mem::take(&mut document.keeps_again);
        }
        if is_new {
            self.look_for_conversation(document, id);
        }
        if keeps_again {
            self.keep_held(document);
        }
        self.open_what_was_read();
        self.with_library(|library| Some(files::list(&library)));
    }

    /// Moves aside what is damaged in the library. What is wrong still is told anew.
    pub(super) fn repair(&mut self) {
        self.state.notices.retain(|notice| notice.failure.kind != FailureKind::Damaged);
        let told = self.outbox.clone();
        self.with_library(move |library| {
            let listed = files::change(&library, files::repair);
            if matches!(listed, Arrival::Library(_)) {
                told.send(Arrival::Said(strings::REPAIRED.to_owned()));
            }
            Some(listed)
        });
    }

    pub(super) fn open_sample(&mut self) {
        let (title, text) = (strings::SAMPLE_TITLE.to_owned(), sample::document(SAMPLE_SEED));
        let source = files::source(&title, &text);
        self.open_text(title, text.into(), vec![source]);
    }

    /// Asks for files.
    pub(super) fn choose_files(&mut self, purpose: Purpose) {
        let dialogs = Arc::clone(&self.dialogs);
        self.read_files(purpose, move || dialogs.open());
    }

    /// Asks for a folder.
    pub(super) fn choose_folder(&mut self) {
        let dialogs = Arc::clone(&self.dialogs);
        self.read_files(Purpose::Open, move || Ok(dialogs.folder()?.into_iter().collect()));
    }

    /// Opens files and folders that were dropped or named.
    pub(super) fn open_paths(&mut self, paths: Vec<PathBuf>) {
        self.read_files(Purpose::Open, move || Ok(paths));
    }

    fn read_files(
        &self,
        purpose: Purpose,
        paths: impl FnOnce() -> Result<Vec<PathBuf>, NoDialog> + Send + 'static,
    ) {
        let told = self.outbox.clone();
        self.outbox.later(move || {
            let paths = match paths() {
                Ok(paths) => paths,
                Err(NoDialog) => return Some(NoDialog.told()),
            };
            let (pieces, failures) = files::read_all(&paths);
            failures.into_iter().for_each(|failure| told.send(Arrival::Failed(failure)));
            (!pieces.is_empty()).then_some(Arrival::Pieces(purpose, pieces))
        });
    }

    /// One file opens at once; of several a person says in which order, and whether together.
    pub(super) fn pieces(&mut self, purpose: Purpose, mut pieces: Vec<Piece>) {
        // Files that come while others are put into order stand behind them: a new list in place of
        // the one that is shown would lose its files.
        if let Some(Dialog::Order(shown, ordered)) = &mut self.state.dialog
            && *shown == purpose
        {
            return ordered.extend(pieces);
        }
        match (purpose, pieces.len()) {
            (Purpose::Open, 1) => self.open_piece(pieces.remove(0)),
            (Purpose::Add(_), 1) => self.open_as_one(purpose, pieces),
            _ => self.state.dialog = Some(Dialog::Order(purpose, pieces)),
        }
    }

    pub(super) fn open_piece(&mut self, piece: Piece) {
        self.open_text(piece.title, piece.text, vec![piece.source]);
        if let Some(document) = self.state.document().filter(|_| piece.session.is_some()) {
            document.session = piece.session;
        }
    }

    /// The texts of `pieces` one behind the other, as a document or behind one.
    pub(super) fn open_as_one(&mut self, purpose: Purpose, pieces: Vec<Piece>) {
        let before = match purpose {
            Purpose::Open => None,
            Purpose::Add(id) => self.state.documents.iter().find(|document| document.id == id),
        };
        let texts = before.map(|document| &*document.text).into_iter();
        let texts: Vec<&str> = texts.chain(pieces.iter().map(|piece| &*piece.text)).collect();
        let text: Arc<str> = texts.join(files::BETWEEN).into();
        let mut sources = before.map_or_else(Vec::new, |document| document.sources.clone());
        sources.extend(pieces.iter().map(|piece| piece.source.clone()));
        let title = match before {
            Some(document) => document.title.clone(),
            None => strings::title_of(&pieces.iter().map(|p| &*p.title).collect::<Vec<_>>()),
        };
        let kept = before.map(|document| {
            (document.id, document.kept, document.conversation.clone(), document.draft.clone())
        });
        self.open_text(title, text, sources);
        let Some((id, replaces, conversation, draft)) = kept else { return };
        if let Some(document) = self.state.document() {
            (document.replaces, document.conversation) = (replaces, conversation);
            document.draft = draft;
        }
        let shown = self.state.current;
        self.close(id);
        self.state.current = shown;
    }

    pub(super) fn open_text(&mut self, title: String, text: Arc<str>, sources: Vec<Source>) {
        // By the text alone, as the library has it: two of one text would share their questions
        // there, and the one that is kept last would remove those of the other.
        if let Some(same) = self.state.documents.iter().find(|document| document.text == text) {
            let id = same.id;
            if same.title != title {
                self.said = Some(strings::same_text(&title, &same.title));
            }
            self.select(id);
            return;
        }
        let id = DocumentId(self.next_id);
        self.next_id += 1;
        let task = self.send(id, Command::Plan(id, Arc::clone(&text)));
        let (kept_text, kept_sources) = (Arc::clone(&text), sources.clone());
        let kept_title = title.clone();
        self.with_library(move |library| {
            Some(files::keep(&library, id, &kept_title, kept_sources, &kept_text))
        });
        let mut document = Document::new(id, title, text, task);
        document.sources = sources;
        self.state.documents.push(document);
        if std::mem::take(&mut self.reads) {
            self.stand_in_line(id, usize::MAX);
        }
        self.select(id);
    }

    pub(super) fn select(&mut self, id: DocumentId) {
        self.state.current = Some(id);
        self.state.pane = Pane::Document;
        self.open_what_was_read();
    }

    /// Looks in the library for what was read of the document that is shown, unless the engine
    /// holds it, or works on another one.
    pub(super) fn open_what_was_read(&mut self) {
        let has_library = self.library.is_some();
        if self.state.is_busy() {
            return;
        }
        let Some(document) = self.state.document() else { return };
        let (id, text) = (document.id, Arc::clone(&document.text));
        let waits = has_library && document.kept.is_none() && !document.is_refused;
        let may_be_there = has_library || document.session.is_some();
        if waits || !may_be_there || !matches!(document.stage, Stage::Planned) {
            return;
        }
        // Asked for once: a file that cannot be used is told, and the document is read.
        let session = document.session.take();
        let task = self.send(id, Command::Open(id, text, session));
        if let Some(document) = self.state.document() {
            document.stage = Stage::Opening(task);
        }
    }

    /// A document that was read whole takes the place of the shorter one that it begins with.
    pub(super) fn succeed(&mut self, id: DocumentId) {
        let mut documents = self.state.documents.iter_mut();
        let Some(document) = documents.find(|document| document.id == id) else { return };
        if let (Some(new), Some(old)) = (document.kept, document.replaces.take()) {
            self.forget_conversation(old);
            self.keep_conversation(id);
            self.with_library(move |library| {
                Some(files::change(&library, |library| library.succeed(old, new).map(|_| ())))
            });
        }
    }

    pub(super) fn close(&mut self, id: DocumentId) {
        self.stop_tasks_of(id);
        self.state.line.retain(|waiting| *waiting != id);
        self.state.documents.retain(|document| document.id != id);
        if self.state.current == Some(id) {
            self.state.current = self.state.documents.last().map(|document| document.id);
        }
        self.serve_line();
    }

    fn stop_tasks_of(&mut self, id: DocumentId) {
        for task in self.tasks.iter().filter(|(_, document)| **document == id).map(|(task, _)| task)
        {
            self.worker.stop(*task);
        }
    }
}
