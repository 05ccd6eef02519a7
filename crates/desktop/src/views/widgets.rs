//! Parts that several views draw.

use eframe::egui::{
    self, Align, Atom, Button, CornerRadius, Frame, Layout, Margin, Response, RichText, Role,
    ScrollArea, Sense, Stroke, TextStyle, Ui, Vec2, WidgetInfo,
};

use crate::figures::bytes;
use crate::state::Action;
use crate::strings;
use crate::theme::{self, CONTROL, GAP, RADIUS, TIGHT, WIDE};

/// Width of the suggested action at least.
const SUGGESTED: f32 = 88.0;

/// The one suggested action in sight.
pub fn primary(ui: &Ui, text: &str) -> Button<'static> {
    let palette = theme::palette(ui.visuals());
    let text = RichText::new(text).color(palette.on_accent);
    let button = Button::new(middle(text)).fill(palette.accent).stroke(Stroke::NONE);
    button.min_size(Vec2::new(SUGGESTED, CONTROL + TIGHT))
}

/// The suggested action, where it may not be possible now. Text on a pale accent cannot be read, so
/// it looks like any other action then.
pub fn suggested(ui: &mut Ui, can: bool, text: &str) -> Response {
    let button = if can { primary(ui, text) } else { plain(text) };
    ui.add_enabled(can, button)
}

fn plain(text: &str) -> Button<'static> {
    secondary(text).min_size(Vec2::new(SUGGESTED, CONTROL + TIGHT))
}

/// One of several choices. Text in the accent could hardly be read on what marks the chosen one.
pub fn choice(ui: &Ui, text: &str) -> RichText {
    RichText::new(text).color(theme::palette(ui.visuals()).text)
}

/// An action beside it.
pub fn secondary(text: &str) -> Button<'static> {
    Button::new(middle(RichText::new(text))).min_size(Vec2::new(72.0, CONTROL + TIGHT))
}

/// A text in the middle of a button that is wider.
fn middle(text: RichText) -> (Atom<'static>, RichText, Atom<'static>) {
    (Atom::grow(), text, Atom::grow())
}

/// An action that is not to draw the eye.
pub fn quiet(ui: &Ui, text: &str) -> Button<'static> {
    let palette = theme::palette(ui.visuals());
    let text = RichText::new(text).color(palette.accent).text_style(TextStyle::Small);
    Button::new(text).frame_when_inactive(false).min_size(Vec2::new(0.0, 28.0))
}

/// One of several parts, of which one is shown.
pub fn tab(ui: &mut Ui, is_shown: bool, text: &str) -> Response {
    let palette = theme::palette(ui.visuals());
    let color = if is_shown { palette.text } else { palette.weak };
    let button = Button::selectable(is_shown, RichText::new(text).color(color));
    let response = ui.add(button.fill(egui::Color32::TRANSPARENT).stroke(Stroke::NONE));
    if is_shown {
        let line = response.rect.shrink2(Vec2::new(12.0, 0.0));
        ui.painter().hline(line.x_range(), line.bottom(), Stroke::new(2.0, palette.accent));
    }
    response
}

/// Text of several lines.
pub fn prose(text: &str) -> RichText {
    RichText::new(text).line_height(Some(22.0))
}

/// Lets the text of quiet buttons begin where that above them does.
pub fn align_quiet(ui: &mut Ui) {
    ui.spacing_mut().button_padding.x = 0.0;
}

/// A line that explains.
pub fn caption(ui: &mut Ui, text: impl Into<String>) -> Response {
    let palette = theme::palette(ui.visuals());
    let text = RichText::new(text).text_style(TextStyle::Small).line_height(Some(18.0));
    ui.label(text.color(palette.weak))
}

/// The name of a group.
pub fn group(ui: &mut Ui, text: &str) -> Response {
    caption(ui, text)
}

/// What stands out from its page.
pub fn card<R>(ui: &mut Ui, add: impl FnOnce(&mut Ui) -> R) -> R {
    let palette = theme::palette(ui.visuals());
    let frame = Frame::new().fill(palette.card).stroke(Stroke::new(1.0, palette.line));
    let frame = frame.corner_radius(RADIUS).inner_margin(Margin::same(WIDE as i8));
    frame
        .show(ui, |ui| {
            ui.set_width(ui.available_width());
            add(ui)
        })
        .inner
}

