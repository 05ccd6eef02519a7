//! Messages above the document: what happened, what to do, and a button that does it.

use eframe::egui::{Frame, Margin, RichText, ScrollArea, Stroke, Ui};

use super::widgets;
use crate::engine::{FailureKind, ModelSource};
use crate::settings::Settings;
use crate::state::{Action, Dialog, Notice, State};
use crate::strings::{self, SETTINGS};
use crate::theme::{self, GAP, PAGE, RADIUS, TIGHT, WIDE};

/// Share of the height that messages take at most, and the least that they get: a folder of broken
/// files must not push the document out of the window.
const SHARE: f32 = 0.4;
const LEAST: f32 = 160.0;

/// Draws the messages, the last one first.
pub fn show(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    if let [notice] = &state.notices[..] {
        return framed(ui, notice, state, actions);
    }
    if state.notices.is_empty() {
        return;
    }
    let most = (SHARE * ui.available_height()).max(LEAST);
    let area = ScrollArea::vertical().id_salt("notices").max_height(most);
    area.auto_shrink([false, true]).show(ui, |ui| {
        state.notices.iter().rev().for_each(|notice| framed(ui, notice, state, actions));
    });
    let is_for_now = |notice: &&Notice| !notice.is_end;
    if state.notices.iter().filter(is_for_now).count() > 1 {
        let margin = Margin { left: PAGE as i8, ..Margin::ZERO };
        Frame::new().inner_margin(margin).show(ui, |ui| {
            widgets::align_quiet(ui);
            if ui.add(widgets::quiet(ui, strings::DISMISS_ALL)).clicked() {
                let dismissed = state.notices.iter().filter(is_for_now);
                actions.extend(dismissed.map(|notice| Action::Dismiss(notice.id)));
            }
        });
    }
}

fn framed(ui: &mut Ui, notice: &Notice, state: &State, actions: &mut Vec<Action>) {
    let margin = Margin { left: PAGE as i8, right: PAGE as i8, top: WIDE as i8, bottom: 0 };
    Frame::new().outer_margin(margin).show(ui, |ui| {
        one(ui, notice, &state.settings, actions);
    });
}

fn one(ui: &mut Ui, notice: &Notice, settings: &Settings, actions: &mut Vec<Action>) {
    let palette = theme::palette(ui.visuals());
    let (title, advice) = strings::failure(notice.failure.kind);
    let frame = Frame::new().fill(palette.bad_card).stroke(Stroke::new(1.0, palette.bad));
    frame.corner_radius(RADIUS).inner_margin(Margin::same(WIDE as i8)).show(ui, |ui| {
        ui.set_width(ui.available_width());
        ui.spacing_mut().item_spacing.y = TIGHT;
        ui.label(RichText::new(title).color(palette.bad));
        for text in [&*strings::sentence(&notice.failure.message), advice] {
            if !text.is_empty() {
                ui.label(RichText::new(text).color(palette.text));
            }
        }
        ui.add_space(GAP);
        ui.horizontal_wrapped(|ui| buttons(ui, notice, settings, actions));
    });
}

/// What helps first, and the rest beside it.
fn buttons(ui: &mut Ui, notice: &Notice, settings: &Settings, actions: &mut Vec<Action>) {
    let (kind, is_end) = (notice.failure.kind, notice.is_end);
    let is_of_memory = is_end && kind == FailureKind::OutOfMemory;
    let is_of_model = is_end && kind == FailureKind::Model;
    if kind == FailureKind::NoDevice || is_of_memory || kind.is_of_server() {
        if ui.add(widgets::primary(ui, SETTINGS)).clicked() {
            // The limit of device memory is among those that are shown last.
            let dialog = Dialog::Settings(Box::new(settings.clone()), is_of_memory);
            actions.push(Action::ShowDialog(Some(dialog)));
        }
    } else if is_of_model {
        if ui.add(widgets::primary(ui, strings::MODELS)).clicked() {
            actions.push(Action::ShowDialog(Some(Dialog::Models)));
        }
    } else if is_end && ui.add(widgets::primary(ui, strings::START_AGAIN)).clicked() {
        actions.push(Action::Restart);
    } else if kind == FailureKind::NotSaved
        && ui.add(widgets::primary(ui, strings::TRY_AGAIN)).clicked()
    {
        actions.push(Action::SaveAgain);
    } else if kind == FailureKind::Damaged
        && ui.add(widgets::primary(ui, strings::REPAIR)).clicked()
    {
        actions.push(Action::Repair);
    }
    if !is_end {
        if ui.add(widgets::secondary(strings::DISMISS)).clicked() {
            actions.push(Action::Dismiss(notice.id));
        }
        return;
    }
    if kind != FailureKind::EngineStopped
        && ui.add(widgets::secondary(strings::START_AGAIN)).clicked()
    {
        actions.push(Action::Restart);
    }
    let is_other = settings.model != ModelSource::Embedded;
    let may_help = is_other && kind != FailureKind::NoDevice;
    if may_help && ui.add(widgets::secondary(strings::USE_BUILT_IN)).clicked() {
        actions.push(Action::UseModel(ModelSource::Embedded));
    }
}
