//! Questions about a document of the library.

use eframe::egui::{Frame, Id as WidgetId, Key, Margin, Modal, RichText, TextEdit, TextStyle, Ui};
use longview_library::documents::Id;

use super::widgets;
use crate::state::{Action, Dialog, State};
use crate::strings;
use crate::theme::{GAP, PAGE, TIGHT, WIDE};

/// Width of a question.
const WIDTH: f32 = 360.0;

/// Draws the question, if there is one.
pub fn show(ui: &Ui, state: &mut State, actions: &mut Vec<Action>) {
    let Some(dialog) = &mut state.dialog else { return };
    let frame = Frame::popup(ui.style()).inner_margin(Margin::same(PAGE as i8));
    let modal = Modal::new(WidgetId::unique("dialog")).frame(frame).show(ui.ctx(), |ui| {
        ui.set_width(WIDTH);
        match dialog {
            Dialog::Rename(id, name) => rename(ui, *id, name, actions),
            Dialog::Delete(id, name) => delete(ui, *id, name, actions),
        }
    });
    if modal.should_close() {
        actions.push(Action::ShowDialog(None));
    }
}

fn rename(ui: &mut Ui, id: Id, name: &mut String, actions: &mut Vec<Action>) {
    ui.label(RichText::new(strings::RENAME).text_style(TextStyle::Heading));
    ui.add_space(GAP);
    let label = widgets::group(ui, strings::NEW_NAME);
    let edit = TextEdit::singleline(name).desired_width(f32::INFINITY);
    let field = ui.add(edit.margin(Margin::symmetric(12, 8)));
    let is_entered = field.lost_focus() && ui.input(|input| input.key_pressed(Key::Enter));
    if !field.has_focus() && !is_entered && ui.memory(|memory| memory.focused().is_none()) {
        field.request_focus();
    }
    field.labelled_by(label.id);
    let name = name.trim().to_owned();
    let is_done = buttons(ui, strings::RENAME, !name.is_empty(), actions) || is_entered;
    if is_done && !name.is_empty() {
        actions.push(Action::Rename(id, name));
        actions.push(Action::ShowDialog(None));
    }
}

fn delete(ui: &mut Ui, id: Id, name: &str, actions: &mut Vec<Action>) {
    ui.label(RichText::new(strings::REALLY_DELETE).text_style(TextStyle::Heading));
    ui.add_space(TIGHT);
    ui.label(widgets::prose(name));
    ui.label(widgets::prose(strings::DELETE_HELP));
    if buttons(ui, strings::DELETE, true, actions) {
        actions.push(Action::Delete(id));
        actions.push(Action::ShowDialog(None));
    }
}

/// What ends a question; whether the first was clicked.
fn buttons(ui: &mut Ui, yes: &str, can: bool, actions: &mut Vec<Action>) -> bool {
    ui.add_space(WIDE);
    ui.horizontal(|ui| {
        let is_yes = ui.add_enabled(can, widgets::primary(ui, yes)).clicked();
        if ui.add(widgets::secondary(strings::CANCEL)).clicked() {
            actions.push(Action::ShowDialog(None));
        }
        is_yes
    })
    .inner
}
