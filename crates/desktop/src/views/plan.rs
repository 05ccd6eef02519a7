//! What stands above a document that is not read, or not to its end: what reading takes, how far it
//! is, and what can be done.

use eframe::egui::{RichText, Ui};

use super::widgets;
use crate::document::{Document, Reading, Stage};
use crate::engine::{DocumentId, ReadPlan};
use crate::figures::{bytes, count};
use crate::state::{Action, EngineState};
use crate::strings;
use crate::theme::{self, GAP, TIGHT};

/// Letters of a page, as publishers count.
const PAGE_LETTERS: usize = 1800;

/// Draws it, if there is anything to say.
pub fn show(
    ui: &mut Ui,
    document: &Document,
    line: &[DocumentId],
    engine: &EngineState,
    actions: &mut Vec<Action>,
) {
    if let Some(place) = line.iter().position(|id| *id == document.id) {
        return widgets::card(ui, |ui| waiting(ui, document, place, actions));
    }
    match &document.stage {
        Stage::Counting(_) => widgets::card(ui, |ui| {
            let waits = *engine == EngineState::Opening;
            ui.label(if waits { strings::ENGINE_OPENING } else { strings::COUNTING });
            ui.add_space(TIGHT);
            if ui.add(widgets::secondary(strings::READ_NEXT)).on_hover_text("Ctrl R").clicked() {
                actions.push(Action::Read);
            }
        }),
        Stage::Opening(_) => widgets::card(ui, |ui| {
            ui.label(strings::OPENING);
        }),
        Stage::Refused(failure) => widgets::card(ui, |ui| {
            let (title, advice) = strings::failure(failure.kind);
            ui.label(RichText::new(title).color(theme::palette(ui.visuals()).bad));
            ui.label(strings::sentence(&failure.message));
            ui.label(advice);
        }),
        Stage::Planned => widgets::card(ui, |ui| planned(ui, document, engine, actions)),
        Stage::Reading(reading) => widgets::card(ui, |ui| progress(ui, reading, actions)),
        Stage::Read(state) if !state.is_complete() => widgets::card(ui, |ui| {
            let share = state.tokens as f32 / state.total.max(1) as f32;
            let palette = theme::palette(ui.visuals());
            ui.label(strings::read_state(state));
            widgets::bar(ui, strings::READ, share, 6.0, palette.line, palette.accent);
            ui.add_space(TIGHT);
            let button = widgets::secondary(strings::READ_ON);
            if ui.add(button).on_hover_text("Ctrl R").clicked() {
                actions.push(Action::Read);
            }
        }),
        Stage::Read(_) if document.is_unkept() => widgets::card(ui, |ui| {
            let palette = theme::palette(ui.visuals());
            ui.colored_label(palette.warn, strings::NOT_IN_LIBRARY);
            ui.add_space(TIGHT);
            let can = !document.is_answering() && !document.keeps_again;
            if ui.add_enabled(can, widgets::secondary(strings::KEEP_NOW)).clicked() {
                actions.push(Action::KeepAgain);
            }
        }),
        Stage::Read(_) => {}
    }
}

/// It is read when what is read or answered now has ended.
fn waiting(ui: &mut Ui, document: &Document, place: usize, actions: &mut Vec<Action>) {
    ui.spacing_mut().item_spacing.y = TIGHT;
    ui.label(strings::in_line(place));
    if let Some(plan) = &document.plan {
        facts(ui, document, plan);
    }
    ui.add_space(GAP);
    if ui.add(widgets::secondary(strings::LEAVE_LINE)).clicked() {
        actions.push(Action::LeaveLine(document.id));
    }
}

fn planned(ui: &mut Ui, document: &Document, engine: &EngineState, actions: &mut Vec<Action>) {
    let Some(plan) = &document.plan else {
        ui.label(strings::NOT_READ);
        return;
    };
    ui.spacing_mut().item_spacing.y = TIGHT;
    facts(ui, document, plan);
    if let Some(available) = plan.short_of {
        let palette = theme::palette(ui.visuals());
        ui.colored_label(palette.bad, strings::plan_short_of(available));
    }
    if let Some(free) = plan.disk_short_of() {
        let palette = theme::palette(ui.visuals());
        ui.colored_label(palette.warn, strings::plan_disk_short_of(plan.parts.disk, free));
    }
    ui.add_space(GAP);
    let is_ready = matches!(engine, EngineState::Ready(_)) && plan.short_of.is_none();
    if widgets::suggested(ui, is_ready, strings::READ).on_hover_text("Ctrl R").clicked() {
        actions.push(Action::Read);
    }
}

fn facts(ui: &mut Ui, document: &Document, plan: &ReadPlan) {
    match document.pages() {
        Some(pages) => widgets::fact(ui, strings::PLAN_OWN_PAGES, &count(pages as usize)),
        None => {
            let pages = document.n_letters.div_ceil(PAGE_LETTERS);
            widgets::fact(ui, strings::PLAN_PAGES, &format!("about {}", count(pages)))
        }
    };
    let tokens = widgets::fact(ui, strings::PLAN_TOKENS, &strings::plan_tokens(plan));
    tokens.on_hover_text(strings::PLAN_TOKENS_HELP);
    widgets::fact(ui, strings::PLAN_CONTEXT, &strings::plan_context(plan));
    widgets::fact(ui, strings::PLAN_HOST, &bytes(plan.parts.host_bytes()));
    widgets::fact(ui, strings::PLAN_DEVICE, &bytes(plan.parts.device_bytes()));
    widgets::fact(ui, strings::PLAN_DISK, &format!("about {}", bytes(plan.parts.disk)));
}

fn progress(ui: &mut Ui, reading: &Reading, actions: &mut Vec<Action>) {
    let palette = theme::palette(ui.visuals());
    let line = match (&reading.progress, reading.is_stopping, reading.is_paused) {
        (_, true, _) => strings::STOPPING.to_owned(),
        (_, _, true) => strings::PAUSED.to_owned(),
        (None, ..) => strings::PREPARING.to_owned(),
        (Some(progress), ..) if progress.done == progress.total => strings::INDEXING.to_owned(),
        (Some(progress), ..) => strings::progress(progress),
    };
    let share = reading.progress.map_or(0.0, |p| p.done as f32 / p.total.max(1) as f32);
    ui.label(&line);
    widgets::bar(ui, &line, share, 6.0, palette.line, palette.accent);
    ui.add_space(TIGHT);
    ui.horizontal(|ui| {
        let name = if reading.is_paused { strings::RESUME } else { strings::PAUSE };
        let can = !reading.is_stopping;
        if ui.add_enabled(can, widgets::secondary(name)).on_hover_text("Ctrl P").clicked() {
            actions.push(Action::Pause(!reading.is_paused));
        }
        let stop = widgets::secondary(strings::STOP_READING);
        if ui.add_enabled(can, stop).on_hover_text("Escape").clicked() {
            actions.push(Action::StopReading);
        }
    });
}
