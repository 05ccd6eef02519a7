//! What a step did not choose, from some of it: attention to drawn tokens, on the host.
//!
//! With w the rows that a drawn row stands for ([`super::draw`]), it adds `w e^(scale q.k) v` to
//! the attention's numerator and `w e^(scale q.k)` to its denominator: both are what all unchosen
//! rows would add, on average over draws (vAttention, arXiv 2510.05688). The result is merged with
//! what was attended by log-sum-exp, so that no kernel knows of it. The query comes to the host
//! with one wait of each layer.

use std::ops::Range;

use longview_core::{DType, HeadId, LayerId, decode_f32_into};
use longview_ops::{Backend, OpResult};

use super::confidence::{Terms, normal_quantile};
use super::draw::{DrawPlace, Drawn, Purpose, UnchosenRows};
use super::host_attention::dot;
use super::host_result::{HostResult, take_row};
use super::selector::Selector;
use crate::index::HeadIndex;
use crate::layout::{KvShape, LayerTensors, SelectionId};
use crate::policy::{Policy, Residual};
use crate::store::LayerRows;

/// Tokens that each KV head draws to see how many it has to draw.
const PILOT_DRAWS: usize = 64;

/// Buffers that the layers of a sequence share.
pub(crate) struct SampledRest<B: Backend> {
    /// `[Hq, Dh]`: the step's query, which the caller reads.
    pub q: Vec<f32>,
    /// `[Hq]`: the log-sum-exp of what was attended, which the caller reads where it counts.
    pub lse: Vec<f32>,
    /// Attention to drawn rows.
    result: HostResult<B>,
    unchosen: UnchosenRows,
    drawn: Vec<Drawn>,
    /// `[L, Hkv]`: rows that were drawn and attended in the last step.
    n_drawn: Vec<u32>,
    n_layers: usize,
    bytes: Vec<u8>,
    row: Vec<f32>,
}

/// The rows of a layer from which a step chose, and its choice.
pub(crate) struct Choice<'a, B: Backend> {
    pub rows: LayerRows<'a, B>,
    /// Of what is chosen: clusters, blocks or tokens.
    pub heads: &'a [HeadIndex],
    pub selector: &'a Selector<B>,
    pub selection: SelectionId,
    /// Rows that the step could choose.
    pub choosable: Range<usize>,
    pub place: DrawPlace,
}

impl<B: Backend> Choice<'_, B> {
    /// The rows that `head` did not choose, in their order.
    pub fn unchosen(&self, head: HeadId) -> Vec<Range<usize>> {
        let mut unchosen = UnchosenRows::default();
        self.set_unchosen(head, &mut unchosen);
        unchosen.into_runs()
    }

    fn set_unchosen(&self, head: HeadId, unchosen: &mut UnchosenRows) {
        let starts = &self.heads[head].starts;
        let chosen = self.selector.selected(self.selection, head).map(|(unit, take)| {
            let start = starts[unit] as usize;
            start..start + take
        });
        unchosen.set(self.choosable.clone(), chosen);
    }

    /// The `n` rows that `head` draws for a purpose, and how many it did not choose.
    pub fn drawn(&self, head: HeadId, n: usize, purpose: Purpose) -> (Vec<Drawn>, usize) {
        let (mut unchosen, mut drawn) = (UnchosenRows::default(), Vec::new());
        self.set_unchosen(head, &mut unchosen);
        unchosen.draw(n, &mut self.place.rng(head, purpose), &mut drawn);
        (drawn, unchosen.len())
    }

    /// For each query head of `head`, in their order, the terms of `n` rows drawn to see how many
    /// are to be drawn; `q` is `[Hq, Dh]`. With them how many rows were not chosen.
    fn pilot(&self, head: HeadId, n: usize, q: &[f32]) -> (Vec<Terms>, usize) {
        let LayerRows { shape, .. } = self.rows;
        let (drawn, n_unchosen) = self.drawn(head, n, Purpose::Pilot);
        let (mut bytes, mut key) = (Vec::new(), vec![0.0; shape.head_dim]);
        let mut logs = vec![Vec::with_capacity(drawn.len()); shape.query_heads(head).len()];
        for Drawn { row, .. } in drawn {
            self.rows.keys(head, row..row + 1, &mut bytes, &mut key);
            for (h, logs) in shape.query_heads(head).zip(&mut logs) {
                let q = &q[h * shape.head_dim..(h + 1) * shape.head_dim];
                logs.push(f64::from(shape.scale * dot(q, &key)));
            }
        }
        (logs.iter().filter_map(|logs| Terms::new(logs)).collect(), n_unchosen)
    }

    /// Rows that `head` is to draw for `residual`.
    fn n_draws(&self, head: HeadId, residual: Residual, q: &[f32], lse: &[f32]) -> usize {
        let (error, failure) = match residual {
            Residual::Drop | Residual::Means | Residual::Groups => return 0,
            Residual::Sample(draws) => return draws,
            Residual::Verified { error, failure } => (f64::from(error), f64::from(failure)),
        };
        let z = -normal_quantile(failure / 2.0);
        let (terms, n_unchosen) = self.pilot(head, PILOT_DRAWS, q);
        let held = self.rows.shape.query_heads(head).map(|h| f64::from(lse[h]));
        let draws =
            terms.iter().zip(held).map(|(terms, held)| terms.draws(n_unchosen, held, z, error));
        // Without any draw nothing would stand for the rest; and runs of one row and two vary more
        // than the formula says.
        match draws.max().unwrap_or(0) {
            draws if 2 * draws > n_unchosen => n_unchosen,
            draws => draws.max(1),
        }
    }
}

