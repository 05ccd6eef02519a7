//! Linear layers and lookups with quantised weights: cut into runs of tiles.

use longview_core::quant::UNIT;

use crate::kernels::quant::{Outputs, QuantTiles, RoundRow, Rounding, Rows};
use crate::kernels::words::{self, Blocks, RoundToWords, WordTiles};
use crate::problem::Problem;
use crate::queue::Queue;
use crate::scratch::Scratch;
use crate::supported_isa::SupportedIsa;
use crate::team::{Cost, Pieces, Shared, Team};
use crate::weight::TiledWeight;

/// Least and most bytes of tiles in an item, as for weights that are read in place.
const ITEM_BYTES: [usize; 2] = [16 << 10, 256 << 10];

/// Items that keep a machine busy.
const ENOUGH_ITEMS: usize = 32;

/// Least tiles of an item of words, where there are enough of them, and most: their sums wait in
/// scratch.
const TILES_OF_WORDS: [usize; 2] = [8, 16];

/// Rows whose rounded activations are made at a time: 1024 rows of 4096 are 4 MiB.
const ROWS: usize = 1024;

/// `out = x W^T (+ bias) (+ out)` of a problem whose sizes are not 0.
pub(crate) fn linear(queue: &mut Queue, p: &Problem<'_>, weight: &TiledWeight, out: &mut [f32]) {
    let groups = p.x.chunks(ROWS * p.n_in).zip(out.chunks_mut(ROWS * p.n_out));
    for (x, out) in groups {
        let p = Problem { x, ..*p };
        let isa = queue.team.isa();
        let n_rows = x.len() / p.n_in;
        let out = Shared::new(out);
        let in_words = isa.words_from().is_some_and(|least| n_rows >= least);
        let rounding = weight.rounding(isa).filter(|rounding| rounding.fills_words());
        match rounding.filter(|_| in_words) {
            Some(rounding) => {
                let scratch = queue.shared.floats(Blocks::of(n_rows, p.n_in).lens());
                let x = round_to_words(&mut queue.team, rounding, &p, scratch);
                let work = TiledWork::of_words(&p, weight, x);
                let item = |own: &mut Scratch, i| work.words(isa, out, own, i);
                queue.team.for_each(work.n_items(), work.cost(), item);
            }
            None => {
                let scratch = queue.shared.floats(scratch_lens(isa, weight, n_rows));
                let x = rows_for(&mut queue.team, weight, &p, scratch);
                let work = TiledWork::new(&p, weight, x);
                queue.team.for_each(work.n_items(), work.cost(), |_, i| work.item(isa, out, i));
            }
        }
    }
}

/// Tiles of an item.
fn tiles_of_item(weight: &TiledWeight) -> usize {
    let tile = weight.tiles.tile_bytes();
    let wanted = weight.tiles.count() * tile / ENOUGH_ITEMS;
    (wanted.clamp(ITEM_BYTES[0], ITEM_BYTES[1]) / tile).max(1)
}

/// Lengths of the three arrays that [`rows_for`] takes for `n_rows` rows.
pub(crate) fn scratch_lens(isa: SupportedIsa, weight: &TiledWeight, n_rows: usize) -> [usize; 3] {
    let rounding = weight.rounding(isa);
    rounding.map_or([0; 3], |rounding| rounding.lens(n_rows, weight.tiles.n_cols))
}

/// The rows of a problem as `weight` takes them: rounded into scratch, or as they are.
pub(crate) fn rows_for<'a>(
    team: &mut Team,
    weight: &TiledWeight,
    p: &Problem<'a>,
    scratch: [&'a mut [f32]; 3],
) -> Rows<'a> {
    match weight.rounding(team.isa()) {
        Some(rounding) => round_rows(team, rounding, p, scratch),
        None => Rows { floats: p.x, ..Rows::default() },
    }
}

