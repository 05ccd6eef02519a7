//! Charts as data, and how they are drawn: once as SVG, once as PNG.

use std::ops::Range;
use std::sync::Once;

use image::codecs::png::PngEncoder;
use image::{ColorType, ImageEncoder};
use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::error::ReportError;
use super::marks::{self, Pixel};

/// Width and height of a chart, in pixels.
const SIZE: (u32, u32) = (760, 440);

/// Pixels of a PNG to one of an SVG: readable on dense screens.
const PNG_SCALE: u32 = 2;

/// Colours that people with any colour vision tell apart (Okabe and Ito), and two greys for the
/// eighth and ninth series.
const COLOURS: [RGBColor; 9] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(120, 80, 20),
    RGBColor(120, 120, 120),
    RGBColor(60, 60, 60),
];

/// A point with the interval that it lies in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Where.
    pub x: f64,
    /// How much.
    pub y: f64,
    /// Lower and upper end of a 95 % interval, where there is one.
    pub interval: Option<(f64, f64)>,
}

/// One line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// From left to right.
    pub points: Vec<Point>,
    /// Dashed: what others are compared with.
    pub is_reference: bool,
}

/// How an axis is named, scaled and written.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// What it shows, with the unit.
    pub label: String,
    /// Equal distances are equal ratios.
    pub is_log: bool,
    /// From where to where; `None` fits the data.
    pub range: Option<Range<f64>>,
    /// How numbers are written.
    pub unit: Unit,
}

/// How numbers on an axis are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// As they are.
    Plain,
    /// Shares as percent.
    Percent,
    /// Tokens: 4096 is 4K, and 1536 is 1,536.
    Tokens,
    /// Seconds, as ms or µs where they are small.
    Seconds,
}

/// What a figure shows.
#[derive(Clone, Debug, PartialEq)]
pub enum Chart {
    /// Lines over one axis.
    Lines {
        /// Horizontal.
        x: Axis,
        /// Vertical.
        y: Axis,
        /// The lines.
        series: Vec<Series>,
    },
    /// A number for each of some columns and rows, 0..=1, as a colour and as text.
    Heat {
        /// What columns are.
        x: String,
        /// What rows are.
        y: String,
        /// Names of the columns.
        columns: Vec<String>,
        /// Names of the rows, top first.
        rows: Vec<String>,
        /// `[rows][columns]`; `None` where nothing was measured.
        values: Vec<Vec<Option<f64>>>,
    },
    /// Parts that add up, a bar for each group.
    Stack {
        /// What bars measure, in seconds.
        y: String,
        /// Names of the bars.
        bars: Vec<String>,
        /// Name of each part with one value a bar.
        parts: Vec<(String, Vec<f64>)>,
    },
}

impl Unit {
    /// A number as text.
    pub fn text(self, x: f64) -> String {
        match self {
            Unit::Plain if x != 0.0 && !(0.01..1e5).contains(&x.abs()) => format!("{x:.0e}"),
            Unit::Plain => plain(x),
            Unit::Percent => format!("{:.0} %", 100.0 * x),
            Unit::Tokens => tokens(x),
            Unit::Seconds if x == 0.0 => "0 s".into(),
            Unit::Seconds if x >= 1.0 => format!("{x:.1} s"),
            Unit::Seconds if x >= 1e-3 => format!("{} ms", three_digits(1e3 * x)),
            Unit::Seconds => format!("{:.0} µs", 1e6 * x),
        }
    }
}

