// out[v] = x[v] W[m] for each vector v of the heads that share matrix m: x is [T, H, Dh] or
// [H, T, Dh], W [H / group, Dh, r], out as x with r for Dh.
//
// `wide`, for the keys of a context: a block owns 128 vectors of a matrix and 32 columns of it.
// 32 rows of W and as many columns of the vectors lie in shared memory, W transposed, so that both
// are read 4 at a time; a thread owns 8 vectors times 4 columns: 12 loads serve 128 products.
// `narrow`, for the queries of a step: a block owns 8 vectors and 32 columns, a lane one column,
// and each of its warps every 8th row of W; many loads are under way, and the warps meet once.
//
// Bytes: 4 T H (Dh + r). FLOPs: 2 T H Dh r. Bound: memory up to ranks of about 32, then arithmetic.
#include "shared/rows.cuh"

struct ProjectHeadsArgs {
    const float* x;
    const float* w;
    float* out;
    u32 n_tokens;
    u32 n_heads;
    // Heads that share a matrix.
    u32 group;
    u32 head_dim;
    u32 rank;
    u32 head_major;
    // Whether every vector of x begins at 16 bytes.
    u32 is_aligned;
    u32 unused;
};

// Columns of W of a block.
constexpr u32 RANKS = 32;

// Place of vector i of a matrix among all, and how many a matrix has.
DEVICE u64 place_of(const ProjectHeadsArgs& p, u32 matrix, u64 i) {
    if (p.head_major != 0) {
        // The heads of a matrix lie behind each other.
        return static_cast<u64>(matrix) * p.group * p.n_tokens + i;
    }
    const u64 token = i / p.group;
    return token * p.n_heads + matrix * p.group + (i - token * p.group);
}
DEVICE u64 n_vectors(const ProjectHeadsArgs& p) {
    return static_cast<u64>(p.n_tokens) * p.group;
}

constexpr u32 WIDE_THREADS = 128;
constexpr u32 VECTORS = 128;
// A step goes over 8 units of 4 columns of the vectors.
constexpr u32 UNITS = 8;
// Vectors and columns of a thread.
constexpr u32 DOWN = 8;
constexpr u32 ACROSS = 4;

// Unit u of row r: 8 lanes that read or write other rows or other units hit all banks.
DEVICE u32 unit_at(u32 row, u32 unit) { return row * UNITS + (unit ^ row % UNITS); }

// Columns of the vectors from `first` on, as units; 0 beyond the last vector and the last column.
DEVICE void bring_vectors(const ProjectHeadsArgs& p, u32 matrix, u64 first_vector, u32 first,
                          float4* tile) {
    const u64 n = n_vectors(p);
    const u32 unit = threadIdx.x % UNITS;
    for (u32 row = threadIdx.x / UNITS; row < VECTORS; row += WIDE_THREADS / UNITS) {
        float x[4] = {};
        if (first_vector + row < n) {
            const float* from = p.x + place_of(p, matrix, first_vector + row) * p.head_dim;
            load_floats<4>(from, first + 4 * unit, p.head_dim, p.is_aligned != 0, x);
        }
        tile[unit_at(row, unit)] = float4{x[0], x[1], x[2], x[3]};
    }
}

// The same rows of W: a column of it becomes a row of units.
DEVICE void bring_matrix(const ProjectHeadsArgs& p, const float* w, u32 first_rank, u32 first,
                         float4* tile) {
    const u32 column = threadIdx.x % RANKS;
    const u32 rank = first_rank + column;
    for (u32 unit = threadIdx.x / RANKS; unit < UNITS; unit += WIDE_THREADS / RANKS) {
        float x[4];
#pragma unroll
        for (u32 i = 0; i < 4; i++) {
            const u32 row = first + 4 * unit + i;
            const bool is_there = rank < p.rank && row < p.head_dim;
            x[i] = is_there ? w[static_cast<u64>(row) * p.rank + rank] : 0.0f;
        }
        tile[unit_at(column, unit)] = float4{x[0], x[1], x[2], x[3]};
    }
}

