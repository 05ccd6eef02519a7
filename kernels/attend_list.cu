// Attention of a few query rows over a list of KV rows, or over a run of them: for each query row
//
//     out = sum_j w_j v_j / sum_j w_j,   lse = ln sum_j w_j,   w_j = n_j exp(scale q . k_j)
//
// A query row is a token and one of the query heads that share a KV head. Row j of a list stands
// for n_j keys, which `weighted` kernels add to its score as ln n_j; for all others n_j is 1, which
// costs nothing. The KV rows are cut into splits; how long they are follows from the count on the
// device, so all have work or none. A block owns one split for 8 query rows of a KV head: keys and
// values are read once for all of them. Its 4 warps go through the split on their own and meet at
// the end. One split goes to `out` and `lse`; several leave their parts for `attend_list_merge`.
// Ids outside of the buffer are left out, and so are rows of weight 0: neither is loaded. With a
// stride of 0 between heads all of them name rows of one pool.
//
// `mma`, for 16-bit rows of whole units of 16 bytes: a warp takes 16 rows at a time, straight from
// memory to the registers that products of matrices want, since dimensions may stand in any order
// as long as both factors agree. Scores are Q K^T; the 8 rows of Q that no query needs hold what
// rounding to 16 bits left of it, and bf16 has a third part. Values are V^T P^T, P in two parts. So
// results are as near as with f32 products.
// `codes`, for rows of 8 bits whose keys are whole units of 8 codes: the same on bf16, which holds
// a code exactly. Keys have a scale for each 32 codes, as many as two products see: their sums are
// scaled. The scale of a value goes into its row's weight.
// `plain`, for all others: LANES lanes take a row, 4 elements each, and sum up with shuffles.
//
// Bytes: 2 Dh a listed row and KV head. Bound: memory. Dh is at most DIM, 64, 128 or 256.
#include "shared/attend.cuh"
#include "shared/coded_products.cuh"
#include "shared/splits.cuh"

struct AttendListArgs {
    const float* q;
    const void* kv;
    // [Hkv, room] and [Hkv]; absent for a run.
    const u32* rows;
    const u32* n_rows;
    // [Hkv, room]: keys that each row of a list stands for; absent for one each.
    const u32* weights;
    float* out;
    float* lse;
    // m and l for each query row and split; then o, Dh each.
    float* states;
    float* sums;
    u32 first_token;
    u32 n_tokens;
    u32 n_q_heads;
    u32 n_kv_heads;
    u32 head_dim;
    u32 head_stride;
    // Ids are below it.
    u32 row_limit;
    // Entries from one head's list to the next, or rows of the run.
    u32 room;
    // Of the run.
    u32 first_row;
    // Token i of a run sees lead + i rows.
    int lead;
    // The first hidden + i of them are hidden from it. A list has 0, and the largest lead.
    int hidden;
    // Blocks that share the query rows of a KV head.
    u32 n_parts;
    u32 n_splits;
    u32 accumulate;
    float scale;
    // Whether units of 16 bytes can be loaded, of rows of 8 bits those of 4.
    u32 is_aligned;
};

constexpr u32 THREADS = 128;
constexpr u32 N_WARPS = THREADS / WARP;
// Query rows of a block.
constexpr u32 ROWS = 8;
// Query rows of a warp of `plain`: two warps share the KV rows.
constexpr u32 PLAIN_ROWS = 4;
// KV rows that a warp of `mma` takes at a time.
constexpr u32 TILE = 16;
// A split is made of these.
constexpr u32 SPLIT_UNIT = TILE * N_WARPS;
constexpr u32 MAX_SPLITS = 256;

// Rows of a run that a token sees.
DEVICE u32 seen_of_run(const AttendListArgs& p, u32 token) {
    const int seen = p.lead + static_cast<int>(token);
    return seen < 0 ? 0 : min_of(static_cast<u32>(seen), p.room);
}

// Rows of a run before those that a token sees; of lists it sees all.
DEVICE u32 skipped_of_run(const AttendListArgs& p, u32 token) {
    const int skipped = p.hidden + static_cast<int>(token);
    return p.n_rows != nullptr || skipped < 0 ? 0 : min_of(static_cast<u32>(skipped), p.room);
}

// Rows that some token sees.
DEVICE u32 rows_of(const AttendListArgs& p, u32 kv_head) {
    return p.n_rows != nullptr ? min_of(p.n_rows[kv_head], p.room)
                               : seen_of_run(p, p.n_tokens - 1);
}

DEVICE u32 rows_of_split(const AttendListArgs& p, u32 n) {
    const u32 rows = (n + p.n_splits - 1) / p.n_splits;
    return (rows + SPLIT_UNIT - 1) / SPLIT_UNIT * SPLIT_UNIT;
}