fn round_rows<'a>(
    team: &mut Team,
    rounding: Rounding,
    p: &Problem<'_>,
    [codes, scales, sums]: [&'a mut [f32]; 3],
) -> Rows<'a> {
    let (k, isa) = (p.n_in, team.isa());
    let n_rows = p.x.len() / k;
    let codes: &mut [i8] = bytemuck::cast_slice_mut(codes);
    let sums: &mut [u32] = bytemuck::cast_slice_mut(sums);
    let (planes, n_sums) = (codes.len() / p.x.len(), sums.len() / n_rows);
    let pieces = (Pieces::of(&mut *codes, k * planes), Pieces::of(&mut *scales, k / UNIT));
    let cost = Cost::bytes(p.x.len() * 8);
    let sums_of = Pieces::of(&mut *sums, n_sums);
    team.for_chunks3(pieces.0, pieces.1, sums_of, cost, |_, r, codes, scales, sums| {
        let x = &p.x[r * k..(r + 1) * k];
        isa.run(RoundRow { rounding, x, codes, scales, sums });
    });
    Rows { planes, codes, scales, sums, ..Rows::default() }
}

/// The same as words of 16 bits, which take the place of two planes.
fn round_to_words<'a>(
    team: &mut Team,
    rounding: Rounding,
    p: &Problem<'_>,
    [words, scales, sums]: [&'a mut [f32]; 3],
) -> Rows<'a> {
    let (k, isa) = (p.n_in, team.isa());
    let n_rows = p.x.len() / k;
    let words: &mut [i16] = bytemuck::cast_slice_mut(words);
    let blocks = Blocks::of(n_rows, k);
    let to = (Shared::new(&mut *words), Shared::new(&mut *scales), Shared::new(&mut *sums));
    team.for_each(n_rows, Cost::bytes(p.x.len() * 8), |_, r| {
        let x = &p.x[r * k..(r + 1) * k];
        let (words, scales, sums) = to;
        isa.run(RoundToWords { rounding, x, r, blocks, words, scales, sums });
    });
    Rows { words, scales, sums_with_min: sums, ..Rows::default() }
}

/// A product with rows, cut into runs of tiles.
#[derive(Clone, Copy)]
pub(crate) struct TiledWork<'a> {
    weight: &'a TiledWeight,
    x: Rows<'a>,
    n_rows: usize,
    bias: Option<&'a [f32]>,
    add: bool,
    /// Tiles of an item.
    step: usize,
}

impl<'a> TiledWork<'a> {
    pub(crate) fn new(p: &Problem<'a>, weight: &'a TiledWeight, x: Rows<'a>) -> Self {
        let (n_rows, step) = (p.x.len() / p.n_in, tiles_of_item(weight));
        Self { weight, x, n_rows, bias: p.bias, add: p.add, step }
    }

    /// With rows that are words: a block of them meets several tiles before the next.
    fn of_words(p: &Problem<'a>, weight: &'a TiledWeight, x: Rows<'a>) -> Self {
        let of = Self::new(p, weight, x);
        let [least, most] = TILES_OF_WORDS;
        let least = (weight.tiles.count() / ENOUGH_ITEMS).min(least);
        Self { step: of.step.clamp(least, most), ..of }
    }

    pub(crate) fn n_items(&self) -> usize {
        self.weight.tiles.count().div_ceil(self.step)
    }

    pub(crate) fn cost(&self) -> Cost {
        Cost::bytes(self.weight.bytes().len() * self.n_rows.div_ceil(4))
    }

    /// Item `i` of `out`, `[n_rows, n_out]`.
    pub(crate) fn item(&self, isa: SupportedIsa, out: Shared<'_, f32>, i: usize) {
        isa.run_bytes(self.tiles(out, i));
    }

    /// The same where rows are words.
    fn words(&self, isa: SupportedIsa, out: Shared<'_, f32>, scratch: &mut Scratch, i: usize) {
        let of = self.tiles(out, i);
        let [words, scales, waiting] = scratch.floats(words::scratch_lens(self.n_rows, self.step));
        let words = bytemuck::cast_slice_mut(words);
        isa.run_words(WordTiles { of, words, scales, waiting });
    }

