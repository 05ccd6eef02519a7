//! What the window shows. Views draw the state and say what a person did; they change nothing but
//! what is being typed, and where things are scrolled to.

mod about;
mod charts;
mod composer;
mod conversation;
mod dialog;
mod list;
mod map;
pub mod markdown;
mod models;
mod notices;
mod order;
mod page;
mod plan;
mod recall;
mod serve;
mod settings;
pub mod shortcuts;
mod widgets;

use eframe::egui::{self, Align2, Area, CentralPanel, Frame, Id, Layout, Margin, Order, Panel, Ui};

use crate::state::{Action, Pane, Side, State};
use crate::strings;
use crate::theme::{self, GAP, PAGE, WIDE};

/// Below this width one part is shown at a time.
const NARROW: f32 = 920.0;
/// Width of the list.
const LIST: f32 = 256.0;
/// Width of questions and answers: at first, and as far as it can be drawn.
const QUESTIONS: [f32; 3] = [432.0, 360.0, 600.0];

/// Draws the window.
pub fn window(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    if ui.available_width() < NARROW {
        narrow(ui, state, actions);
    } else {
        wide(ui, state, actions);
    }
    toast(ui, state);
    shortcuts::list(ui, state, actions);
    dialog::show(ui, state, actions);
    drop_target(ui);
}

fn side_frame(ui: &Ui) -> Frame {
    let palette = theme::palette(ui.visuals());
    Frame::new().fill(palette.side).inner_margin(Margin::same(WIDE as i8))
}

fn wide(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let frame = side_frame(ui);
    Panel::left("list").exact_size(LIST).resizable(false).frame(frame).show(ui, |ui| {
        list::show(ui, state, actions);
    });
    if state.document().is_some() {
        let [first, least, most] = QUESTIONS;
        let panel = Panel::right("questions").default_size(first).size_range(least..=most);
        panel.frame(frame).show(ui, |ui| side(ui, state, actions));
    }
    central(ui, state, actions);
}

fn central(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let palette = theme::palette(ui.visuals());
    let frame = Frame::new().fill(palette.page);
    CentralPanel::default().frame(frame).show(ui, |ui| {
        notices::show(ui, state, actions);
        page::show(ui, state, actions);
    });
}

fn narrow(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let frame = side_frame(ui).inner_margin(Margin::symmetric(WIDE as i8, GAP as i8));
    Panel::top("panes").frame(frame).show(ui, |ui| {
        ui.horizontal(|ui| {
            for (pane, name) in [
                (Pane::List, strings::DOCUMENTS),
                (Pane::Document, strings::DOCUMENT),
                (Pane::Questions, strings::QUESTIONS),
            ] {
                if widgets::tab(ui, state.pane == pane, name).clicked() {
                    actions.push(Action::ShowPane(pane));
                }
            }
        });
    });
    let frame = side_frame(ui);
    let has_document = state.document().is_some();
    match state.pane {
        Pane::List => {
            CentralPanel::default().frame(frame).show(ui, |ui| list::show(ui, state, actions));
        }
        Pane::Questions if has_document => {
            CentralPanel::default().frame(frame).show(ui, |ui| {
                notices::show(ui, state, actions);
                side(ui, state, actions);
            });
        }
        _ => central(ui, state, actions),
    }
}

/// Questions and answers, or what was recalled.
fn side(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    ui.horizontal(|ui| {
        for (side, name) in [(Side::Answers, strings::ANSWERS), (Side::Recall, strings::RECALL)] {
            if widgets::tab(ui, state.side == side, name).clicked() {
                actions.push(Action::ShowSide(side));
            }
        }
        let has_answer = state.document().is_some_and(|d| d.last_answer().is_some());
        ui.with_layout(Layout::right_to_left(egui::Align::Center), |ui| {
            let export = ui.add_enabled(has_answer, widgets::quiet(ui, strings::EXPORT));
            if export.on_hover_text("Ctrl E").clicked() {
                actions.push(Action::Export);
            }
        });
    });
    ui.add_space(GAP);
    match state.side {
        Side::Answers => {
            composer::show(ui, state, actions);
            conversation::show(ui, state, actions);
        }
        Side::Recall => recall::show(ui, state),
    }
}

fn toast(ui: &Ui, state: &State) {
    let Some((text, _)) = &state.toast else { return };
    let palette = theme::palette(ui.visuals());
    let area = Area::new(Id::unique("toast")).order(Order::Foreground).interactable(false);
    area.anchor(Align2::CENTER_BOTTOM, [0.0, -PAGE]).show(ui.ctx(), |ui| {
        let frame = Frame::new().fill(palette.text).corner_radius(theme::RADIUS);
        frame.inner_margin(Margin::symmetric(16, 10)).show(ui, |ui| {
            ui.colored_label(palette.page, text);
        });
    });
}

/// Says that what is dragged over the window can be dropped.
fn drop_target(ui: &Ui) {
    if ui.input(|input| input.raw.hovered_files.is_empty()) {
        return;
    }
    let palette = theme::palette(ui.visuals());
    let rect = ui.ctx().content_rect().shrink(GAP);
    let layer = egui::LayerId::new(Order::Foreground, Id::unique("drop"));
    let painter = ui.ctx().layer_painter(layer);
    let stroke = egui::Stroke::new(2.0, palette.accent);
    let fill = palette.mark.gamma_multiply(0.9);
    painter.rect(rect, theme::RADIUS, fill, stroke, egui::StrokeKind::Inside);
    let font = theme::title_style().resolve(ui.style());
    let text = strings::DROP_HERE;
    painter.text(rect.center(), Align2::CENTER_CENTER, text, font, palette.accent);
}
