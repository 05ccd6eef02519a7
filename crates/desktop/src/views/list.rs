//! The documents that are open, and what computes.

use eframe::egui::text::{LayoutJob, TextWrapping};
use eframe::egui::{
    Align, Button, Color32, Layout, RichText, Role, ScrollArea, Sense, Stroke, StrokeKind,
    TextStyle, ThemePreference, Ui, Vec2, WidgetInfo,
};

use super::widgets;
use crate::app::{Action, EngineState, State};
use crate::document::{Document, Stage};
use crate::strings;
use crate::theme::{self, CONTROL, GAP, RADIUS, TIGHT, WIDE};

/// Draws the list.
pub fn show(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    ui.label(RichText::new(strings::APP).text_style(TextStyle::Heading));
    ui.add_space(GAP);
    let open = widgets::secondary(strings::OPEN_FILE);
    let size = Vec2::new(ui.available_width(), CONTROL + TIGHT);
    if ui.add_sized(size, open).on_hover_text("Ctrl O").clicked() {
        actions.push(Action::OpenFile);
    }
    ui.add_space(WIDE);
    widgets::group(ui, strings::DOCUMENTS);
    ui.with_layout(Layout::bottom_up(Align::Min), |ui| {
        footer(ui, state, actions);
        ui.add_space(GAP);
        ui.with_layout(Layout::top_down(Align::Min), |ui| {
            ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
                ui.spacing_mut().item_spacing.y = TIGHT;
                for document in &state.documents {
                    row(ui, state, document, actions);
                }
                if state.documents.is_empty() {
                    widgets::caption(ui, strings::NO_DOCUMENTS);
                }
            });
        });
    });
}

fn row(ui: &mut Ui, state: &State, document: &Document, actions: &mut Vec<Action>) {
    let palette = theme::palette(ui.visuals());
    let is_current = state.current == Some(document.id);
    let (size, status) = (Vec2::new(ui.available_width(), 52.0), status(document));
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    let name = format!("{}, {status}", document.title);
    response.widget_info(|| WidgetInfo::selected(Role::Button, true, is_current, &name));
    let fill = match (is_current, response.hovered() || response.has_focus()) {
        (true, _) => palette.strong_mark,
        (false, true) => palette.mark,
        (false, false) => Color32::TRANSPARENT,
    };
    ui.painter().rect_filled(rect, RADIUS, fill);
    if response.has_focus() {
        let stroke = Stroke::new(2.0, palette.accent);
        ui.painter().rect_stroke(rect, RADIUS, stroke, StrokeKind::Inside);
    }
    let room = rect.width() - 2.0 * 12.0;
    for (text, style, color, y) in [
        (&document.title, TextStyle::Body, palette.text, 8.0),
        (&status, TextStyle::Small, palette.text, 29.0),
    ] {
        let font = style.resolve(ui.style());
        let mut job = LayoutJob::simple_singleline(text.clone(), font, color);
        job.wrap = TextWrapping::truncate_at_width(room);
        let galley = ui.painter().layout_job(job);
        ui.painter().galley(rect.min + Vec2::new(12.0, y), galley, color);
    }
    let is_clicked = response.clicked();
    response.context_menu(|ui| {
        if ui.button(strings::CLOSE_DOCUMENT).clicked() {
            actions.push(Action::CloseDocument(document.id));
        }
    });
    if is_clicked {
        actions.push(Action::Select(document.id));
    }
}

fn status(document: &Document) -> String {
    match &document.stage {
        Stage::Counting(_) => strings::COUNTING.to_owned(),
        Stage::Refused(failure) => strings::failure(failure.kind).0.to_owned(),
        Stage::Planned => {
            document.plan.as_ref().map_or(strings::NOT_READ.to_owned(), strings::plan_short)
        }
        Stage::Reading(reading) => match &reading.progress {
            Some(progress) => strings::progress_short(progress),
            None => strings::PREPARING.to_owned(),
        },
        Stage::Read(state) => strings::read_state_short(state),
    }
}

/// From the bottom up.
fn footer(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    ui.horizontal(|ui| {
        widgets::align_quiet(ui);
        if ui.add(widgets::quiet(ui, strings::SHORTCUTS)).on_hover_text("F1").clicked() {
            actions.push(Action::ShowShortcuts(true));
        }
    });
    ui.horizontal(|ui| {
        ui.spacing_mut().item_spacing.x = TIGHT;
        for (theme, name) in [
            (ThemePreference::System, strings::THEME_SYSTEM),
            (ThemePreference::Light, strings::THEME_LIGHT),
            (ThemePreference::Dark, strings::THEME_DARK),
        ] {
            let name = RichText::new(name).text_style(TextStyle::Small);
            if ui.add(Button::selectable(state.theme == theme, name)).clicked() {
                actions.push(Action::Theme(theme));
            }
        }
    });
    widgets::group(ui, strings::THEME);
    ui.add_space(GAP);
    match &state.engine {
        EngineState::Opening => widgets::caption(ui, strings::ENGINE_OPENING),
        EngineState::Gone => widgets::caption(ui, strings::ENGINE_GONE),
        EngineState::Ready(model) => {
            let line = format!("{}\n{}", model.name, model.device);
            widgets::caption(ui, line)
        }
    };
}
