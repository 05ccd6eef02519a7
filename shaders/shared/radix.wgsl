// A workgroup looks for the key at which the amounts of all greater keys, from the greatest down,
// reach a sum: round by round over the bits of the keys. The importer has GROUP invocations, BATCH
// elements that one reads together, GROUP apart, and their keys and amounts: `keys_at` and
// AMOUNTS_AT, amount 0 beyond the last element.

const BINS: u32 = 2048u;
const BINS_EACH: u32 = BINS / GROUP;
const NO_BIN: u32 = 0xffffffffu;

var<workgroup> bins: array<atomic<u32>, BINS>;
var<workgroup> sums: array<u32, 2u * GROUP>;
var<workgroup> found_bin: u32;
var<workgroup> found_left: u32;

// The lowest bit and the number of bins of each of three rounds: 11, 11 and 10 bits.
fn round_shift(round: u32) -> u32 {
    return select(select(0u, 10u, round == 1u), 21u, round == 0u);
}

fn round_bins(round: u32) -> u32 {
    return select(BINS, BINS / 2u, round == 2u);
}

// The sum of x over the invocations before this one.
fn sum_before(x: u32, lane: u32) -> u32 {
    workgroupBarrier();
    sums[lane] = x;
    // Each step reads one half and writes the other.
    var from_half = 0u;
    for (var step = 1u; step < GROUP; step *= 2u) {
        workgroupBarrier();
        var sum = sums[from_half + lane];
        if lane >= step {
            sum += sums[from_half + lane - step];
        }
        from_half = GROUP - from_half;
        sums[from_half + lane] = sum;
    }
    return sums[from_half + lane] - x;
}

// Adds up the amounts of keys whose bits under `mask` are `prefix`, by the bits at `shift`.
fn fill_bins(row: u32, n: u32, mask: u32, prefix: u32, shift: u32, n_bins: u32, lane: u32) {
    for (var i = lane; i < BINS; i += GROUP) {
        atomicStore(&bins[i], 0u);
    }
    workgroupBarrier();
    // Neighbours often share a bin (a softmax gives few exponents): one addition for a run of them.
    var held = 0u;
    var amount = 0u;
    for (var c = lane; c < n; c += BATCH * GROUP) {
        let keys = keys_at(row, c, n);
        let amounts = AMOUNTS_AT(row, c, n);
        for (var i = 0u; i < BATCH; i++) {
            if (keys[i] & mask) == prefix {
                let bin = (keys[i] >> shift) & (n_bins - 1u);
                if bin != held && amount > 0u {
                    atomicAdd(&bins[held], amount);
                    amount = 0u;
                }
                held = bin;
                amount += amounts[i];
            }
        }
    }
    if amount > 0u {
        atomicAdd(&bins[held], amount);
    }
    workgroupBarrier();
}

// The bin in which the sum from the greatest down reaches `left`, and what is left above it goes to
// `found_bin` and `found_left`. Where the whole sum is less, NO_BIN.
fn find_bin(left: u32, lane: u32) {
    if lane == 0u {
        found_bin = NO_BIN;
    }
    var own = 0u;
    for (var i = 0u; i < BINS_EACH; i++) {
        // Each at another place of its bins: in different banks.
        own += atomicLoad(&bins[BINS - 1u - (lane * BINS_EACH + (i + lane) % BINS_EACH)]);
    }
    var before = sum_before(own, lane);
    if before < left && left - before <= own {
        for (var i = 0u; i < BINS_EACH; i++) {
            let bin = BINS - 1u - (lane * BINS_EACH + i);
            let amount = atomicLoad(&bins[bin]);
            if before < left && left - before <= amount {
                found_bin = bin;
                found_left = left - before;
            }
            before += amount;
        }
    }
    workgroupBarrier();
}
