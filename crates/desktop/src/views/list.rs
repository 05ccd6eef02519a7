//! The documents that are open, those of the library, and what computes.

use eframe::egui::text::{LayoutJob, TextWrapping};
use eframe::egui::{
    Align, Button, Color32, Layout, Margin, Popup, Rect, RichText, Role, ScrollArea, Sense, Stroke,
    StrokeKind, TextEdit, TextStyle, ThemePreference, Ui, Vec2, WidgetInfo,
};
use longview_library::documents::Id;

use super::widgets;
use crate::document::{Document, Stage};
use crate::engine::{DocumentId, Served, Serving};
use crate::files::KeptDocument;
use crate::state::{Action, Dialog, EngineState, State};
use crate::strings;
use crate::theme::{self, CONTROL, GAP, RADIUS, TIGHT};

/// Height of a document's row with one line under its name, and of a line.
const ROW: f32 = 52.0;
const LINE: f32 = 18.0;
/// Height of what stands under the list, and of a list that is worth scrolling by itself.
const FOOTER: f32 = 216.0;
/// Height of the row that says that the library is served.
const SERVED: f32 = 36.0;
const LEAST_LIST: f32 = 120.0;
/// Width of the menu of a row.
const MENU: f32 = 120.0;

/// Draws the list.
pub fn show(ui: &mut Ui, state: &mut State, actions: &mut Vec<Action>) {
    ui.label(RichText::new(strings::APP).text_style(TextStyle::Heading));
    ui.add_space(GAP);
    let open = widgets::secondary(strings::OPEN_FILE);
    let size = Vec2::new(ui.available_width(), CONTROL + TIGHT);
    if ui.add_sized(size, open).on_hover_text("Ctrl O").clicked() {
        actions.push(Action::OpenFile);
    }
    ui.horizontal(|ui| {
        widgets::align_quiet(ui);
        if ui.add(widgets::quiet(ui, strings::OPEN_FOLDER)).clicked() {
            actions.push(Action::OpenFolder);
        }
    });
    find(ui, state);
    let is_served = matches!(state.serving, Some(Serving::On(_)));
    let footer_height = if is_served { FOOTER + SERVED } else { FOOTER };
    if ui.available_height() < footer_height + LEAST_LIST {
        // No room for both: all of it is scrolled.
        ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
            ui.spacing_mut().item_spacing.y = TIGHT;
            documents(ui, state, actions);
            ui.spacing_mut().item_spacing.y = GAP;
            let size = Vec2::new(ui.available_width(), footer_height);
            ui.allocate_ui_with_layout(size, Layout::bottom_up(Align::Min), |ui| {
                footer(ui, state, actions);
            });
        });
        return;
    }
    ui.with_layout(Layout::bottom_up(Align::Min), |ui| {
        footer(ui, state, actions);
        ui.add_space(GAP);
        ui.with_layout(Layout::top_down(Align::Min), |ui| {
            ScrollArea::vertical().auto_shrink(false).show(ui, |ui| {
                ui.spacing_mut().item_spacing.y = TIGHT;
                documents(ui, state, actions);
            });
        });
    });
}

/// A library is searched; a handful of open documents is seen at once.
fn find(ui: &mut Ui, state: &mut State) {
    // Words that are typed stay in sight as long as they hide documents.
    if state.kept.is_empty() && state.wanted.is_empty() {
        return;
    }
    let edit = TextEdit::singleline(&mut state.wanted).hint_text(strings::FIND);
    let edit = edit.desired_width(f32::INFINITY).margin(Margin::symmetric(12, 8));
    let response = ui.add(edit);
    response.widget_info(|| WidgetInfo::labeled(Role::TextInput, true, strings::FIND));
}

