// Linear layers of one row of x in one launch, with weights in tiles of 16 rows
// (`shared/quantised.cuh`), up to three of one format, or the third of another, as files have it
// that spend more bits on v: what decoding a token is made of.
//
// x may be normed first, as `rms_norm` does, and is rounded to 8 or 16 bits, as `round_rows` does.
// Then, by `mode`: products (+ bias) (+ out); q, k and v with RoPE on q and k; or a gate's
// activation times up. Every number has the bits that the single kernels give it: sums are added
// in their order, and whole numbers are exact in any.
//
// A block norms and rounds x once, into shared memory, which every block does for itself, and then
// takes pairs of tiles, as many blocks apart as there are. So there are few blocks, about as many
// as run at once. Each half of a block has one tile of a pair, as a block of `tile_product` has
// one. What meets lies in the two tiles: of q and k the rows that the rotation mixes, of gate and
// up the same rows.
//
// Bytes: W, once; each block reads x from cache. Bound: memory.
#include "shared/gates.cuh"
#include "shared/quantised.cuh"

struct TileLayersArgs {
    const float* x;
    // Null where x is not normed.
    const void* norm;
    // [rotary_dim]: cosines, then sines; of PROJECT.
    const float* table;
    // q, k and v; the gate and up, whose result goes to out_0; or any layers.
    const uint4* weight_0;
    const uint4* weight_1;
    const uint4* weight_2;
    const void* bias_0;
    const void* bias_1;
    const void* bias_2;
    float* out_0;
    float* out_1;
    float* out_2;
    u32 n_in;
    u32 n_out_0;
    u32 n_out_1;
    u32 n_out_2;
    // Pairs of tiles of the first two layers, and of all.
    u32 pairs_0;
    u32 pairs_1;
    u32 n_pairs;
    // Units from one tile to the next, and from a tile to its scales; those of the third layer.
    u32 tile_units;
    u32 scales_at;
    u32 tile_units_2;
    u32 scales_at_2;
    // 1 for rounding to 8 bits, 2 for 16.
    u32 planes;
    u32 norm_kind;
    // KIND_NONE where there is none.
    u32 bias_kind_0;
    u32 bias_kind_1;
    u32 bias_kind_2;
    u32 head_dim;
    u32 rotary_dim;
    float eps;
    u32 x_is_aligned;
    u32 accumulate;
    u32 mode;
};

// Of `mode`; any other number is for products alone.
constexpr u32 PROJECT = 1;
constexpr u32 SILU = 2;
constexpr u32 GELU = 3;

// As many as the wide `rms_norm` has, which adds squares in this order.
constexpr u32 THREADS = 512;
constexpr u32 N_WARPS = THREADS / WARP;
// Threads of a tile, as `tile_product` has.
constexpr u32 TEAM = 256;
constexpr u32 TEAM_WARPS = TEAM / WARP;
// Rows up to this width are normed by a warp.
constexpr u32 NARROW = 256;
// Lanes that round a group of columns, with 4 of them each.
constexpr u32 ROUND_LANES = COLUMNS / 4;
constexpr u32 ABSENT = 0xffffffffu;

// 1 / rms of x, on every thread.
DEVICE float norm_scale(const TileLayersArgs& p, float* parts) {
    float squares = 0;
    float sum = 0;
    if (p.n_in <= NARROW) {
        for (u32 i = lane_of_thread(); i < p.n_in; i += WARP) {
            squares += p.x[i] * p.x[i];
        }
        sum = warp_sum(squares);
    } else {
        for (u32 i = threadIdx.x; i < p.n_in; i += THREADS) {
            squares += p.x[i] * p.x[i];
        }
        sum = block_sum<THREADS>(squares, parts);
    }
    return 1.0f / sqrtf(sum / static_cast<float>(p.n_in) + p.eps);
}

// Four elements of the norm's weight, which begins at 16 bytes.
DEVICE void load_norm(const TileLayersArgs& p, u32 column, float (&to)[4]) {
    if (p.norm_kind == KIND_F32) {
        load_floats<4>(static_cast<const float*>(p.norm), column, p.n_in, true, to);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        to[i] = column < p.n_in ? element_of(p.norm_kind, p.norm, column + i) : 0.0f;
    }
}