/// With as many decimals as say something: 30, 2.5, 0.015.
fn plain(x: f64) -> String {
    let decimals = if x.abs() < 0.1 { 3 } else { 2 };
    let text = format!("{x:.decimals$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// In K or M where that is exact, else with all digits: what differs has different names.
fn tokens(x: f64) -> String {
    // A coordinate of a logarithmic axis comes back with its last bits changed.
    let n = x.round() as u64;
    match n {
        1.. if n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        1.. if n.is_multiple_of(1 << 10) => format!("{}K", n >> 10),
        _ => {
            let digits = n.to_string();
            let first = digits.len() % 3;
            let (head, rest) = digits.split_at(first);
            let groups = rest.as_bytes().chunks(3).map(|group| String::from_utf8_lossy(group));
            let head = (!head.is_empty()).then(|| head.into());
            head.into_iter().chain(groups).collect::<Vec<_>>().join(",")
        }
    }
}

/// At most three digits that say something: 15.6, 2, 0.488.
fn three_digits(x: f64) -> String {
    let decimals = match x.abs() {
        x if x >= 100.0 => 0,
        x if x >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{x:.decimals$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// A name in lines that the legend has room for, broken before options.
fn legend_lines(name: &str) -> Vec<String> {
    const WIDEST: usize = 28;
    let mut lines = vec![String::new()];
    for part in name.split_inclusive([':', ' ']) {
        let last = lines.last_mut().expect("there is a line");
        if !last.is_empty() && last.chars().count() + part.chars().count() > WIDEST {
            lines.push(part.to_owned())
        } else {
            last.push_str(part)
        }
    }
    lines
}

/// Text needs a font, wherever a report is made.
fn with_font() {
    static FONT: Once = Once::new();
    FONT.call_once(|| {
        let registered =
            register_font("sans-serif", FontStyle::Normal, dejavu::sans::regular()).is_ok();
        assert!(registered, "the font that this program brings is a font");
    });
}

impl Chart {
    /// The chart as SVG.
    pub fn svg(&self, title: &str) -> Result<String, ReportError> {
        with_font();
        let mut text = String::new();
        {
            let area = SVGBackend::with_string(&mut text, self.size(1)).into_drawing_area();
            self.draw(&area, title, 1).map_err(ReportError::draw)?;
            area.present().map_err(ReportError::draw)?;
        }
        Ok(text)
    }

    /// The chart as PNG, twice as large.
    pub fn png(&self, title: &str) -> Result<Vec<u8>, ReportError> {
        with_font();
        let (width, height) = self.size(PNG_SCALE);
        let mut pixels = vec![0; width as usize * height as usize * 3];
        {
            let backend = BitMapBackend::with_buffer(&mut pixels, (width, height));
            let area = backend.into_drawing_area();
            self.draw(&area, title, PNG_SCALE).map_err(ReportError::draw)?;
            area.present().map_err(ReportError::draw)?;
        }
        let mut bytes = Vec::new();
        PngEncoder::new(&mut bytes)
            .write_image(&pixels, width, height, ColorType::Rgb8)
            .map_err(ReportError::draw)?;
        Ok(bytes)
    }

    fn size(&self, scale: u32) -> (u32, u32) {
        let height = match self {
            Chart::Heat { rows, .. } => (110 + 34 * rows.len() as u32).max(200),
            Chart::Lines { series, .. } => SIZE.1.max(120 + 20 * series.len() as u32),
            Chart::Stack { .. } => SIZE.1,
        };
        (SIZE.0 * scale, height * scale)
    }

    fn draw<D: DrawingBackend>(
        &self,
        area: &DrawingArea<D, Shift>,
        title: &str,
        scale: u32,
    ) -> Result<(), DrawingAreaErrorKind<D::ErrorType>> {
        area.fill(&WHITE)?;
        let pen = Pen { scale: f64::from(scale) };
        let edge = pen.px(10.0);
        let area = area.margin(edge, 0, edge / 2, edge / 2).titled(title, pen.font(17.0))?;
        match self {
            Chart::Lines { x, y, series } => pen.lines(&area, x, y, series),
            Chart::Heat { x, y, columns, rows, values } => {
                pen.heat(&area, HeatCells { x, y, columns, rows, values })
            }
            Chart::Stack { y, bars, parts } => pen.stack(&area, y, bars, parts),
        }
    }
}

/// Sizes of text and strokes.
struct Pen {
    scale: f64,
}

/// What drawing may fail with.
type Drawn<D> = Result<(), DrawingAreaErrorKind<<D as DrawingBackend>::ErrorType>>;

/// A heat map: what its axes are called, the names along them, and the values by row.
struct HeatCells<'a> {
    x: &'a str,
    y: &'a str,
    columns: &'a [String],
    rows: &'a [String],
    values: &'a [Vec<Option<f64>>],
}

/// The colour of the line `i`.
fn colour(series: &[Series], i: usize) -> RGBColor {
    if series[i].is_reference { BLACK } else { COLOURS[i % COLOURS.len()] }
}

impl Pen {
    fn px(&self, x: f64) -> i32 {
        (x * self.scale).round() as i32
    }

    fn font(&self, size: f64) -> TextStyle<'static> {
        ("sans-serif", size * self.scale).into_font().color(&BLACK)
    }

    /// Lines with a legend at the right, where it hides nothing.
    fn lines<D: DrawingBackend>(
        &self,
        area: &DrawingArea<D, Shift>,
        x: &Axis,
        y: &Axis,
        series: &[Series],
    ) -> Drawn<D> {
        let (width, _) = area.dim_in_pixel();
        let (plot, legend) = area.split_horizontally(width as i32 - self.px(210.0));
        let top = plot.get_pixel_range().1.start;
        let all = || series.iter().flat_map(|s| &s.points);
        let xs = x.place(all().map(|p| p.x));
        let ys = y.place_from_zero(all().flat_map(|p| {
            let (low, high) = p.interval.unwrap_or((p.y, p.y));
            [low, p.y, high]
        }));
        let ticks = x.ticks(&xs, all().map(|p| p.x));
        let marks = y.ticks(&ys, all().map(|p| p.y));
        let at = |p: &Point| (x.coordinate(p.x), y.coordinate(p.y));
        // Intervals of several lines at one place stand side by side.
        let aside = 0.008 * (xs.end - xs.start);
        let middle = series.len() as f64 / 2.0;
        let mut chart = ChartBuilder::on(&plot)
            .margin(self.px(8.0))
            .x_label_area_size(self.px(42.0))
            .y_label_area_size(self.px(64.0))
            .build_cartesian_2d(xs.clone(), ys.clone())?;
        chart
            .configure_mesh()
            .x_desc(&x.label)
            .y_desc(&y.label)
            .x_labels(0)
            .y_labels(0)
            .label_style(self.font(11.0))
            .axis_desc_style(self.font(12.0))
            .light_line_style(TRANSPARENT)
            .bold_line_style(BLACK.mix(0.12))
            .draw()?;
        for mark in marks {
            let line = PathElement::new([(xs.start, mark), (xs.end, mark)], BLACK.mix(0.12));
            chart.draw_series([line])?;
            let (left, middle) = chart.backend_coord(&(xs.start, mark));
            let (text, font) = (y.text(mark), self.font(11.0));
            let (width, height) = plot.estimate_text_size(&text, &font)?;
            let (origin, _) = plot.get_pixel_range();
            let right = left - origin.start - self.px(6.0);
            let place = (right - width as i32, middle - top - height as i32 / 2);
            plot.draw(&Text::new(text, place, font))?;
        }
        for tick in ticks {
            let line = PathElement::new([(tick, ys.start), (tick, ys.end)], BLACK.mix(0.12));
            chart.draw_series([line])?;
            let (left, bottom) = chart.backend_coord(&(tick, ys.start));
            let (text, font) = (x.text(tick), self.font(11.0));
            let (width, _) = plot.estimate_text_size(&text, &font)?;
            let (origin, _) = plot.get_pixel_range();
            let place = (left - origin.start - width as i32 / 2, bottom - top + self.px(5.0));
            plot.draw(&Text::new(text, place, font))?;
        }
        for (i, line) in series.iter().enumerate() {
            let stroke =
                |opacity: f64| colour(series, i).mix(opacity).stroke_width(self.px(2.0) as u32);
            let points = line.points.iter().map(at);
            if line.is_reference {
                let dashes = (self.px(6.0), self.px(4.0));
                let dashed = DashedLineSeries::new(points, dashes.0, dashes.1, stroke(1.0));
                chart.draw_series(dashed)?;
            } else {
                chart.draw_series(LineSeries::new(points, stroke(1.0)))?;
            }
            let bars = line.points.iter().filter_map(|p| p.interval.map(|i| (p, i)));
            chart.draw_series(bars.map(|(p, (low, high))| {
                let x = x.coordinate(p.x) + aside * (i as f64 - middle);
                PathElement::new([(x, y.coordinate(low)), (x, y.coordinate(high))], stroke(0.5))
            }))?;
        }
        let (origin, _) = plot.get_pixel_range();
        let pixel = |p: &Point| {
            let (x, y) = chart.backend_coord(&at(p));
            (x - origin.start, y - top)
        };
        let places: Vec<Vec<Pixel>> =
            series.iter().map(|line| line.points.iter().map(pixel).collect()).collect();
        for (i, line) in marks::spread(&places, self.px(4.0)).into_iter().enumerate() {
            let style = colour(series, i).filled();
            line.into_iter().try_for_each(|at| marks::draw(&plot, i, at, self.px(4.0), style))?;
        }
        let names = series.iter().enumerate();
        let names = names.map(|(i, line)| (line.name.as_str(), colour(series, i), Some(i)));
        self.legend(&legend, names)
    }

    fn legend<'a, D: DrawingBackend>(
        &self,
        area: &DrawingArea<D, Shift>,
        names: impl Iterator<Item = (&'a str, RGBColor, Option<usize>)>,
    ) -> Drawn<D> {
        let mut top = 16.0;
        for (name, colour, line) in names {
            let y = self.px(top);
            let square = [(self.px(2.0), y), (self.px(14.0), y + self.px(10.0))];
            let middle = (self.px(8.0), y + self.px(5.0));
            match line {
                Some(i) => marks::draw(area, i, middle, self.px(5.0), colour.filled())?,
                None => area.draw(&Rectangle::new(square, colour.filled()))?,
            }
            for line in legend_lines(name) {
                let at = (self.px(20.0), self.px(top - 1.0));
                area.draw(&Text::new(line, at, self.font(11.0)))?;
                top += 14.0;
            }
            top += 6.0;
        }
        Ok(())
    }

    /// Cells from white (0) to blue (1), each with its number.
    fn heat<D: DrawingBackend>(
        &self,
        area: &DrawingArea<D, Shift>,
        cells: HeatCells<'_>,
    ) -> Drawn<D> {
        let HeatCells { x, y, columns, rows, values } = cells;
        let (width, height) = area.dim_in_pixel();
        let (left, below) = (self.px(150.0), self.px(56.0));
        let cell = (
            (width as i32 - left - self.px(12.0)) / columns.len().max(1) as i32,
            (height as i32 - below) / rows.len().max(1) as i32,
        );
        area.draw(&Text::new(
            y.to_owned(),
            (self.px(6.0), height as i32 - below + self.px(6.0)),
            self.font(12.0),
        ))?;
        for (r, row) in values.iter().enumerate() {
            let top = r as i32 * cell.1;
            let name = Text::new(
                rows[r].clone(),
                (self.px(6.0), top + cell.1 / 2 - self.px(6.0)),
                self.font(11.0),
            );
            area.draw(&name)?;
            for (c, value) in row.iter().enumerate() {
                let at = (left + c as i32 * cell.0, top);
                let end = (at.0 + cell.0 - self.px(1.0), at.1 + cell.1 - self.px(1.0));
                let Some(value) = value else {
                    area.draw(&Rectangle::new([at, end], BLACK.mix(0.06).filled()))?;
                    continue;
                };
                let share = value.clamp(0.0, 1.0);
                let blend = |from: f64, to: f64| (from + (to - from) * share) as u8;
                let fill = RGBColor(blend(247.0, 8.0), blend(251.0, 81.0), blend(255.0, 156.0));
                area.draw(&Rectangle::new([at, end], fill.filled()))?;
                let ink = if share > 0.55 { WHITE } else { BLACK };
                let text = format!("{:.0}", 100.0 * value);
                let middle = (at.0 + cell.0 / 2 - self.px(9.0), at.1 + cell.1 / 2 - self.px(6.0));
                area.draw(&Text::new(text, middle, self.font(11.0).color(&ink)))?;
            }
        }
        let bottom = rows.len() as i32 * cell.1;
        for (c, column) in columns.iter().enumerate() {
            let at = (left + c as i32 * cell.0 + cell.0 / 2 - self.px(12.0), bottom + self.px(5.0));
            area.draw(&Text::new(column.clone(), at, self.font(11.0)))?;
        }
        let middle = (left + (width as i32 - left) / 2 - self.px(40.0), bottom + self.px(26.0));
        area.draw(&Text::new(x.to_owned(), middle, self.font(12.0)))
    }

    fn stack<D: DrawingBackend>(
        &self,
        area: &DrawingArea<D, Shift>,
        y: &str,
        bars: &[String],
        parts: &[(String, Vec<f64>)],
    ) -> Drawn<D> {
        let (width, _) = area.dim_in_pixel();
        let (plot, legend) = area.split_horizontally(width as i32 - self.px(140.0));
        let total = |bar: usize| parts.iter().map(|(_, values)| values[bar]).sum::<f64>();
        let top = (0..bars.len()).map(total).fold(0.0, f64::max).max(1e-9);
        let mut chart = ChartBuilder::on(&plot)
            .margin(self.px(8.0))
            .x_label_area_size(self.px(96.0))
            .y_label_area_size(self.px(64.0))
            .build_cartesian_2d(0.0..bars.len().max(1) as f64, 0.0..1.08 * top)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .disable_x_axis()
            .y_desc(y)
            .y_label_formatter(&|v| Unit::Seconds.text(*v))
            .label_style(self.font(11.0))
            .axis_desc_style(self.font(12.0))
            .light_line_style(TRANSPARENT)
            .draw()?;
        for bar in 0..bars.len() {
            let (mut base, left) = (0.0, bar as f64);
            for (i, (_, values)) in parts.iter().enumerate() {
                let corners = [(left + 0.15, base), (left + 0.85, base + values[bar])];
                let fill = COLOURS[i % COLOURS.len()].filled();
                chart.draw_series([Rectangle::new(corners, fill)])?;
                base += values[bar];
            }
        }
        let (plot_width, plot_height) = plot.dim_in_pixel();
        let first = self.px(72.0);
        let step = (plot_width as i32 - first - self.px(8.0)) / bars.len().max(1) as i32;
        for (i, bar) in bars.iter().enumerate() {
            // Names of bars are written line by line.
            for (line, word) in bar.split(' ').enumerate() {
                let y = plot_height as i32 - self.px(98.0) + self.px(14.0 * line as f64);
                let at = (first + i as i32 * step + self.px(4.0), y);
                plot.draw(&Text::new(word.to_owned(), at, self.font(10.0)))?;
            }
        }
        self.legend(
            &legend,
            parts
                .iter()
                .enumerate()
                .map(|(i, (name, _))| (name.as_str(), COLOURS[i % COLOURS.len()], None)),
        )
    }
}

impl Axis {
    /// A linear axis that begins at 0 and shows shares.
    pub fn percent(label: &str) -> Self {
        Self { label: label.into(), is_log: false, range: Some(0.0..1.0), unit: Unit::Percent }
    }

    /// A logarithmic axis of tokens.
    pub fn tokens(label: &str) -> Self {
        Self { label: label.into(), is_log: true, range: None, unit: Unit::Tokens }
    }

    /// Coordinates that are labelled: round numbers; on axes of tokens the values where they are
    /// few, else about eight of them.
    fn ticks(&self, range: &Range<f64>, values: impl Iterator<Item = f64>) -> Vec<f64> {
        let mut all: Vec<f64> = values.map(|v| self.coordinate(v)).collect();
        if self.unit == Unit::Percent {
            return (0..=5).map(|i| f64::from(i) / 5.0).collect();
        }
        if self.is_log && self.unit != Unit::Tokens {
            return self.decades(range);
        }
        if !self.is_log {
            let is_whole = all.iter().all(|v| v.fract() == 0.0);
            return round_numbers(range, if is_whole { 1.0 } else { 0.0 });
        }
        all.sort_by(f64::total_cmp);
        all.dedup_by(|a, b| (*a - *b).abs() < 1e-9);
        let step = all.len().div_ceil(8).max(1);
        all.into_iter().step_by(step).collect()
    }

    /// Coordinates of round numbers: 1, 2 and 5 times powers of ten or, where these are more than
    /// eight, the powers alone; none on axes that are linear or count tokens.
    fn decades(&self, range: &Range<f64>) -> Vec<f64> {
        if !self.is_log || self.unit == Unit::Tokens {
            return Vec::new();
        }
        let exponents = || {
            let decade = |coordinate: f64| coordinate.exp2().log10();
            decade(range.start).floor() as i32..=decade(range.end).ceil() as i32
        };
        let all = |times: &'static [f64]| {
            let numbers = exponents().flat_map(|e| times.iter().map(move |t| t * 10f64.powi(e)));
            let places = numbers.map(|number| self.coordinate(number));
            places.filter(|place| range.contains(place)).collect::<Vec<_>>()
        };
        let round = all(&[1.0, 2.0, 5.0]);
        if round.len() > 8 { all(&[1.0]) } else { round }
    }

    /// Where a number is on the axis.
    fn coordinate(&self, x: f64) -> f64 {
        if self.is_log { x.max(1e-12).log2() } else { x }
    }

    /// The number at a place, as text.
    fn text(&self, coordinate: f64) -> String {
        self.unit.text(if self.is_log { coordinate.exp2() } else { coordinate })
    }

    /// The range that shows all values and, where none is negative and equal distances are equal
    /// differences, 0: a length then shows how much, and not only how much more.
    fn place_from_zero(&self, values: impl Iterator<Item = f64>) -> Range<f64> {
        let values: Vec<f64> = values.filter(|v| v.is_finite()).collect();
        let high = values.iter().copied().fold(0.0, f64::max);
        let is_positive = values.iter().all(|v| *v >= 0.0);
        if self.is_log || self.range.is_some() || !is_positive || high == 0.0 {
            return self.place(values.into_iter());
        }
        // What lies at 0 is not cut in half.
        -0.02 * high..1.06 * high
    }

    /// The range of coordinates that shows all values.
    fn place(&self, values: impl Iterator<Item = f64>) -> Range<f64> {
        let values: Vec<f64> =
            values.filter(|v| v.is_finite()).map(|v| self.coordinate(v)).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        match &self.range {
            Some(range) => {
                // What lies at an end is not cut in half.
                let room = 0.03 * (range.end - range.start);
                range.start - room..range.end + room
            }
            None if values.is_empty() => 0.0..1.0,
            None => {
                let room = (0.05 * (high - low)).max(0.05);
                low - room..high + room
            }
        }
    }
}

/// Multiples of 1, 2 or 5 times a power of ten, at least `least` apart, about six in `range`.
fn round_numbers(range: &Range<f64>, least: f64) -> Vec<f64> {
    let wanted = ((range.end - range.start) / 6.0).max(1e-12);
    let power = 10f64.powf(wanted.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
    let step = steps.into_iter().find(|step| *step >= 0.999 * wanted).unwrap_or(10.0 * power);
    let step = step.max(least);
    let (first, last) = ((range.start / step).ceil(), (range.end / step).floor());
    (first as i64..=last as i64).map(|n| n as f64 * step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_numbers_of_tokens_have_different_names() {
        let text = |n: u32| Unit::Tokens.text(f64::from(n));
        let names = [0, 96, 1000, 1024, 1536, 2048, 2560, 32_768, 100_000, 1 << 20, 3 << 19];
        assert_eq!(
            names.map(text),
            ["0", "96", "1,000", "1K", "1,536", "2K", "2,560", "32K", "100,000", "1M", "1536K"]
        );
        let axis = Axis::tokens("context");
        assert_eq!(axis.text(axis.coordinate(1536.0)), "1,536");
        assert_eq!(axis.text(axis.coordinate(5.0 * 1024.0)), "5K");
    }

    #[test]
    fn times_are_short() {
        let text = |x: f64| Unit::Seconds.text(x);
        assert_eq!(text(0.015_625), "15.6 ms");
        assert_eq!(text(0.002), "2 ms");
        assert_eq!(text(0.000_488), "488 µs");
        assert_eq!(text(0.25), "250 ms");
        assert_eq!(text(3.0), "3.0 s");
    }

    #[test]
    fn logarithmic_axes_are_marked_at_round_numbers() {
        let axis = Axis { label: "step".into(), is_log: true, range: None, unit: Unit::Seconds };
        let marks = |low: f64, high: f64| {
            let places = axis.decades(&(low.log2()..high.log2()));
            places.into_iter().map(|place| axis.text(place)).collect::<Vec<_>>()
        };
        assert_eq!(marks(0.0015, 0.06), ["2 ms", "5 ms", "10 ms", "20 ms", "50 ms"]);
        assert_eq!(marks(0.000_09, 0.13), ["100 µs", "1 ms", "10 ms", "100 ms"]);
        assert!(Axis::tokens("context").decades(&(10.0..20.0)).is_empty());
        assert!(Axis::percent("share").decades(&(0.0..1.0)).is_empty());
    }

    #[test]
    fn linear_axes_begin_at_zero_and_are_marked_at_round_numbers() {
        let axis =
            Axis { label: "perplexity".into(), is_log: false, range: None, unit: Unit::Plain };
        let marks = |values: &[f64]| {
            let range = axis.place_from_zero(values.iter().copied());
            let places = axis.ticks(&range, values.iter().copied());
            places.into_iter().map(|place| axis.text(place)).collect::<Vec<_>>()
        };
        assert_eq!(marks(&[29.86, 30.91, 30.1]), ["0", "10", "20", "30"]);
        assert_eq!(marks(&[0.11, 0.27]), ["0", "0.05", "0.1", "0.15", "0.2", "0.25"]);
        assert_eq!(marks(&[0.0, 3.0, 4.0]), ["0", "1", "2", "3", "4"]);
        assert_eq!(marks(&[-1.5, 1.5]), ["-1", "0", "1"]);
        assert_eq!(round_numbers(&(0.0..31.0), 1.0), [0.0, 10.0, 20.0, 30.0]);
    }

    #[test]
    fn long_names_are_broken_before_options_and_lose_nothing() {
        let name = "ktransformers:block-size=16:head-select=separate:representative=quest B=512";
        let lines = legend_lines(name);
        assert_eq!(lines.concat(), name);
        assert!(lines.len() > 2 && lines.iter().all(|line| line.len() <= 30), "{lines:?}");
        assert_eq!(legend_lines("full"), ["full"]);
    }
}