/// A bar whose parts add up to it, and what they are.
pub fn stack(ui: &mut Ui, name: &str, parts: &[(&str, u64, egui::Color32)]) {
    let palette = theme::palette(ui.visuals());
    let total: u64 = parts.iter().map(|(_, size, _)| size).sum();
    fact(ui, name, &bytes(total));
    let size = Vec2::new(ui.available_width(), 8.0);
    let (rect, response) = ui.allocate_exact_size(size, Sense::hover());
    let radius = CornerRadius::same(4);
    ui.painter().rect_filled(rect, radius, palette.line);
    let mut left = rect.left();
    for (_, size, color) in parts {
        let width = rect.width() * (*size as f64 / total.max(1) as f64) as f32;
        let part = egui::Rect::from_min_size(egui::pos2(left, rect.top()), Vec2::new(width, 8.0));
        ui.painter().rect_filled(part, CornerRadius::ZERO, *color);
        left += width;
    }
    let words: Vec<String> =
        parts.iter().map(|(part, size, _)| format!("{part} {}", bytes(*size))).collect();
    let label = format!("{name}: {}", words.join(", "));
    response.widget_info(|| WidgetInfo::labeled(Role::Image, true, &label));
    ui.scope(|ui| {
        ui.spacing_mut().item_spacing.y = 0.0;
        ui.spacing_mut().interact_size.y = 20.0;
        for (part, size, color) in parts.iter().filter(|(_, size, _)| *size > 0) {
            ui.horizontal(|ui| {
                let (rect, _) = ui.allocate_exact_size(Vec2::splat(10.0), Sense::hover());
                ui.painter().rect_filled(rect, CornerRadius::same(2), *color);
                caption(ui, *part);
                ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
                    caption(ui, bytes(*size));
                });
            });
        }
    });
    ui.add_space(GAP);
}

/// A bar alone.
pub fn bar(
    ui: &mut Ui,
    name: &str,
    share: f32,
    height: f32,
    track: egui::Color32,
    fill: egui::Color32,
) {
    let size = Vec2::new(ui.available_width(), height);
    let (rect, response) = ui.allocate_exact_size(size, Sense::hover());
    let radius = CornerRadius::same((height / 2.0) as u8);
    ui.painter().rect_filled(rect, radius, track);
    let share = share.clamp(0.0, 1.0);
    if share > 0.0 {
        let width = (rect.width() * share).max(height);
        let filled = egui::Rect::from_min_size(rect.min, Vec2::new(width, height));
        ui.painter().rect_filled(filled, radius, fill);
    }
    response.widget_info(|| {
        let mut info = WidgetInfo::labeled(Role::ProgressIndicator, true, name);
        info.value = Some(f64::from(share));
        info
    });
}

/// A name and what it is, in two columns.
pub fn fact(ui: &mut Ui, name: &str, value: &str) -> Response {
    let palette = theme::palette(ui.visuals());
    let row = ui.horizontal(|ui| {
        ui.colored_label(palette.weak, name);
        ui.with_layout(egui::Layout::right_to_left(egui::Align::Center), |ui| {
            ui.label(value);
        });
    });
    row.response
}

/// What a dialog shows between its title and its buttons, scrolled where it is higher than `most`.
pub fn scrolled(ui: &mut Ui, id: &str, most: f32, add: impl FnOnce(&mut Ui)) {
    let area = ScrollArea::vertical().id_salt(id).max_height(most).min_scrolled_height(most);
    area.show(ui, |ui| {
        // Beside the bar.
        ui.set_width(ui.available_width() - GAP);
        add(ui);
    });
}

/// The title of what has buttons that close it.
pub fn heading(ui: &mut Ui, text: &str) {
    ui.label(RichText::new(text).text_style(TextStyle::Heading));
    ui.add_space(GAP);
}

/// The title, and a button that closes.
pub fn title(ui: &mut Ui, text: &str, actions: &mut Vec<Action>) {
    ui.horizontal(|ui| {
        ui.label(RichText::new(text).text_style(TextStyle::Heading));
        ui.with_layout(Layout::right_to_left(Align::Center), |ui| {
            if ui.add(quiet(ui, strings::CLOSE_DIALOG)).on_hover_text("Escape").clicked() {
                actions.push(Action::ShowDialog(None));
            }
        });
    });
    ui.add_space(GAP);
}

/// What ends a question; whether the first was clicked.
pub fn buttons(ui: &mut Ui, yes: &str, can: bool, actions: &mut Vec<Action>) -> bool {
    let yes = if can { primary(ui, yes) } else { plain(yes) };
    answers(ui, yes, can, actions)
}

/// The same where the first removes something for good: guidelines want to see that in its color.
pub fn removal(ui: &mut Ui, yes: &str, actions: &mut Vec<Action>) -> bool {
    let bad = theme::palette(ui.visuals()).bad;
    let yes = primary(ui, yes).fill(bad);
    answers(ui, yes, true, actions)
}

fn answers(ui: &mut Ui, yes: Button<'_>, can: bool, actions: &mut Vec<Action>) -> bool {
    ui.add_space(WIDE);
    ui.horizontal(|ui| {
        let is_yes = ui.add_enabled(can, yes).clicked();
        if ui.add(secondary(strings::CANCEL)).clicked() {
            actions.push(Action::ShowDialog(None));
        }
        is_yes
    })
    .inner
}
