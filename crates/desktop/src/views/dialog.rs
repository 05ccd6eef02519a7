//! What stands above the window: questions, the models, the settings.

use eframe::egui::{Frame, Id as WidgetId, Key, Margin, Modal, RichText, TextEdit, TextStyle, Ui};
use longview_library::documents::{Id, check_name};

use super::widgets;
use crate::figures::bytes;
use crate::files::KeptDocument;
use crate::state::{Action, Dialog, State};
use crate::theme::{GAP, PAGE, TIGHT};
use crate::{refusals, strings};

/// Width of a question.
const WIDTH: f32 = 360.0;

/// Width of what has rows.
const WIDE_WIDTH: f32 = 620.0;

/// Draws it, if there is one.
pub fn show(ui: &Ui, state: &mut State, actions: &mut Vec<Action>) {
    let Some(mut dialog) = state.dialog.take() else { return };
    let frame = Frame::popup(ui.style()).inner_margin(Margin::same(PAGE as i8));
    let modal = Modal::new(WidgetId::unique("dialog")).frame(frame).show(ui.ctx(), |ui| {
        let wanted = match dialog {
            Dialog::Rename(..) | Dialog::FreeSpace(..) => WIDTH,
            Dialog::Delete(..) | Dialog::DeleteModel(..) => WIDTH,
            Dialog::Order(..) | Dialog::Models => WIDE_WIDTH,
            Dialog::Settings(..) | Dialog::About => 440.0,
        };
        ui.set_width(wanted.min(ui.ctx().content_rect().width() - 4.0 * PAGE));
        match &mut dialog {
            Dialog::Rename(id, name) => rename(ui, *id, name, &state.kept, actions),
            Dialog::FreeSpace(id, name, size) => free_space(ui, *id, name, *size, actions),
            Dialog::Delete(id, name) => delete(ui, *id, name, actions),
            Dialog::DeleteModel(name, size) => delete_model(ui, name, *size, actions),
            Dialog::Order(purpose, pieces) => super::order::show(ui, *purpose, pieces, actions),
            Dialog::Models => super::models::show(ui, state, actions),
            Dialog::Settings(settings, all) => {
                super::settings::show(ui, settings, all, state.serving.as_ref(), actions);
            }
            Dialog::About => super::about::show(ui, state, actions),
        }
    });
    state.dialog = Some(dialog);
    if modal.should_close() {
        actions.push(Action::ShowDialog(None));
    }
}

fn delete_model(ui: &mut Ui, name: &str, size: u64, actions: &mut Vec<Action>) {
    ui.label(RichText::new(strings::REALLY_DELETE_MODEL).text_style(TextStyle::Heading));
    ui.add_space(TIGHT);
    ui.label(widgets::prose(&format!("{name}, {}", bytes(size))));
    ui.label(widgets::prose(strings::DELETE_MODEL_HELP));
    if widgets::removal(ui, strings::DELETE, actions) {
        actions.push(Action::DeleteModel(name.to_owned()));
    }
}

fn rename(
    ui: &mut Ui,
    id: Id,
    name: &mut String,
    kept: &[KeptDocument],
    actions: &mut Vec<Action>,
) {
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
    let is_taken = kept.iter().any(|other| other.id != id && other.name == name);
    let refused = check_name(&name).err().filter(|_| !name.is_empty());
    if is_taken {
        widgets::caption(ui, strings::NAME_TAKEN);
    } else if let Some(error) = &refused {
        widgets::caption(ui, refusals::documents(error));
    }
    let can = !name.is_empty() && !is_taken && refused.is_none();
    let is_done = widgets::buttons(ui, strings::RENAME, can, actions) || is_entered;
    if is_done && can {
        actions.push(Action::Rename(id, name));
        actions.push(Action::ShowDialog(None));
    }
}

fn free_space(ui: &mut Ui, id: Id, name: &str, size: u64, actions: &mut Vec<Action>) {
    ui.label(RichText::new(strings::REALLY_FREE).text_style(TextStyle::Heading));
    ui.add_space(TIGHT);
    ui.label(widgets::prose(&format!("{name}, {}", bytes(size))));
    ui.label(widgets::prose(strings::FREE_HELP));
    if widgets::removal(ui, strings::FREE_SPACE, actions) {
        actions.push(Action::FreeSpace(id));
        actions.push(Action::ShowDialog(None));
    }
}

fn delete(ui: &mut Ui, id: Id, name: &str, actions: &mut Vec<Action>) {
    ui.label(RichText::new(strings::REALLY_DELETE).text_style(TextStyle::Heading));
    ui.add_space(TIGHT);
    ui.label(widgets::prose(name));
    ui.label(widgets::prose(strings::DELETE_HELP));
    if widgets::removal(ui, strings::DELETE, actions) {
        actions.push(Action::Delete(id));
        actions.push(Action::ShowDialog(None));
    }
}
