//! Launches `matmul.wgsl`, once for each shard of the weight; `quantised` has the other weights.

use longview_core::DType;
use longview_ops::{Linear, Op, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;
use crate::linear::{self, Part, Rows};
use crate::quantised;
use crate::weight::Layout;

/// Tiles of 128 x 128 that keep a large device busy; below, tiles of 64 x 64 spread better.
const ENOUGH_TILES: usize = 128;

pub(crate) fn run(backend: &WgpuBackend, d: Linear<'_, WgpuBackend>) -> OpResult<()> {
    d.check(Op::Matmul)?;
    linear::expect(Op::Matmul, &d)?;
    let plain = match d.weight.layout {
        Layout::Plain(plain) => plain,
        Layout::Tiled(tiled) => return quantised::linear(backend, &d, tiled),
    };
    let rows = Rows { first: 0, n: d.p.n_rows as usize };
    // Words of 4 elements.
    let unit = if plain.dtype == DType::F32 { 4 } else { 2 };
    for shard in &d.weight.shards {
        let is_wide = is_wide(rows.n, shard.n_rows);
        let tile = if is_wide { 128 } else { 64 };
        let launch = Launch::new(backend, "matmul", "matmul").define("WIDE", is_wide.into());
        Part { d: &d, plain, rows, shard }.add_to(launch, unit).run_grid([
            shard.n_rows.div_ceil(tile),
            rows.n.div_ceil(tile),
            1,
        ])?;
    }
    Ok(())
}

fn is_wide(n_rows: usize, n_outs: usize) -> bool {
    n_rows.div_ceil(128) * n_outs.div_ceil(128) >= ENOUGH_TILES
}