fn documents(ui: &mut Ui, state: &State, actions: &mut Vec<Action>) {
    let wanted = state.wanted.to_lowercase();
    let is_wanted = |name: &str| wanted.is_empty() || name.to_lowercase().contains(wanted.trim());
    ui.add_space(GAP);
    let is_shown = wanted.is_empty() || state.documents.iter().any(|d| is_wanted(&d.title));
    if is_shown {
        widgets::group(ui, strings::DOCUMENTS);
    }
    for document in state.documents.iter().filter(|document| is_wanted(&document.title)) {
        open_row(ui, state, document, actions);
    }
    if state.documents.is_empty() {
        widgets::caption(ui, strings::NO_DOCUMENTS);
    }
    let mut names = state.documents.iter().map(|document| &document.title);
    let is_found = names.any(|name| is_wanted(name));
    if !wanted.is_empty() && !is_found && !state.kept.iter().any(|kept| is_wanted(&kept.name)) {
        widgets::caption(ui, strings::NOTHING_FOUND);
    }
    let is_open = |id: Id| state.documents.iter().any(|document| document.kept == Some(id));
    let mut kept = state.kept.iter().filter(|kept| !is_open(kept.id) && is_wanted(&kept.name));
    if let Some(first) = kept.next() {
        ui.add_space(GAP);
        widgets::group(ui, &strings::library(state.kept.iter().map(|kept| kept.bytes).sum()));
        for kept in std::iter::once(first).chain(kept) {
            let by = strings::kept_by(kept.model.as_deref(), kept.used_unix_s, kept.is_pinned);
            let lines = [strings::kept(kept.tokens, kept.bytes), by];
            let menu = Menu { kept: Some(kept), open: None };
            if row(ui, &kept.name, &lines, false, &menu, actions) {
                actions.push(Action::OpenKept(kept.id));
            }
        }
    }
}

fn open_row(ui: &mut Ui, state: &State, document: &Document, actions: &mut Vec<Action>) {
    let kept = state.kept.iter().find(|kept| Some(kept.id) == document.kept);
    let is_pinned = kept.is_some_and(|kept| kept.is_pinned);
    let mut status = match state.line.iter().position(|id| *id == document.id) {
        Some(place) => strings::in_line(place),
        None => status(document),
    };
    if is_pinned {
        status = format!("{status}, {}", strings::PINNED);
    }
    let menu = Menu { kept, open: Some(document.id) };
    let is_current = state.current == Some(document.id);
    if row(ui, &document.title, &[status], is_current, &menu, actions) {
        actions.push(Action::Select(document.id));
    }
}

/// What can be done with a document.
struct Menu<'a> {
    /// If it is in the library.
    kept: Option<&'a KeptDocument>,
    /// If it is open.
    open: Option<DocumentId>,
}

/// One row; whether it was clicked.
fn row(
    ui: &mut Ui,
    title: &str,
    lines: &[String],
    is_current: bool,
    menu: &Menu<'_>,
    actions: &mut Vec<Action>,
) -> bool {
    let palette = theme::palette(ui.visuals());
    let height = ROW + LINE * (lines.len() - 1) as f32;
    let size = Vec2::new(ui.available_width(), height);
    let (rect, response) = ui.allocate_exact_size(size, Sense::click());
    let name = format!("{title}, {}", lines.join(", "));
    response.widget_info(|| WidgetInfo::selected(Role::Button, true, is_current, &name));
    let is_pointed = response.hovered() || response.has_focus();
    let fill = match (is_current, is_pointed) {
        (true, _) => palette.strong_mark,
        (false, true) => palette.mark,
        (false, false) => Color32::TRANSPARENT,
    };
    ui.painter().rect_filled(rect, RADIUS, fill);
    if response.has_focus() {
        let stroke = Stroke::new(2.0, palette.accent);
        ui.painter().rect_stroke(rect, RADIUS, stroke, StrokeKind::Inside);
    }
    // Of a long list most is scrolled away.
    if ui.is_rect_visible(rect) {
        let room = rect.width() - 12.0 - CONTROL;
        let draw = |text: &str, style: TextStyle, color: Color32, y: f32| {
            let font = style.resolve(ui.style());
            let mut job = LayoutJob::simple_singleline(text.to_owned(), font, color);
            job.wrap = TextWrapping::truncate_at_width(room);
            let galley = ui.painter().layout_job(job);
            ui.painter().galley(rect.min + Vec2::new(12.0, y), galley, color);
        };
        draw(title, TextStyle::Body, palette.text, 8.0);
        let color = if is_current { palette.text } else { palette.weak };
        for (i, line) in lines.iter().enumerate() {
            draw(line, TextStyle::Small, color, 29.0 + LINE * i as f32);
        }
    }
    more(ui, rect, title, menu, actions);
    response.on_hover_text(format!("{title}\n{}", lines.join("\n"))).clicked()
}

