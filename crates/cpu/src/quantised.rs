//! Linear layers and lookups with quantised weights: cut into runs of tiles.

use longview_core::quant::{TILE_ROWS, UNIT};
use longview_ops::Activations;

use crate::kernels::matvec::{MAX_ROWS, Matvec, pack_rows, packed_len};
use crate::kernels::quant::{QuantTiles, RoundRow, Rounded, Rounding};
use crate::problem::Problem;
use crate::queue::Queue;
use crate::supported_isa::SupportedIsa;
use crate::team::{Cost, Pieces, Shared, Team};
use crate::weight::TiledWeight;

/// Least and most bytes of tiles in an item, as for weights that are read in place.
const ITEM_BYTES: [usize; 2] = [16 << 10, 256 << 10];

/// Items that keep a machine busy.
const ENOUGH_ITEMS: usize = 32;

/// Rows whose rounded activations are made at a time: 1024 rows of 4096 are 4 MiB.
const ROWS: usize = 1024;

/// `out = x W^T (+ bias) (+ out)` of a problem whose sizes are not 0.
pub(crate) fn linear(queue: &mut Queue, p: &Problem<'_>, weight: &TiledWeight, out: &mut [f32]) {
    let groups = p.x.chunks(ROWS * p.n_in).zip(out.chunks_mut(ROWS * p.n_out));
    for (x, out) in groups {
        let p = Problem { x, ..*p };
        match weight.activations {
            Activations::Int8 => rounded(queue, &p, weight, out),
            Activations::F32 => widened(queue, &p, weight, out),
        }
    }
}

/// Tiles of an item.
fn tiles_of_item(weight: &TiledWeight) -> usize {
    let tile = weight.tiles.tile_bytes();
    let wanted = weight.tiles.count() * tile / ENOUGH_ITEMS;
    (wanted.clamp(ITEM_BYTES[0], ITEM_BYTES[1]) / tile).max(1)
}

fn rounded(queue: &mut Queue, p: &Problem<'_>, weight: &TiledWeight, out: &mut [f32]) {
    let isa = queue.team.isa();
    let rounding = Rounding::of(weight.tiles.ty, isa.is_biased());
    let scratch = queue.shared.floats(rounding.lens(p.x.len() / p.n_in, p.n_in));
    let x = round_rows(&mut queue.team, rounding, p, scratch);
    let work = TiledWork::new(p, weight, x);
    let out = Shared::new(out);
    queue.team.for_each(work.n_items(), work.cost(), |_, i| work.item(isa, out, i));
}

/// Rounds the rows of a problem into three arrays that are as long as [`Rounding::lens`] says.
pub(crate) fn round_rows<'a>(
    team: &mut Team,
    rounding: Rounding,
    p: &Problem<'_>,
    [codes, scales, sums]: [&'a mut [f32]; 3],
) -> Rounded<'a> {
    let (k, isa) = (p.n_in, team.isa());
    let n_rows = p.x.len() / k;
    let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
    let sums: &mut [u32] = bytemuck::cast_slice_mut(sums);
    let n_sums = sums.len() / n_rows;
    let pieces = (Pieces::of(&mut *codes, k), Pieces::of(&mut *scales, k / UNIT));
    let cost = Cost::bytes(p.x.len() * 8);
    let sums_of = Pieces::of(&mut *sums, n_sums);
    team.for_chunks3(pieces.0, pieces.1, sums_of, cost, |_, r, codes, scales, sums| {
        let x = &p.x[r * k..(r + 1) * k];
        isa.run(RoundRow { rounding, x, codes, scales, sums });
    });
    Rounded { codes, scales, sums }
}

/// A product with rounded rows, cut into runs of tiles.
#[derive(Clone, Copy)]
pub(crate) struct TiledWork<'a> {
    weight: &'a TiledWeight,
    x: Rounded<'a>,
    n_rows: usize,
    bias: Option<&'a [f32]>,
    add: bool,
    /// Tiles of an item.
    step: usize,
}

impl<'a> TiledWork<'a> {
    pub(crate) fn new(p: &Problem<'a>, weight: &'a TiledWeight, x: Rounded<'a>) -> Self {
        let (n_rows, step) = (p.x.len() / p.n_in, tiles_of_item(weight));
        Self { weight, x, n_rows, bias: p.bias, add: p.add, step }
    }

    pub(crate) fn n_items(&self) -> usize {
        self.weight.tiles.count().div_ceil(self.step)
    }

