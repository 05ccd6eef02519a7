// out[t] = scale * table[ids[t]] for a table of quantised weights in tiles.
//
// An invocation owns 4 columns of one token: it unpacks the codes of its unit for 4 rows and keeps
// those of one. Lookups are few, and one text unpacks everywhere.
//
// The binding holds the rows [first_row, first_row + shard_rows) of the table; each shard writes
// its own tokens. An id that no row has gives zeros, written with the first shard.
//
// Bytes: T D of codes, 4 T D out. Bound: memory.

//# import shared/common
//# import shared/tiles

struct Params {
    n_tokens: u32,
    width: u32,
    scale: f32,
    n_vocab: u32,
    first_row: u32,
    shard_rows: u32,
    // Vectors: of the first tile, from one tile to the next, and from a tile to its scales.
    weight_offset: u32,
    tile_vectors: u32,
    scales_at: u32,
    ids_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> weight: array<vec4<u32>>;
@group(0) @binding(2) var<storage, read> ids: array<u32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn tile_embed(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
//# if TABLE
    fill_table(lane);
    workgroupBarrier();
//# end
    let item = flat_index(workgroup, grid) * 64u + lane;
    let per_row = p.width / 4u;
    let token = item / per_row;
    if token >= p.n_tokens {
        return;
    }
    let column = 4u * (item - token * per_row);
    let to = p.out_offset + token * p.width + column;
    let id = ids[p.ids_offset + token];
    if id >= p.n_vocab {
        if p.first_row == 0u {
            write4(to, vec4<f32>(0.0));
        }
        return;
    }
    // Wraps to a large number for the rows of an earlier shard.
    let row = id - p.first_row;
    if row >= p.shard_rows {
        return;
    }
    let unit = column / 32u;
    let quad = row % 16u / 4u;
    let tile = p.weight_offset + row / 16u * p.tile_vectors;
    let codes = unit_codes(tile + unit * UNIT_VECTORS + quad);
    let scales = unit_scales(tile + p.scales_at, unit, quad);
    let word = column % 32u / 4u;
    var own = codes[0];
    for (var i = 1u; i < 8u; i++) {
        own = select(own, codes[i], i == word);
    }
    let lane_of_row = row % 4u;
    let numbers = vec4<f32>(signed_bytes(own[lane_of_row]) - vec4<i32>(CODE_OFFSET));
    var d = scales.d[lane_of_row];
    if HAS_HALVES && word >= 4u {
        d = scales.other[lane_of_row];
    }
    var value = d * numbers;
    if HAS_MIN {
        value += scales.other[lane_of_row];
    }
    write4(to, p.scale * value);
}

fn write4(to: u32, value: vec4<f32>) {
    out[to] = value.x;
    out[to + 1u] = value.y;
    out[to + 2u] = value.z;
    out[to + 3u] = value.w;
}
