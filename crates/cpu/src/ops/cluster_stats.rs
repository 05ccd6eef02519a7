//! Closeness of points to their centroid, and radii.

use longview_ops::{ClusterStats, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::ensure_below;
use crate::kernels::vector::{Measures, Pair};
use crate::queue::Queue;
use crate::team::{Cost, Pieces};
use crate::views::{slice, slice_mut};

/// Each KV head is one item.
pub(crate) fn run(queue: &mut Queue, d: ClusterStats<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n, c) = (d.p.n_points as usize, d.p.n_clusters as usize);
    let (dh, distance) = (d.p.head_dim as usize, d.p.distance);
    let (points, labels) = (slice::<f32>(&d.points), slice::<u32>(&d.labels));
    let centroids = slice::<f32>(&d.centroids);
    ensure_below(Op::ClusterStats, "cluster", labels, c)?;
    let (closeness, radius) = (slice_mut::<f32>(d.closeness), slice_mut::<f32>(d.radius));
    let (isa, cost) = (queue.team.isa(), Cost::bytes(points.len() * 12));
    queue.team.for_chunks2(
        Pieces::of(radius, c),
        Pieces::of(closeness, n),
        cost,
        |_, head, radius, closeness| {
            radius.fill(0.0);
            for (i, closeness) in closeness.iter_mut().enumerate() {
                let at = head * n + i;
                let label = labels[at] as usize;
                let centre = head * c + label;
                let a = &points[at * dh..(at + 1) * dh];
                let b = &centroids[centre * dh..(centre + 1) * dh];
                let measures = isa.run(Pair { a, b });
                *closeness = score(distance, &measures);
                let distance = measures.distance2.sqrt();
                // Not-a-number stays.
                if distance > radius[label] || distance.is_nan() {
                    radius[label] = distance;
                }
            }
        },
    );
    Ok(())
}

fn score(distance: u32, m: &Measures) -> f32 {
    match distance {
        0 if m.a2 == 0.0 || m.b2 == 0.0 => 0.0,
        0 => m.dot / (m.a2.sqrt() * m.b2.sqrt()),
        1 => -m.distance2.sqrt(),
        _ => m.dot,
    }
}
