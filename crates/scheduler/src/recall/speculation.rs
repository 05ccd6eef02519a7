//! Speculative recall: a step attends the clusters that the query of the step before chose.
//!
//! Exact recall waits for the device in every layer, because which rows to fetch depends on a query
//! that was just computed. Queries of neighbouring steps are close (FreeKV, arXiv 2505.13109), so
//! the choice made with the last one is known when a step begins: rows are fetched without a wait,
//! and the choice for the next step travels with the token that the caller waits for anyway.
//!
//! What makes it safe is the gate: each KV head's mean cosine of this query and the last one. If
//! one head of one layer falls below, the step is taken back and run again with exact recall.
//! FreeKV corrects the heads alone, in the layer; that needs the wait in the layer that this mode
//! exists to avoid. The price is that one head of many spoils a step, so a step speculates only if
//! the queries of the one before it were near: exact steps compare theirs too, at no wait. Text on
//! which queries turn all the time then costs what exact recall costs, not twice that.

use longview_core::DType;
use longview_ops::{Backend, OpResult, QueryGate, QueryGateParams, View, ViewMut};

use crate::layout::{KvShape, Query};
use crate::stats::Stats;

/// Which query chooses the clusters that a decode step attends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum RecallMode {
    /// The step's own. The host waits for the device once in every layer that recalls.
    #[default]
    Exact,
    /// That of the step before. The host waits once a step, and again for steps that are repeated.
    Speculative {
        /// A step is run again exactly if a KV head's mean cosine of this query and the last one is
        /// below, and the next one does not speculate. -1 never runs again; above 1 speculates and
        /// runs again always, which is a test.
        gate: f32,
    },
}

impl RecallMode {
    /// The paper's threshold for long answers.
    pub const DEFAULT_GATE: f32 = 0.9;
}

/// Whether the result of a step may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "a step that does not stand has been taken back and must be run again"]
pub enum StepVerdict {
    /// It may: no query moved too far, or the step recalled exactly.
    Stands,
    /// No: a head's query had moved too far. The step has been taken back; the same token again
    /// will recall exactly.
    RunAgain,
}

/// Where the speculation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No layer has a choice that is worth going by: the next step is exact.
    Unknown,
    /// Every layer has the choice of the last step.
    Ready,
    /// An exact step has begun.
    Exact,
    /// An exact step has ended, and its comparisons were not read.
    Compared,
    /// A speculative step has begun.
    Speculative,
    /// A speculative step has ended, and what it left on the device was not read.
    Unread,
    /// A speculative step was taken back: the next step repeats it.
    TakenBack,
    /// That exact step has begun.
    Repetition,
}

impl Phase {
    /// Whether a step has ended whose comparisons nobody has read.
    fn was_compared(self) -> bool {
        matches!(self, Phase::Compared | Phase::Unread)
    }
}

/// What speculation keeps beside the selections.
pub(crate) struct Speculation<B: Backend> {
    gate: f32,
    phase: Phase,
    /// The query that selected, F32 `[recall layers, Hq, Dh]`.
    last: B::Buffer,
    /// F32 `[recall layers, Hkv]`.
    cosines: B::Buffer,
    host_cosines: Vec<f32>,
    /// Counters of results before the step: steps, attended rows, selected clusters.
    before: [u64; 3],
}

impl<B: Backend> Speculation<B> {
    pub fn new(backend: &B, shape: &KvShape, n_layers: usize, gate: f32) -> OpResult<Self> {
        let (queries, heads) = (n_layers * shape.n_q_heads, n_layers * shape.n_kv_heads);
        Ok(Self {
            gate,
            phase: Phase::Unknown,
            last: backend.alloc(DType::F32, queries * shape.head_dim, "last queries")?,
            cosines: backend.alloc(DType::F32, heads, "query gates")?,
            host_cosines: vec![0.0; heads],
            before: [0; 3],
        })
    }

    /// Compares the query with the one that selected for this step, and keeps it.
    pub fn compare(&mut self, backend: &B, shape: &KvShape, query: &Query<'_, B>) -> OpResult<()> {
        let (token, heads) = (shape.n_q_heads * shape.head_dim, shape.n_kv_heads);
        backend.query_gate(QueryGate {
            p: QueryGateParams {
                n_tokens: query.n_tokens as u32,
                n_q_heads: shape.n_q_heads as u32,
                n_kv_heads: heads as u32,
                head_dim: shape.head_dim as u32,
                q_index: query.index as u32,
            },
            q: query.q,
            last: ViewMut::part(&mut self.last, query.selection.0 * token, token),
            cosines: ViewMut::part(&mut self.cosines, query.selection.0 * heads, heads),
        })
    }

