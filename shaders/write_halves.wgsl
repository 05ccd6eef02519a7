// Halves written at any place: words at the ends keep their other half.

struct Params {
    n: u32,
    offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> source: array<u32>;
@group(0) @binding(2) var<storage, read_write> target_words: array<u32>;

@compute @workgroup_size(64)
fn write_halves(@builtin(global_invocation_id) id: vec3<u32>) {
    let first = p.offset & 1u;
    if 2u * id.x >= first + p.n {
        return;
    }
    var mask = 0xffffffffu;
    if id.x == 0u && first == 1u {
        mask = 0xffff0000u;
    }
    if 2u * id.x + 1u >= first + p.n {
        mask &= 0x0000ffffu;
    }
    let at = p.offset / 2u + id.x;
    target_words[at] = (target_words[at] & ~mask) | (source[id.x] & mask);
}
