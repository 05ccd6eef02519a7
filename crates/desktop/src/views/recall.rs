//! What was recalled: bytes on the device and in host memory, and the map of the context.

use eframe::egui::{ComboBox, ScrollArea, Ui};

use super::{map, widgets};
use crate::state::{EngineState, State};
use crate::strings;
use crate::theme::{self, GAP, WIDE};

/// Draws it.
pub fn show(ui: &mut Ui, state: &mut State) {
    ScrollArea::vertical().id_salt("recall").auto_shrink(false).show(ui, |ui| {
        widgets::card(ui, |ui| memory(ui, state));
        ui.add_space(GAP);
        widgets::card(ui, |ui| context(ui, state));
        ui.add_space(GAP);
        widgets::card(ui, |ui| over_time(ui, state));
    });
}

/// The bars of the plan: parts that add up to it.
fn memory(ui: &mut Ui, state: &mut State) {
    let palette = theme::palette(ui.visuals());
    let Some(document) = state.document() else { return };
    ui.label(strings::MEMORY);
    let Some(plan) = document.plan else {
        widgets::caption(ui, strings::NOTHING_READ);
        return;
    };
    let parts = plan.parts;
    let [sink, recent, hit, miss] = [1, 2, 3, 4].map(|kind| palette.map[kind]);
    let device = [
        (strings::PART_WEIGHTS, parts.weights, sink),
        (strings::PART_ROWS, parts.device_rows, hit),
        (strings::PART_BUFFERS, parts.buffers, palette.weak),
    ];
    let host = [
        (strings::PART_HOST_ROWS, parts.host_rows, recent),
        (strings::PART_HOST_INDEX, parts.host_index, miss),
    ];
    let disk = [(strings::PART_SESSION, parts.disk, palette.weak)];
    if plan.is_unified {
        let all: Vec<_> = device.into_iter().chain(host).collect();
        widgets::stack(ui, strings::ONE_MEMORY, &all);
    } else {
        widgets::stack(ui, strings::DEVICE_MEMORY, &device);
        widgets::stack(ui, strings::HOST_MEMORY, &host);
    }
    widgets::stack(ui, strings::DISK, &disk);
    let answer = document.last_answer().and_then(|reply| reply.answer.as_ref());
    if let Some(answer) = answer {
        if answer.host_bytes > 0 {
            let (device, host) = (answer.device_bytes, answer.host_bytes);
            widgets::caption(ui, strings::device_share(device, host));
        }
        if let Some(rate) = answer.hit_rate {
            widgets::caption(ui, strings::hits(rate));
        }
    }
}

fn over_time(ui: &mut Ui, state: &mut State) {
    let history = state.document().map(|document| std::mem::take(&mut document.history));
    super::charts::show(ui, history.as_deref().unwrap_or_default());
    if let (Some(document), Some(history)) = (state.document(), history) {
        document.history = history;
    }
}

fn context(ui: &mut Ui, state: &mut State) {
    ui.label(strings::MAP);
    widgets::caption(ui, strings::MAP_HELP);
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
            ui.selectable_value(chosen, i, super::widgets::choice(ui, &i.to_string()));
        }
    });
    response.response.labelled_by(label.id);
}
