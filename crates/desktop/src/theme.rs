//! Colours, sizes and spaces: one accent, steps of 4 and 8 points, text of 15 and 16.
//!
//! The window follows the GNOME Human Interface Guidelines where they say something: a list beside
//! what is open, one suggested action in sight at a time, a page that says what to do where there
//! is nothing yet, messages above what they are about. Text has a contrast of 4.5 to 1 or more on
//! what is behind it (a test computes it).

use eframe::egui::{
    self, Color32, Context, CornerRadius, FontFamily, FontId, Margin, Stroke, Style, TextStyle,
    Theme, Vec2, Visuals,
};

/// The smallest space: between a title and the line under it.
pub const TIGHT: f32 = 4.0;
/// Between things that belong together.
pub const GAP: f32 = 8.0;
/// Between groups, and around what a card holds.
pub const WIDE: f32 = 16.0;
/// Around a page.
pub const PAGE: f32 = 24.0;
/// Height of what is clicked.
pub const CONTROL: f32 = 32.0;
/// Lines of a document, from one to the next.
pub const LINE: f32 = 24.0;
/// Width of a document's lines at most: some 75 characters.
pub const MEASURE: f32 = 640.0;
/// Corners.
pub const RADIUS: u8 = 8;

/// The colours of a theme.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Palette {
    /// Behind the document.
    pub page: Color32,
    /// Behind lists and questions.
    pub side: Color32,
    /// Behind what stands out from its page.
    pub card: Color32,
    /// Lines between parts.
    pub line: Color32,
    /// Text.
    pub text: Color32,
    /// Text that explains.
    pub weak: Color32,
    /// What can be done, and what is chosen.
    pub accent: Color32,
    /// Text on the accent.
    pub on_accent: Color32,
    /// Behind a passage that an answer rests on.
    pub mark: Color32,
    /// Behind the passage that was clicked.
    pub strong_mark: Color32,
    /// What went wrong.
    pub bad: Color32,
    /// What fits.
    pub good: Color32,
    /// What fits and leaves little.
    pub warn: Color32,
    /// Behind what went wrong.
    pub bad_card: Color32,
    /// Cells of the map, by the number of their place: skipped, sink, recent, hit, missed, held,
    /// drawn.
    pub map: [Color32; 7],
}

const fn rgb(hex: u32) -> Color32 {
    Color32::from_rgb((hex >> 16) as u8, (hex >> 8) as u8, hex as u8)
}

const LIGHT: Palette = Palette {
    page: rgb(0xffffff),
    side: rgb(0xf6f6f4),
    card: rgb(0xffffff),
    line: rgb(0xdedfdc),
    text: rgb(0x1d2024),
    weak: rgb(0x5a616b),
    accent: rgb(0x1f5fc4),
    on_accent: rgb(0xffffff),
    mark: rgb(0xe3ecfb),
    strong_mark: rgb(0xbfd5f8),
    bad: rgb(0xa3241c),
    good: rgb(0x20693f),
    warn: rgb(0x8a5200),
    bad_card: rgb(0xfcecea),
    map: [
        rgb(0xe4e5e2),
        rgb(0x6a4c93),
        rgb(0x3c8d5a),
        rgb(0x1f5fc4),
        rgb(0xd9730d),
        rgb(0xb4c7e7),
        rgb(0xa32a6b),
    ],
};

const DARK: Palette = Palette {
    page: rgb(0x1c1e21),
    side: rgb(0x16181a),
    card: rgb(0x24272b),
    line: rgb(0x363a40),
    text: rgb(0xe7e9ec),
    weak: rgb(0xa3abb5),
    accent: rgb(0x86b1ff),
    on_accent: rgb(0x0c1b33),
    mark: rgb(0x24344f),
    strong_mark: rgb(0x35528a),
    bad: rgb(0xff9c92),
    good: rgb(0x7fd3a0),
    warn: rgb(0xf0b26b),
    bad_card: rgb(0x3a2221),
    map: [
        rgb(0x34383d),
        rgb(0xb79ce0),
        rgb(0x6fc48e),
        rgb(0x86b1ff),
        rgb(0xf2a25c),
        rgb(0x41557a),
        rgb(0xf08fc0),
    ],
};

/// The colours in force.
pub fn palette(visuals: &Visuals) -> Palette {
    if visuals.dark_mode { DARK } else { LIGHT }
}

/// Text that is read: answers.
pub fn answer_style() -> TextStyle {
    TextStyle::Name("answer".into())
}

/// The title of a page with nothing on it.
pub fn title_style() -> TextStyle {
    TextStyle::Name("title".into())
}

/// The font of documents.
pub fn document_font() -> FontId {
    FontId::proportional(15.0)
}