impl<B: Backend> SampledRest<B> {
    /// Buffers for attention of `shape`.
    pub fn new(backend: &B, shape: &KvShape) -> OpResult<Self> {
        let (hq, d) = (shape.n_q_heads, shape.head_dim);
        Ok(Self {
            q: vec![0.0; hq * d],
            lse: vec![0.0; hq],
            result: HostResult::new(backend, shape, "attention to drawn tokens")?,
            unchosen: UnchosenRows::default(),
            drawn: Vec::new(),
            n_drawn: vec![0; shape.n_layers * shape.n_kv_heads],
            n_layers: shape.n_layers,
            bytes: vec![0; shape.row_bytes()],
            row: vec![0.0; 2 * d],
        })
    }

    /// Rows that a KV head drew and attended in the last step.
    pub fn n_drawn(&self, layer: LayerId, head: HeadId) -> usize {
        let n_heads = self.n_drawn.len() / self.n_layers;
        self.n_drawn[layer.index() * n_heads + head.index()] as usize
    }

    /// Attends to rows drawn for `residual` from those that were not chosen.
    fn attend(&mut self, choice: &Choice<'_, B>, residual: Residual) {
        self.result.clear();
        let LayerRows { shape, layer, .. } = choice.rows;
        for head in shape.heads() {
            choice.set_unchosen(head, &mut self.unchosen);
            let n = choice.n_draws(head, residual, &self.q, &self.lse);
            let mut rng = choice.place.rng(head, Purpose::Attend);
            self.unchosen.draw(n, &mut rng, &mut self.drawn);
            self.attend_drawn(choice, head);
            let at = layer.index() * shape.n_kv_heads + head.index();
            self.n_drawn[at] = self.drawn.len() as u32;
        }
    }

    /// Takes the drawn rows of KV head `head` in.
    fn attend_drawn(&mut self, choice: &Choice<'_, B>, head: HeadId) {
        let LayerRows { shape, store, layer } = choice.rows;
        let d = shape.head_dim;
        let Self { q, result, drawn, bytes, row, .. } = self;
        for Drawn { row: at, weight } in drawn.iter() {
            store.read_rows(layer, head, *at..*at + 1, bytes);
            decode_f32_into(shape.kv_dtype, bytes, row);
            let (key, value) = row.split_at(d);
            let log_weight = (*weight as f32).ln();
            for h in shape.query_heads(head) {
                let own = h * d..(h + 1) * d;
                let score = shape.scale * dot(&q[own.clone()], key) + log_weight;
                take_row(score, value, &mut result.out[own], &mut result.lse[h]);
            }
        }
    }

