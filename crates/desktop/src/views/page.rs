//! The document: its title, what is to be done with it, and its text with the passages marked.

use std::ops::Range;

use eframe::egui::text::LayoutJob;
use eframe::egui::{
    self, Align, Align2, Frame, Label, Layout, Margin, Rect, RichText, ScrollArea, Sense,
    TextFormat, TextStyle, TextWrapMode, Ui, UiBuilder, Vec2,
};

use super::{plan, widgets};
use crate::document::{Document, Target};
use crate::engine::Passage;
use crate::state::{Action, State};
use crate::strings;
use crate::text::{Advances, row_of};
use crate::theme::{self, GAP, LINE, MEASURE, PAGE, Palette, TIGHT, WIDE};

/// Draws the document, or what to do where there is none.
pub fn show(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    let (engine, line) = (state.engine.clone(), state.line.clone());
    let Some(document) = state.document() else {
        return empty(ui, !state.kept.is_empty(), actions);
    };
    let margin = Margin { left: PAGE as i8, right: PAGE as i8, top: WIDE as i8, bottom: GAP as i8 };
    Frame::new().inner_margin(margin).show(ui, |ui| {
        ui.set_width(ui.available_width().min(MEASURE));
        ui.spacing_mut().item_spacing.y = TIGHT;
        let title = RichText::new(&document.title).text_style(TextStyle::Heading);
        ui.add(Label::new(title).wrap_mode(TextWrapMode::Truncate));
        if let Some(state) = document.read_state().filter(|state| state.is_complete()) {
            widgets::caption(ui, strings::read_state(state));
        }
        ui.add_space(GAP);
        ui.spacing_mut().item_spacing.y = GAP;
        plan::show(ui, document, &line, &engine, actions);
    });
    text(ui, document);
}

fn empty(ui: &mut Ui, has_library: bool, actions: &mut Vec<Action>) {
    let (title, text) = if has_library {
        (strings::CHOOSE_TITLE, strings::CHOOSE_TEXT)
    } else {
        (strings::EMPTY_TITLE, strings::EMPTY_TEXT)
    };
    let palette = theme::palette(ui.visuals());
    ui.vertical_centered(|ui| {
        ui.add_space((ui.available_height() / 3.0).max(PAGE));
        ui.label(RichText::new(title).text_style(theme::title_style()));
        ui.add_space(GAP);
        let text = widgets::prose(text).color(palette.weak);
        ui.scope(|ui| {
            ui.set_max_width(420.0);
            ui.label(text);
        });
        ui.add_space(PAGE);
        if ui.add(widgets::primary(ui, strings::OPEN_FILE)).clicked() {
            actions.push(Action::OpenFile);
        }
        ui.add_space(TIGHT);
        if ui.add(widgets::secondary(strings::OPEN_SAMPLE)).clicked() {
            actions.push(Action::OpenSample);
        }
    });
}

fn text(ui: &mut Ui, document: &mut Document) {
    let room = ui.available_width() - 2.0 * PAGE;
    // Whole steps: dragging an edge does not cut the text anew at each point.
    let width = (room.min(MEASURE) / 16.0).floor().max(8.0) * 16.0;
    let font = theme::document_font();
    let advances =
        ui.ctx().fonts_mut(|fonts| Advances::new(font.size, |c| fonts.glyph_width(&font, c)));
    let rows = document.page.rows(ui.ctx(), &document.text, &advances, width);
    let height = ui.available_height();
    let mut area = ScrollArea::vertical().id_salt(("text", document.id.0)).auto_shrink(false);
    if let Some(target) = document.page.go_to.take_if(|_| !rows.is_empty()) {
        let most = (rows.len() as f32 * LINE + PAGE - height).max(0.0);
        let offset = match target {
            Target::Byte(byte) => row_of(&rows, byte) as f32 * LINE - height / 3.0,
            Target::Screens(screens) => document.page.offset + screens * (height - LINE),
        };
        area = area.vertical_scroll_offset(offset.clamp(0.0, most));
    }
    ui.spacing_mut().item_spacing.y = 0.0;
    let output = area.show_rows(ui, LINE, rows.len(), |ui, shown| {
        for row in &rows[shown] {
            line(ui, document, row);
        }
    });
    document.page.offset = output.state.clamped_offset().y;
}

fn line(ui: &mut Ui, document: &Document, row: &Range<usize>) {
    let palette = theme::palette(ui.visuals());
    let size = Vec2::new(ui.available_width(), LINE);
    let (rect, _) = ui.allocate_exact_size(size, Sense::hover());
    if row.is_empty() {
        return;
    }
    if let Some(rank) = begins_in(document, row) {
        // In the margin, where it moves no text.
        let at = egui::pos2(rect.left() + PAGE - GAP, rect.center().y);
        let font = TextStyle::Small.resolve(ui.style());
        ui.painter().text(at, Align2::RIGHT_CENTER, rank + 1, font, palette.accent);
    }
    let place = Rect::from_min_max(rect.left_top() + Vec2::new(PAGE, 0.0), rect.right_bottom());
    let job = marked(document, row, &palette);
    let layout = Layout::left_to_right(Align::Center);
    ui.scope_builder(UiBuilder::new().max_rect(place).layout(layout), |ui| {
        ui.add(Label::new(job).wrap_mode(TextWrapMode::Extend));
    });
}

/// The passage that begins in a row, by its rank.
fn begins_in(document: &Document, row: &Range<usize>) -> Option<usize> {
    document.marks.iter().position(|passage| row.contains(&passage.place.start))
}

/// A row's text with what is marked in it.
fn marked(document: &Document, row: &Range<usize>, palette: &Palette) -> LayoutJob {
    let mut job = LayoutJob::default();
    let mut at = row.start;
    while at < row.end {
        let (end, background) = run(document, at, row.end, palette);
        let format = TextFormat {
            line_height: Some(LINE),
            background,
            ..TextFormat::simple(theme::document_font(), palette.text)
        };
        job.append(&document.text[at..end], 0.0, format);
        at = end;
    }
    job
}

/// How far the text from `at` on looks the same, and what is behind it.
fn run(document: &Document, at: usize, end: usize, palette: &Palette) -> (usize, egui::Color32) {
    let covers = |passage: &Passage| passage.place.contains(&at);
    let starts = document.marks.iter().map(|passage| passage.place.start);
    let next = starts.filter(|start| *start > at).min().unwrap_or(end).min(end);
    match document.marks.iter().position(covers) {
        Some(rank) => {
            let is_chosen = document.mark == Some(rank);
            let color = if is_chosen { palette.strong_mark } else { palette.mark };
            (document.marks[rank].place.end.min(next), color)
        }
        None => (next, egui::Color32::TRANSPARENT),
    }
}
