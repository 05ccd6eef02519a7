//! Models that are looked at, downloaded and used.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use eframe::egui::Context;

use super::App;
use crate::engine::ModelSource;
use crate::files::Arrival;
use crate::models::{self, Look, Offer, Pull};
use crate::state::Dialog;
use crate::{refusals, strings};

impl App {
    pub(super) fn show_dialog(&mut self, dialog: Option<Dialog>) {
        if dialog == Some(Dialog::Models) {
            self.list_models();
        }
        self.state.dialog = dialog;
    }

    fn list_models(&self) {
        let (library, others) = (self.models.clone(), self.state.settings.others.clone());
        self.outbox.later(move || Some(models::here(library.as_deref(), &others)));
    }

    /// Looks at a model by what was typed: a place on this computer, else a name at the hub.
    pub(super) fn look(&mut self, text: String) {
        let text = text.trim().to_owned();
        if text.is_empty() || matches!(self.state.models.look, Look::Asking(_)) {
            return;
        }
        self.state.models.look = Look::Asking(text.clone());
        if models::is_path(&text) {
            let source = ModelSource::Path(home(&text));
            self.outbox.later(move || {
                let found = models::at(source.clone());
                Some(match found.needs {
                    Ok(_) => Arrival::Chosen(source),
                    Err(why) => Arrival::Looked(text, Err(why)),
                })
            });
            return;
        }
        match self.models.clone() {
            Some(library) => {
                self.cancel_look = Arc::new(AtomicBool::new(false));
                let cancel = Arc::clone(&self.cancel_look);
                self.outbox.later(move || models::look(&library, &text, &cancel));
            }
            None => self.looked(&text, Err(strings::NO_PLACE_FOR_MODELS.to_owned())),
        }
    }

    pub(super) fn choose_model(&mut self, is_folder: bool) {
        let dialogs = Arc::clone(&self.dialogs);
        self.outbox.later(move || {
            let Ok(path) = dialogs.model(is_folder) else {
                let name = if is_folder { strings::CHOOSE_FOLDER } else { strings::CHOOSE_GGUF };
                let why = strings::NO_DIALOG_FOR_MODELS.to_owned();
                return Some(Arrival::Looked(name.to_owned(), Err(why)));
            };
            let path = path?;
            let shown = path.display().to_string();
            let source = ModelSource::Path(path);
            Some(match models::at(source.clone()).needs {
                Ok(_) => Arrival::Chosen(source),
                Err(why) => Arrival::Looked(shown, Err(why)),
            })
        });
    }

    /// Ends a look at the hub. What was typed stays.
    pub(super) fn cancel_look(&mut self) {
        self.cancel_look.store(true, Ordering::Relaxed);
        if matches!(self.state.models.look, Look::Asking(_)) {
            self.state.models.look = Look::Nothing;
        }
    }

    pub(super) fn looked(&mut self, name: &str, found: Result<Offer, String>) {
        let is_asked = matches!(&self.state.models.look, Look::Asking(asked) if asked == name);
        // The hub's word may cross the click that no longer wants it.
        if found.is_ok() && !is_asked {
            return;
        }
        self.state.models.look = match found {
            Ok(offer) => Look::Found(offer, Pull::No),
            Err(why) => Look::Failed(name.to_owned(), why),
        };
    }

    pub(super) fn pull(&mut self) {
        let Some(library) = self.models.clone() else { return };
        let Look::Found(offer, pull) = &mut self.state.models.look else { return };
        if matches!(pull, Pull::Running { .. }) {
            return;
        }
        *pull = Pull::Running { done: offer.present, rate: 0, note: None, is_ending: false };
        self.cancel_pull = Arc::new(AtomicBool::new(false));
        models::pull(&library, &offer.name, &self.cancel_pull, &self.outbox);
    }

    pub(super) fn cancel_pull(&mut self) {
        self.cancel_pull.store(true, Ordering::Relaxed);
        if let Look::Found(_, Pull::Running { is_ending, .. }) = &mut self.state.models.look {
            *is_ending = true;
        }
    }

    pub(super) fn pulling(&mut self, ctx: &Context, name: &str, news: Pull) {
        let is_here = matches!(news, Pull::Here(_));
        if let Look::Found(offer, pull) = &mut self.state.models.look
            && offer.name == name
        {
            offer.present = match (&news, &*pull) {
                (Pull::Running { done, .. }, _) if *done > 0 => *done,
                (Pull::Here(_), _) => offer.bytes,
                _ => offer.present,
            };
            let was_ending = matches!(pull, Pull::Running { is_ending: true, .. });
            *pull = match news {
                Pull::Running { done, rate, note, .. } => {
                    let done = done.max(offer.present);
                    Pull::Running { done, rate, note, is_ending: was_ending }
                }
                news => news,
            };
        }
        if is_here {
            self.list_models();
            self.toast(ctx, strings::model_here(name));
        }
    }

    /// Makes an engine of another model. Documents, and what was asked, stay.
    pub(super) fn use_model(&mut self, source: ModelSource) {
        self.state.models.look = Look::Nothing;
        self.state.models.wanted.clear();
        if matches!(self.state.dialog, Some(Dialog::Models)) {
            self.state.dialog = None;
        }
        self.state.settings.use_model(source);
        self.keep_settings();
        self.restart();
    }

    pub(super) fn delete_model(&mut self, name: &str) {
        let Some(library) = self.models.clone() else { return };
        let others = self.state.settings.others.clone();
        let name = name.to_owned();
        let told = self.outbox.clone();
        self.state.dialog = Some(Dialog::Models);
        self.outbox.later(move || {
            let removed =
                name.parse().map_err(|error: longview_library::NameError| error.to_string());
            let removed = removed
                .and_then(|parsed| library.remove(&parsed).map_err(|e| refusals::models(&e)));
            if let Err(why) = removed {
                told.send(Arrival::Looked(name, Err(why)));
            }
            Some(models::here(Some(&library), &others))
        });
    }
}

/// `~` is the user's home, as in a shell.
fn home(text: &str) -> PathBuf {
    let home = directories::BaseDirs::new().map(|folders| folders.home_dir().to_owned());
    match (text.strip_prefix('~'), home) {
        (Some(rest), Some(home)) => home.join(rest.trim_start_matches(['/', '\\'])),
        _ => PathBuf::from(text),
    }
}