// What `round_rows` leaves of x, or of its norm: groups of codes, scale and sums.
DEVICE void round_x(const TileLayersArgs& p, float scale, u32* rounded) {
    const u32 words_of_group = 4 * rounded_units(p.planes);
    const u32 place = threadIdx.x % ROUND_LANES;
    // By whole warps: their lanes meet.
    for (u32 first = 4 * WARP * warp_of_thread(); first < p.n_in; first += 4 * THREADS) {
        const u32 column = first + 4 * lane_of_thread();
        float x[4];
        load_floats<4>(p.x, column, p.n_in, p.x_is_aligned, x);
        if (p.norm != nullptr) {
            float weight[4];
            load_norm(p, column, weight);
#pragma unroll
            for (u32 i = 0; i < 4; i++) {
                x[i] = x[i] * scale * weight[i];
            }
        }
        u32 most_bits = most_bits_of(x);
#pragma unroll
        for (u32 mask = ROUND_LANES / 2; mask > 0; mask /= 2) {
            const u32 bits = shfl_xor(most_bits, mask);
            most_bits = bits > most_bits ? bits : most_bits;
        }
        const Rounding rounding = rounding_of(most_bits, p.planes);
        u32 high_word = 0;
        u32 low_word = 0;
        int sum = 0;
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            sum += round_into(x[i], rounding, p.planes, i, high_word, low_word);
        }
        sum += shfl_xor(sum, 1u);
        sum += shfl_xor(sum, 2u);
        const int second = shfl_xor(sum, ROUND_LANES / 2);
        if (column >= p.n_in) {
            continue;
        }
        u32* to = rounded + words_of_group * (column / COLUMNS);
        to[place] = high_word;
        if (p.planes == 2) {
            to[8 + place] = low_word;
        }
        if (place == 0) {
            const u32 sums[2] = {static_cast<u32>(sum), static_cast<u32>(second)};
            *reinterpret_cast<uint4*>(to + 8 * p.planes) =
                uint4{float_bits(rounding.scale), sums[0], sums[1], 0};
        }
    }
}

// One layer of the call.
struct TileLayer {
    const uint4* weight;
    const void* bias;
    float* out;
    u32 n_out;
    u32 bias_kind;
};

DEVICE TileLayer layer_of(const TileLayersArgs& p, u32 layer) {
    if (layer == 0) {
        return {p.weight_0, p.bias_0, p.out_0, p.n_out_0, p.bias_kind_0};
    }
    if (layer == 1) {
        return {p.weight_1, p.bias_1, p.out_1, p.n_out_1, p.bias_kind_1};
    }
    return {p.weight_2, p.bias_2, p.out_2, p.n_out_2, p.bias_kind_2};
}

// A tile of a layer; a number beyond its tiles where a pair has no second one.
struct Tile {
    u32 layer;
    u32 tile;
};

DEVICE bool is_rotated(const TileLayersArgs& p, u32 layer) {
    return p.mode == PROJECT && layer < 2 && p.rotary_dim > 0;
}

// Tile `which` of a pair. Of heads that turn tiles with rows that the rotation mixes are a pair: it
// mixes rows of one tile, or those of tiles that lie half as far apart as it reaches. All others
// are pairs as they follow each other.
DEVICE Tile tile_of(const TileLayersArgs& p, u32 pair, u32 which) {
    if (p.mode == SILU || p.mode == GELU) {
        return {which, pair};
    }
    u32 layer = 0;
    if (pair >= p.pairs_0) {
        pair -= p.pairs_0;
        layer = 1;
        if (pair >= p.pairs_1) {
            pair -= p.pairs_1;
            layer = 2;
        }
    }
    if (!is_rotated(p, layer)) {
        return {layer, 2 * pair + which};
    }
    const u32 tiles = p.head_dim / TILE_ROWS;
    const u32 pairs = (tiles + 1) / 2;
    const u32 head = pair / pairs;
    const u32 within = pair - head * pairs;
    const u32 apart = p.rotary_dim / (2 * TILE_ROWS);
    const u32 tile = within < apart ? within + which * apart : 2 * within + which;
    return {layer, tile < tiles ? head * tiles + tile : ABSENT};
}