/// The button at the end of a row.
fn more(ui: &mut Ui, row: Rect, title: &str, menu: &Menu<'_>, actions: &mut Vec<Action>) {
    let at = Rect::from_center_size(
        row.right_center() - Vec2::new(CONTROL / 2.0 + TIGHT, 0.0),
        Vec2::splat(CONTROL - TIGHT),
    );
    let response = ui.place(at, Button::new("").frame_when_inactive(false).min_size(at.size()));
    // No font that is always there has the three dots.
    let color = theme::palette(ui.visuals()).text;
    for x in [-5.0, 0.0, 5.0] {
        ui.painter().circle_filled(at.center() + Vec2::new(x, 0.0), 1.5, color);
    }
    let name = strings::more(title);
    response.widget_info(|| WidgetInfo::labeled(Role::Button, true, &name));
    Popup::menu(&response).show(|ui| {
        ui.set_min_width(MENU);
        let mut item = |text: &str, action: Action| {
            if ui.button(text).clicked() {
                actions.push(action);
            }
        };
        if let Some(open) = menu.open {
            item(strings::CLOSE_DOCUMENT, Action::CloseDocument(open));
            item(strings::ADD_FILES, Action::AddFiles(open));
        }
        if let Some(&KeptDocument { id, is_pinned, bytes, .. }) = menu.kept {
            let rename = Dialog::Rename(id, title.to_owned());
            item(strings::RENAME, Action::ShowDialog(Some(rename)));
            let pin = if is_pinned { strings::UNPIN } else { strings::PIN };
            item(pin, Action::Pin(id, !is_pinned));
            if bytes > 0 {
                let free = Dialog::FreeSpace(id, title.to_owned(), bytes);
                item(strings::FREE_SPACE, Action::ShowDialog(Some(free)));
            }
            let delete = Dialog::Delete(id, title.to_owned());
            item(strings::DELETE, Action::ShowDialog(Some(delete)));
        }
    });
}

fn status(document: &Document) -> String {
    match &document.stage {
        Stage::Counting(_) => strings::COUNTING.to_owned(),
        Stage::Opening(_) => strings::OPENING.to_owned(),
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
        widgets::align_quiet(ui);
        ui.spacing_mut().item_spacing.x = theme::WIDE;
        let settings = Dialog::Settings(Box::new(state.settings.clone()), false);
        for (name, keys, dialog) in [
            (strings::MODELS, "Ctrl M", Dialog::Models),
            (strings::SETTINGS, "Ctrl ,", settings),
            (strings::ABOUT, "", Dialog::About),
        ] {
            let mut response = ui.add(widgets::quiet(ui, name));
            if !keys.is_empty() {
                response = response.on_hover_text(keys);
            }
            if response.clicked() {
                actions.push(Action::ShowDialog(Some(dialog)));
            }
        }
    });
    ui.horizontal(|ui| {
        ui.spacing_mut().item_spacing.x = TIGHT;
        for (theme, name) in [
            (ThemePreference::System, strings::THEME_SYSTEM),
            (ThemePreference::Light, strings::THEME_LIGHT),
            (ThemePreference::Dark, strings::THEME_DARK),
        ] {
            let name = widgets::choice(ui, name).text_style(TextStyle::Small);
            if ui.add(Button::selectable(state.settings.theme() == theme, name)).clicked() {
                actions.push(Action::Theme(theme));
            }
        }
    });
    widgets::group(ui, strings::THEME);
    ui.add_space(GAP);
    if let Some(Serving::On(served)) = &state.serving {
        serving(ui, served, state, actions);
    }
    match &state.engine {
        EngineState::Opening => widgets::caption(ui, strings::ENGINE_OPENING),
        EngineState::Gone => widgets::caption(ui, strings::ENGINE_GONE),
        EngineState::Ready(model) => {
            let line = format!("{}\n{}", model.name, model.device);
            widgets::caption(ui, line)
        }
    };
}

/// That other programs can ask, and a way to the switch.
fn serving(ui: &mut Ui, served: &Served, state: &State, actions: &mut Vec<Action>) {
    let palette = theme::palette(ui.visuals());
    ui.horizontal(|ui| {
        widgets::align_quiet(ui);
        let (dot, _) = ui.allocate_exact_size(Vec2::splat(8.0), Sense::hover());
        ui.painter().circle_filled(dot.center(), 4.0, palette.accent);
        let button = widgets::quiet(ui, &strings::serving_short(served));
        if ui.add(button).on_hover_text(strings::SERVE).clicked() {
            let settings = Dialog::Settings(Box::new(state.settings.clone()), false);
            actions.push(Action::ShowDialog(Some(settings)));
        }
    });
}
