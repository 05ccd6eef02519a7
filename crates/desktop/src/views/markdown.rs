//! Answers as models write them: in Markdown.
//!
//! A paragraph is one label, so that a screen reader reads it in one go and a selection runs across
//! it; with links it is several. Blocks are drawn one below the other, and lists and quotes are
//! distances from the left: nothing that a model writes makes calls within calls. HTML is shown as
//! it was written, and of a picture its description.

use eframe::egui::accesskit::Role;
use eframe::egui::text::LayoutJob;
use eframe::egui::text_selection::LabelSelectionState;
use eframe::egui::{
    Button, Color32, FontId, Frame, Grid, Hyperlink, Label, Margin, OutputCommand, RichText,
    ScrollArea, Stroke, TextFormat, TextStyle, Ui, Vec2, WidgetInfo,
};
use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

use crate::strings;
use crate::theme::{self, GAP, RADIUS, TIGHT};

/// Of a line.
const LINE: f32 = 22.0;
/// From one level of a list or quote to the next.
const INDENT: f32 = 20.0;
/// How far apart strong letters are drawn twice.
const BOLD: f32 = 0.6;
/// Levels that are told apart: an answer is narrow.
const DEEPEST: usize = 6;
/// What may be opened in a browser or mail program. A file or a script may not: the text may come
/// from the document.
const SCHEMES: [&str; 3] = ["https://", "http://", "mailto:"];

/// Draws `text`.
pub fn show(ui: &mut Ui, text: &str) {
    let extensions =
        Options::ENABLE_TABLES | Options::ENABLE_STRIKETHROUGH | Options::ENABLE_TASKLISTS;
    ui.scope(|ui| {
        let mut page = Page::new(ui);
        for event in Parser::new_ext(text, extensions) {
            page.take(event);
        }
        page.end_block();
    });
}

/// Whether what a link asks for may be done.
pub fn may_do(command: &OutputCommand) -> bool {
    match command {
        OutputCommand::OpenUrl(open) => may_open(&open.url),
        _ => true,
    }
}

fn may_open(address: &str) -> bool {
    let begins = |scheme: &&str| {
        address.get(..scheme.len()).is_some_and(|head| head.eq_ignore_ascii_case(scheme))
    };
    SCHEMES.iter().any(begins)
}

/// How text looks; each a count of what it stands in.
#[derive(Clone, Copy, Default)]
struct Look {
    strong: u32,
    emphasis: u32,
    struck: u32,
    heading: Option<HeadingLevel>,
    is_code: bool,
}

/// A run of text that looks alike.
struct Run {
    text: String,
    look: Look,
    /// Where it leads.
    to: Option<String>,
}

#[derive(Default)]
struct Table {
    rows: Vec<Vec<Vec<Run>>>,
}

struct Page<'u> {
    ui: &'u mut Ui,
    /// The block that is being read.
    runs: Vec<Run>,
    look: Look,
    to: Option<String>,
    /// The number of the next item of each list around; none where they have points.
    lists: Vec<Option<u64>>,
    quotes: usize,
    /// What stands before the next block.
    marker: Option<String>,
    code: Option<String>,
    table: Option<Table>,
    n_blocks: usize,
}

impl<'u> Page<'u> {
    fn new(ui: &'u mut Ui) -> Self {
        Self {
            ui,
            runs: Vec::new(),
            look: Look::default(),
            to: None,
            lists: Vec::new(),
            quotes: 0,
            marker: None,
            code: None,
            table: None,
            n_blocks: 0,
        }
    }

