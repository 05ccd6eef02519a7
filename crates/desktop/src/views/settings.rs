//! Settings: few at first, the others behind "Advanced", each with a sentence.

use eframe::egui::{CollapsingHeader, ComboBox, Slider, Ui};
use longview_scheduler::Preset;

use super::{serve, widgets};
use crate::engine::Serving;
use crate::settings::{BUDGETS, DEVICES, SCALES, Settings};
use crate::state::Action;
use crate::strings;
use crate::theme::{GAP, WIDE};

const GIB: u64 = 1 << 30;
/// Policies that suit documents of people: the default, the paper's, pages, and all tokens.
const POLICIES: [Preset; 5] =
    [Preset::Longview, Preset::Clusterkv, Preset::Quest, Preset::StreamingLlm, Preset::Full];

/// Draws the settings that are being changed.
pub fn show(
    ui: &mut Ui,
    settings: &mut Settings,
    shows_all: &mut bool,
    serving: Option<&Serving>,
    actions: &mut Vec<Action>,
) {
    widgets::heading(ui, strings::SETTINGS);
    let most = (ui.ctx().content_rect().height() - 220.0).max(160.0);
    widgets::scrolled(ui, "settings", most, |ui| {
        let label = ui.label(strings::SCALE);
        let scale = Slider::new(&mut settings.scale, SCALES).step_by(10.0).suffix(" %");
        ui.add(scale).labelled_by(label.id);
        ui.add_space(GAP);
        device(ui, settings);
        ui.add_space(GAP);
        serve::show(ui, &mut settings.serve, serving, actions);
        ui.add_space(GAP);
        let all = CollapsingHeader::new(strings::ADVANCED).id_salt("advanced");
        let all = all.open(Some(*shows_all)).show_unindented(ui, |ui| {
            ui.add_space(GAP);
            advanced(ui, settings);
        });
        if all.header_response.clicked() {
            *shows_all = !*shows_all;
        }
    });
    ui.add_space(WIDE);
    if super::widgets::buttons(ui, strings::SAVE, true, actions) {
        actions.push(Action::Choose(Box::new(settings.clone())));
        actions.push(Action::ShowDialog(None));
    }
}

fn device(ui: &mut Ui, settings: &mut Settings) {
    let label = ui.label(strings::DEVICE);
    let chosen = DEVICES.iter().position(|(name, _)| *name == settings.device).unwrap_or(0);
    let combo = ComboBox::from_id_salt("device").width(240.0);
    let combo = combo.selected_text(strings::DEVICE_NAMES[chosen]).show_ui(ui, |ui| {
        for ((name, _), shown) in DEVICES.iter().zip(strings::DEVICE_NAMES) {
            let shown = widgets::choice(ui, shown);
            ui.selectable_value(&mut settings.device, (*name).to_owned(), shown);
        }
    });
    combo.response.labelled_by(label.id);
    widgets::caption(ui, strings::DEVICE_HELP);
}

fn advanced(ui: &mut Ui, settings: &mut Settings) {
    let label = ui.label(strings::POLICY);
    let (name, what) = strings::policy(settings.setup().policy);
    let combo = ComboBox::from_id_salt("policy").width(280.0);
    let combo = combo.selected_text(name).show_ui(ui, |ui| {
        for preset in POLICIES {
            let (name, what) = strings::policy(preset);
            let shown = widgets::choice(ui, name);
            let response =
                ui.selectable_value(&mut settings.policy, preset.name().to_owned(), shown);
            response.on_hover_text(what);
        }
    });
    combo.response.labelled_by(label.id);
    widgets::caption(ui, what);
    widgets::caption(ui, strings::POLICY_HELP);
    ui.add_space(GAP);
    ui.checkbox(&mut settings.bounds, strings::BOUNDS);
    widgets::caption(ui, strings::BOUNDS_HELP);
    ui.add_space(GAP);
    budget(ui, settings);
    ui.add_space(GAP);
    limit(ui, strings::DEVICE_LIMIT, strings::DEVICE_LIMIT_HELP, &mut settings.device_memory);
    ui.add_space(GAP);
    limit(ui, strings::DISK_LIMIT, strings::DISK_LIMIT_HELP, &mut settings.disk_quota);
}

fn budget(ui: &mut Ui, settings: &mut Settings) {
    let label = ui.label(strings::FIRST_BUDGET);
    let mut tokens = settings.budget().unwrap_or(512);
    let slider = Slider::new(&mut tokens, BUDGETS).logarithmic(true).step_by(64.0);
    let response = ui.add(slider);
    if response.changed() {
        settings.budget = Some(tokens);
    }
    response.labelled_by(label.id);
    widgets::caption(ui, strings::FIRST_BUDGET_HELP);
}

/// A number of gibibytes, of which 0 is no limit.
fn limit(ui: &mut Ui, name: &str, help: &str, bytes: &mut Option<u64>) {
    let label = ui.label(name);
    let before = *bytes;
    let mut gib = bytes.map_or(0, |bytes| bytes / GIB);
    let value = eframe::egui::DragValue::new(&mut gib).range(0..=4096);
    let response = ui.add(value.custom_formatter(move |value, _| match (value as u64, before) {
        // A file can say less than is chosen here: that is no absence of a limit.
        (0, Some(bytes)) if bytes < GIB => strings::size(bytes),
        (0, _) => strings::NO_LIMIT.to_owned(),
        (n, _) => n.to_string(),
    }));
    if response.changed() {
        *bytes = (gib > 0).then_some(gib * GIB);
    }
    response.labelled_by(label.id);
    widgets::caption(ui, help);
}
