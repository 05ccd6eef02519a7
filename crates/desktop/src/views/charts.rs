//! Figures of an answer over its steps.

use eframe::egui::{Color32, Ui};
use egui_plot::{Line, Plot, PlotPoints};

use super::widgets;
use crate::document::StepFigures;
use crate::strings;
use crate::theme::{self, GAP};

/// Height of a chart.
const HEIGHT: f32 = 72.0;

/// Draws tokens a second, hit rate and bytes fetched.
pub fn show(ui: &mut Ui, history: &[StepFigures]) {
    ui.label(strings::OVER_TIME);
    if history.is_empty() {
        widgets::caption(ui, strings::MAP_EMPTY);
        return;
    }
    let palette = theme::palette(ui.visuals());
    chart(ui, strings::RATE, palette.accent, points(history, |step| Some(step.tokens_per_s)));
    if history.iter().all(|step| step.hit_rate.is_none()) {
        ui.add_space(GAP);
        widgets::caption(ui, strings::IN_PLACE);
        return;
    }
    let hits = points(history, |step| step.hit_rate.map(|rate| 100.0 * rate));
    chart(ui, strings::HIT_RATE, palette.map[3], hits);
    let fetched = points(history, |step| Some(step.fetched_bytes as f64 / 1024.0));
    chart(ui, strings::FETCHED, palette.map[4], fetched);
}

fn points(history: &[StepFigures], value: fn(&StepFigures) -> Option<f64>) -> Vec<[f64; 2]> {
    let steps = history.iter().enumerate();
    steps.filter_map(|(i, step)| Some([i as f64, value(step)?])).collect()
}

fn chart(ui: &mut Ui, name: &str, color: Color32, points: Vec<[f64; 2]>) {
    ui.add_space(GAP);
    widgets::caption(ui, name);
    let last = points.last().map_or(0.0, |point| point[1]);
    let plot = Plot::new(name).height(HEIGHT).include_y(0.0).show_grid([false, true]);
    let plot = plot.allow_drag(false).allow_zoom(false).allow_scroll(false).allow_boxed_zoom(false);
    let plot = plot.show_x(false).show_axes([false, true]).y_axis_min_width(40.0);
    let response = plot.show(ui, |plot| {
        plot.line(Line::new(name.to_owned(), PlotPoints::from(points)).color(color).width(1.5));
    });
    let label = format!("{name}: {last:.1}");
    response
        .response
        .widget_info(|| eframe::egui::WidgetInfo::labeled(eframe::egui::Role::Image, true, &label));
}