// What a block does.
struct Work {
    u32 kv_head;
    // Its first query row among those of the KV head, and how many it has.
    u32 first;
    u32 n;
    u32 split;
    // KV rows.
    u32 begin;
    u32 end;
};

DEVICE Work work_of_block(const AttendListArgs& p) {
    Work work;
    work.kv_head = blockIdx.x / p.n_parts;
    const u32 part = blockIdx.x % p.n_parts;
    const u32 n_all = p.n_tokens * (p.n_q_heads / p.n_kv_heads);
    const u32 each = (n_all + p.n_parts - 1) / p.n_parts;
    work.first = min_of(part * each, n_all);
    work.n = min_of(each, n_all - work.first);
    work.split = blockIdx.y;
    const u32 n = rows_of(p, work.kv_head);
    const u64 rows = rows_of_split(p, n);
    const u64 begin = work.split * rows;
    work.begin = begin < n ? static_cast<u32>(begin) : n;
    work.end = begin + rows < n ? static_cast<u32>(begin + rows) : n;
    return work;
}

// The token of a block's query row.
DEVICE u32 token_of(const AttendListArgs& p, const Work& work, u32 row) {
    return (work.first + row) / (p.n_q_heads / p.n_kv_heads);
}

// A block's query row among those of the call: token * Hq + head.
DEVICE u64 entry_of(const AttendListArgs& p, const Work& work, u32 row) {
    const u32 group = p.n_q_heads / p.n_kv_heads;
    const u32 head = work.kv_head * group + (work.first + row) % group;
    return static_cast<u64>(token_of(p, work, row)) * p.n_q_heads + head;
}

// KV rows that a query row sees, by their place in the list.
DEVICE u32 seen_by(const AttendListArgs& p, const Work& work, u32 row) {
    if (row >= work.n) {
        return 0;
    }
    return p.n_rows != nullptr ? work.end : seen_of_run(p, token_of(p, work, row));
}

// Behind the last KV row that a query row sees, also where a run ends before it.
DEVICE u32 end_by(const AttendListArgs& p, const Work& work, u32 row) {
    if (row >= work.n || p.n_rows != nullptr) {
        return seen_by(p, work, row);
    }
    const int end = p.lead + static_cast<int>(token_of(p, work, row));
    return end < 0 ? 0 : static_cast<u32>(end);
}

// KV rows before those that a query row sees.
DEVICE u32 skipped_by(const AttendListArgs& p, const Work& work, u32 row) {
    return skipped_of_run(p, token_of(p, work, min_of(row, work.n - 1)));
}

// The first row of a split that some query row of the block sees. A split of hidden rows leaves the
// state of nothing.
DEVICE u32 begin_of(const AttendListArgs& p, const Work& work) {
    const u32 skipped = skipped_by(p, work, 0);
    return work.begin > skipped ? work.begin : skipped;
}

// The query row with the scale; 0 beyond its end, and for a row that is not there.
template <u32 N>
DEVICE void load_query(const AttendListArgs& p, const Work& work, u32 row, u32 from,
                       float (&to)[N]) {
    const u64 first = static_cast<u64>(p.first_token) * p.n_q_heads;
    const float* q = p.q + (first + entry_of(p, work, min_of(row, work.n - 1))) * p.head_dim;
#pragma unroll
    for (u32 i = 0; i < N; i++) {
        to[i] = row < work.n && from + i < p.head_dim ? p.scale * q[from + i] : 0.0f;
    }
}

// A row of the list.
struct Listed {
    u32 id;
    // What its weight adds to a score.
    float bias;
};

// Row i of the list; no row where it stands for no key.
template <bool WEIGHTED>
DEVICE Listed listed_at(const AttendListArgs& p, const Work& work, u32 i) {
    if (i >= work.end) {
        return Listed{NO_KV_ROW, 0.0f};
    }
    const u64 at = static_cast<u64>(work.kv_head) * p.room + i;
    const u32 id = WEIGHTED || p.rows != nullptr ? p.rows[at] : p.first_row + i;
    const u32 weight = WEIGHTED ? p.weights[at] : 1;
    if (id >= p.row_limit || weight == 0) {
        return Listed{NO_KV_ROW, 0.0f};
    }
    return Listed{id, WEIGHTED ? logf(static_cast<float>(weight)) : 0.0f};
}

