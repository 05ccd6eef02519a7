//! In which order several files become one document.

use eframe::egui::{Align, Button, Layout, RichText, TextStyle, Ui, Vec2};

use super::widgets;
use crate::figures::bytes;
use crate::files::{Piece, Purpose};
use crate::state::Action;
use crate::strings;
use crate::theme::{GAP, TIGHT, WIDE};

/// Width of a file's size.
const SIZE: f32 = 72.0;

/// Draws the list, which can be put into order.
pub fn show(ui: &mut Ui, purpose: Purpose, pieces: &mut Vec<Piece>, actions: &mut Vec<Action>) {
    widgets::heading(ui, strings::ORDER);
    let is_new = purpose == Purpose::Open;
    widgets::caption(ui, if is_new { strings::ORDER_HELP } else { strings::ORDER_ADD_HELP });
    ui.add_space(GAP);
    let most = (ui.ctx().content_rect().height() - 300.0).max(120.0);
    widgets::scrolled(ui, "order", most, |ui| {
        let mut change = None;
        for (i, piece) in pieces.iter().enumerate() {
            row(ui, i, pieces.len(), piece, &mut change);
        }
        match change {
            Some(Change::Swap(a, b)) => pieces.swap(a, b),
            Some(Change::Remove(i)) => drop(pieces.remove(i)),
            None => {}
        }
    });
    ui.add_space(WIDE);
    ui.horizontal_wrapped(|ui| {
        let name = if is_new { strings::OPEN_AS_ONE } else { strings::ADD };
        let can = !pieces.is_empty();
        if widgets::suggested(ui, can, name).clicked() {
            actions.push(Action::OpenAsOne(purpose, std::mem::take(pieces)));
            actions.push(Action::ShowDialog(None));
        }
        if is_new && ui.add_enabled(can, widgets::secondary(strings::OPEN_EACH)).clicked() {
            actions.push(Action::OpenEach(std::mem::take(pieces)));
            actions.push(Action::ShowDialog(None));
        }
        if ui.add(widgets::secondary(strings::CANCEL)).clicked() {
            actions.push(Action::ShowDialog(None));
        }
    });
}

enum Change {
    Swap(usize, usize),
    Remove(usize),
}

fn row(ui: &mut Ui, i: usize, n: usize, piece: &Piece, change: &mut Option<Change>) {
    ui.horizontal(|ui| {
        let buttons = 216.0;
        let width = (ui.available_width() - buttons).max(80.0);
        ui.allocate_ui_with_layout(
            Vec2::new(width, 32.0),
            Layout::left_to_right(Align::Center),
            |ui| {
                ui.set_width(width);
                let title = strings::file_of_order(i, &piece.source.name);
                ui.scope(|ui| {
                    // A long name leaves its size room, and does not run under the buttons.
                    ui.set_max_width((width - SIZE).max(40.0));
                    ui.add(eframe::egui::Label::new(title).truncate());
                });
                if width > SIZE + 60.0 {
                    widgets::caption(ui, bytes(piece.source.bytes));
                }
            },
        );
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            ui.spacing_mut().item_spacing.x = TIGHT;
            let button = |ui: &mut Ui, text: &str, can: bool| {
                let shown = RichText::new(text).text_style(TextStyle::Small);
                let response = ui.add_enabled(can, Button::new(shown));
                let name = format!("{text}: {}", piece.source.name);
                response.widget_info(|| {
                    eframe::egui::WidgetInfo::labeled(eframe::egui::Role::Button, can, &name)
                });
                response.clicked()
            };
            if button(ui, strings::REMOVE, true) {
                *change = Some(Change::Remove(i));
            }
            if button(ui, strings::DOWN, i + 1 < n) {
                *change = Some(Change::Swap(i, i + 1));
            }
            if button(ui, strings::UP, i > 0) {
                *change = Some(Change::Swap(i, i.saturating_sub(1)));
            }
        });
    });
}