    fn take(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) | Event::Html(text) | Event::InlineHtml(text) => self.say(&text),
            Event::Code(text) => {
                let before = self.look;
                self.look.is_code = true;
                self.say(&text);
                self.look = before;
            }
            // Models break lines where they mean it.
            Event::SoftBreak | Event::HardBreak => self.say("\n"),
            Event::Rule => {
                self.end_block();
                self.block(|ui| {
                    ui.separator();
                });
            }
            Event::TaskListMarker(is_done) => self.say(if is_done { "☑ " } else { "☐ " }),
            // These need extensions that are not asked for.
            Event::InlineMath(text) | Event::DisplayMath(text) | Event::FootnoteReference(text) => {
                self.say(&text);
            }
        }
    }

    fn start(&mut self, tag: Tag<'_>) {
        match tag {
            Tag::Heading { level, .. } => {
                self.end_block();
                self.look.heading = Some(level);
            }
            Tag::BlockQuote(_) => {
                self.end_block();
                self.quotes += 1;
            }
            Tag::CodeBlock(_) => {
                self.end_block();
                self.code = Some(String::new());
            }
            Tag::List(first) => {
                self.end_block();
                self.lists.push(first);
            }
            Tag::Item => {
                self.end_block();
                self.marker = Some(match self.lists.last_mut() {
                    Some(Some(n)) => {
                        let marker = format!("{n}.");
                        *n += 1;
                        marker
                    }
                    _ => "•".to_owned(),
                });
            }
            Tag::Table(_) => {
                self.end_block();
                self.table = Some(Table::default());
            }
            Tag::TableHead | Tag::TableRow => {
                self.look.strong = u32::from(matches!(tag, Tag::TableHead));
                if let Some(table) = &mut self.table {
                    table.rows.push(Vec::new());
                }
            }
            Tag::Emphasis => self.look.emphasis += 1,
            Tag::Strong => self.look.strong += 1,
            Tag::Strikethrough => self.look.struck += 1,
            Tag::Link { dest_url, .. } if may_open(&dest_url) => {
                self.to = Some(dest_url.into_string());
            }
            Tag::Paragraph | Tag::HtmlBlock => self.end_block(),
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Paragraph | TagEnd::HtmlBlock => self.end_block(),
            TagEnd::Heading(_) => {
                self.end_block();
                self.look.heading = None;
            }
            TagEnd::BlockQuote(_) => {
                self.end_block();
                self.quotes = self.quotes.saturating_sub(1);
            }
            TagEnd::CodeBlock => {
                if let Some(code) = self.code.take() {
                    self.block(|ui| show_code(ui, code.trim_end_matches('\n')));
                }
            }
            TagEnd::List(_) => {
                self.end_block();
                self.lists.pop();
            }
            TagEnd::Item => {
                self.end_block();
                // An item without a word.
                if self.marker.is_some() {
                    self.block(|_| ());
                }
            }
            TagEnd::TableCell => {
                let cell = std::mem::take(&mut self.runs);
                let rows = self.table.as_mut().map(|table| &mut table.rows);
                if let Some(row) = rows.and_then(|rows| rows.last_mut()) {
                    row.push(cell);
                }
            }
            TagEnd::TableHead => self.look.strong = 0,
            TagEnd::Table => {
                if let Some(table) = self.table.take() {
                    self.block(|ui| show_table(ui, &table));
                }
            }
            TagEnd::Emphasis => self.look.emphasis = self.look.emphasis.saturating_sub(1),
            TagEnd::Strong => self.look.strong = self.look.strong.saturating_sub(1),
            TagEnd::Strikethrough => self.look.struck = self.look.struck.saturating_sub(1),
            TagEnd::Link => self.to = None,
            _ => {}
        }
    }

    fn say(&mut self, text: &str) {
        if let Some(code) = &mut self.code {
            code.push_str(text);
            return;
        }
        self.runs.push(Run { text: text.to_owned(), look: self.look, to: self.to.clone() });
    }

    /// Draws what was read of a block.
    fn end_block(&mut self) {
        let mut runs = std::mem::take(&mut self.runs);
        if let Some(last) = runs.last_mut() {
            last.text.truncate(last.text.trim_end().len());
        }
        if runs.iter().any(|run| !run.text.trim().is_empty()) {
            self.block(|ui| show_runs(ui, &runs));
        }
    }

    /// Draws a block where it belongs.
    fn block(&mut self, add: impl FnOnce(&mut Ui)) {
        let marker = self.marker.take();
        let depth = (self.lists.len() + self.quotes).min(DEEPEST);
        let is_quoted = self.quotes > 0;
        if self.n_blocks > 0 {
            let is_item = !self.lists.is_empty();
            self.ui.add_space(if is_item { TIGHT } else { GAP } - self.ui.spacing().item_spacing.y);
        }
        self.n_blocks += 1;
        let ui = &mut *self.ui;
        ui.push_id(self.n_blocks, |ui| {
            if depth == 0 {
                add(ui);
                return;
            }
            let palette = theme::palette(ui.visuals());
            let drawn = ui.horizontal_top(|ui| {
                ui.spacing_mut().item_spacing.x = 0.0;
                match marker {
                    Some(marker) => {
                        ui.add_space(INDENT * (depth - 1) as f32);
                        let marker = RichText::new(marker).text_style(theme::answer_style());
                        let marker = Label::new(marker.line_height(Some(LINE)));
                        let width = ui.add(marker.selectable(false)).rect.width();
                        ui.add_space((INDENT - width).max(TIGHT));
                    }
                    None => {
                        ui.add_space(INDENT * depth as f32);
                    }
                }
                ui.vertical(|ui| {
                    ui.set_width(ui.available_width());
                    add(ui);
                });
            });
            if is_quoted {
                let rect = drawn.response.rect;
                let x = rect.left() + INDENT * (depth as f32 - 0.6);
                ui.painter().vline(x, rect.y_range(), Stroke::new(2.0, palette.line));
            }
        });
    }
}