// Merges the warps' parts; to `out`, or to where `attend_list_merge` finds them.
template <u32 DIM>
DEVICE void finish(const AttendListArgs& p, const Work& work, const Parts& parts) {
    __syncthreads();
    const u64 first = static_cast<u64>(p.first_token) * p.n_q_heads;
    const bool is_whole = p.n_splits == 1;
    if (threadIdx.x < work.n) {
        const u32 row = threadIdx.x;
        const u64 entry = entry_of(p, work, row);
        float* factors = parts.factors + row;
        float m;
        float l;
        weigh_parts<N_WARPS>(factors, parts.maxima + row, parts.totals + row, ROWS, m, l);
        if (is_whole) {
            float* lse = p.lse + first + entry;
            const Shares both = shares_of(m, l, p.accumulate ? *lse : minus_infinity());
            *lse = both.lse;
            parts.held[row] = both.held;
            for (u32 w = 0; w < N_WARPS; w++) {
                factors[w * ROWS] *= both.made;
            }
        } else {
            float* state = p.states + 2 * (entry * p.n_splits + work.split);
            state[0] = m;
            state[1] = l;
        }
    }
    __syncthreads();
    for (u32 i = threadIdx.x; i < work.n * p.head_dim; i += THREADS) {
        const u32 row = i / p.head_dim;
        const u32 d = i % p.head_dim;
        float sum = 0;
#pragma unroll
        for (u32 w = 0; w < N_WARPS; w++) {
            sum += parts.factors[w * ROWS + row] * parts.sums[(w * ROWS + row) * DIM + d];
        }
        const u64 entry = entry_of(p, work, row);
        if (!is_whole) {
            p.sums[(entry * p.n_splits + work.split) * p.head_dim + d] = sum;
            continue;
        }
        float* out = p.out + (first + entry) * p.head_dim + d;
        // Nothing held may hold anything.
        *out = parts.held[row] == 0.0f ? sum : sum + parts.held[row] * *out;
    }
}

// Q in the order of its registers: two products of 16 dimensions for each 4 units.
template <typename T, u32 DIM>
DEVICE void store_queries(const AttendListArgs& p, const Work& work, uint4* firsts, uint2* thirds) {
    for (u32 i = threadIdx.x; i < DIM / 32 * WARP; i += THREADS) {
        const u32 lane = i % WARP;
        float x[8];
        load_query(p, work, lane / 4, (i / WARP * 4 + lane % 4) * 8, x);
        uint4 first[2];
        uint2 third[2];
        order_query<T>(x, first, third);
#pragma unroll
        for (u32 half = 0; half < 2; half++) {
            const u32 at = (i / WARP * 2 + half) * WARP + lane;
            firsts[at] = first[half];
            if (NEEDS_THIRD<T>) {
                thirds[at] = third[half];
            }
        }
    }
    __syncthreads();
}

// What a warp made, for `finish`.
template <u32 DIM, u32 UNITS, u32 BLOCKS>
DEVICE void leave_made(const Made<BLOCKS>& made, const Parts& parts) {
    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
    float total = made.l + shfl_xor(made.l, 1u);
    total += shfl_xor(total, 2u);
    const u32 warp_row = warp_of_thread() * ROWS;
    if (t == 0) {
        parts.maxima[warp_row + g] = made.m;
        parts.totals[warp_row + g] = total;
    }
#pragma unroll
    for (u32 b = 0; b < BLOCKS; b++) {
#pragma unroll
        for (u32 i = 0; i < 8; i++) {
#pragma unroll
            for (u32 c = 0; c < 2 * UNITS; c++) {
                const u32 d = (16 * b + g + c / 2 * 8) * 8 + i;
                parts.sums[(warp_row + 2 * t + c % 2) * DIM + d] = made.o[b][i][c];
            }
        }
    }
}

template <typename T, u32 DIM, bool WEIGHTED> DEVICE void attend_mma(const AttendListArgs& p) {
    constexpr u32 STEPS = DIM / 32;
    // Units g and g + 8 of BLOCKS times 16.
    constexpr u32 UNITS = DIM == 64 ? 1 : 2;
    constexpr u32 BLOCKS = DIM / 64 / UNITS;
    SHARED(uint4, firsts, STEPS * 2 * WARP);
    SHARED(uint2, thirds, NEEDS_THIRD<T> ? STEPS * 2 * WARP : 1);
    SHARED(float, sums, N_WARPS * ROWS * DIM);
    SHARED(float, maxima, N_WARPS * ROWS);
    SHARED(float, totals, N_WARPS * ROWS);
    SHARED(float, factors, N_WARPS * ROWS);
    SHARED(float, held, ROWS);
    const Work work = work_of_block(p);
    if (work.n == 0 || (work.begin >= work.end && p.n_splits > 1)) {
        return;
    }
    store_queries<T, DIM>(p, work, firsts, thirds);

    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
    const u32 row_units = p.head_dim / 4;
    const u32 value_units = row_units / 2;
    const u64 head_units = static_cast<u64>(work.kv_head) * p.head_stride * row_units;
    const uint4* head = static_cast<const uint4*>(p.kv) + head_units;
    const u32 seen = seen_by(p, work, g);
    const u32 skipped = skipped_by(p, work, g);
    const auto load = [](const uint4* from) { return load_once(from); };
    Made<BLOCKS> made = {{}, LOWEST, 0};
    u32 tile = begin_of(p, work) + warp_of_thread() * TILE;
    Listed listed = listed_at<WEIGHTED>(p, work, tile + lane_of_thread() % TILE);
    // Warps take tiles in turn and meet only at the end, each with an online softmax of its own.
    // All keys and values of a tile are asked for before the first product, and the ids of the next
    // tile before this one is computed: rows lie anywhere, so it is latency that must be hidden.
    for (; tile < work.end; tile += SPLIT_UNIT) {
        uint4 keys[2][STEPS];
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            const u32 key_id = shfl(listed.id, g + 8 * n);
#pragma unroll
            for (u32 j = 0; j < STEPS; j++) {
                keys[n][j] = load_unit(head, key_id, row_units, 0, 4 * j + t, load);
            }
        }
        u32 ids[4];
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            ids[r] = shfl(listed.id, 2 * t + r % 2 + r / 2 * 8);
        }
        uint4 values[BLOCKS][UNITS][4];