    pub(crate) fn cost(&self) -> Cost {
        Cost::bytes(self.weight.bytes().len() * self.n_rows.div_ceil(4))
    }

    /// Item `i` of `out`, `[n_rows, n_out]`.
    pub(crate) fn item(&self, isa: SupportedIsa, out: Shared<'_, f32>, i: usize) {
        let Self { weight, x, n_rows, bias, add, step } = *self;
        let (tiles, bytes) = (weight.tiles, weight.bytes());
        let end = (i + 1) * step * tiles.tile_bytes();
        let bytes = &bytes[i * step * tiles.tile_bytes()..end.min(bytes.len())];
        isa.run_bytes(QuantTiles { tiles, bytes, first: i * step, x, n_rows, bias, add, out });
    }
}

/// With activations as they are: weights become f32, a tile at a time.
fn widened(queue: &mut Queue, p: &Problem<'_>, weight: &TiledWeight, out: &mut [f32]) {
    let &Problem { x, n_in: k, n_out, bias, add } = p;
    let isa = queue.team.isa();
    let n_rows = x.len() / k;
    let group = MAX_ROWS * k;
    let packed_group = packed_len(MAX_ROWS, k);
    let [packed] = queue.shared.floats([n_rows.div_ceil(MAX_ROWS) * packed_group]);
    for (x, packed) in x.chunks(group).zip(packed.chunks_mut(packed_group)) {
        match x.len() / k {
            1 => packed[..k].copy_from_slice(x),
            n => pack_rows(x, k, &mut packed[..packed_len(n, k)]),
        }
    }
    let (packed, out) = (&*packed, Shared::new(out));
    let cost = Cost::flop(2 * n_out * k * (n_rows + 1));
    queue.team.for_each(weight.tiles.count(), cost, |scratch, i| {
        let [wide] = scratch.floats([TILE_ROWS * k]);
        let n = TILE_ROWS.min(n_out - i * TILE_ROWS);
        for r in 0..n {
            weight.row(i * TILE_ROWS + r, &mut wide[r * k..(r + 1) * k]);
        }
        for (g, packed) in packed.chunks(packed_group).enumerate() {
            let n_rows = MAX_ROWS.min(n_rows - g * MAX_ROWS);
            isa.run(Matvec {
                weights: &wide[..n * k],
                x: &packed[..packed_len(n_rows, k)],
                n_rows,
                k,
                bias,
                add,
                out: out.from(g * MAX_ROWS * n_out),
                n_out,
                first: i * TILE_ROWS,
            });
        }
    });
}

#[cfg(test)]
mod tests {
    use longview_core::quant::QuantType;
    use longview_core::{HostBytes, SplitMix64};
    use longview_ops::QuantSource;
    use longview_ops::corpus::random_blocks;

    use super::*;
    use crate::isa::Isa;
    use crate::scratch::Scratch;
    use crate::supported_isa::SupportedIsa;
    use crate::team::Team;
    use crate::weight::{CpuWeight, Matrix};

    fn product(isa: SupportedIsa, ty: QuantType) -> Vec<u32> {
        let (n_rows, n_cols, rng) = (40, 2 * ty.block_len(), &mut SplitMix64::new(5));
        let blocks = random_blocks(ty, n_rows * n_cols / ty.block_len(), 0.1, rng);
        let (name, blocks) = ("w".into(), HostBytes::from_vec(blocks));
        let activations = Activations::Int8;
        let source = QuantSource { name, ty, n_rows, n_cols, blocks, activations };
        let mut queue = Queue { team: Team::alone(isa), shared: Scratch::default() };
        let weight = CpuWeight::load_quantised(source, &mut queue.team).unwrap();
        let Matrix::Tiled(weight) = weight.matrix() else { panic!("tiles") };
        let x: Vec<f32> = (0..9 * n_cols).map(|_| rng.next_normal()).collect();
        let mut out = vec![0.0; 9 * n_rows];
        let p = Problem { x: &x, n_in: n_cols, n_out: n_rows, bias: None, add: false };
        linear(&mut queue, &p, weight, &mut out);
        out.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn dot_products_of_one_instruction_give_the_same_bits_as_of_three() {
        let Ok(isa) = SupportedIsa::choose(Some(Isa::Avx512)) else { return };
        for ty in QuantType::ALL {
            assert_eq!(product(isa, ty), product(isa.without_vnni(), ty), "{ty}");
        }
    }
}
