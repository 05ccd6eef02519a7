// Keys and values as f32, eight elements (an octet) at a time, from the binding `kv`: rows
// [Hkv, rows, 2, Dh] of F32, F16 or BF16, or as many of Q8. Needs `common`; declare the binding as
// `array<KvUnit>`. A row begins at an element, of Q8 at a byte, and has ROW_LEN of them.
//
// With VECTOR, HEAD_DIM is a multiple of 8 and a key begins at a multiple of 16 bytes, of Q8 at a
// word; without, anywhere, and what the last octet lacks is 0.

const OCTETS: u32 = (HEAD_DIM + 7u) / 8u;

struct Octet {
    low: vec4<f32>,
    high: vec4<f32>,
}

//# if KV_KIND == 4
// A row is Dh codes of the key, Dh codes of the value, then scales of f16: one for 32 codes of the
// key each and one for the value, filled up to a word.

//# import shared/codes

alias KvUnit = u32;

const KEY_SCALES: u32 = (HEAD_DIM + 31u) / 32u;
const ROW_LEN: u32 = (2u * HEAD_DIM + 2u * KEY_SCALES + 5u) / 4u * 4u;

// Octet `octet` of the key of the row that begins at byte `row`.
fn kv_key(row: u32, octet: u32) -> Octet {
    return coded(row, octet, kv_scale(row, octet / 4u));
}

fn kv_value(row: u32, octet: u32) -> Octet {
    return coded(row + HEAD_DIM, octet, kv_scale(row, KEY_SCALES));
}

fn kv_scale(row: u32, i: u32) -> f32 {
    let at = row + 2u * (HEAD_DIM + i);
    let half = (kv[at / 4u] >> (8u * (at & 2u))) & 0xffffu;
    // A scale that is no number says that the row had none.
    let bits = 0x7f800000u | (half << 13u);
    return select(scale_of_half(half), bitcast<f32>(bits), (half & 0x7c00u) == 0x7c00u);
}

fn coded(start: u32, octet: u32, scale: f32) -> Octet {
    return Octet(scale * kv_codes(start, 8u * octet), scale * kv_codes(start, 8u * octet + 4u));
}

fn kv_codes(start: u32, i: u32) -> vec4<f32> {
//# if VECTOR
    return vec4<f32>(signed_bytes(kv[(start + i) / 4u]));
//# else
    var codes = vec4<f32>(0.0);
    for (var k = 0u; k < 4u; k++) {
        if i + k < HEAD_DIM {
            let at = start + i + k;
            codes[k] = f32(signed_bytes(kv[at / 4u] >> (8u * (at & 3u))).x);
        }
    }
    return codes;
//# end
}
//# else
const ROW_LEN: u32 = 2u * HEAD_DIM;

// Octet `octet` of the key of the row that begins at element `row`.
fn kv_key(row: u32, octet: u32) -> Octet {
    return kv_octet(row, octet);
}

fn kv_value(row: u32, octet: u32) -> Octet {
    return kv_octet(row + HEAD_DIM, octet);
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
//# end
