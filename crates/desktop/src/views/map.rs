//! The map of the context: one cell for a run of tokens, told apart by colour and by shape.

use eframe::egui::{Color32, Mesh, Pos2, Rect, Role, Sense, Shape, Ui, Vec2, WidgetInfo};

use super::widgets;
use crate::engine::ContextMap;
use crate::strings;
use crate::theme::{self, GAP, Palette};

/// Sizes of cells: the largest of which all fit is taken.
const SIZES: [f32; 6] = [14.0, 12.0, 10.0, 8.0, 6.0, 4.0];
/// Height of the map at most.
const MOST_HEIGHT: f32 = 320.0;
/// In which order kinds tell most, where cells become one.
const WEIGHT: [u8; 7] = [0, 2, 3, 4, 6, 1, 5];

/// Draws the map and says it in words.
pub fn show(ui: &mut Ui, map: &ContextMap, (layer, head): (usize, usize)) {
    let palette = theme::palette(ui.visuals());
    let (size, group) = layout(map.kinds.len(), ui.available_width());
    let cells = grouped(&map.kinds, group);
    let columns = ((ui.available_width() / size).floor() as usize).max(1);
    let rows = cells.len().div_ceil(columns);
    let area = Vec2::new(columns as f32 * size, rows as f32 * size);
    let (rect, response) = ui.allocate_exact_size(area, Sense::hover());
    let summary = strings::map_summary(layer, head, &map.counts, map.cell_tokens * group);
    response.widget_info(|| WidgetInfo::labeled(Role::Image, true, &summary));
    // One mesh: thousands of cells are no thousands of shapes.
    let mut mesh = Mesh::default();
    for (i, kind) in cells.iter().enumerate() {
        let at = Vec2::new((i % columns) as f32 * size, (i / columns) as f32 * size);
        cell(&mut mesh, *kind, rect.min + at, size - 1.0, &palette);
    }
    ui.painter().add(Shape::mesh(mesh));
    ui.add_space(GAP);
    widgets::caption(ui, summary);
}

/// What colours and shapes mean.
pub fn legend(ui: &mut Ui) {
    let palette = theme::palette(ui.visuals());
    ui.add_space(GAP);
    ui.spacing_mut().item_spacing.y = 0.0;
    ui.spacing_mut().interact_size.y = 22.0;
    for kind in [4usize, 3, 6, 1, 2, 5, 0] {
        ui.horizontal(|ui| {
            let (rect, _) = ui.allocate_exact_size(Vec2::splat(14.0), Sense::hover());
            let mut mesh = Mesh::default();
            cell(&mut mesh, kind as u8, rect.min, 14.0, &palette);
            ui.painter().add(Shape::mesh(mesh));
            widgets::caption(ui, strings::MAP_KINDS[kind]);
        });
    }
}

/// The size of cells, and how many of the map become one.
fn layout(n: usize, width: f32) -> (f32, usize) {
    let fits = |size: f32, group: usize| {
        let columns = ((width / size).floor() as usize).max(1);
        n.div_ceil(group).div_ceil(columns) as f32 * size <= MOST_HEIGHT
    };
    let largest = SIZES.into_iter().find(|size| fits(*size, 1));
    let least = SIZES[SIZES.len() - 1];
    let group = || (1..).find(|group| fits(least, *group)).unwrap_or(1);
    largest.map_or_else(|| (least, group()), |size| (size, 1))
}

fn grouped(kinds: &[u8], group: usize) -> Vec<u8> {
    let weight = |kind: &&u8| WEIGHT.get(usize::from(**kind)).copied();
    kinds.chunks(group).filter_map(|cell| cell.iter().max_by_key(weight).copied()).collect()
}

/// One cell. Shapes tell kinds apart without colour: a miss is cut, sinks and recent tokens have a
/// bar, what was drawn has a dot, what is still on the device is hollow.
fn cell(mesh: &mut Mesh, kind: u8, at: Pos2, size: f32, palette: &Palette) {
    let color = palette.map.get(usize::from(kind)).copied().unwrap_or(Color32::TRANSPARENT);
    let rect = Rect::from_min_size(at, Vec2::splat(size));
    mesh.add_colored_rect(rect, color);
    let third = size / 3.0;
    let inner = match kind {
        1 => Rect::from_center_size(rect.center(), Vec2::new(third, size)),
        2 => Rect::from_center_size(rect.center(), Vec2::new(size, third)),
        4 => Rect::from_min_size(at, Vec2::splat(size / 2.0)),
        5 => rect.shrink(third / 1.5),
        6 => Rect::from_center_size(rect.center(), Vec2::splat(third)),
        _ => return,
    };
    mesh.add_colored_rect(inner, palette.card);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_shrink_and_then_become_one() {
        assert_eq!(layout(100, 400.0), (14.0, 1));
        let (size, group) = layout(4096, 400.0);
        assert!(group == 1 && size < 8.0, "{size}");
        let (size, group) = layout(100_000, 400.0);
        assert_eq!(size, 4.0);
        assert!(group > 1);
        assert_eq!(grouped(&[0, 5, 4, 3, 0], 2), [5, 4, 0]);
    }
}