    /// Attends to rows drawn for `residual` and merges the result with the device's attention of
    /// the step's token `index`, by log-sum-exp.
    pub fn merge(
        &mut self,
        backend: &B,
        choice: &Choice<'_, B>,
        (residual, index): (Residual, usize),
        t: &mut LayerTensors<'_, B>,
        lse: &mut B::Buffer,
    ) -> OpResult<()> {
        self.attend(choice, residual);
        self.result.merge(backend, choice.rows.shape, index, t, lse)
    }
}

/// Bytes that [`SampledRest`] takes on the device.
pub(crate) fn sampled_bytes(shape: &KvShape, policy: &Policy) -> u64 {
    let words = shape.n_q_heads * (shape.head_dim + 1);
    if policy.draws() { (words * DType::F32.size()) as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use longview_core::SplitMix64;
    use longview_ops::{DeviceBuffer, View, ViewMut};

    use super::*;
    use crate::policy::AttentionBound;
    use crate::recall::testing::*;
    use crate::store::HostStore;

    /// The mass that every query head attended beside.
    const HELD: f32 = 20.0;

    /// Rows of both KV heads behind the sinks, and what each chose of them.
    struct Case {
        rows: [HeadRows; 2],
        choice: [Vec<[u32; 2]>; 2],
        q: Vec<f32>,
    }

    fn case(seed: u64) -> Case {
        let mut rng = SplitMix64::new(seed);
        Case {
            rows: [[9, 14, 11, 6], [20, 4, 10, 6]].map(|sizes| HeadRows::random(&mut rng, &sizes)),
            choice: [vec![[2, 4], [0, 9]], vec![[3, 6], [1, 1]]],
            q: normals(&mut rng, 16),
        }
    }

    impl Case {
        /// Rows that `head` did not choose, among those behind the sinks.
        fn unchosen(&self, head: usize) -> Vec<usize> {
            let rows = &self.rows[head];
            let taken = |[c, take]: &[u32; 2]| rows.tokens(*c as usize).take(*take as usize);
            let chosen: Vec<usize> = self.choice[head].iter().flat_map(taken).collect();
            (0..rows.keys.len()).filter(|row| !chosen.contains(row)).collect()
        }

        /// What query head `h` attends of rows behind the sinks, each so many times.
        fn attention(&self, h: usize, rows: &[(usize, usize)]) -> (Vec<f64>, f64) {
            let own = &self.rows[h / 2];
            let rows = rows.iter().map(|(r, n)| (&own.keys[*r], &own.values[*r], *n as f64));
            attention(&self.q[h * WIDTH..][..WIDTH], shape().scale, rows)
        }

        /// Calls `check` with what was drawn under `seed` for `residual`.
        fn draw(
            &self,
            residual: Residual,
            seed: u64,
            mut check: impl FnMut(&SampledRest<Device>, &Choice<'_, Device>),
        ) {
            let (device, shape) = (Device::new(), shape());
            let (index, store) =
                (index_of(&device, &shape, &self.rows), store_of(&shape, &self.rows));
            let selector = chosen(&device, &shape, &policy(20), &self.choice);
            let store: &dyn HostStore<Device> = &store;
            let choice = Choice {
                rows: LayerRows { shape: &shape, store, layer: LAYER },
                heads: index.heads(),
                selector: &selector,
                selection: SELECTION,
                choosable: SINKS..SINKS + 40,
                place: DrawPlace { seed, layer: LAYER, position: 50 },
            };
            let mut sampled = SampledRest::new(&device, &shape).unwrap();
            sampled.q.copy_from_slice(&self.q);
            sampled.lse.fill(HELD.ln());
            // What was attended before does not count.
            for residual in [Residual::Sample(2), residual] {
                sampled.attend(&choice, residual);
            }
            check(&sampled, &choice);
        }
    }

    #[test]
    fn it_equals_attention_to_the_drawn_rows_as_often_as_they_stand_for_others() {
        let case = case(1);
        for n in [1, 5, 16] {
            case.draw(Residual::Sample(n), 3, |sampled, choice| {
                for h in 0..4 {
                    let head = HeadId::new(h / 2);
                    assert_eq!(sampled.n_drawn(LAYER, head), n);
                    let drawn = choice.drawn(head, n, Purpose::Attend).0;
                    let weights = drawn.iter().map(|drawn| drawn.weight).sum::<usize>();
                    assert_eq!(weights, case.unchosen(h / 2).len());
                    let rows = drawn.iter().map(|drawn| (drawn.row - SINKS, drawn.weight));
                    let (mean, sum) = case.attention(h, &rows.collect::<Vec<_>>());
                    assert_near(&sampled.result.out[h * WIDTH..][..WIDTH], &mean);
                    assert_near(&sampled.result.lse[h..=h], &[sum]);
                }
            });
        }
    }

    #[test]
    fn a_sample_of_all_is_exact() {
        let case = case(2);
        case.draw(Residual::Sample(64), 4, |sampled, _| {
            for h in 0..4 {
                let unchosen = case.unchosen(h / 2);
                assert_eq!(sampled.n_drawn(LAYER, HeadId::new(h / 2)), unchosen.len());
                let rows: Vec<_> = unchosen.into_iter().map(|row| (row, 1)).collect();
                let (mean, sum) = case.attention(h, &rows);
                assert_near(&sampled.result.out[h * WIDTH..][..WIDTH], &mean);
                assert_near(&sampled.result.lse[h..=h], &[sum]);
            }
        });
    }

    /// Numerator and denominator over 4,000 seeds: within 5 standard deviations of all rows'.
    #[test]
    fn numerator_and_denominator_are_right_on_average() {
        let (case, rounds) = (case(3), 4_000);
        // For each query head: the denominator, and the numerator's channels.
        let mut sums = vec![[0.0f64; 1 + WIDTH]; 4];
        let mut squares = sums.clone();
        for seed in 0..rounds {
            case.draw(Residual::Sample(6), seed, |sampled, _| {
                for h in 0..4 {
                    let mass = f64::from(sampled.result.lse[h]).exp();
                    let out = &sampled.result.out[h * WIDTH..][..WIDTH];
                    let parts = std::iter::once(1.0).chain(out.iter().copied());
                    for (i, part) in parts.enumerate() {
                        let part = mass * f64::from(part);
                        sums[h][i] += part;
                        squares[h][i] += part * part;
                    }
                }
            });
        }
        let n = rounds as f64;
        for h in 0..4 {
            let rows: Vec<_> = case.unchosen(h / 2).into_iter().map(|row| (row, 1)).collect();
            let (mean, sum) = case.attention(h, &rows);
            let truth = std::iter::once(1.0).chain(mean).map(|part| part * sum.exp());
            for (i, truth) in truth.enumerate() {
                let found = sums[h][i] / n;
                let deviation = (squares[h][i] / n - found * found).sqrt() / n.sqrt();
                assert!((found - truth).abs() <= 5.0 * deviation, "{h} {i}: {found} for {truth}");
                assert!(deviation > 1e-4, "{h} {i}: draws differ");
            }
        }
    }

    fn verified(error: f32) -> Residual {
        Residual::Verified { error, failure: 0.1 }
    }

    #[test]
    fn a_smaller_error_takes_more_draws() {
        let (mut case, mut before) = (case(5), [0, 0]);
        case.q.iter_mut().for_each(|q| *q *= 0.5);
        for (error, all) in [(0.9, false), (0.3, false), (0.02, true)] {
            case.draw(verified(error), 6, |sampled, _| {
                for (head, before) in before.iter_mut().enumerate() {
                    let n = sampled.n_drawn(LAYER, HeadId::new(head));
                    let most = case.unchosen(head).len();
                    assert!(n > *before && (n == most) == all, "{error}: {n} of {most}");
                    *before = n;
                }
            });
        }
    }

    /// All of a head's rows are drawn to see how they spread, so that the chance is what was asked
    /// for: 200 of 2,000 cases, within 5 standard deviations, may be further off.
    #[test]
    fn verified_draws_keep_the_error_as_often_as_was_asked_for() {
        let (mut case, rounds, error) = (case(6), 2_000u32, 0.15);
        // Scores near each other, whose sums are nearly normal.
        case.q.iter_mut().for_each(|q| *q *= 0.5);
        let mut off = [0u32; 4];
        for seed in 0..rounds {
            case.draw(verified(error), seed.into(), |sampled, _| {
                for (h, off) in off.iter_mut().enumerate() {
                    let rows = case.unchosen(h / 2).into_iter().map(|row| (row, 1));
                    let (_, sum) = case.attention(h, &rows.collect::<Vec<_>>());
                    let truth = sum.exp() + f64::from(HELD);
                    let found = f64::from(sampled.result.lse[h]).exp() + f64::from(HELD);
                    *off += u32::from((found / truth - 1.0).abs() > f64::from(error));
                }
            });
        }
        // Where a head draws all it is never off.
        assert!(off.iter().all(|off| *off <= 200 + 5 * 14), "{off:?} of {rounds}");
        assert!(off.iter().filter(|off| **off > 0).count() >= 2, "{off:?}: fewer draws would do");
    }

    /// The device has attended a row of mass 10 in each query head of the second token.
    #[test]
    fn it_is_merged_with_what_the_step_attended() {
        let (device, case) = (Device::new(), case(4));
        let queries = two_tokens(&device, &case.q);
        let held = normals(&mut SplitMix64::new(9), 16);
        let mut out = upload(&device, &[&[8.0; 18][..], &held].concat());
        let mut lse = upload(&device, &[&[6.0; 4][..], &[10f32.ln(); 4]].concat());
        let mut t = LayerTensors {
            q: View::all(&queries),
            k: View::part(&queries, 0, 16),
            v: View::part(&queries, 0, 16),
            out: ViewMut::part(&mut out, 2, 32),
        };
        let mut drawn = Vec::new();
        case.draw(Residual::Drop, 5, |_, choice| {
            let mut sampled = SampledRest::new(&device, &shape()).unwrap();
            sampled.q.copy_from_slice(&case.q);
            let how = (Residual::Sample(5), 1);
            sampled.merge(&device, choice, how, &mut t, &mut lse).unwrap();
            drawn =
                [0, 1].map(|head| choice.drawn(HeadId::new(head), 5, Purpose::Attend).0).to_vec();
        });
        let (out, lse) = (floats(&device, View::all(&out)), floats(&device, View::all(&lse)));
        for h in 0..4 {
            let own = h * WIDTH..(h + 1) * WIDTH;
            let rows = drawn[h / 2].iter().map(|drawn| (drawn.row - SINKS, drawn.weight));
            let (mean, sum) = case.attention(h, &rows.collect::<Vec<_>>());
            let all = sum.exp() + 10.0;
            let both = mean.iter().zip(&held[own.clone()]);
            let want: Vec<f64> =
                both.map(|(m, held)| (m * sum.exp() + 10.0 * f64::from(*held)) / all).collect();
            assert_near(&out[18..][own], &want);
            assert_near(&lse[4 + h..=4 + h], &[all.ln()]);
        }
        assert_eq!((&out[..18], &lse[..4]), (&[8.0; 18][..], &[6.0; 4][..]), "the other token");
    }

    #[test]
    fn its_bytes_are_those_of_its_buffers() {
        let sampled = SampledRest::new(&Device::new(), &shape()).unwrap();
        let bytes: u64 = sampled.result.buffers().iter().map(|b| b.size_bytes()).sum();
        let bound = Policy { attention_bound: AttentionBound::Sampled, ..policy(20) };
        assert_eq!(sampled_bytes(&shape(), &bound), bytes);
        assert_eq!(sampled_bytes(&shape(), &policy(20)), 0);
    }
}
