//! What is kept from one start to the next: settings, and what was asked.

use std::sync::Arc;

use eframe::egui::Context;
use longview_library::documents::Id;

use super::App;
use crate::document::Exchange;
use crate::engine::{DocumentId, FailureKind};
use crate::files::{self, Arrival};
use crate::settings::Settings;

impl App {
    pub(super) fn keep_settings(&self) {
        if let Some(store) = &self.store {
            store.keep_settings(&self.state.settings);
        }
    }

    /// Takes what was chosen: looks at once, and a new engine if that is to be made otherwise.
    pub(super) fn choose(&mut self, ctx: &Context, settings: Settings) {
        let before = std::mem::replace(&mut self.state.settings, settings);
        let settings = self.state.settings.clone();
        self.keep_settings();
        ctx.set_theme(settings.theme());
        ctx.set_zoom_factor(settings.zoom());
        if let Some(budget) = settings.budget().filter(|_| settings.budget != before.budget) {
            (self.state.budget, self.state.budget_is_chosen) = (budget, true);
        }
        if settings.disk_quota != before.disk_quota {
            self.with_library(move |library| {
                let set = |library: &_| -> Result<(), _> {
                    longview_library::documents::Documents::set_quota(library, settings.disk_quota)
                        .map(|_| ())
                };
                Some(files::change(&library, set))
            });
        }
        if self.state.settings.setup() != before.setup() {
            self.restart();
        }
        if settings.serve != before.serve {
            self.want(settings.serve);
        }
    }

    /// Saves settings and conversations, which could not be saved before. What fails is told anew.
    pub(super) fn save_again(&mut self) {
        self.is_unsaved = false;
        self.state.notices.retain(|notice| notice.failure.kind != FailureKind::NotSaved);
        self.keep_settings();
        let documents = self.state.documents.iter().map(|document| document.id);
        documents.collect::<Vec<_>>().into_iter().for_each(|id| self.keep_conversation(id));
    }

    /// Keeps what was read of the document that is shown, which could not be kept before: first its
    /// text, then, when that is in the library, what is in memory of it.
    pub(super) fn keep_again(&mut self) {
        if self.state.is_busy() {
            return;
        }
        let Some(document) = self.state.document().filter(|document| document.is_unkept()) else {
            return;
        };
        document.keeps_again = true;
        let (id, title, text) = (document.id, document.title.clone(), Arc::clone(&document.text));
        let sources = document.sources.clone();
        self.state.notices.retain(|notice| notice.failure.kind != FailureKind::NotKept);
        self.with_library(move |library| Some(files::keep(&library, id, &title, sources, &text)));
    }

    /// Keeps what was asked about a document that is in the library.
    pub(super) fn keep_conversation(&self, id: DocumentId) {
        let document = self.state.documents.iter().find(|document| document.id == id);
        if let (Some(store), Some(document)) = (&self.store, document)
            && let Some(kept) = document.kept
        {
            store.keep_conversation(kept, &document.conversation);
        }
    }

    pub(super) fn forget_conversation(&self, id: Id) {
        if let Some(store) = &self.store {
            store.keep_conversation(id, &[]);
        }
    }

    /// Looks for what was asked about a document on another day.
    pub(super) fn look_for_conversation(&self, document: DocumentId, id: Id) {
        let Some(places) = self.store.as_ref().map(|store| store.places().clone()) else { return };
        self.outbox.later(move || Some(Arrival::Conversation(document, places.conversation(id))));
    }

    /// What was asked before stands above what was asked since the start.
    pub(super) fn remember(&mut self, id: DocumentId, exchanges: Vec<Exchange>) {
        let mut documents = self.state.documents.iter_mut();
        if let Some(document) = documents.find(|document| document.id == id) {
            let n = exchanges.len();
            // What was asked before the library took the document is not saved yet.
            let is_more = !document.conversation.is_empty();
            document.conversation.splice(0..0, exchanges);
            document.editing = document.editing.map(|at| at + n);
            for reply in document.replies_mut() {
                reply.figures =
                    reply.figures.or(reply.answer.as_ref().map(|a| (a.tokens, a.tokens_per_s)));
            }
            if is_more {
                self.keep_conversation(id);
            }
        }
    }
}