    /// The comparisons of the step, all layers, and where they go.
    pub fn read_part(&mut self) -> (View<'_, B>, &mut [u8]) {
        (View::all(&self.cosines), bytemuck::cast_slice_mut(&mut self.host_cosines))
    }

    /// Decides how the decode step that begins recalls. `index_changes` says that a window becomes
    /// clusters in this step, which makes it exact: the last selection knows nothing of the new
    /// clusters, whose tokens were all attended until now, and leaves their share of the budget
    /// empty.
    pub fn begin_step(&mut self, index_changes: bool, stats: &mut Stats) {
        self.phase = match self.phase {
            Phase::Ready if !index_changes => Phase::Speculative,
            Phase::TakenBack => Phase::Repetition,
            _ => Phase::Exact,
        };
        self.before = results(stats).map(|count| *count);
    }

    /// Whether the step in progress goes by the last step's selection.
    pub fn is_speculative(&self) -> bool {
        self.phase == Phase::Speculative
    }

    /// Whether a speculative step has ended whose verdict nobody has read.
    pub fn is_unread(&self) -> bool {
        self.phase == Phase::Unread
    }

    /// Whether a step has ended whose comparisons nobody has read.
    pub fn was_compared(&self) -> bool {
        self.phase.was_compared()
    }

    /// The step's layers are done.
    pub fn end_step(&mut self, stats: &mut Stats) {
        self.phase = match self.phase {
            Phase::Speculative => Phase::Unread,
            Phase::Exact => Phase::Compared,
            // It compared the token's query with that of the step taken back, which says nothing.
            Phase::Repetition => self.next_phase(false),
            other => other,
        };
        stats.speculated_steps += u64::from(self.is_unread());
    }

    /// Rows, clusters or device buffers changed: the last selection says nothing about the next
    /// step.
    pub fn forget(&mut self) {
        self.phase = Phase::Unknown;
    }

    /// Looks at the comparisons that were read: whether the next step may speculate, and whether
    /// the last one should have. If not, its counters are taken back, and the caller must take back
    /// its token. What it fetched stays in the cache.
    pub fn judge(&mut self, stats: &mut Stats) -> StepVerdict {
        if !self.was_compared() {
            return StepVerdict::Stands;
        }
        let (was_speculative, failed) = (self.is_unread(), self.failed_gates());
        self.phase = self.next_phase(failed == 0);
        if !was_speculative || failed == 0 {
            return StepVerdict::Stands;
        }
        self.phase = Phase::TakenBack;
        for (count, before) in results(stats).into_iter().zip(self.before) {
            *count = before;
        }
        stats.repeated_steps += 1;
        stats.failed_gates += failed as u64;
        StepVerdict::RunAgain
    }

    /// What follows a step whose queries were near to those before, or not.
    fn next_phase(&self, was_near: bool) -> Phase {
        if was_near || self.gate > 1.0 { Phase::Ready } else { Phase::Unknown }
    }

    /// Heads whose query has moved too far. Not-a-number has.
    fn failed_gates(&self) -> usize {
        let fails = |cosine: &&f32| cosine.is_nan() || cosine.clamp(-1.0, 1.0) < self.gate;
        self.host_cosines.iter().filter(fails).count()
    }
}