// Adds what a group of columns gives, of which `x` is rounded, to the sums of 4 rows of W.
template <typename F>
DEVICE void add_group(const uint4 (&planes)[F::BITS], const float (&d)[4], const float (&other)[4],
                      const uint4* x, u32 n_planes, float (&sums)[4]) {
    const uint4 rest = x[2 * n_planes];
    const float scale = float_of(rest.x);
    const int halves[2] = {static_cast<int>(rest.y), static_cast<int>(rest.z)};
    const int total = halves[0] + halves[1];
    // Without a second plane it counts as zeros, and the first as it is.
    const int factor = n_planes == 2 ? 128 : 1;
    int high[4] = {};
    int low[4] = {};
#pragma unroll
    for (u32 h = 0; h < 2; h++) {
        const uint4 first = x[h];
        const uint4 second = n_planes == 2 ? x[2 + h] : uint4{0, 0, 0, 0};
        const u32 words[4] = {first.x, first.y, first.z, first.w};
        const u32 low_words[4] = {second.x, second.y, second.z, second.w};
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            u32 codes[4];
            word_codes<F>(planes, 4 * h + i, codes);
#pragma unroll
            for (u32 r = 0; r < 4; r++) {
                high[r] = dot_bytes(codes[r], words[i], high[r]);
                low[r] = dot_bytes(codes[r], low_words[i], low[r]);
            }
        }
        // Where a group has one d, its second half goes on from the sum of the first.
        if (!F::HAS_HALVES && h == 0) {
            continue;
        }
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            const int sum = high[r] * factor + low[r] -
                            F::OFFSET * (F::HAS_HALVES ? halves[h] : total);
            const float own = F::HAS_HALVES && h == 1 ? other[r] : d[r];
            sums[r] += own * scale * static_cast<float>(sum);
            high[r] = 0;
            low[r] = 0;
        }
    }
    if (F::HAS_MIN) {
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            sums[r] += other[r] * (scale * static_cast<float>(total));
        }
    }
}

// Adds the part of the thread to the sums of 4 rows of a tile, which begins at `codes`.
template <typename F>
DEVICE void add_tile(const TileLayersArgs& p, const uint4* codes, u32 scales_at, const uint4* x,
                     float (&sums)[4]) {
    const u32 quad = threadIdx.x % QUADS;
    const u8* scales = reinterpret_cast<const u8*>(codes + scales_at);
    const u32 n_groups = p.n_in / COLUMNS;
    const u32 units = rounded_units(p.planes);
    // A group's loads are enough under way; those of several would not fit the registers.
#pragma unroll 1
    for (u32 group = threadIdx.x % TEAM / QUADS; group < n_groups; group += TEAM / QUADS) {
        uint4 planes[F::BITS];
        float d[4];
        float other[4] = {};
        load_planes<F>(codes + static_cast<u64>(group) * F::UNITS + quad, planes);
        group_scales<F>(scales, group, quad, d, other);
        add_group<F>(planes, d, other, x + units * group, p.planes, sums);
    }
}

// The sums of each warp for 16 rows of its tile, to where all threads see them.
template <typename F, typename THIRD>
DEVICE void multiply(const TileLayersArgs& p, const Tile& own, const uint4* x, float* parts) {
    constexpr bool IS_MIXED = F::BITS != THIRD::BITS;
    const TileLayer layer = layer_of(p, own.layer);
    float sums[4] = {};
    if (own.tile < (layer.n_out + TILE_ROWS - 1) / TILE_ROWS) {
        const u64 tile = own.tile;
        if (IS_MIXED && own.layer == 2) {
            add_tile<THIRD>(p, layer.weight + tile * p.tile_units_2, p.scales_at_2, x, sums);
        } else {
            add_tile<F>(p, layer.weight + tile * p.tile_units, p.scales_at, x, sums);
        }
    }
#pragma unroll
    for (u32 r = 0; r < 4; r++) {
        float sum = sums[r];
#pragma unroll
        for (u32 mask = WARP / 2; mask >= QUADS; mask /= 2) {
            sum += shfl_xor(sum, mask);
        }
        if (lane_of_thread() < QUADS) {
            parts[warp_of_thread() * TILE_ROWS + 4 * lane_of_thread() + r] = sum;
        }
    }
}