fn font(ui: &Ui) -> FontId {
    theme::answer_style().resolve(ui.style())
}

fn format(ui: &Ui, look: Look) -> TextFormat {
    let (mut font, mut line) = (font(ui), LINE);
    let visuals = ui.visuals();
    let mut color = visuals.text_color();
    if let Some(level) = look.heading {
        let larger = match level {
            HeadingLevel::H1 => 5.0,
            HeadingLevel::H2 => 3.0,
            _ => 1.0,
        };
        (font.size, line) = (font.size + larger, line + larger);
        color = visuals.strong_text_color();
    }
    if look.strong > 0 {
        color = visuals.strong_text_color();
    }
    let mut format = TextFormat { color, line_height: Some(line), ..TextFormat::default() };
    if look.is_code {
        font.family = TextStyle::Monospace.resolve(ui.style()).family;
        format.background = visuals.code_bg_color;
    }
    format.font_id = font;
    format.italics = look.emphasis > 0;
    if look.struck > 0 {
        format.strikethrough = Stroke::new(1.0, color);
    }
    format
}

fn job(ui: &Ui, runs: &[Run]) -> LayoutJob {
    let mut job = LayoutJob::default();
    runs.iter().for_each(|run| job.append(&run.text, 0.0, format(ui, run.look)));
    job
}

/// Runs that lead nowhere, as a label. The toolkit brings no bold letters: what is strong is drawn
/// twice, a little apart.
fn show_text(ui: &mut Ui, runs: &[Run], wraps: bool) {
    let label = Label::new(job(ui, runs));
    let label = if wraps { label.wrap() } else { label.extend() };
    if runs.iter().all(|run| run.look.strong == 0) {
        ui.add(label);
        return;
    }
    let (at, galley, response) = label.layout_in_ui(ui);
    response.widget_info(|| WidgetInfo::labeled(Role::Label, ui.is_enabled(), galley.text()));
    if !ui.is_rect_visible(response.rect) {
        return;
    }
    let mut strong = LayoutJob::clone(&galley.job);
    let mut indent = strong.sections.first().map_or(0.0, |part| part.leading_space);
    strong.text.clear();
    strong.sections.clear();
    for run in runs {
        let mut format = format(ui, run.look);
        if run.look.strong == 0 {
            format.color = Color32::TRANSPARENT;
        }
        (format.background, format.strikethrough) = (Color32::TRANSPARENT, Stroke::NONE);
        strong.append(&run.text, std::mem::take(&mut indent), format);
    }
    let strong = ui.ctx().fonts_mut(|fonts| fonts.layout_job(strong));
    let color = ui.visuals().text_color();
    LabelSelectionState::label_text_selection(ui, &response, at, galley, color, Stroke::NONE);
    ui.painter().galley(at + Vec2::new(BOLD, 0.0), strong, color);
}

