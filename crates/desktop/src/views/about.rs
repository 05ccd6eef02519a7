//! What runs: versions of the program, the device and the model.

use eframe::egui::Ui;

use super::widgets;
use crate::state::{Action, EngineState, State};
use crate::strings;
use crate::theme::{GAP, WIDE};

/// Draws it.
pub fn show(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    super::widgets::title(ui, strings::APP, actions);
    ui.label(widgets::prose(strings::ABOUT_TEXT));
    ui.add_space(WIDE);
    widgets::fact(ui, strings::VERSION, env!("CARGO_PKG_VERSION"));
    widgets::fact(ui, strings::LICENSE, env!("CARGO_PKG_LICENSE"));
    match state.model() {
        Some(model) => {
            widgets::fact(ui, strings::MODEL, &model.name);
            widgets::fact(ui, strings::DEVICE, &model.device);
        }
        None => {
            let is_opening = state.engine == EngineState::Opening;
            let line = if is_opening { strings::ENGINE_OPENING } else { strings::ENGINE_GONE };
            widgets::caption(ui, line);
        }
    }
    ui.add_space(GAP);
}
