//! Marks of lines: a shape for each line, and places at which none hides another.

use plotters::coord::Shift;
use plotters::prelude::*;

/// A pixel.
pub(super) type Pixel = (i32, i32);

/// Draws the mark of the line `i` around `at`.
pub(super) fn draw<D: DrawingBackend>(
    area: &DrawingArea<D, Shift>,
    i: usize,
    at: Pixel,
    radius: i32,
    style: ShapeStyle,
) -> Result<(), DrawingAreaErrorKind<D::ErrorType>> {
    let (x, y) = at;
    let corners = |offsets: &[Pixel]| -> Vec<Pixel> {
        offsets.iter().map(|(dx, dy)| (x + dx * radius, y + dy * radius)).collect()
    };
    let polygon = |offsets: &[Pixel]| Polygon::new(corners(offsets), style);
    match i % 6 {
        0 => area.draw(&Circle::new(at, radius, style)),
        1 => area.draw(&polygon(&[(-1, -1), (1, -1), (1, 1), (-1, 1)])),
        2 => area.draw(&polygon(&[(-1, 1), (0, -1), (1, 1)])),
        3 => area.draw(&polygon(&[(0, -1), (1, 0), (0, 1), (-1, 0)])),
        4 => area.draw(&polygon(&[(-1, -1), (0, 1), (1, -1)])),
        _ => {
            let stroke = style.stroke_width((radius / 2).max(1) as u32);
            area.draw(&PathElement::new(corners(&[(-1, -1), (1, 1)]), stroke))?;
            area.draw(&PathElement::new(corners(&[(-1, 1), (1, -1)]), stroke))
        }
    }
}

/// Where marks are drawn, given the places of each line: those that would lie on one another stand
/// side by side.
pub(super) fn spread(lines: &[Vec<Pixel>], radius: i32) -> Vec<Vec<Pixel>> {
    let is_near = |a: &Pixel, b: &Pixel| (a.0 - b.0).abs() < radius && (a.1 - b.1).abs() < radius;
    let has_near = |line: &[Pixel], at: &Pixel| line.iter().any(|other| is_near(other, at));
    let place = |i: usize, at: &Pixel| {
        let before = lines[..i].iter().filter(|line| has_near(line, at)).count() as i32;
        let behind = lines[i + 1..].iter().filter(|line| has_near(line, at)).count() as i32;
        (at.0 + (before - behind) * radius, at.1)
    };
    let all = lines.iter().enumerate();
    all.map(|(i, line)| line.iter().map(|at| place(i, at)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_at_one_place_stand_side_by_side() {
        let lines = vec![vec![(10, 10), (50, 10)], vec![(10, 11)], vec![(10, 10), (90, 40)]];
        let placed = spread(&lines, 4);
        assert_eq!(placed[0], [(2, 10), (50, 10)]);
        assert_eq!(placed[1], [(10, 11)]);
        assert_eq!(placed[2], [(18, 10), (90, 40)]);
    }

    #[test]
    fn lines_have_shapes_that_differ() {
        let drawn = |i: usize| {
            let mut text = String::new();
            {
                let area = SVGBackend::with_string(&mut text, (40, 40)).into_drawing_area();
                draw(&area, i, (20, 20), 4, BLACK.filled()).unwrap();
            }
            text
        };
        let all: std::collections::BTreeSet<String> = (0..6).map(drawn).collect();
        assert_eq!(all.len(), 6);
        assert_eq!(drawn(6), drawn(0));
    }
}
