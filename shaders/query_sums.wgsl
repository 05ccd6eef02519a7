// out[h, b] += sum of q[t, g] over the tokens t at positions of block b and the query heads g of KV
// head h.
//
// An invocation owns one channel of one sum, and adds what it gets in the order of tokens, then of
// heads, to what is there: so the same tokens in pieces give the same bits. Neighbours read
// neighbouring channels. Blocks without tokens are left alone.
//
// Bytes: 4 T Hq Dh in, 8 Hkv blocks Dh for the sums. Bound: memory.

//# import shared/common

struct Params {
    n_tokens: u32,
    n_q_heads: u32,
    n_kv_heads: u32,
    head_dim: u32,
    q_start: u32,
    q_len: u32,
    position: u32,
    block: u32,
    n_blocks: u32,
    // Blocks with tokens: the first, how many, and the positions from the first token to the end of
    // the first.
    first_block: u32,
    n_touched: u32,
    first_len: u32,
    q_offset: u32,
    out_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(256)
fn query_sums(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let item = flat_index(workgroup, grid) * 256u + lane;
    let head_block = item / p.head_dim;
    let channel = item - head_block * p.head_dim;
    let head = head_block / p.n_touched;
    if head >= p.n_kv_heads {
        return;
    }
    let touched = head_block - head * p.n_touched;
    // Tokens of the block, from the first that counts.
    var begin = 0u;
    var len = p.first_len;
    if touched > 0u {
        begin = p.first_len + (touched - 1u) * p.block;
        len = p.block;
    }
    len = min(len, p.q_len - begin);
    let group = p.n_q_heads / p.n_kv_heads;
    let first = (p.q_start + begin) * p.n_q_heads + head * group;
    let at = p.out_offset + (head * p.n_blocks + p.first_block + touched) * p.head_dim + channel;
    var sum = out[at];
    for (var i = 0u; i < len; i++) {
        let row = p.q_offset + (first + i * p.n_q_heads) * p.head_dim + channel;
        for (var g = 0u; g < group; g++) {
            sum += q[row + g * p.head_dim];
        }
    }
    out[at] = sum;
}
