//! Everything by keyboard: what keys do, and the list that says so.

use eframe::egui::{
    Context, Frame, Grid, Id, Key, KeyboardShortcut, Margin, Modal, Modifiers, Popup, RichText,
    TextStyle, Ui,
};

use super::widgets;
use crate::document::{Document, Stage, Target};
use crate::state::{Action, Dialog, State};
use crate::strings;
use crate::theme::{self, GAP, PAGE, WIDE};

/// The actions of the keys that were pressed.
pub fn collect(ctx: &Context, state: &mut State, actions: &mut Vec<Action>) {
    let pressed = |modifiers: Modifiers, key: Key| {
        ctx.input_mut(|input| input.consume_shortcut(&KeyboardShortcut::new(modifiers, key)))
    };
    if state.shows_shortcuts || state.dialog.is_some() {
        return;
    }
    let plain = Modifiers::NONE;
    let command = Modifiers::COMMAND;
    let settings = Dialog::Settings(Box::new(state.settings.clone()), false);
    let last = state.document().map_or(0, |document| document.conversation.len());
    // The longer combination first: it would also match the shorter one.
    if pressed(command | Modifiers::SHIFT, Key::C)
        && let Some(reply) = state.document().and_then(|document| document.last_answer())
    {
        actions.push(Action::Copy(reply.shown().to_owned()));
    }
    for (modifiers, key, action) in [
        (command, Key::O, Action::OpenFile),
        (command, Key::M, Action::ShowDialog(Some(Dialog::Models))),
        (command, Key::Comma, Action::ShowDialog(Some(settings))),
        (command, Key::R, Action::Read),
        (command, Key::L, Action::FocusQuestion),
        (command, Key::E, Action::Export),
        (plain, Key::F1, Action::ShowShortcuts(true)),
        (plain, Key::F3, Action::NextPassage),
        (plain, Key::PageUp, Action::Scroll(Target::Screens(-1.0))),
        (plain, Key::PageDown, Action::Scroll(Target::Screens(1.0))),
        (command, Key::Home, Action::Scroll(Target::Byte(0))),
        (command, Key::End, Action::Scroll(Target::Byte(usize::MAX))),
    ] {
        if pressed(modifiers, key) {
            actions.push(action);
        }
    }
    if last > 0 && pressed(command, Key::D) {
        actions.push(Action::Compare(last - 1));
    }
    let Some(document) = state.document() else { return };
    if let Stage::Reading(reading) = &document.stage
        && pressed(command, Key::P)
    {
        actions.push(Action::Pause(!reading.is_paused));
    }
    // Escape closes a menu first: who only leaves one must not end an hour of reading.
    if let Some(action) = stops(document)
        && !Popup::is_any_open(ctx)
        && pressed(plain, Key::Escape)
    {
        actions.push(action);
    }
}

/// What Escape ends.
fn stops(document: &Document) -> Option<Action> {
    if document.is_answering() {
        return Some(Action::StopAnswer);
    }
    matches!(document.stage, Stage::Reading(_)).then_some(Action::StopReading)
}

/// The list of shortcuts, above everything.
pub fn list(ui: &Ui, state: &State, actions: &mut Vec<Action>) {
    if !state.shows_shortcuts {
        return;
    }
    let frame = Frame::popup(ui.style()).inner_margin(Margin::same(PAGE as i8));
    let modal = Modal::new(Id::unique("shortcuts")).frame(frame).show(ui.ctx(), |ui| {
        let palette = theme::palette(ui.visuals());
        ui.label(RichText::new(strings::SHORTCUTS).text_style(TextStyle::Heading));
        ui.add_space(GAP);
        ui.spacing_mut().interact_size.y = PAGE;
        Grid::new("shortcuts").num_columns(2).spacing([WIDE * 2.0, GAP]).show(ui, |ui| {
            for (keys, what) in strings::SHORTCUT_LIST {
                ui.colored_label(palette.weak, keys);
                ui.label(what);
                ui.end_row();
            }
        });
        ui.add_space(WIDE);
        ui.add(widgets::secondary(strings::CLOSE)).clicked()
    });
    if modal.inner || modal.should_close() {
        actions.push(Action::ShowShortcuts(false));
    }
}
