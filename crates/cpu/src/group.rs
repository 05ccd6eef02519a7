//! Linear layers of the same few rows as one run of items: one wait for all threads where single
//! calls have one for each layer.

use longview_ops::{LinearGroup, Op, OpResult, ViewMut};

use crate::backend::CpuBackend;
use crate::kernels::matvec::MAX_ROWS;
use crate::ops::matvec::{PlainWork, checked};
use crate::problem::Problem;
use crate::quantised::{TiledWork, rows_for, scratch_lens};
use crate::queue::Queue;
use crate::supported_isa::SupportedIsa;
use crate::team::{Cost, Shared};
use crate::views::slice_mut;
use crate::weight::Matrix;

/// Most layers: q, k and v.
const MAX_LAYERS: usize = 3;

/// Whether [`run`] can do it.
pub(crate) fn fits(d: &LinearGroup<'_, '_, CpuBackend>) -> bool {
    let is_small = (1..=MAX_ROWS).contains(&(d.n_rows as usize)) && d.n_in > 0;
    let layers = &*d.layers;
    is_small && layers.len() <= MAX_LAYERS && layers.iter().all(|layer| layer.n_out > 0)
}

/// What is left to do of a layer.
#[derive(Clone, Copy)]
enum Work<'a> {
    Plain(PlainWork<'a>),
    Tiled(TiledWork<'a>),
}

impl Work<'_> {
    fn n_items(&self) -> usize {
        match self {
            Work::Plain(work) => work.n_items(),
            Work::Tiled(work) => work.n_items(),
        }
    }

    fn cost(&self) -> Cost {
        match self {
            Work::Plain(work) => work.cost(),
            Work::Tiled(work) => work.cost(),
        }
    }

    fn item(&self, isa: SupportedIsa, out: Shared<'_, f32>, i: usize) {
        match self {
            Work::Plain(work) => work.item(isa, out, i),
            Work::Tiled(work) => work.item(isa, out, i),
        }
    }
}

/// Does all layers, of which [`fits`] says that it can.
pub(crate) fn run(queue: &mut Queue, mut d: LinearGroup<'_, '_, CpuBackend>) -> OpResult<()> {
    let isa = queue.team.isa();
    for i in 0..d.layers.len() {
        checked(&d.layer(i), Op::Matvec)?;
    }
    let n_rows = d.n_rows as usize;
    let LinearGroup { n_in, x, layers, .. } = d;
    let (n_in, x) = (n_in as usize, crate::views::slice(&x));
    let mut lens = [[0; 3]; MAX_LAYERS];
    for (lens, layer) in lens.iter_mut().zip(&*layers) {
        *lens = match layer.weight.matrix() {
            Matrix::Plain(_) => [PlainWork::scratch_len(isa, layer.weight, n_rows, n_in), 0, 0],
            Matrix::Tiled(weight) => scratch_lens(isa, weight, n_rows),
        };
    }
    let [l0, l1, l2] = lens;
    let all = [l0[0], l0[1], l0[2], l1[0], l1[1], l1[2], l2[0], l2[1], l2[2]];
    let [a, b, c, d, e, f, g, h, i] = queue.shared.floats(all);
    let scratch = [[a, b, c], [d, e, f], [g, h, i]];
    let mut work: [Option<(Work<'_>, Shared<'_, f32>)>; MAX_LAYERS] = [None; MAX_LAYERS];
    // The rows as they were rounded for a layer before: mostly all weights are of one type.
    let mut rounded = None;
    for ((work, layer), scratch) in work.iter_mut().zip(layers).zip(scratch) {
        let n_out = layer.n_out as usize;
        let bias = layer.bias.map(|bias| bias.elements());
        let p = Problem { x, n_in, n_out, bias, add: false };
        let done = match layer.weight.matrix() {
            Matrix::Plain(_) => {
                let [scratch, ..] = scratch;
                Work::Plain(PlainWork::new(isa, &p, layer.weight, scratch))
            }
            Matrix::Tiled(weight) => {
                let rounding = weight.rounding(isa);
                let x = match rounded {
                    Some((of, x)) if of == rounding => x,
                    _ => rows_for(&mut queue.team, weight, &p, scratch),
                };
                rounded = Some((rounding, x));
                Work::Tiled(TiledWork::new(&p, weight, x))
            }
        };
        let ViewMut { buffer, offset, len } = &mut layer.out;
        let out = slice_mut(ViewMut { buffer, offset: *offset, len: *len });
        *work = Some((done, Shared::new(out)));
    }
    let cost = work.iter().flatten().map(|(work, _)| work.cost()).sum();
    let n_items = work.iter().flatten().map(|(work, _)| work.n_items()).sum();
    queue.team.for_each(n_items, cost, |_, i| {
        let mut i = i;
        for (work, out) in work.iter().flatten() {
            if i < work.n_items() {
                return work.item(isa, *out, i);
            }
            i -= work.n_items();
        }
    });
    Ok(())
}
