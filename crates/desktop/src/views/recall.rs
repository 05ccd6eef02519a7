//! What was recalled: bytes on the device and in host memory, and the map of the context.

use eframe::egui::{ComboBox, ScrollArea, Ui};

use super::{map, widgets};
use crate::figures::bytes;
use crate::state::{EngineState, State};
use crate::strings;
use crate::theme::{self, GAP, WIDE};

/// Draws it.
pub fn show(ui: &mut Ui, state: &mut State) {
    ScrollArea::vertical().id_salt("recall").auto_shrink(false).show(ui, |ui| {
        widgets::card(ui, |ui| memory(ui, state));
        ui.add_space(GAP);
        widgets::card(ui, |ui| context(ui, state));
    });
}

fn memory(ui: &mut Ui, state: &mut State) {
    let palette = theme::palette(ui.visuals());
    ui.label(strings::MEMORY);
    let answer = state.document().and_then(|document| document.last_answer());
    let Some(answer) = answer.and_then(|reply| reply.answer.as_ref()) else {
        widgets::caption(ui, strings::NOTHING_READ);
        return;
    };
    let most = answer.device_bytes.max(answer.host_bytes).max(1) as f32;
    for (name, value, color) in [
        (strings::ON_DEVICE, answer.device_bytes, palette.accent),
        (strings::IN_HOST, answer.host_bytes, palette.weak),
    ] {
        widgets::meter(ui, name, &bytes(value), value as f32 / most, color);
        ui.add_space(GAP);
    }
    if answer.host_bytes > 0 {
        widgets::caption(ui, strings::device_share(answer.device_bytes, answer.host_bytes));
    }
    if let Some(rate) = answer.hit_rate {
        widgets::caption(ui, strings::hits(rate));
    }
}

fn context(ui: &mut Ui, state: &mut State) {
    ui.label(strings::MAP);
    if let EngineState::Ready(model) = state.engine.clone() {
        ui.horizontal(|ui| {
            let (layer, head) = &mut state.map_place;
            pick(ui, strings::LAYER, layer, model.n_layers);
            ui.add_space(WIDE);
            pick(ui, strings::HEAD, head, model.n_kv_heads);
        });
    }
    let place = state.map_place;
    match state.document().and_then(|document| document.map.as_ref()) {
        Some(found) => map::show(ui, found, place),
        None => {
            widgets::caption(ui, strings::MAP_EMPTY);
        }
    }
    map::legend(ui);
}

fn pick(ui: &mut Ui, name: &str, chosen: &mut usize, n: usize) {
    let label = ui.label(name);
    let combo = ComboBox::from_id_salt(name).width(64.0).selected_text(chosen.to_string());
    let response = combo.show_ui(ui, |ui| {
        for i in 0..n {
            ui.selectable_value(chosen, i, i.to_string());
        }
    });
    response.response.labelled_by(label.id);
}
