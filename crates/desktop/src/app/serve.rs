//! The library for other programs.

use eframe::egui::Context;

use super::App;
use crate::engine::{Command, Serve, Serving};
use crate::files::Arrival;
use crate::strings;

impl App {
    /// Lets the host say what it does, and do what was chosen at an earlier start.
    pub(super) fn begin_serving(&mut self) {
        let Some(host) = self.host.as_ref().filter(|_| self.library.is_some()) else { return };
        let outbox = self.outbox.clone();
        host.run(move |serving| outbox.send(Arrival::Serving(serving)));
        self.state.serving = Some(Serving::Off);
        self.want(self.state.settings.serve.clone());
    }

    /// Serves the library from now on, or no longer, and at the next start too.
    pub(super) fn serve(&mut self, serve: Serve) {
        self.state.settings.serve = serve.clone();
        self.keep_settings();
        // Prompts of other programs need a longer context than a short document.
        if serve.on && !self.has_context_for_others {
            self.restart();
        }
        self.want(serve);
    }

    pub(super) fn want(&mut self, serve: Serve) {
        let Some(host) = &self.host else { return };
        if serve.on {
            self.state.serving = Some(Serving::Starting);
        }
        host.want(serve.on.then_some(serve));
    }

    /// The model that is served will go.
    pub(super) fn clear_host(&self) {
        if let Some(host) = &self.host {
            host.clear();
        }
    }

    pub(super) fn serving(&mut self, ctx: &Context, serving: Serving) {
        match &serving {
            Serving::On(served) => self.toast(ctx, strings::serving(served)),
            Serving::Failed(failure) => self.notice(failure.clone(), false),
            Serving::Off | Serving::Starting | Serving::Ending => {}
        }
        if matches!(serving, Serving::On(_) | Serving::Off) {
            // What is open goes to the server, or comes back.
            self.worker.send(Command::Share);
        }
        self.state.notices.retain(|notice| {
            !notice.failure.kind.is_of_server() || matches!(serving, Serving::Failed(_))
        });
        self.state.serving = Some(serving);
    }
}