#pragma unroll
        for (u32 b = 0; b < BLOCKS; b++) {
#pragma unroll
            for (u32 i = 0; i < UNITS * 4; i++) {
                values[b][i / 4][i % 4] =
                    load_unit(head, ids[i % 4], row_units, value_units, 16 * b + i / 4 * 8 + g,
                              load);
            }
        }
        const float bias = listed.bias;
        listed = listed_at<WEIGHTED>(p, work, tile + SPLIT_UNIT + lane_of_thread() % TILE);

        float scores[4];
        score_tile<T, DIM>(keys, firsts, thirds, scores);
        bool is_seen[4];
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            const u32 row = 2 * t + r % 2 + r / 2 * 8;
            if constexpr (WEIGHTED) {
                scores[r] += shfl(bias, row);
            }
            // Only a run begins later and ends earlier for some.
            const bool is_inside = tile + row >= skipped && tile + row < seen;
            is_seen[r] = ids[r] != NO_KV_ROW && (WEIGHTED || is_inside);
        }
        take_tile<T>(values, scores, is_seen, made);
    }

    const Parts parts{maxima, totals, sums, factors, held};
    leave_made<DIM, UNITS>(made, parts);
    finish<DIM>(p, work, parts);
}

#if HAS_SM80
template <u32 DIM, bool WEIGHTED> DEVICE void attend_codes(const AttendListArgs& p) {
    constexpr u32 STEPS = DIM / 32;
    // As in `attend_mma`.
    constexpr u32 UNITS = DIM == 64 ? 1 : 2;
    constexpr u32 BLOCKS = DIM / 64 / UNITS;
    SHARED(uint4, firsts, STEPS * 2 * WARP);
    SHARED(uint2, thirds, STEPS * 2 * WARP);
    SHARED(float, sums, N_WARPS * ROWS * DIM);
    SHARED(float, maxima, N_WARPS * ROWS);
    SHARED(float, totals, N_WARPS * ROWS);
    SHARED(float, factors, N_WARPS * ROWS);
    SHARED(float, held, ROWS);
    const Work work = work_of_block(p);
    if (work.n == 0 || (work.begin >= work.end && p.n_splits > 1)) {
        return;
    }
    store_queries<bf16, DIM>(p, work, firsts, thirds);

    const u32 g = lane_of_thread() / 4;
    const u32 t = lane_of_thread() % 4;
    const u32 row_words = coded_row(p.head_dim) / 4;
    const u32 value_words = p.head_dim / 4;
    const u32 n_units = p.head_dim / 8;
    const u32 n_scales = key_scales(p.head_dim);
    const u64 head_words = static_cast<u64>(work.kv_head) * p.head_stride * row_words;
    const u32* head = static_cast<const u32*>(p.kv) + head_words;
    const u32 seen = seen_by(p, work, g);
    const u32 skipped = skipped_by(p, work, g);
    Made<BLOCKS> made = {{}, LOWEST, 0};
    u32 tile = begin_of(p, work) + warp_of_thread() * TILE;
    Listed listed = listed_at<WEIGHTED>(p, work, tile + lane_of_thread() % TILE);
    for (; tile < work.end; tile += SPLIT_UNIT) {
        uint2 keys[2][STEPS];
#pragma unroll
        for (u32 n = 0; n < 2; n++) {
            const u32 key_id = shfl(listed.id, g + 8 * n);
#pragma unroll
            for (u32 j = 0; j < STEPS; j++) {
                keys[n][j] = load_codes(head, key_id, row_words, 0, n_units, 4 * j + t);
            }
        }
        u32 ids[4];
        u32 key_scale[4][STEPS / 2];
        float value_scale[4];
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            ids[r] = shfl(listed.id, 2 * t + r % 2 + r / 2 * 8);
            const bool is_row = ids[r] != NO_KV_ROW;
            const u32* row = head + static_cast<u64>(is_row ? ids[r] : 0) * row_words;
#pragma unroll
            for (u32 j = 0; j < STEPS / 2; j++) {
                key_scale[r][j] = is_row && 2 * j < n_scales ? row[p.head_dim / 2 + j] : 0;
            }
            const u32 pair = is_row ? row[p.head_dim / 2 + n_scales / 2] : 0;
            value_scale[r] = half_to_float(static_cast<u16>(pair >> (n_scales % 2 * 16)));
        }
        uint2 values[BLOCKS][UNITS][4];
#pragma unroll
        for (u32 b = 0; b < BLOCKS; b++) {
#pragma unroll
            for (u32 i = 0; i < UNITS * 4; i++) {
                values[b][i / 4][i % 4] = load_codes(head, ids[i % 4], row_words, value_words,
                                                     n_units, 16 * b + i / 4 * 8 + g);
            }
        }
        const float bias = listed.bias;
        listed = listed_at<WEIGHTED>(p, work, tile + SPLIT_UNIT + lane_of_thread() % TILE);

        float scores[4];
        score_codes<DIM>(keys, key_scale, firsts, thirds, scores);
        bool is_seen[4];
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            const u32 row = 2 * t + r % 2 + r / 2 * 8;
            if constexpr (WEIGHTED) {
                scores[r] += shfl(bias, row);
            }
            const bool is_inside = tile + row >= skipped && tile + row < seen;
            is_seen[r] = ids[r] != NO_KV_ROW && (WEIGHTED || is_inside);
        }
        float weights[4];
        weigh_tile(scores, is_seen, made, weights);
