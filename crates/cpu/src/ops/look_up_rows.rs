//! A step of the hit/miss cache where its state is device memory.

use longview_ops::{LookUpRows, LookUpRowsParams, Op, OpResult};

use crate::backend::CpuBackend;
use crate::indices::{ensure_at_most, ensure_below};
use crate::views::{slice, slice_mut};

/// Heads one after the other: a head takes time of the order of its budget.
pub(crate) fn run(d: LookUpRows<'_, CpuBackend>) -> OpResult<()> {
    d.check()?;
    let p = d.p;
    let (starts, clusters) = (slice::<u32>(&d.starts), slice::<u32>(&d.clusters));
    let (takes, n_selected) = (slice::<u32>(&d.takes), slice::<u32>(&d.n_selected));
    let (room, stride) = (p.max_selected as usize, p.cluster_stride as usize);
    ensure_at_most(Op::LookUpRows, "number of selected clusters", n_selected, room)?;
    for (head, n) in n_selected.iter().enumerate() {
        let used = &clusters[head * room..][..*n as usize];
        ensure_below(Op::LookUpRows, "cluster", used, stride)?;
    }
    let (list, n_moves) = (p.list_stride as usize, p.move_stride as usize);
    let n_heads = p.n_kv_heads as usize;
    let state_len = LookUpRowsParams::state_len(p.n_slots as usize);
    let (state, rows) = (slice_mut::<u32>(d.state), slice_mut::<u32>(d.rows));
    let (src, dst) = slice_mut::<u32>(d.moves).split_at_mut(n_heads * n_moves);
    let counts = slice_mut::<u32>(d.counts);
    for head in 0..n_heads {
        let n = n_selected[head] as usize;
        let selection = clusters[head * room..][..n].iter().zip(&takes[head * room..][..n]);
        let starts = &starts[head * stride..][..stride];
        let wants = selection.map(|(cluster, take)| (starts[*cluster as usize], *take));
        let mut list = List { rows: &mut rows[head * list..][..list], n: counts[head] };
        let mut moves = Moves {
            src: &mut src[head * n_moves..][..n_moves],
            dst: &mut dst[head * n_moves..][..n_moves],
            n: 0,
        };
        let state = &mut state[head * state_len..][..state_len];
        let n_hits = Head::new(p, state).step(wants, &mut list, &mut moves);
        counts[head] = list.n;
        counts[n_heads + head] = moves.n as u32;
        counts[2 * n_heads + head] += n_hits;
        counts[3 * n_heads + head] += moves.n as u32;
    }
    Ok(())
}

/// The rows that a head attends.
struct List<'a> {
    rows: &'a mut [u32],
    n: u32,
}

/// The rows that it fetches.
struct Moves<'a> {
    src: &'a mut [u32],
    dst: &'a mut [u32],
    n: usize,
}

/// The cache of a head, with a table from host rows to slots.
struct Head<'a> {
    p: LookUpRowsParams,
    /// Host row + 1 of each slot; 0: free.
    held: &'a mut [u32],
    used: &'a mut [u32],
    steps: &'a mut u32,
    /// Host rows + 1 and their slots, hashed, probed in order.
    keys: &'a mut [u32],
    slots: &'a mut [u32],
}

impl<'a> Head<'a> {
    fn new(p: LookUpRowsParams, state: &'a mut [u32]) -> Self {
        let n_slots = p.n_slots as usize;
        let (held, rest) = state.split_at_mut(n_slots);
        let (used, rest) = rest.split_at_mut(n_slots);
        let (steps, scratch) = rest.split_at_mut(1);
        // Devices that look for free slots in parallel list them here.
        let (_, table) = scratch.split_at_mut(n_slots);
        let (keys, slots) = table.split_at_mut(LookUpRowsParams::table_len(n_slots));
        Self { p, held, used, steps: &mut steps[0], keys, slots }
    }

    /// Where `key` is in the table, or the place for it.
    fn place(&self, key: u32) -> usize {
        let mask = self.keys.len() - 1;
        let mut at = (key.wrapping_mul(0x9E37_79B1) >> 7) as usize & mask;
        while self.keys[at] != 0 && self.keys[at] != key {
            at = (at + 1) & mask;
        }
        at
    }

    fn slot_of(&self, row: u32) -> Option<usize> {
        let at = self.place(row + 1);
        (self.keys[at] != 0).then(|| self.slots[at] as usize)
    }

    /// One step over runs of wanted rows (first, number). Returns the hits.
    fn step(
        &mut self,
        wants: impl Iterator<Item = (u32, u32)> + Clone,
        list: &mut List<'_>,
        moves: &mut Moves<'_>,
    ) -> u32 {
        let wanted = || wants.clone().flat_map(|(first, n)| first..first + n);
        *self.steps += 1;
        let now = *self.steps;
        self.keys.fill(0);
        for slot in 0..self.held.len() {
            if self.held[slot] != 0 {
                let at = self.place(self.held[slot]);
                (self.keys[at], self.slots[at]) = (self.held[slot], slot as u32);
            }
        }
        for row in wanted() {
            if let Some(slot) = self.slot_of(row) {
                self.used[slot] = now;
            }
        }
        let kept = self.p.cache_steps;
        for (held, used) in self.held.iter_mut().zip(&*self.used) {
            if used + kept <= now {
                *held = 0;
            }
        }
        let (mut free, mut n_hits) = (0, 0);
        for row in wanted() {
            let slot = match self.slot_of(row) {
                Some(slot) => {
                    n_hits += 1;
                    slot
                }
                None => {
                    while free < self.held.len() && self.held[free] != 0 {
                        free += 1;
                    }
                    if free == self.held.len() || moves.n == moves.src.len() {
                        continue;
                    }
                    (self.held[free], self.used[free]) = (row + 1, now);
                    moves.src[moves.n] = row;
                    moves.dst[moves.n] = self.p.first_slot_row + free as u32;
                    moves.n += 1;
                    free
                }
            };
            if let Some(entry) = list.rows.get_mut(list.n as usize) {
                *entry = self.p.first_slot_row + slot as u32;
                list.n += 1;
            }
        }
        n_hits
    }
}