KERNEL(project_heads_wide, ProjectHeadsArgs, WIDE_THREADS) {
    SHARED(float4, vectors, VECTORS * UNITS);
    SHARED(float4, columns, RANKS * UNITS);
    const u32 matrix = blockIdx.y;
    const u32 first_rank = blockIdx.z * RANKS;
    const u64 first_vector = static_cast<u64>(blockIdx.x) * VECTORS;
    const float* w = p.w + static_cast<u64>(matrix) * p.head_dim * p.rank;
    const u32 own_vector = warp_of_thread() * (VECTORS / 4) + lane_of_thread() / 8;
    const u32 own_column = lane_of_thread() % 8;
    float sums[DOWN][ACROSS] = {};
    for (u32 first = 0; first < p.head_dim; first += 4 * UNITS) {
        // The step before has been used.
        __syncthreads();
        bring_vectors(p, matrix, first_vector, first, vectors);
        bring_matrix(p, w, first_rank, first, columns);
        __syncthreads();
        // One unit after the other: else all are loaded first, into many registers.
#pragma unroll 1
        for (u32 unit = 0; unit < UNITS; unit++) {
            float4 a[DOWN];
#pragma unroll
            for (u32 i = 0; i < DOWN; i++) {
                a[i] = vectors[unit_at(own_vector + 4 * i, unit)];
            }
#pragma unroll
            for (u32 j = 0; j < ACROSS; j++) {
                const float4 b = columns[unit_at(own_column + 8 * j, unit)];
#pragma unroll
                for (u32 i = 0; i < DOWN; i++) {
                    sums[i][j] += a[i].x * b.x;
                    sums[i][j] += a[i].y * b.y;
                    sums[i][j] += a[i].z * b.z;
                    sums[i][j] += a[i].w * b.w;
                }
            }
        }
    }
    const u64 n = n_vectors(p);
#pragma unroll
    for (u32 i = 0; i < DOWN; i++) {
        const u64 vector = first_vector + own_vector + 4 * i;
        if (vector >= n) {
            continue;
        }
        float* out = p.out + place_of(p, matrix, vector) * p.rank;
#pragma unroll
        for (u32 j = 0; j < ACROSS; j++) {
            const u32 rank = first_rank + own_column + 8 * j;
            if (rank < p.rank) {
                out[rank] = sums[i][j];
            }
        }
    }
}

constexpr u32 NARROW_THREADS = 256;
constexpr u32 NARROW_WARPS = NARROW_THREADS / WARP;
constexpr u32 FEW = 8;
// Columns of the vectors in shared memory.
constexpr u32 NARROW_DEPTH = 256;

KERNEL(project_heads_narrow, ProjectHeadsArgs, NARROW_THREADS) {
    SHARED(float, vectors, FEW * NARROW_DEPTH);
    SHARED(float, parts, NARROW_WARPS * FEW * WARP);
    const u32 matrix = blockIdx.y;
    const u32 first_rank = blockIdx.z * RANKS;
    const u64 first_vector = static_cast<u64>(blockIdx.x) * FEW;
    const u64 left = n_vectors(p) - first_vector;
    const u32 n = left < FEW ? static_cast<u32>(left) : FEW;
    const u32 rank = first_rank + lane_of_thread();
    // Beyond the last column, the last again; nobody asks for its sums.
    const u32 column = min_of(rank, p.rank - 1);
    const float* w = p.w + static_cast<u64>(matrix) * p.head_dim * p.rank + column;
    float sums[FEW] = {};
    for (u32 first = 0; first < p.head_dim; first += NARROW_DEPTH) {
        const u32 depth = min_of(NARROW_DEPTH, p.head_dim - first);
        __syncthreads();
        for (u32 v = warp_of_thread(); v < FEW; v += NARROW_WARPS) {
            const u64 vector = first_vector + (v < n ? v : 0);
            const float* x = p.x + place_of(p, matrix, vector) * p.head_dim + first;
            for (u32 i = lane_of_thread(); i < depth; i += WARP) {
                vectors[v * NARROW_DEPTH + i] = x[i];
            }
        }
        __syncthreads();
#pragma unroll 8
        for (u32 i = warp_of_thread(); i < depth; i += NARROW_WARPS) {
            const float b = w[static_cast<u64>(first + i) * p.rank];
#pragma unroll
            for (u32 v = 0; v < FEW; v++) {
                sums[v] += vectors[v * NARROW_DEPTH + i] * b;
            }
        }
    }
#pragma unroll
    for (u32 v = 0; v < FEW; v++) {
        parts[(warp_of_thread() * FEW + v) * WARP + lane_of_thread()] = sums[v];
    }
    __syncthreads();
    // A warp for each vector.
    const u32 own = warp_of_thread();
    if (own < n && rank < p.rank) {
        float sum = 0;
#pragma unroll
        for (u32 i = 0; i < NARROW_WARPS; i++) {
            sum += parts[(i * FEW + own) * WARP + lane_of_thread()];
        }
        p.out[place_of(p, matrix, first_vector + own) * p.rank + rank] = sum;
    }
}