#pragma unroll
        for (u32 r = 0; r < 4; r++) {
            weights[r] *= value_scale[r];
        }
        u32 parts[2][2];
        part_weights<bf16>(weights, parts);
#pragma unroll
        for (u32 b = 0; b < BLOCKS; b++) {
            uint4 wide[UNITS][4];
#pragma unroll
            for (u32 i = 0; i < UNITS * 4; i++) {
                const uint2 low = codes_to_bfloats(values[b][i / 4][i % 4].x);
                const uint2 high = codes_to_bfloats(values[b][i / 4][i % 4].y);
                wide[i / 4][i % 4] = uint4{low.x, low.y, high.x, high.y};
            }
            add_values<bf16, UNITS>(wide, parts[0], parts[1], made.o[b]);
        }
    }
    const Parts parts{maxima, totals, sums, factors, held};
    leave_made<DIM, UNITS>(made, parts);
    finish<DIM>(p, work, parts);
}
#endif

// Elements [from, from + 4) of a key or a value; zeros beyond its end and for no row.
template <typename T>
DEVICE void load_four(const AttendListArgs& p, const T* head, u32 id, u32 offset, u32 from,
                      float (&to)[4]) {
    to[0] = to[1] = to[2] = to[3] = 0;
    if (id == NO_KV_ROW || from >= p.head_dim) {
        return;
    }
    const T* at = head + static_cast<u64>(id) * 2 * p.head_dim + offset + from;
    if (sizeof(T) == 4 && p.is_aligned) {
        const uint4 unit = load_once(reinterpret_cast<const uint4*>(at));
        unpack(unit, to, 0.0f);
        return;
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        if (from + i < p.head_dim) {
            to[i] = widen(at[i]);
        }
    }
}

// The same of a row of 8 bits. Four codes have one scale.
DEVICE void load_four(const AttendListArgs& p, const coded* head, u32 id, u32 offset, u32 from,
                      float (&to)[4]) {
    to[0] = to[1] = to[2] = to[3] = 0;
    if (id == NO_KV_ROW || from >= p.head_dim) {
        return;
    }
    const coded* row = head + static_cast<u64>(id) * coded_row(p.head_dim);
    const u32 place = offset == 0 ? from / KEY_BLOCK : key_scales(p.head_dim);
    const coded* at = row + offset + from;
    u32 codes = 0;
    float scale;
    if (p.is_aligned) {
        scale = half_to_float(*reinterpret_cast<const u16*>(row + 2 * p.head_dim + 2 * place));
        codes = *reinterpret_cast<const u32*>(at);
    } else {
        scale = scale_of(row, p.head_dim, place);
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            codes |= from + i < p.head_dim ? static_cast<u32>(at[i].bits) << (8 * i) : 0;
        }
    }
