//! Where a question is typed, and how much a step may attend to answer it.

use eframe::egui::{
    Align, Key, KeyboardShortcut, Layout, Margin, Modifiers, Panel, Slider, TextEdit, Ui,
};

use super::widgets;
use crate::document::Stage;
use crate::settings::BUDGETS;
use crate::state::{Action, EngineState, State};
use crate::strings;
use crate::theme::{GAP, TIGHT};

/// Budgets are chosen in steps of so many tokens.
const STEP: usize = 64;

/// Draws it at the bottom of what is left.
pub fn show(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let frame = eframe::egui::Frame::new().inner_margin(Margin { top: GAP as i8, ..Margin::ZERO });
    Panel::bottom("composer").frame(frame).show_separator_line(false).show(ui, |ui| {
        field(ui, state, actions);
        // Who has typed a question wonders why Enter does nothing.
        let is_typed = state.document().is_some_and(|document| !document.draft.trim().is_empty());
        if let Some(reason) = why_not(state).filter(|_| is_typed) {
            widgets::caption(ui, reason);
        }
        ui.add_space(TIGHT);
        ui.horizontal(|ui| {
            budget(ui, state, actions);
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| button(ui, state, actions));
        });
    });
}

fn can_ask(state: &mut State) -> bool {
    why_not(state).is_none()
}

/// Why nothing can be asked now.
fn why_not(state: &mut State) -> Option<&'static str> {
    match state.engine {
        EngineState::Opening => return Some(strings::ENGINE_OPENING),
        EngineState::Gone => return Some(strings::ENGINE_GONE),
        EngineState::Ready(_) => {}
    }
    let document = state.document()?;
    match &document.stage {
        Stage::Reading(_) => Some(strings::ASK_ONCE_READ),
        Stage::Opening(_) => Some(strings::OPENING),
        Stage::Read(_) if document.is_answering() => Some(strings::ASK_ONCE_ANSWERED),
        Stage::Read(_) => None,
        Stage::Counting(_) | Stage::Planned | Stage::Refused(_) => Some(strings::READ_FIRST),
    }
}

fn field(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let takes_focus = std::mem::take(&mut state.focuses_question);
    let may_ask = can_ask(state);
    let Some(document) = state.document() else { return };
    let is_edited = document.editing.is_some();
    let label = ui.horizontal(|ui| {
        let name = if is_edited { strings::EDITING } else { strings::QUESTION };
        let label = widgets::group(ui, name);
        if is_edited {
            ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
                if ui.add(widgets::quiet(ui, strings::LEAVE_EDIT)).clicked() {
                    actions.push(Action::Edit(None));
                }
            });
        }
        label
    });
    let label = label.inner;
    let new_line = KeyboardShortcut::new(Modifiers::SHIFT, Key::Enter);
    let edit = TextEdit::multiline(&mut document.draft).return_key(new_line).desired_rows(2);
    let edit = edit.hint_text(strings::QUESTION_HINT).desired_width(f32::INFINITY);
    let response = ui.add(edit.margin(Margin::symmetric(12, 8)).id_salt("question"));
    if takes_focus {
        response.request_focus();
    }
    let enter = |ui: &Ui| ui.input_mut(|input| input.consume_key(Modifiers::NONE, Key::Enter));
    if response.has_focus() && may_ask && enter(ui) {
        actions.push(Action::Ask);
    }
    response.labelled_by(label.id);
}

fn budget(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let most = match state.document().and_then(|document| document.plan) {
        Some(plan) => plan.context.clamp(*BUDGETS.start(), *BUDGETS.end()),
        None => *BUDGETS.end(),
    };
    let before = state.budget;
    ui.vertical(|ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        let label = widgets::group(ui, strings::BUDGET);
        ui.horizontal(|ui| {
            let slider = Slider::from_get_set(*BUDGETS.start() as f64..=most as f64, |value| {
                if let Some(value) = value {
                    state.budget = (value / STEP as f64).round() as usize * STEP;
                }
                state.budget as f64
            });
            let slider = slider.logarithmic(true).show_value(false).step_by(STEP as f64);
            let response = ui.add(slider).on_hover_text(strings::BUDGET_HELP);
            let response = response.labelled_by(label.id);
            ui.label(strings::budget_value(state.budget));
            state.budget_is_chosen |= state.budget != before;
            // Whoever drags asks at the end; keys change it step by step.
            let is_set = response.drag_stopped() || (response.changed() && !response.dragged());
            if is_set {
                actions.push(Action::AskLastAgain);
            }
        });
    });
}

fn button(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let why_not = why_not(state);
    let Some(document) = state.document() else { return };
    let (has_text, is_answering) = (!document.draft.trim().is_empty(), document.is_answering());
    if is_answering {
        let stop = widgets::secondary(strings::STOP);
        if ui.add(stop).on_hover_text("Escape").clicked() {
            actions.push(Action::StopAnswer);
        }
        return;
    }
    let ask = widgets::suggested(ui, why_not.is_none() && has_text, strings::ASK);
    let reason = why_not.unwrap_or(strings::ASK_HINT);
    if ask.on_disabled_hover_text(reason).clicked() {
        actions.push(Action::Ask);
    }
}