/// The counters that a step taken back must not leave changed; what was moved was moved.
fn results(stats: &mut Stats) -> [&mut u64; 3] {
    [&mut stats.steps, &mut stats.attended_rows, &mut stats.selected_clusters]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::SelectionId;
    use crate::recall::testing::{Device, shape, upload};

    /// Two layers of two KV heads.
    fn speculation(gate: f32) -> Speculation<Device> {
        let speculation = Speculation::new(&Device::new(), &shape(), 2, gate).unwrap();
        assert_eq!(speculation.host_cosines.len(), 4);
        speculation
    }

    /// Runs a step whose comparisons are `cosines`, and says in which phases it began and ended.
    fn run(s: &mut Speculation<Device>, stats: &mut Stats, cosines: [f32; 4]) -> [Phase; 2] {
        s.begin_step(false, stats);
        let begun = s.phase;
        s.host_cosines.copy_from_slice(&cosines);
        stats.steps += 1;
        stats.attended_rows += 10;
        stats.selected_clusters += 3;
        s.end_step(stats);
        [begun, s.phase]
    }

    const NEAR: [f32; 4] = [0.99; 4];
    const FAR: [f32; 4] = [0.99, 0.99, 0.2, 0.99];

    #[test]
    fn near_queries_lead_from_an_exact_step_to_speculative_ones() {
        let (mut s, mut stats) = (speculation(0.9), Stats::new(2, 2));
        assert_eq!(s.phase, Phase::Unknown);
        assert!(!s.is_speculative() && !s.is_unread() && !s.was_compared());
        assert_eq!(run(&mut s, &mut stats, NEAR), [Phase::Exact, Phase::Compared]);
        assert!(s.was_compared() && !s.is_unread());
        assert_eq!(s.judge(&mut stats), StepVerdict::Stands);
        assert_eq!(s.phase, Phase::Ready);
        assert_eq!(stats.speculated_steps, 0);
        for done in 1..=2 {
            s.begin_step(false, &mut stats);
            assert!(s.is_speculative() && !s.is_unread());
            s.end_step(&mut stats);
            assert!(!s.is_speculative() && s.is_unread() && s.was_compared());
            assert_eq!(s.judge(&mut stats), StepVerdict::Stands);
            assert_eq!((s.phase, stats.speculated_steps), (Phase::Ready, done));
        }
        assert_eq!((stats.repeated_steps, stats.failed_gates), (0, 0));
    }

    #[test]
    fn far_queries_keep_steps_exact_and_take_nothing_back() {
        let (mut s, mut stats) = (speculation(0.9), Stats::new(2, 2));
        for step in 1..=3 {
            assert_eq!(run(&mut s, &mut stats, FAR), [Phase::Exact, Phase::Compared]);
            assert_eq!(s.judge(&mut stats), StepVerdict::Stands);
            assert_eq!((s.phase, stats.steps), (Phase::Unknown, step));
        }
        assert_eq!((stats.speculated_steps, stats.repeated_steps, stats.failed_gates), (0, 0, 0));
    }

    #[test]
    fn a_failed_step_is_taken_back_and_repeated_exactly() {
        let (mut s, mut stats) = (speculation(0.9), Stats::new(2, 2));
        run(&mut s, &mut stats, NEAR);
        assert_eq!(s.judge(&mut stats), StepVerdict::Stands);
        stats.misses = 5;
        let failed = run(&mut s, &mut stats, [0.5, 0.99, 0.2, 0.95]);
        assert_eq!(failed, [Phase::Speculative, Phase::Unread]);
        stats.misses = 8;
        assert_eq!((stats.steps, stats.attended_rows, stats.selected_clusters), (2, 20, 6));
        assert_eq!(s.judge(&mut stats), StepVerdict::RunAgain);
        assert_eq!(s.phase, Phase::TakenBack);
        assert_eq!((stats.steps, stats.attended_rows, stats.selected_clusters), (1, 10, 3));
        assert_eq!(stats.misses, 8, "what was fetched was fetched");
        assert_eq!((stats.speculated_steps, stats.repeated_steps, stats.failed_gates), (1, 1, 2));
        assert!(!s.is_unread() && !s.was_compared());
        // Read again: nothing is taken back twice.
        assert_eq!(s.judge(&mut stats), StepVerdict::Stands);
        assert_eq!((s.phase, stats.steps, stats.repeated_steps), (Phase::TakenBack, 1, 1));
        // What the repetition compares is the same token's query, however near that is.
        assert_eq!(run(&mut s, &mut stats, NEAR), [Phase::Repetition, Phase::Unknown]);
        assert_eq!((stats.steps, stats.attended_rows, stats.selected_clusters), (2, 20, 6));
        assert_eq!(stats.speculated_steps, 1);
        assert_eq!(run(&mut s, &mut stats, NEAR), [Phase::Exact, Phase::Compared]);
    }

    #[test]
    fn a_repetition_stays_one_although_the_index_changes() {
        let (mut s, mut stats) = (speculation(0.9), Stats::new(2, 2));
        s.phase = Phase::TakenBack;
        s.begin_step(true, &mut stats);
        assert_eq!(s.phase, Phase::Repetition);
    }

    #[test]
    fn a_step_that_changes_the_index_is_exact() {
        let (mut s, mut stats) = (speculation(0.9), Stats::new(2, 2));
        s.phase = Phase::Ready;
        s.begin_step(true, &mut stats);
        assert_eq!((s.phase, s.is_speculative()), (Phase::Exact, false));
        s.end_step(&mut stats);
        assert_eq!((s.phase, stats.speculated_steps), (Phase::Compared, 0));
    }

    #[test]
    fn forgetting_makes_the_next_step_exact_from_every_phase() {
        let phases = [
            Phase::Unknown,
            Phase::Ready,
            Phase::Exact,
            Phase::Compared,
            Phase::Speculative,
            Phase::Unread,
            Phase::TakenBack,
            Phase::Repetition,
        ];
        for phase in phases {
            let (mut s, mut stats) = (speculation(0.9), Stats::new(2, 2));
            (s.phase, stats.steps) = (phase, 7);
            s.forget();
            assert_eq!(s.judge(&mut stats), StepVerdict::Stands, "{phase:?}");
            assert_eq!(stats.steps, 7, "{phase:?}: nothing is taken back");
            s.begin_step(false, &mut stats);
            assert_eq!(s.phase, Phase::Exact, "{phase:?}");
        }
    }

    #[test]
    fn a_step_that_ends_outside_of_one_changes_nothing() {
        for phase in [Phase::Unknown, Phase::Ready, Phase::Compared, Phase::TakenBack] {
            let (mut s, mut stats) = (speculation(0.9), Stats::new(2, 2));
            s.phase = phase;
            s.end_step(&mut stats);
            assert_eq!((s.phase, stats.speculated_steps), (phase, 0));
        }
    }

    #[test]
    fn the_gate_lets_its_own_value_pass_and_not_the_next_below() {
        let fails = |gate: f32, cosine: f32| {
            let mut s = speculation(gate);
            s.host_cosines = vec![1.0, 1.0, 1.0, cosine];
            s.failed_gates()
        };
        assert_eq!(fails(0.9, 0.9), 0);
        assert_eq!(fails(0.9, 0.9f32.next_down()), 1);
        assert_eq!(fails(0.9, 0.9f32.next_up()), 0);
        assert_eq!(fails(1.0, 1.0), 0);
        // Rounding takes a cosine beyond 1 or -1: that moves no gate.
        assert_eq!(fails(-1.0, -1.000_001), 0);
        assert_eq!(fails(0.0, -1.5), 1);
        assert_eq!(fails(1.000_001, 1.5), 4);
    }

    #[test]
    fn not_a_number_fails_every_gate() {
        for gate in [-1.0, 0.0, 0.9] {
            let (mut s, mut stats) = (speculation(gate), Stats::new(2, 2));
            s.phase = Phase::Ready;
            run(&mut s, &mut stats, [1.0, f32::NAN, 1.0, 1.0]);
            assert_eq!(s.judge(&mut stats), StepVerdict::RunAgain);
            assert_eq!((stats.failed_gates, stats.steps), (1, 0));
        }
    }

    #[test]
    fn a_gate_of_minus_one_never_runs_again() {
        let (mut s, mut stats) = (speculation(-1.0), Stats::new(2, 2));
        for _ in 0..3 {
            run(&mut s, &mut stats, [-1.0; 4]);
            assert_eq!(s.judge(&mut stats), StepVerdict::Stands);
        }
        assert_eq!((stats.speculated_steps, stats.repeated_steps), (2, 0));
    }

    #[test]
    fn a_gate_above_one_speculates_and_runs_again_always() {
        let (mut s, mut stats) = (speculation(1.5), Stats::new(2, 2));
        run(&mut s, &mut stats, NEAR);
        assert_eq!(s.judge(&mut stats), StepVerdict::Stands);
        for repeated in 1..=2 {
            assert_eq!(run(&mut s, &mut stats, NEAR)[0], Phase::Speculative);
            assert_eq!(s.judge(&mut stats), StepVerdict::RunAgain);
            assert_eq!(run(&mut s, &mut stats, NEAR), [Phase::Repetition, Phase::Ready]);
            assert_eq!((stats.repeated_steps, stats.failed_gates), (repeated, 4 * repeated));
        }
        assert_eq!(stats.steps, 3, "the first, and two repetitions");
    }

    /// Layer 1's query of the second token, head by head: the same, the opposite; then one head at
    /// a right angle and one the same.
    #[test]
    fn a_query_is_compared_with_the_last_one_of_its_layer_and_kept() {
        let (device, shape) = (Device::new(), shape());
        let mut s = speculation(0.9);
        let unit = |axis: usize, length: f32| {
            let mut q = [0.0; 4];
            q[axis] = length;
            q
        };
        let other = [unit(3, 1.0); 4].concat();
        let first = [unit(0, 1.0), unit(0, 2.0), unit(1, 1.0), unit(2, 3.0)].concat();
        let second = [unit(0, 5.0), unit(0, -2.0), unit(0, 1.0), unit(2, 1.0)].concat();
        let mut compare = |q: &[f32], layer: usize| {
            let buffer = upload(&device, &[&other, q].concat());
            let selection = SelectionId(layer);
            let query = Query { q: View::all(&buffer), n_tokens: 2, index: 1, selection };
            s.compare(&device, &shape, &query).unwrap();
            let (view, out) = s.read_part();
            pollster::block_on(device.read(view, out)).unwrap();
            s.host_cosines.clone()
        };
        assert_eq!(compare(&first, 1), [0.0; 4], "nothing to compare with yet");
        assert_eq!(compare(&second, 1), [0.0, 0.0, 0.0, 0.5], "means of (1, -1) and of (0, 1)");
        assert_eq!(compare(&second, 1), [0.0, 0.0, 1.0, 1.0], "the last one was kept");
        assert_eq!(compare(&first, 0), [0.0, 0.0, 1.0, 1.0], "layer 0 has its own");
        assert_eq!(compare(&first, 0), [1.0; 4]);
    }
}