/// Gives both themes their looks.
pub fn install(ctx: &Context) {
    for (theme, palette) in [(Theme::Light, LIGHT), (Theme::Dark, DARK)] {
        let mut style = (*ctx.style_of(theme)).clone();
        style.visuals = visuals(theme, &palette);
        sizes(&mut style);
        ctx.set_style_of(theme, style);
    }
}

fn sizes(style: &mut Style) {
    let font = |size| FontId::new(size, FontFamily::Proportional);
    style.text_styles = [
        (TextStyle::Small, font(13.0)),
        (TextStyle::Body, font(15.0)),
        (TextStyle::Button, font(15.0)),
        (TextStyle::Monospace, FontId::new(14.0, FontFamily::Monospace)),
        (TextStyle::Heading, font(19.0)),
        (answer_style(), font(16.0)),
        (title_style(), font(28.0)),
    ]
    .into();
    let spacing = &mut style.spacing;
    spacing.item_spacing = Vec2::splat(GAP);
    spacing.button_padding = Vec2::new(12.0, 6.0);
    spacing.interact_size = Vec2::new(CONTROL, CONTROL);
    spacing.slider_width = 160.0;
    spacing.slider_rail_height = 4.0;
    spacing.icon_width = 16.0;
    spacing.menu_margin = Margin::same(8);
    spacing.window_margin = Margin::same(24);
    spacing.scroll = egui::style::ScrollStyle { bar_width: 8.0, ..spacing.scroll };
    style.interaction.tooltip_delay = 0.4;
}

fn visuals(theme: Theme, palette: &Palette) -> Visuals {
    let mut visuals = theme.default_visuals();
    visuals.override_text_color = None;
    visuals.weak_text_color = Some(palette.weak);
    visuals.hyperlink_color = palette.accent;
    visuals.panel_fill = palette.page;
    visuals.window_fill = palette.card;
    visuals.window_stroke = Stroke::new(1.0, palette.line);
    visuals.window_corner_radius = CornerRadius::same(12);
    visuals.menu_corner_radius = CornerRadius::same(RADIUS);
    visuals.extreme_bg_color = palette.card;
    visuals.faint_bg_color = palette.side;
    visuals.error_fg_color = palette.bad;
    visuals.selection.bg_fill = palette.strong_mark;
    visuals.selection.stroke = Stroke::new(1.0, palette.accent);
    visuals.slider_trailing_fill = true;
    visuals.handle_shape = egui::style::HandleShape::Circle;
    visuals.indent_has_left_vline = false;
    let widgets = &mut visuals.widgets;
    let radius = CornerRadius::same(6);
    for (state, fill, line) in [
        (&mut widgets.noninteractive, palette.page, palette.line),
        (&mut widgets.inactive, palette.card, palette.line),
        (&mut widgets.hovered, palette.mark, palette.accent),
        (&mut widgets.active, palette.strong_mark, palette.accent),
        (&mut widgets.open, palette.mark, palette.accent),
    ] {
        state.weak_bg_fill = fill;
        state.bg_stroke = Stroke::new(1.0, line);
        state.fg_stroke = Stroke::new(1.0, palette.text);
        state.corner_radius = radius;
        state.expansion = 0.0;
    }
    // Rails of sliders and boxes to tick are seen without being pointed at.
    widgets.inactive.bg_fill = palette.line;
    widgets.hovered.bg_fill = palette.strong_mark;
    widgets.active.bg_fill = palette.accent;
    visuals
}

#[cfg(test)]
mod tests {
    use super::*;

    fn luminance(color: Color32) -> f64 {
        let part = |value: u8| {
            let value = f64::from(value) / 255.0;
            if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(color.r()) + 0.7152 * part(color.g()) + 0.0722 * part(color.b())
    }

    fn contrast(a: Color32, b: Color32) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn text_stands_out_from_everything_behind_it() {
        for p in [LIGHT, DARK] {
            for behind in [p.page, p.side, p.card, p.mark] {
                for text in [p.text, p.weak, p.accent, p.good, p.warn] {
                    let contrast = contrast(text, behind);
                    assert!(contrast >= 4.5, "{text:?} on {behind:?}: {contrast:.2}");
                }
            }
            for (text, behind) in
                [(p.on_accent, p.accent), (p.text, p.strong_mark), (p.bad, p.bad_card)]
            {
                assert!(contrast(text, behind) >= 4.5, "{text:?} on {behind:?}");
            }
            for cell in p.map[1..5].iter().chain(&p.map[6..]) {
                assert!(contrast(*cell, p.map[0]) >= 2.0, "{cell:?}");
            }
        }
    }
}
