//! Launches `matvec.wgsl`, once for each shard of the weight; `quantised` has the other weights.

use longview_ops::{Linear, Op, OpResult};

use crate::backend::WgpuBackend;
use crate::launch::Launch;
use crate::linear::{self, Part};
use crate::quantised;
use crate::weight::{Layout, VECTOR};

/// Rows of x that one reading of the weight serves.
pub(crate) const MAX_ROWS: usize = 8;
/// Rows of W that a workgroup owns.
const OUTS: usize = 4;
/// Fewer rows of W than this leave a large device idle: then more invocations share a row.
const MANY_OUTS: usize = 4096;

pub(crate) fn run(backend: &WgpuBackend, d: Linear<'_, WgpuBackend>) -> OpResult<()> {
    d.check(Op::Matvec)?;
    linear::expect(Op::Matvec, &d)?;
    let plain = match d.weight.layout {
        Layout::Plain(plain) => plain,
        Layout::Tiled(tiled) => return quantised::linear(backend, &d, tiled),
    };
    let n_rows = d.p.n_rows as usize;
    // More rows than the op is meant for cost one more pass each time, not an error.
    for first in (0..n_rows).step_by(MAX_ROWS) {
        let rows = linear::Rows { first, n: MAX_ROWS.min(n_rows - first) };
        for shard in &d.weight.shards {
            launch(backend, &Part { d: &d, plain, rows, shard })?;
        }
    }
    Ok(())
}

fn launch(backend: &WgpuBackend, part: &Part<'_, '_>) -> OpResult<()> {
    let row_units = part.plain.row_words / VECTOR;
    let rows = part.rows.n.next_power_of_two();
    let launch = Launch::new(backend, "matvec", "matvec")
        .define("ROWS", rows as u32)
        .define("GROUP", group_size(rows, row_units, part.shard.n_rows) as u32);
    part.add_to(launch, VECTOR).run(part.shard.n_rows.div_ceil(OUTS))
}

/// Invocations of a workgroup: one or more units each, few where there are workgroups enough. The
/// sums of `rows` x `GROUP` must fit into 16 KiB.
fn group_size(rows: usize, row_units: usize, n_outs: usize) -> usize {
    let most = if n_outs >= MANY_OUTS {
        64
    } else if rows == 8 {
        128
    } else {
        256
    };
    (row_units / 2).next_power_of_two().clamp(64, most)
}

#[cfg(test)]
mod tests {
    use super::group_size;

    #[test]
    fn groups_fit_into_shared_memory() {
        for rows in [1, 2, 4, 8] {
            for units in [0, 1, 112, 224, 608, 5000] {
                for outs in [1, 896, 4096, 151_936] {
                    let group = group_size(rows, units, outs);
                    assert!((64..=256).contains(&group) && group.is_power_of_two());
                    assert!(rows * group * 16 <= 16384, "{rows} rows, {units} units");
                }
            }
        }
    }
}
