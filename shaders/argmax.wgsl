// The index of the largest element of each row: the lowest among equals; a not-a-number wins. Its
// highest bit is set where the element is a not-a-number or plus infinity.
//
// A workgroup owns one row. Elements become whole numbers of the same order, not-a-number above
// all, so that no device's comparison of numbers counts. Each invocation strides over the row with
// four loads under way, then a tree finds the best of all.
//
// Bytes: 4 rows V. Bound: latency; a row has one workgroup only.

//# import shared/common
//# import shared/order NAN_KEY=0xffffffffu

struct Params {
    n_rows: u32,
    width: u32,
    x_offset: u32,
    out_offset: u32,
}

const GROUP: u32 = 256u;
// The key of plus infinity; only not-a-number is above.
const INFINITY_KEY: u32 = 0xff800000u;
const NOT_FINITE: u32 = 0x80000000u;

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> x: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<u32>;

var<workgroup> keys: array<u32, GROUP>;
var<workgroup> places: array<u32, GROUP>;

// The better of two, each a key and a place.
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
    return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

@compute @workgroup_size(256)
fn argmax(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let row = flat_index(workgroup, grid);
    if row >= p.n_rows {
        return;
    }
    let start = p.x_offset + row * p.width;
    // No element has key 0, so this loses against all.
    var best = vec2<u32>(0u, 0xffffffffu);
    for (var i = lane; i < p.width; i += 4u * GROUP) {
        let at = vec4<u32>(i, i + GROUP, i + 2u * GROUP, i + 3u * GROUP);
        // The last element again is never better than itself.
        let there = min(at, vec4<u32>(p.width - 1u));
        let a = x[start + there.x];
        let b = x[start + there.y];
        let c = x[start + there.z];
        let d = x[start + there.w];
        best = better(best, vec2<u32>(key_of(a), there.x));
        best = better(best, vec2<u32>(key_of(b), there.y));
        best = better(best, vec2<u32>(key_of(c), there.z));
        best = better(best, vec2<u32>(key_of(d), there.w));
    }
    keys[lane] = best.x;
    places[lane] = best.y;
    workgroupBarrier();
    for (var half = GROUP / 2u; half > 0u; half /= 2u) {
        if lane < half {
            best = better(best, vec2<u32>(keys[lane + half], places[lane + half]));
            keys[lane] = best.x;
            places[lane] = best.y;
        }
        workgroupBarrier();
    }
    if lane == 0u {
        out[p.out_offset + row] = best.y | select(0u, NOT_FINITE, best.x >= INFINITY_KEY);
    }
}
