//! Nearest centroid of each point: a matrix product that keeps only the best of each row.

use longview_ops::{KmeansAssign, OpResult};

use crate::backend::CpuBackend;
use crate::kernels::nearest::{Nearest, PackCentroids};
use crate::queue::Queue;
use crate::team::{Cost, Pieces};
use crate::views::{slice, slice_mut};

/// Points of an item: a panel of centroids in L1 meets so many.
const BLOCK: usize = 240;

/// Each KV head in turn.
pub(crate) fn run(queue: &mut Queue, d: KmeansAssign<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n, c) = (d.p.n_points as usize, d.p.n_clusters as usize);
    let dh = d.p.head_dim as usize;
    let (points, centroids) = (slice::<f32>(&d.points), slice::<f32>(&d.centroids));
    let (labels, scores) = (slice_mut::<u32>(d.labels), slice_mut::<f32>(d.scores));
    for (head, changed) in slice_mut::<u32>(d.n_changed).iter_mut().enumerate() {
        let head = Head {
            points: &points[head * n * dh..(head + 1) * n * dh],
            centroids: &centroids[head * c * dh..(head + 1) * c * dh],
            labels: &mut labels[head * n..(head + 1) * n],
            scores: &mut scores[head * n..(head + 1) * n],
            dh,
            distance: d.p.distance,
        };
        *changed = head.run(queue);
    }
    Ok(())
}

struct Head<'a> {
    points: &'a [f32],
    centroids: &'a [f32],
    labels: &'a mut [u32],
    scores: &'a mut [f32],
    dh: usize,
    distance: u32,
}

impl Head<'_> {
    fn run(self, queue: &mut Queue) -> u32 {
        let Self { points, centroids, labels, scores, dh, distance } = self;
        let isa = queue.team.isa();
        let (mr, nr, lanes) = (isa.tile_rows(), isa.tile_cols(), isa.lanes());
        let (n, c) = (labels.len(), centroids.len() / dh);
        let size = (dh + 2) * nr;
        let n_items = n.div_ceil(BLOCK);
        let [panels, changed] = queue.shared.floats([c.div_ceil(nr) * size, n_items]);
        let changed: &mut [u32] = bytemuck::cast_slice_mut(changed);
        queue.team.for_chunks(panels, size, Cost::bytes(c * dh * 16), |_, i, panel| {
            let last = ((i + 1) * nr).min(c);
            let centroids = &centroids[i * nr * dh..last * dh];
            isa.run(PackCentroids { centroids, k: dh, panel, distance });
        });
        let (panels, cost) = (&*panels, Cost::flop(2 * n * c * dh));
        queue.team.for_chunks3(
            Pieces::of(labels, BLOCK),
            Pieces::of(scores, BLOCK),
            Pieces::of(&mut *changed, 1),
            cost,
            |scratch, i, labels, scores, changed| {
                let m = labels.len();
                let [strips, best, dots] =
                    scratch.floats([m.next_multiple_of(mr) * dh, m * 2 * lanes, mr * nr]);
                let points = &points[i * BLOCK * dh..][..m * dh];
                changed[0] =
                    isa.run(Nearest { points, k: dh, panels, labels, scores, strips, best, dots });
            },
        );
        changed.iter().sum()
    }
}
