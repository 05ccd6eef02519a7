//! Launches `column_mass.wgsl`.

use longview_ops::{ColumnMass, DeviceBuffer, Op, OpResult};

use crate::attention::{check_width, kv_defines};
use crate::backend::WgpuBackend;
use crate::launch::Launch;

/// Invocations of a workgroup, each with one entry of a list or more.
const GROUP: usize = 64;
/// Query heads of a workgroup, at most.
const MOST_HEADS: u32 = 8;
/// Fewer tokens than this are taken one by one, with all heads of the group side by side: there are
/// not enough of them to fill a tile with one head's.
const FEW_TOKENS: u32 = 4;

/// What a workgroup takes at a time.
struct Tile {
    heads: u32,
    tokens: u32,
    keys: u32,
}

impl Tile {
    fn of(q_len: u32, group: u32, head_dim: u32) -> Self {
        if q_len < FEW_TOKENS {
            let heads = group.div_ceil(group.div_ceil(MOST_HEADS));
            return Self { heads, tokens: 1, keys: 1 };
        }
        // Tiles of wide queries would not fit into shared memory.
        Self { heads: 1, tokens: if head_dim > 128 { 8 } else { 16 }, keys: 2 }
    }
}

/// What rows a query sees begins above its own number plus this; no difference of a row and a query
/// is as low as the lowest number.
fn first_seen(diagonal: i32, window: u32) -> i32 {
    match window {
        0 => i32::MIN,
        window => diagonal.saturating_sub_unsigned(window),
    }
}

pub(crate) fn run(backend: &WgpuBackend, d: ColumnMass<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    check_width(Op::ColumnMass, p.head_dim)?;
    if p.q_len == 0 {
        return Ok(());
    }
    let group = p.n_q_heads / p.n_kv_heads;
    let tile = Tile::of(p.q_len, group, p.head_dim);
    let (n_rows, n_heads) = (p.list_stride as usize, p.n_kv_heads as usize);
    let grid =
        [n_rows.div_ceil(GROUP * tile.keys as usize), n_heads, group.div_ceil(tile.heads) as usize];
    let key_bytes = p.head_dim as usize * d.kv.buffer.dtype().size();
    kv_defines(Launch::new(backend, "column_mass", "column_mass"), &d.kv, p.head_dim)
        .define("HEADS", tile.heads)
        .define("TOKENS", tile.tokens)
        .define("KEYS", tile.keys)
        .params(&p)
        .params(&first_seen(p.diagonal, p.window))
        .u32(d.kv.head_stride)
        .view(&d.q)
        .view(&d.lse)
        .reads(&d.kv.buffer.raw)
        .u32(d.kv.offset)
        .view(&d.rows)
        .view(&d.n_rows)
        .view_mut(&d.out)
        .counts((n_heads * n_rows * key_bytes) as u64)
        .run_grid(grid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_tile_is_larger_than_shared_memory_or_leaves_heads_out() {
        for (q_len, head_dim) in [(1, 64), (3, 256), (4, 128), (32, 129), (128, 256)] {
            for group in 1..=33 {
                let tile = Tile::of(q_len, group, head_dim);
                assert!(tile.heads * tile.tokens * head_dim <= 2048, "{group}, {head_dim}");
                assert!(tile.heads <= MOST_HEADS.min(group), "{group}");
            }
        }
    }

    #[test]
    fn windows_begin_where_the_contract_says() {
        assert_eq!(first_seen(7, 0), i32::MIN);
        assert_eq!(first_seen(7, 3), 4);
        assert_eq!(first_seen(i32::MAX, 3), i32::MAX - 3);
        assert_eq!(first_seen(-5, u32::MAX), i32::MIN);
    }
}