    fn tiles<'o>(&self, out: Shared<'o, f32>, i: usize) -> QuantTiles<'o>
    where
        'a: 'o,
    {
        let Self { weight, x, n_rows, bias, add, step } = *self;
        let (tiles, all) = (weight.tiles, weight.bytes());
        let len = step * tiles.tile_bytes();
        let bytes = &all[i * len..all.len().min((i + 1) * len)];
        let outputs = Outputs { bias, add, out, n_out: tiles.n_rows };
        QuantTiles { tiles, bytes, first: i * step, x, n_rows, outputs }
    }
}

#[cfg(test)]
mod tests {
    use longview_core::quant::QuantType;
    use longview_core::{HostBytes, SplitMix64};
    use longview_ops::corpus::random_blocks;
    use longview_ops::{Activations, QuantSource};

    use super::*;
    use crate::isa::Isa;
    use crate::scratch::Scratch;
    use crate::supported_isa::SupportedIsa;
    use crate::team::Team;
    use crate::weight::{CpuWeight, Matrix};

    /// Rows that are no multiple of the rows of any kernel.
    const FEW: usize = 11;

    fn product(
        isa: SupportedIsa,
        ty: QuantType,
        activations: Activations,
        n_x: usize,
        n_cols: usize,
    ) -> Vec<u32> {
        let (n_rows, rng) = (40, &mut SplitMix64::new(5));
        let blocks = random_blocks(ty, n_rows * n_cols / ty.block_len(), 0.1, rng);
        let (name, blocks) = ("w".into(), HostBytes::from_vec(blocks));
        let source = QuantSource { name, ty, n_rows, n_cols, blocks, activations };
        let mut queue = Queue { team: Team::alone(isa), shared: Scratch::default() };
        let weight = CpuWeight::load_quantised(source, &mut queue.team).unwrap();
        let Matrix::Tiled(weight) = weight.matrix() else { panic!("tiles") };
        let x: Vec<f32> = (0..n_x * n_cols).map(|_| rng.next_normal()).collect();
        let mut out = vec![0.0; n_x * n_rows];
        let p = Problem { x: &x, n_in: n_cols, n_out: n_rows, bias: None, add: false };
        linear(&mut queue, &p, weight, &mut out);
        out.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn dot_products_of_one_instruction_give_the_same_bits_as_of_three() {
        let best = SupportedIsa::choose(Some(Isa::best())).unwrap();
        for ty in QuantType::ALL {
            for kind in [Activations::Int8, Activations::Int16] {
                let ways = best.with_each_of_byte_products();
                let first = product(ways[0], ty, kind, FEW, 2 * ty.block_len());
                for isa in &ways[1..] {
                    let other = product(*isa, ty, kind, FEW, 2 * ty.block_len());
                    assert_eq!(other, first, "{ty}, {kind:?}, {isa:?}");
                }
            }
        }
    }

    #[test]
    fn words_give_the_same_bits_as_planes_of_bytes() {
        let mut all = vec![SupportedIsa::choose(Some(Isa::Portable)).unwrap()];
        for isa in [Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| isa.is_available()) {
            all.extend(SupportedIsa::choose(Some(isa)).unwrap().with_each_of_byte_products());
        }
        for isa in all {
            for ty in QuantType::ALL {
                // Less than what is widened at a time, and two and a half times as much; and more
                // rows than meet all tiles together, of which the last are one beyond a kernel's.
                for (n_x, n_cols) in [(FEW, 256), (FEW, 1280), (269, 1280)] {
                    let product = |isa| product(isa, ty, Activations::Int16, n_x, n_cols);
                    let bytes = product(isa.with_words_from(None));
                    let words = product(isa.with_words_from(Some(1)));
                    assert!(words == bytes, "{ty}, {isa}, {n_x} rows of {n_cols} columns");
                }
            }
        }
    }
}
