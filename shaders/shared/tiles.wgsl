// Quantised weights in tiles of 16 rows: codes and scales of one unit of 32 columns, for 4 of the
// rows at once. crates/core/src/quant/tiles.rs describes a tile; everything in it begins at whole
// vectors of 16 bytes, and a vector of codes holds 4 codes of each of 4 rows.
//
// Constants: CODE_BITS; SCALES, one of the kinds below; TABLE, where codes are places in a table: 1
// for IQ4_NL, 2 for MXFP4. Needs `common` and the binding `weight: array<vec4<u32>>`.

// Kinds of scales.
const SCALES_F16: u32 = 0u;
const SCALES_BF16: u32 = 1u;
const SCALES_WITH_MIN: u32 = 2u;
const SCALES_SUPER_MIN: u32 = 3u;
const SCALES_SUPER_HALVES: u32 = 4u;

// Vectors of a unit's codes.
const UNIT_VECTORS: u32 = 4u * CODE_BITS;

// Whether a value is d * code + m; and whether the halves of a unit have a d of their own.
const HAS_MIN: bool = SCALES == SCALES_WITH_MIN || SCALES == SCALES_SUPER_MIN;
const HAS_HALVES: bool = SCALES == SCALES_SUPER_HALVES;

// What is subtracted from a code. Codes of 8 bits and values of a table have their sign.
//# if TABLE
const CODE_OFFSET: i32 = 0;
//# else
const CODE_OFFSET: i32 = select(select(1 << (CODE_BITS - 1u), 0, CODE_BITS == 8u), 0, HAS_MIN);
//# end

//# if TABLE
// The table as bytes of words; a lookup goes to shared memory, which takes any place at any lane.
var<workgroup> table: array<u32, 16>;

// By the first 16 lanes, before a barrier.
fn fill_table(lane: u32) {
//# if TABLE == 1
    var values = array<i32, 16>(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89,
        113);
//# else
    // Twice the values; the scale is halved in turn.
    var values = array<i32, 16>(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
//# end
    if lane < 16u {
        table[lane] = bitcast<u32>(values[lane]) & 0xffu;
    }
}

fn look_up_word(word: u32) -> u32 {
    return table[word & 15u] | (table[(word >> 8u) & 15u] << 8u)
        | (table[(word >> 16u) & 15u] << 16u) | (table[(word >> 24u) & 15u] << 24u);
}

fn look_up(words: vec4<u32>) -> vec4<u32> {
    return vec4<u32>(look_up_word(words.x), look_up_word(words.y), look_up_word(words.z),
        look_up_word(words.w));
}
//# end

// The codes of a unit: component r of vector i has codes 4 i to 4 i + 3 of row r, one in each byte.
// `at` is the first vector of the unit for these 4 rows.
fn unit_codes(at: u32) -> array<vec4<u32>, 8> {
    var codes: array<vec4<u32>, 8>;
//# if CODE_BITS == 8
    for (var i = 0u; i < 8u; i++) {
        codes[i] = weight[at + 4u * i] ^ vec4<u32>(0x80808080u);
    }
//# else
    for (var i = 0u; i < 4u; i++) {
        let pair = weight[at + 4u * i];
        codes[2u * i] = pair & vec4<u32>(0x0f0f0f0fu);
        codes[2u * i + 1u] = (pair >> vec4<u32>(4u)) & vec4<u32>(0x0f0f0f0fu);
    }
//# end
//# if CODE_BITS == 5
    let fifth = weight[at + 16u];
    for (var i = 0u; i < 8u; i++) {
        codes[i] |= ((fifth >> vec4<u32>(i)) & vec4<u32>(0x01010101u)) << vec4<u32>(4u);
    }
//# end
//# if CODE_BITS == 6
    for (var i = 0u; i < 8u; i++) {
        let high = weight[at + 16u + i / 4u * 4u] >> vec4<u32>(i % 4u * 2u);
        codes[i] |= (high & vec4<u32>(0x03030303u)) << vec4<u32>(4u);
    }
//# end
//# if TABLE
    for (var i = 0u; i < 8u; i++) {
        codes[i] = look_up(codes[i]);
    }
//# end
    return codes;
}

//# import shared/codes

// 16 bits for each of the 4 rows `quad`, of the 16 that begin at a vector.
fn row_scales(at: u32, quad: u32) -> vec4<f32> {
    let vector = weight[at + quad / 2u];
    let words = select(vector.xy, vector.zw, quad % 2u != 0u);
//# if SCALES == 1
    let low = bitcast<vec2<f32>>(words << vec2<u32>(16u));
    let high = bitcast<vec2<f32>>(words & vec2<u32>(0xffff0000u));
    return vec4<f32>(low.x, high.x, low.y, high.y);
//# else
    return vec4<f32>(scale_of_half(words.x & 0xffffu), scale_of_half(words.x >> 16u),
        scale_of_half(words.y & 0xffffu), scale_of_half(words.y >> 16u));
//# end
}

// What makes values of codes, for 4 rows.
struct UnitScales {
    d: vec4<f32>,
    // The d of the second half of the unit, where it has one of its own; or the smallest value.
    other: vec4<f32>,
}

// Scales of unit `unit` for the rows `quad` of the tile whose scales begin at vector `at`.
fn unit_scales(at: u32, unit: u32, quad: u32) -> UnitScales {
//# if SCALES == 2
    let group = at + 4u * unit;
    return UnitScales(row_scales(group, quad), row_scales(group + 2u, quad));
//# else
//# if SCALES == 3
    let group = at + unit / 8u * 20u;
    let bytes = group + 4u + unit % 8u * 2u;
    let s = vec4<f32>(signed_bytes(weight[bytes][quad]));
    let m = vec4<f32>(signed_bytes(weight[bytes + 1u][quad]));
    return UnitScales(row_scales(group, quad) * s, -(row_scales(group + 2u, quad) * m));
//# else
//# if SCALES == 4
    let group = at + unit / 8u * 18u;
    let bytes = group + 2u + unit % 8u * 2u;
    let d = row_scales(group, quad);
    let first = vec4<f32>(signed_bytes(weight[bytes][quad]));
    let second = vec4<f32>(signed_bytes(weight[bytes + 1u][quad]));
    return UnitScales(d * first, d * second);
//# else
    return UnitScales(row_scales(at + 2u * unit, quad), vec4<f32>(0.0));
//# end
//# end
//# end
}
