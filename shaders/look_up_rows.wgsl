// A step of the device cache of one KV head: slots of the wanted rows, what is missing, what goes.
//
// A workgroup owns a head. It hashes the rows that are held, marks those that are wanted, lets go
// of those that were not used for R steps, lists the free slots in order, and goes through the
// wanted rows in chunks of GROUP: scans number the rows that are missing and those that are listed.
// Which invocation enters the table first changes nothing but where in the table a row stands.
//
// The state of a head: held rows + 1, steps of last use, steps so far, free slots, keys and values
// of the table. Bytes: of the order of the slots and the budget. Bound: the launch.

//# import shared/common
//# import shared/selected_rows

const GROUP: u32 = 256u;

struct Params {
    n_kv_heads: u32,
    max_selected: u32,
    cluster_stride: u32,
    list_stride: u32,
    move_stride: u32,
    n_slots: u32,
    first_slot_row: u32,
    cache_steps: u32,
    table_len: u32,
    starts_offset: u32,
    clusters_offset: u32,
    takes_offset: u32,
    n_selected_offset: u32,
    state_offset: u32,
    rows_offset: u32,
    moves_offset: u32,
    counts_offset: u32,
}

@group(0) @binding(0) var<uniform> p: Params;
@group(0) @binding(1) var<storage, read> starts: array<u32>;
@group(0) @binding(2) var<storage, read> clusters: array<u32>;
@group(0) @binding(3) var<storage, read> takes: array<u32>;
@group(0) @binding(4) var<storage, read> n_selected: array<u32>;
@group(0) @binding(5) var<storage, read_write> state: array<atomic<u32>>;
@group(0) @binding(6) var<storage, read_write> rows: array<u32>;
@group(0) @binding(7) var<storage, read_write> moves: array<u32>;
@group(0) @binding(8) var<storage, read_write> counts: array<u32>;

fn place_of(key: u32) -> u32 {
    return ((key * 0x9E3779B1u) >> 7u) & (p.table_len - 1u);
}

// The slot that holds a host row, or n_slots.
fn slot_of(row: u32, keys: u32) -> u32 {
    var at = place_of(row + 1u);
    for (var probes = 0u; probes < p.table_len; probes++) {
        let key = atomicLoad(&state[keys + at]);
        if key == row + 1u {
            return atomicLoad(&state[keys + p.table_len + at]);
        }
        if key == 0u {
            break;
        }
        at = (at + 1u) & (p.table_len - 1u);
    }
    return p.n_slots;
}

// Enters a slot into the table.
fn enter(key: u32, slot: u32, keys: u32) {
    var at = place_of(key);
    // An exchange may fail for no reason: the bound is far above what probing takes.
    for (var tries = 0u; tries < 16u * p.table_len; tries++) {
        let found = atomicCompareExchangeWeak(&state[keys + at], 0u, key);
        if found.exchanged {
            atomicStore(&state[keys + p.table_len + at], slot);
            return;
        }
        if found.old_value != 0u {
            at = (at + 1u) & (p.table_len - 1u);
        }
    }
}

@compute @workgroup_size(GROUP)
fn look_up_rows(
    @builtin(workgroup_id) workgroup: vec3<u32>,
    @builtin(local_invocation_index) lane: u32,
) {
    let head = workgroup.x;
    let held = p.state_offset + head * (3u * p.n_slots + 1u + 2u * p.table_len);
    let used = held + p.n_slots;
    let steps = used + p.n_slots;
    let free = steps + 1u;
    let keys = free + p.n_slots;
    let now = shared_by_all(atomicLoad(&state[steps]) + 1u, lane, 0u);
    let selected = min(n_selected[p.n_selected_offset + head], p.max_selected);
    let n = shared_by_all(selected, lane, 0u);

    for (var i = lane; i < p.table_len; i += GROUP) {
        atomicStore(&state[keys + i], 0u);
    }
    storageBarrier();
    for (var slot = lane; slot < p.n_slots; slot += GROUP) {
        let key = atomicLoad(&state[held + slot]);
        if key != 0u {
            enter(key, slot, keys);
        }
    }
    storageBarrier();

    for (var tile = 0u; tile < n; tile += GROUP) {
        let tokens = load_tile(head, tile, n, lane);
        for (var at = lane; at < tokens; at += GROUP) {
            let slot = slot_of(row_of(at), keys);
            if slot < p.n_slots {
                atomicStore(&state[used + slot], now);
            }
        }
    }
    storageBarrier();

    // What goes, and what is free then.
    var n_free = 0u;
    for (var first = 0u; first < p.n_slots; first += GROUP) {
        let slot = first + lane;
        var is_free = 0u;
        if slot < p.n_slots {
            if atomicLoad(&state[used + slot]) + p.cache_steps <= now {
                atomicStore(&state[held + slot], 0u);
            }
            is_free = u32(atomicLoad(&state[held + slot]) == 0u);
        }
        let end = scan(is_free, lane);
        if is_free != 0u {
            atomicStore(&state[free + n_free + end - 1u], slot);
        }
        n_free += shared_by_all(end, lane, GROUP - 1u);
    }
    storageBarrier();

    let room = min(n_free, p.move_stride);
    let listed = counts[p.counts_offset + head];
    var n_missing = 0u;
    var n_hits = 0u;
    var n_listed = listed;
    for (var tile = 0u; tile < n; tile += GROUP) {
        let tokens = load_tile(head, tile, n, lane);
        for (var chunk = 0u; chunk < tokens; chunk += GROUP) {
            let is_token = chunk + lane < tokens;
            var row = 0u;
            var slot = p.n_slots;
            if is_token {
                row = row_of(chunk + lane);
                slot = slot_of(row, keys);
            }
            let is_hit = slot < p.n_slots;
            let missing_end = scan(u32(is_token && !is_hit), lane);
            let number = n_missing + missing_end - 1u;
            let is_moved = is_token && !is_hit && number < room;
            if is_moved {
                slot = atomicLoad(&state[free + number]);
                atomicStore(&state[held + slot], row + 1u);
                atomicStore(&state[used + slot], now);
                let entry = p.moves_offset + head * p.move_stride + number;
                moves[entry] = row;
                moves[entry + p.n_kv_heads * p.move_stride] = p.first_slot_row + slot;
            }
            n_missing += shared_by_all(missing_end, lane, GROUP - 1u);
            let listed_end = scan(u32(is_hit || is_moved), lane);
            let place = n_listed + listed_end - 1u;
            if (is_hit || is_moved) && place < p.list_stride {
                rows[p.rows_offset + head * p.list_stride + place] = p.first_slot_row + slot;
            }
            n_listed += shared_by_all(listed_end, lane, GROUP - 1u);
        }
    }
    if lane == 0u {
        let moved = min(n_missing, room);
        n_hits = n_listed - listed - moved;
        atomicStore(&state[steps], now);
        let at = p.counts_offset + head;
        counts[at] = min(n_listed, max(p.list_stride, listed));
        counts[at + p.n_kv_heads] = moved;
        counts[at + 2u * p.n_kv_heads] += n_hits;
        counts[at + 3u * p.n_kv_heads] += moved;
    }
}
