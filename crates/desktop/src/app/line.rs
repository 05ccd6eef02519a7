//! What is read, and what waits for it: the engine reads one document at a time.

use std::sync::Arc;

use super::App;
use crate::document::{Document, Reading, Stage};
use crate::engine::{Command, DocumentId};
use crate::state::EngineState;

impl App {
    /// Reads the document that is shown, or what is left of it, as soon as the engine is free.
    pub(super) fn read(&mut self) {
        let Some(document) = self.state.document() else { return };
        if document.can_be_read() || matches!(document.stage, Stage::Counting(_)) {
            let id = document.id;
            self.stand_in_line(id, usize::MAX);
            self.serve_line();
        }
    }

    /// Puts a document into the line, unless it is there.
    pub(super) fn stand_in_line(&mut self, id: DocumentId, at: usize) {
        let line = &mut self.state.line;
        if !line.contains(&id) {
            line.insert(at.min(line.len()), id);
        }
    }

    /// Begins with the first in the line, if the engine is free and has looked at it.
    pub(super) fn serve_line(&mut self) {
        let is_opening = |d: &Document| matches!(d.stage, Stage::Opening(_));
        let is_ready = matches!(self.state.engine, EngineState::Ready(_));
        if !is_ready || self.state.is_busy() || self.state.documents.iter().any(is_opening) {
            return;
        }
        while let Some(id) = self.state.line.first().copied() {
            let document = self.state.documents.iter().find(|document| document.id == id);
            match document {
                Some(document) if matches!(document.stage, Stage::Counting(_)) => return,
                Some(document) if document.can_be_read() => {
                    self.state.line.remove(0);
                    return self.begin_reading(id);
                }
                // It cannot be read, or was.
                _ => self.state.line.remove(0),
            };
        }
    }

    fn begin_reading(&mut self, id: DocumentId) {
        let mut documents = self.state.documents.iter();
        let Some(document) = documents.find(|document| document.id == id) else { return };
        let goes_on = matches!(document.stage, Stage::Read(_)) && self.held == Some(id);
        let text = Arc::clone(&document.text);
        self.forget_held(id);
        let command = if goes_on { Command::ReadOn(id) } else { Command::Read(id, text) };
        let task = self.send(id, command);
        self.held = Some(id);
        let mut documents = self.state.documents.iter_mut();
        if let Some(document) = documents.find(|document| document.id == id) {
            let (is_paused, is_stopping) = (false, false);
            document.stage =
                Stage::Reading(Reading { task, progress: None, is_paused, is_stopping });
        }
    }

    /// Lets the engine keep what it holds of a document, all of which was read: there is nothing to
    /// read, and what was read is kept at the end of that.
    pub(super) fn keep_held(&mut self, id: DocumentId) {
        if self.held == Some(id) && !self.state.is_busy() {
            self.begin_reading(id);
        }
    }

    /// The engine holds one document: the one before has to be read again.
    pub(super) fn forget_held(&mut self, next: DocumentId) {
        for document in self.state.documents.iter_mut().filter(|document| document.id != next) {
            if matches!(document.stage, Stage::Read(_)) {
                document.stage = Stage::Planned;
            }
        }
    }

    pub(super) fn pause(&mut self, on: bool) {
        let Some(reading) = self.state.document().and_then(Document::reading) else { return };
        reading.is_paused = on;
        let task = reading.task;
        self.worker.pause(task, on);
    }

    pub(super) fn stop_reading(&mut self) {
        let Some(reading) = self.state.document().and_then(Document::reading) else { return };
        reading.is_stopping = true;
        let task = reading.task;
        self.worker.stop(task);
    }
}
