//! Means of the clusters.

use longview_ops::{KmeansUpdate, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::ensure_below;
use crate::kernels::vector::Blend;
use crate::queue::Queue;
use crate::team::{Cost, Pieces};
use crate::views::{slice, slice_mut};

/// Each KV head is one item: sums go to clusters in the points' order, whoever works.
pub(crate) fn run(queue: &mut Queue, d: KmeansUpdate<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n, c) = (d.p.n_points as usize, d.p.n_clusters as usize);
    let dh = d.p.head_dim as usize;
    let (points, labels) = (slice::<f32>(&d.points), slice::<u32>(&d.labels));
    ensure_below(Op::KmeansUpdate, "cluster", labels, c)?;
    let (centroids, counts) = (slice_mut::<f32>(d.centroids), slice_mut::<u32>(d.counts));
    let (isa, cost) = (queue.team.isa(), Cost::bytes(points.len() * 12));
    let (centroids, counts) = (Pieces::of(centroids, c * dh), Pieces::of(counts, c));
    queue.team.for_chunks2(centroids, counts, cost, |scratch, head, centroids, counts| {
        let [sums] = scratch.floats([c * dh]);
        sums.fill(0.0);
        counts.fill(0);
        for i in 0..n {
            let at = head * n + i;
            let label = labels[at] as usize;
            counts[label] += 1;
            let out = &mut sums[label * dh..(label + 1) * dh];
            isa.run(Blend { x: &points[at * dh..(at + 1) * dh], add: 1.0, keep: 1.0, out });
        }
        for (j, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            let (x, out) = (&sums[j * dh..(j + 1) * dh], &mut centroids[j * dh..(j + 1) * dh]);
            for (mean, sum) in out.iter_mut().zip(x) {
                *mean = sum / count as f32;
            }
        }
    });
    Ok(())
}