// What becomes of the sums of a pair: by the lanes of one warp, one for each row of both tiles.
DEVICE void finish(const TileLayersArgs& p, u32 pair, const float* parts) {
    const u32 which = lane_of_thread() / TILE_ROWS;
    const u32 in_tile = lane_of_thread() % TILE_ROWS;
    const Tile own = tile_of(p, pair, which);
    const TileLayer layer = layer_of(p, own.layer);
    // Of an absent tile a row that no layer has.
    const u32 row = own.tile == ABSENT ? ABSENT : own.tile * TILE_ROWS + in_tile;
    float sum = 0;
#pragma unroll
    for (u32 i = 0; i < TEAM_WARPS; i++) {
        sum += parts[(which * TEAM_WARPS + i) * TILE_ROWS + in_tile];
    }
    if (layer.bias_kind != KIND_NONE) {
        sum += element_of(layer.bias_kind, layer.bias, min_of(row, layer.n_out - 1));
    }
    const float of_tile = shfl_xor(sum, TILE_ROWS / 2);
    const float of_other = shfl_xor(sum, TILE_ROWS);
    if (p.mode == SILU || p.mode == GELU) {
        if (which == 0 && row < layer.n_out) {
            const float gate = p.mode == SILU ? silu(sum) : gelu_tanh(sum);
            layer.out[row] = gate * of_other;
        }
        return;
    }
    if (row >= layer.n_out) {
        return;
    }
    const u32 within = is_rotated(p, own.layer) ? row % p.head_dim : p.rotary_dim;
    if (within < p.rotary_dim) {
        const u32 half = p.rotary_dim / 2;
        const float partner = half < TILE_ROWS ? of_tile : of_other;
        const float cosine = p.table[within % half];
        const float sine = p.table[half + within % half];
        sum = rotated(sum, cosine, within < half ? -partner : partner, sine);
    }
    layer.out[row] = p.accumulate ? layer.out[row] + sum : sum;
}

template <typename F, typename THIRD> DEVICE void tile_layers(const TileLayersArgs& p) {
    DYNAMIC_SHARED(uint4, x);
    SHARED(float, parts, 2 * N_WARPS * TILE_ROWS);
    SHARED(float, square_parts, N_WARPS);
    const float scale = p.norm == nullptr ? 1.0f : norm_scale(p, square_parts);
    round_x(p, scale, reinterpret_cast<u32*>(x));
    __syncthreads();
    // Parts lie in two places in turns: while one warp adds those of a pair the others go on.
    u32 place = 0;
#pragma unroll 1
    for (u32 pair = blockIdx.x; pair < p.n_pairs; pair += gridDim.x) {
        multiply<F, THIRD>(p, tile_of(p, pair, threadIdx.x / TEAM), x, parts + place);
        __syncthreads();
        if (warp_of_thread() == 0) {
            finish(p, pair, parts + place);
        }
        place ^= N_WARPS * TILE_ROWS;
    }
}

#define TILE_LAYERS(name, F, THIRD) \
    KERNEL(tile_layers_##name, TileLayersArgs, THREADS) { tile_layers<F, THIRD>(p); }

TILE_LAYERS(q4_0, Q4_0, Q4_0)
TILE_LAYERS(q4_1, Q4_1, Q4_1)
TILE_LAYERS(q5_0, Q5_0, Q5_0)
TILE_LAYERS(q5_1, Q5_1, Q5_1)
TILE_LAYERS(q8_0, Q8_0, Q8_0)
TILE_LAYERS(q4_k, Q4_K, Q4_K)
TILE_LAYERS(q5_k, Q5_K, Q5_K)
TILE_LAYERS(q6_k, Q6_K, Q6_K)
TILE_LAYERS(iq4_nl, Iq4Nl, Iq4Nl)
TILE_LAYERS(mxfp4, Mxfp4, Mxfp4)
TILE_LAYERS(q4_k_q6_k, Q4_K, Q6_K)
TILE_LAYERS(q5_k_q6_k, Q5_K, Q6_K)