#pragma unroll
    for (u32 i = 0; i < 4; i++) {
        to[i] = scale * number_of(codes >> (8 * i) & 0xffu);
    }
}

// The rows of a KV head.
template <typename T>
DEVICE const T* rows_of_head(const AttendListArgs& p, u32 kv_head, const T* rows) {
    return rows + static_cast<u64>(kv_head) * p.head_stride * 2 * p.head_dim;
}
DEVICE const coded* rows_of_head(const AttendListArgs& p, u32 kv_head, const coded* rows) {
    return rows + static_cast<u64>(kv_head) * p.head_stride * coded_row(p.head_dim);
}

template <typename T, u32 DIM, bool WEIGHTED> DEVICE void attend_plain(const AttendListArgs& p) {
    // Fours of a lane.
    constexpr u32 FOURS = DIM / 128;
    SHARED(float4, queries, ROWS * DIM / 4);
    SHARED(float, sums, N_WARPS * ROWS * DIM);
    SHARED(float, maxima, N_WARPS * ROWS);
    SHARED(float, totals, N_WARPS * ROWS);
    SHARED(float, factors, N_WARPS * ROWS);
    SHARED(float, held, ROWS);
    const Work work = work_of_block(p);
    if (work.n == 0 || (work.begin >= work.end && p.n_splits > 1)) {
        return;
    }
    for (u32 i = threadIdx.x; i < ROWS * DIM; i += THREADS) {
        float x[1];
        load_query(p, work, i / DIM, i % DIM, x);
        reinterpret_cast<float*>(&queries[0])[i] = x[0];
        // Warps have the rows of others too, and leave nothing there.
#pragma unroll
        for (u32 w = 0; w < N_WARPS; w++) {
            sums[w * ROWS * DIM + i] = 0;
        }
    }
    if (threadIdx.x < N_WARPS * ROWS) {
        maxima[threadIdx.x] = LOWEST;
        totals[threadIdx.x] = 0;
    }
    __syncthreads();

    u32 lanes = 1;
    while (lanes < WARP && 4 * lanes < p.head_dim) {
        lanes *= 2;
    }
    const u32 n_slots = WARP / lanes;
    const u32 slot = lane_of_thread() / lanes;
    const u32 column = lane_of_thread() % lanes * 4;
    const u32 first_row = warp_of_thread() % (ROWS / PLAIN_ROWS) * PLAIN_ROWS;
    const T* head = rows_of_head(p, work.kv_head, static_cast<const T*>(p.kv));
    float o[PLAIN_ROWS][FOURS][4] = {};
    float m[PLAIN_ROWS];
    float l[PLAIN_ROWS] = {};
    u32 seen[PLAIN_ROWS];
#pragma unroll
    for (u32 r = 0; r < PLAIN_ROWS; r++) {
        m[r] = LOWEST;
        seen[r] = end_by(p, work, first_row + r);
    }
    const u32 step = N_WARPS * PLAIN_ROWS / ROWS * n_slots;
    u32 first = begin_of(p, work) + warp_of_thread() / (ROWS / PLAIN_ROWS) * n_slots;
    // A warp takes as many rows at a time as there are slots in it, with one online softmax a slot;
    // slots meet only at the end.
    for (; first < work.end; first += step) {
        const u32 i = first + slot;
        const Listed listed = listed_at<WEIGHTED>(p, work, i);
        float key[FOURS][4];
        float value[FOURS][4];
#pragma unroll
        for (u32 f = 0; f < FOURS; f++) {
            load_four(p, head, listed.id, 0, column + 128 * f, key[f]);
            load_four(p, head, listed.id, p.head_dim, column + 128 * f, value[f]);
        }
#pragma unroll
        for (u32 r = 0; r < PLAIN_ROWS; r++) {
            float score = 0;
#pragma unroll
            for (u32 f = 0; f < FOURS; f++) {
                const float4 x = queries[((first_row + r) * DIM + 128 * f + column) / 4];
                score += key[f][0] * x.x + key[f][1] * x.y + key[f][2] * x.z + key[f][3] * x.w;
            }
            for (u32 mask = lanes / 2; mask > 0; mask /= 2) {
                score += shfl_xor(score, mask);
            }
            if constexpr (WEIGHTED) {
                score += listed.bias;
            }
            // What a query row sees of a run begins lead - hidden rows before its end, which takes
            // no register; of a list that is more than there may be.
            const bool is_hidden = i + static_cast<u32>(p.lead - p.hidden) < seen[r];
            const bool is_seen = listed.id != NO_KV_ROW && i < seen[r] && !is_hidden;
            const float top = is_seen ? fmaxf(m[r], score) : m[r];
            const float factor = expf(m[r] - top);
            const float weight = is_seen ? expf(score - top) : 0.0f;
            m[r] = top;
            l[r] = factor * l[r] + weight;
#pragma unroll
            for (u32 e = 0; e < 4 * FOURS; e++) {
                o[r][e / 4][e % 4] = factor * o[r][e / 4][e % 4] + weight * value[e / 4][e % 4];
            }
        }
    }

    // The slots of a warp.
#pragma unroll
    for (u32 r = 0; r < PLAIN_ROWS; r++) {
        const u32 row = warp_of_thread() * ROWS + first_row + r;
        float top = m[r];
        for (u32 mask = lanes; mask < WARP; mask *= 2) {
            top = fmaxf(top, shfl_xor(top, mask));
        }
        const float factor = l[r] == 0.0f ? 0.0f : expf(m[r] - top);
        l[r] *= factor;
#pragma unroll
        for (u32 e = 0; e < 4 * FOURS; e++) {
            o[r][e / 4][e % 4] *= factor;
        }
        for (u32 mask = lanes; mask < WARP; mask *= 2) {
            l[r] += shfl_xor(l[r], mask);
#pragma unroll
            for (u32 e = 0; e < 4 * FOURS; e++) {
                o[r][e / 4][e % 4] += shfl_xor(o[r][e / 4][e % 4], mask);
            }
        }
        if (lane_of_thread() == 0) {
            maxima[row] = top;
            totals[row] = l[r];
        }
        if (slot == 0) {
#pragma unroll
            for (u32 e = 0; e < 4 * FOURS; e++) {
                sums[row * DIM + e / 4 * 128 + column + e % 4] = o[r][e / 4][e % 4];
            }
        }
    }
    finish<DIM>(p, work, Parts{maxima, totals, sums, factors, held});
}

