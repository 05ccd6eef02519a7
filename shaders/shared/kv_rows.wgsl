// Keys and values as f32, eight elements (an octet) at a time, from the binding `kv`: rows
// [Hkv, rows, 2, Dh] of F32, F16 or BF16. Needs `common`; declare the binding as `array<KvUnit>`.
//
// With VECTOR, a key begins at a multiple of 16 bytes and HEAD_DIM is a multiple of 8; without,
// anywhere, and what the last octet lacks is 0.

const OCTETS: u32 = (HEAD_DIM + 7u) / 8u;

struct Octet {
    low: vec4<f32>,
    high: vec4<f32>,
}

//# if VECTOR
alias KvUnit = vec4<u32>;

// Octet `octet` of the key or value that begins at element `start`.
fn kv_octet(start: u32, octet: u32) -> Octet {
    if KV_KIND == F32 {
        let at = start / 4u + 2u * octet;
        return Octet(bitcast<vec4<f32>>(kv[at]), bitcast<vec4<f32>>(kv[at + 1u]));
    }
    let unit = kv[start / 8u + octet];
    return Octet(
        vec4<f32>(unpack_halves(KV_KIND, unit.x), unpack_halves(KV_KIND, unit.y)),
        vec4<f32>(unpack_halves(KV_KIND, unit.z), unpack_halves(KV_KIND, unit.w)),
    );
}
//# else
alias KvUnit = u32;

fn kv_octet(start: u32, octet: u32) -> Octet {
    return Octet(kv_quad(start, 8u * octet), kv_quad(start, 8u * octet + 4u));
}

fn kv_quad(start: u32, i: u32) -> vec4<f32> {
    return vec4<f32>(
        kv_element(start, i),
        kv_element(start, i + 1u),
        kv_element(start, i + 2u),
        kv_element(start, i + 3u),
    );
}

fn kv_element(start: u32, i: u32) -> f32 {
    if i >= HEAD_DIM {
        return 0.0;
    }
    let at = start + i;
    if KV_KIND == F32 {
        return bitcast<f32>(kv[at]);
    }
    let pair = unpack_halves(KV_KIND, kv[at / 2u]);
    return select(pair.x, pair.y, (at & 1u) != 0u);
}
//# end
