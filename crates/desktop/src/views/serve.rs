//! The switch that serves the library to other programs, and where they find it then.

use eframe::egui::{DragValue, Frame, Margin, RichText, Stroke, TextEdit, Ui};
use longview_server::curl_line;

use super::widgets;
use crate::engine::{Serve, Served, Serving};
use crate::state::Action;
use crate::strings;
use crate::theme::{self, GAP, RADIUS, TIGHT};

/// Width of the field for a key.
const KEY: f32 = 130.0;

/// Draws it. Without a library there is nothing to serve.
pub fn show(ui: &mut Ui, serve: &mut Serve, serving: Option<&Serving>, actions: &mut Vec<Action>) {
    let can = serving.is_some();
    let switch = ui.add_enabled_ui(can, |ui| ui.checkbox(&mut serve.on, strings::SERVE));
    if switch.inner.changed() {
        actions.push(Action::Serve(serve.clone()));
    }
    let Some(serving) = serving else {
        widgets::caption(ui, strings::NO_LIBRARY_TO_SERVE);
        return;
    };
    widgets::caption(ui, strings::SERVE_HELP);
    ui.add_space(TIGHT);
    match serving {
        Serving::Off => fields(ui, serve),
        Serving::Starting => {
            widgets::caption(ui, strings::SERVE_STARTING);
        }
        Serving::Ending => {
            widgets::caption(ui, strings::SERVE_ENDING);
        }
        Serving::On(served) => on(ui, served, &serve.key, actions),
        Serving::Failed(failure) => {
            let color = theme::palette(ui.visuals()).bad;
            ui.colored_label(color, strings::sentence(&failure.message));
            widgets::caption(ui, strings::failure(failure.kind).1);
            ui.add_space(TIGHT);
            fields(ui, serve);
            if serve.on && ui.add(widgets::secondary(strings::TRY_AGAIN)).clicked() {
                actions.push(Action::Serve(serve.clone()));
            }
        }
    }
}

fn fields(ui: &mut Ui, serve: &mut Serve) {
    ui.horizontal(|ui| {
        let label = ui.label(strings::SERVE_PORT);
        let value = DragValue::new(&mut serve.port).range(1..=u16::MAX);
        // 0, one that is free, can be in the file of the settings.
        let value = value.clamp_existing_to_range(false);
        // A port is a name, not a quantity.
        let value = value.custom_formatter(|value, _| value.to_string());
        ui.add(value).labelled_by(label.id);
        ui.add_space(GAP);
        let label = ui.label(strings::SERVE_KEY);
        let edit = TextEdit::singleline(&mut serve.key).password(true).desired_width(KEY);
        ui.add(edit).labelled_by(label.id);
    });
}

fn on(ui: &mut Ui, served: &Served, key: &str, actions: &mut Vec<Action>) {
    let palette = theme::palette(ui.visuals());
    let key = Some(key.trim()).filter(|key| !key.is_empty());
    ui.label(strings::serving(served));
    if key.is_some() {
        widgets::caption(ui, strings::SERVE_NEEDS_KEY);
    }
    widgets::caption(ui, strings::SERVE_TRY);
    // On the screen the key is hidden, in the copy it works.
    let line = |key| curl_line(served.address, served.is_embedded, key);
    let frame = Frame::new().fill(palette.page).stroke(Stroke::new(1.0, palette.line));
    frame.corner_radius(RADIUS).inner_margin(Margin::same(GAP as i8)).show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.label(RichText::new(line(key.map(|_| "KEY"))).monospace().size(12.0));
    });
    ui.horizontal(|ui| {
        if ui.add(widgets::secondary(strings::COPY_LINE)).clicked() {
            actions.push(Action::Copy(line(key)));
        }
        if ui.add(widgets::secondary(strings::COPY_ADDRESS)).clicked() {
            actions.push(Action::Copy(strings::served_at(served)));
        }
    });
    ui.add_space(TIGHT);
    widgets::caption(ui, strings::SERVE_SHARED);
}