KERNEL(attend_list_f16_64, AttendListArgs, THREADS) { attend_mma<f16, 64, false>(p); }
KERNEL(attend_list_f16_128, AttendListArgs, THREADS) { attend_mma<f16, 128, false>(p); }
KERNEL(attend_list_f16_256, AttendListArgs, THREADS) { attend_mma<f16, 256, false>(p); }
KERNEL(attend_list_weighted_f16_64, AttendListArgs, THREADS) { attend_mma<f16, 64, true>(p); }
KERNEL(attend_list_weighted_f16_128, AttendListArgs, THREADS) { attend_mma<f16, 128, true>(p); }
KERNEL(attend_list_weighted_f16_256, AttendListArgs, THREADS) { attend_mma<f16, 256, true>(p); }

// Before compute capability 8.0 there are no products of bf16.
template <u32 DIM, bool WEIGHTED> DEVICE void attend_bf16(const AttendListArgs& p) {
#if HAS_SM80
    attend_mma<bf16, DIM, WEIGHTED>(p);
#else
    attend_plain<bf16, DIM == 256 ? 256 : 128, WEIGHTED>(p);
#endif
}
KERNEL(attend_list_bf16_64, AttendListArgs, THREADS) { attend_bf16<64, false>(p); }
KERNEL(attend_list_bf16_128, AttendListArgs, THREADS) { attend_bf16<128, false>(p); }
KERNEL(attend_list_bf16_256, AttendListArgs, THREADS) { attend_bf16<256, false>(p); }
KERNEL(attend_list_weighted_bf16_64, AttendListArgs, THREADS) { attend_bf16<64, true>(p); }
KERNEL(attend_list_weighted_bf16_128, AttendListArgs, THREADS) { attend_bf16<128, true>(p); }
KERNEL(attend_list_weighted_bf16_256, AttendListArgs, THREADS) { attend_bf16<256, true>(p); }

KERNEL(attend_list_plain_f32_128, AttendListArgs, THREADS) { attend_plain<float, 128, false>(p); }
KERNEL(attend_list_plain_f32_256, AttendListArgs, THREADS) { attend_plain<float, 256, false>(p); }
KERNEL(attend_list_plain_f16_128, AttendListArgs, THREADS) { attend_plain<f16, 128, false>(p); }
KERNEL(attend_list_plain_f16_256, AttendListArgs, THREADS) { attend_plain<f16, 256, false>(p); }
KERNEL(attend_list_plain_bf16_128, AttendListArgs, THREADS) { attend_plain<bf16, 128, false>(p); }
KERNEL(attend_list_plain_bf16_256, AttendListArgs, THREADS) { attend_plain<bf16, 256, false>(p); }
KERNEL(attend_list_weighted_plain_f32_128, AttendListArgs, THREADS) {
    attend_plain<float, 128, true>(p);
}
KERNEL(attend_list_weighted_plain_f32_256, AttendListArgs, THREADS) {
    attend_plain<float, 256, true>(p);
}
KERNEL(attend_list_weighted_plain_f16_128, AttendListArgs, THREADS) {
    attend_plain<f16, 128, true>(p);
}
KERNEL(attend_list_weighted_plain_f16_256, AttendListArgs, THREADS) {
    attend_plain<f16, 256, true>(p);
}
KERNEL(attend_list_weighted_plain_bf16_128, AttendListArgs, THREADS) {
    attend_plain<bf16, 128, true>(p);
}
KERNEL(attend_list_weighted_plain_bf16_256, AttendListArgs, THREADS) {
    attend_plain<bf16, 256, true>(p);
}