fn show_runs(ui: &mut Ui, runs: &[Run]) {
    if runs.iter().all(|run| run.to.is_none()) {
        show_text(ui, runs, true);
        return;
    }
    ui.horizontal_wrapped(|ui| {
        ui.spacing_mut().item_spacing = Vec2::ZERO;
        for part in runs.chunk_by(|a, b| a.to == b.to) {
            match &part[0].to {
                Some(to) => {
                    let text: String = part.iter().map(|run| run.text.as_str()).collect();
                    let text = RichText::new(text).text_style(theme::answer_style());
                    ui.add(Hyperlink::from_label_and_url(text, to)).on_hover_text(to);
                }
                None => show_text(ui, part, true),
            }
        }
    });
}

fn show_code(ui: &mut Ui, code: &str) {
    let palette = theme::palette(ui.visuals());
    let frame = Frame::new().fill(ui.visuals().code_bg_color).corner_radius(RADIUS);
    frame.inner_margin(Margin::same(GAP as i8)).show(ui, |ui| {
        ui.set_width(ui.available_width());
        ScrollArea::horizontal().show(ui, |ui| {
            let code = RichText::new(code).monospace().line_height(Some(LINE));
            ui.add(Label::new(code).extend());
        });
        ui.spacing_mut().button_padding.x = 0.0;
        let copy = RichText::new(strings::COPY_CODE).text_style(TextStyle::Small);
        if ui.add(Button::new(copy.color(palette.weak)).frame_when_inactive(false)).clicked() {
            ui.ctx().copy_text(code.to_owned());
        }
    });
}

fn show_table(ui: &mut Ui, table: &Table) {
    ScrollArea::horizontal().show(ui, |ui| {
        Grid::new("table").striped(true).spacing(Vec2::new(2.0 * GAP, TIGHT)).show(ui, |ui| {
            for row in &table.rows {
                row.iter().for_each(|cell| show_text(ui, cell, false));
                ui.end_row();
            }
        });
    });
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn addresses_of_pages_and_mail_alone_are_opened() {
        for address in ["https://a.example/b", "HTTP://a", "mailto:a@b"] {
            assert!(may_open(address), "{address}");
        }
        let refused = ["", "javascript:alert(1)", "file:///etc/passwd", "../a", "http:a", "hé"];
        for address in refused {
            assert!(!may_open(address), "{address}");
        }
    }

    /// Draws an answer, and says how many shapes came of it.
    fn drawn(text: &str) -> usize {
        let context = eframe::egui::Context::default();
        theme::install(&context);
        let mut output = context.run_ui(Default::default(), |ui| show(ui, text));
        // No screen takes them.
        output.textures_delta.clear();
        output.shapes.len()
    }

    #[test]
    fn no_form_of_an_answer_takes_long_or_the_stack() {
        let marks = ["> ", "- ", "*", "[", "`", "| ", "<b>", "1. ", "![", "**a ", "~~"];
        let mut texts: Vec<String> = marks.iter().map(|mark| mark.repeat(10_000) + "end").collect();
        texts.push((0..300).map(|n| format!("{}- {n}\n", " ".repeat(2 * n))).collect());
        texts.push("| a | b |\n|---|---|\n".to_owned() + &"| 1 | 2 |\n".repeat(2_000));
        for text in texts {
            let begin = Instant::now();
            drawn(&text);
            let took = begin.elapsed();
            let start: String = text.chars().take(9).collect();
            assert!(took < Duration::from_secs(5), "{start}: {took:?}");
        }
    }

    #[test]
    fn half_an_answer_is_drawn() {
        let text = "# a\n**b *c* `d`** [e](https://f)\n- g\n  > h\n```\ni\n```\n|j|\n|-|\n|k|\n";
        for end in 0..=text.len() {
            drawn(&text[..end]);
        }
        assert!(drawn(text) > 8);
    }
}
