//! Launches `attend_blocks.wgsl`.

use longview_ops::{AttendBlocks, Op, OpResult};

use crate::attention::{check_width, kv_defines, kv_row_bytes};
use crate::backend::WgpuBackend;
use crate::launch::Launch;
use crate::ops::attend_chunk::tile_sizes;

pub(crate) fn run(backend: &WgpuBackend, d: AttendBlocks<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let (p, attend) = (d.p, d.p.attend);
    check_width(Op::AttendBlocks, attend.head_dim)?;
    let sizes = tile_sizes(attend.head_dim);
    let (n_tiles, n_heads) = (p.tiles.n_tiles(), attend.n_kv_heads as usize);
    // A chunk may be shorter than a tile.
    let tokens = p.tiles.tile.min(p.tiles.q_len) as usize;
    let group = (attend.n_q_heads / attend.n_kv_heads) as usize;
    let n_parts = (tokens * group).div_ceil(sizes.queries as usize);
    let query_vector = attend.head_dim.is_multiple_of(8) && d.q.offset.is_multiple_of(4);
    let bytes = p.n_rows as usize * n_heads * kv_row_bytes(&d.kv, attend.head_dim);
    let launch = Launch::new(backend, "attend_blocks", "attend_blocks");
    kv_defines(launch, &d.kv, attend.head_dim)
        .define("QUERY_VECTOR", query_vector.into())
        .define("QUERY_TILE", sizes.queries)
        .define("KEY_TILE", sizes.keys)
        .define("SLICE", sizes.slice)
        .define("KEPT", p.is_kept().into())
        .params(&p)
        .params(&f32::NEG_INFINITY)
        .params(&(p.weight() as f32).ln())
        .u32(n_tiles)
        .u32(n_parts)
        .u32(d.kv.head_stride)
        .view(&d.q)
        .reads(&d.kv.buffer.raw)
        .u32(d.kv.offset)
        .view(&d.shares)
        .view_mut(&d.out)
        .view_mut(&d.lse)
        .counts(bytes as u64)
        .run(n_tiles * n_parts * n_heads)
}