// Products of bf16 begin with compute capability 8.0.
template <u32 DIM, bool WEIGHTED> DEVICE void attend_q8(const AttendListArgs& p) {
#if HAS_SM80
    attend_codes<DIM, WEIGHTED>(p);
#else
    attend_plain<coded, DIM == 256 ? 256 : 128, WEIGHTED>(p);
#endif
}
KERNEL(attend_list_q8_64, AttendListArgs, THREADS) { attend_q8<64, false>(p); }
KERNEL(attend_list_q8_128, AttendListArgs, THREADS) { attend_q8<128, false>(p); }
KERNEL(attend_list_q8_256, AttendListArgs, THREADS) { attend_q8<256, false>(p); }
KERNEL(attend_list_weighted_q8_64, AttendListArgs, THREADS) { attend_q8<64, true>(p); }
KERNEL(attend_list_weighted_q8_128, AttendListArgs, THREADS) { attend_q8<128, true>(p); }
KERNEL(attend_list_weighted_q8_256, AttendListArgs, THREADS) { attend_q8<256, true>(p); }
KERNEL(attend_list_plain_q8_128, AttendListArgs, THREADS) { attend_plain<coded, 128, false>(p); }
KERNEL(attend_list_plain_q8_256, AttendListArgs, THREADS) { attend_plain<coded, 256, false>(p); }
KERNEL(attend_list_weighted_plain_q8_128, AttendListArgs, THREADS) {
    attend_plain<coded, 128, true>(p);
}
KERNEL(attend_list_weighted_plain_q8_256, AttendListArgs, THREADS) {
    attend_plain<coded, 256, true>(p);
}

// A block owns a query row: its first warp weighs the splits, then a thread sums up an element. All
// that splits left is loaded before it is known which of them had rows: the others' is not used.
KERNEL(attend_list_merge, AttendListArgs, THREADS) {
    SHARED(float, factors, MAX_SPLITS);
    SHARED(float, held, 1);
    const u64 row = blockIdx.x;
    const u32 head = static_cast<u32>(row % p.n_q_heads);
    const u64 entry = static_cast<u64>(p.first_token) * p.n_q_heads + row;
    const float* const left = p.sums + row * p.n_splits * p.head_dim;
    float* const out = p.out + entry * p.head_dim;
    const u32 n = rows_of(p, head / (p.n_q_heads / p.n_kv_heads));
    const bool is_first_warp = warp_of_thread() == 0;
    States<MAX_SPLITS> states;
    float before = minus_infinity();
    if (is_first_warp) {
        load_states(p.states + 2 * row * p.n_splits, p.n_splits, states);
        before = p.accumulate ? p.lse[entry] : before;
    }
    float sums[MERGED];
    float kept = 0;
    if (threadIdx.x < p.head_dim) {
        load_sums(left + threadIdx.x, p.head_dim, 0, p.n_splits, sums);
        kept = p.accumulate ? out[threadIdx.x] : 0.0f;
    }
    // Splits without rows left nothing.
    const u32 each = rows_of_split(p, n);
    const u32 n_splits = n == 0 ? 0 : (n + each - 1) / each;
    if (is_first_warp) {
        const Shares both = weigh_splits(states, n_splits, before, factors);
        // All have read it.
        warp_sync();
        if (threadIdx.x == 0) {
            p.lse[entry] = both.lse;
            held[0] = both.held;
        }
    }
    __syncthreads();
    for (u32 d = threadIdx.x; d < p.head_dim; d += THREADS) {
        if (d >= THREADS) {
            kept = p.accumulate ? out[d] : 0.0f;
        }
        float sum = 0;
        for (u32 first = 0; first < n_splits; first += MERGED) {
            if (d >= THREADS || first > 0) {
                load_sums(left + d, p.head_dim, first, p.n_splits, sums);
            }
#pragma unroll
            for (u32 s = 0; s < MERGED; s++) {
                if (first + s < n_splits) {
                    sum += factors[first + s] * sums[s];
                }
            }
        }
        // Nothing held may hold anything.
        out[d] = held[0] == 0.0f ? sum : sum + held[0] * kept;
    }
}
