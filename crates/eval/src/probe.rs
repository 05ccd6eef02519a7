//! Probes of the attention itself, through the code that generates: every scored token is decoded
//! teacher-forced, one by one, through select, resolve and attend.
//!
//! The truth beside it is computed here, in f64, from the rows that the host keeps: what full
//! attention of the same query would have been.

use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;

use longview_core::{HeadId, LayerId, decode_f32};
use longview_engine::{Engine, EngineError, Session};
use longview_ops::Backend;
use longview_scheduler::LayerMode;
use nalgebra::DMatrix;

use crate::error::EvalError;
use crate::policies::{Candidate, title};
use crate::record::{Cache, Perplexity, PolicyLabel, Probe, Record, Spectrum};

/// A text whose attention is compared, and how.
#[derive(Clone, Debug)]
pub struct ProbeText<'a> {
    /// Its name in results.
    pub name: &'a str,
    /// Its tokens: the prompt, those that are scored, and one more.
    pub ids: &'a [u32],
    /// Tokens of the prompt.
    pub length: usize,
    /// Every so many steps the attention is probed; the others count for perplexity and cache
    /// alone.
    pub stride: usize,
}

/// Steps for which rows stay on the device, as the cache is simulated from the choices.
const CACHE_STEPS: [usize; 3] = [1, 2, 4];

/// Parts of the context by which recall is told apart.
const AGES: usize = 8;

/// Gets each record; an error of it ends the probing.
pub type Sink<'s> = dyn FnMut(Record) -> Result<(), EvalError> + 's;

/// Probes each policy on one prefill of the text, and those that need one on a prefill of their
/// own. `sink` gets the records of a policy as soon as it is done.
///
/// # Errors
/// The first that a policy or `sink` meets; [`EvalError::DeviceResolves`] where the device keeps
/// to itself what a policy chose.
pub async fn probe<B: Backend>(
    engine: &mut Engine<B>,
    text: &ProbeText<'_>,
    policies: &[Candidate],
    sink: &mut Sink<'_>,
) -> Result<(), EvalError> {
    let (own, shared): (Vec<&Candidate>, Vec<&Candidate>) =
        policies.iter().partition(|policy| policy.needs_own_prefill());
    let groups = [shared].into_iter().chain(own.into_iter().map(|policy| vec![policy]));
    for (i, group) in groups.filter(|group| !group.is_empty()).enumerate() {
        let mut session = engine.session(&group[0].options)?;
        let prompt = &text.ids[..text.length];
        engine.prefill(&mut session, prompt, &mut |_| ControlFlow::Continue(())).await?;
        if i == 0 {
            for spectrum in spectra(&session, text).await? {
                sink(Record::Spectrum(spectrum))?;
            }
        }
        for policy in group {
            session.set_policy(&policy.options).await?;
            probe_policy(engine, &mut session, text, policy, sink).await?;
            session.truncate(text.length).await?;
        }
    }
    Ok(())
}

/// The text's steps under the policy that the session has.
async fn probe_policy<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    text: &ProbeText<'_>,
    policy: &Candidate,
    sink: &mut Sink<'_>,
) -> Result<(), EvalError> {
    if session.sequence().uses_device_cache() {
        return Err(EvalError::DeviceResolves { policy: title(&policy.label) });
    }
    // Certificates add up in the session, and are this policy's alone.
    session.reset_stats();
    session.trace(true);
    let mut meter = Meter::new(session, text, &policy.label);
    for (step, pair) in text.ids[text.length..].windows(2).enumerate() {
        engine.feed(session, &pair[..1]).await?;
        meter.step(session, step, pair[1]);
    }
    session.trace(false);
    meter.records(session).into_iter().try_for_each(sink)
}

/// Singular values of queries and keys: roots of the eigenvalues of the sums that prefill records.
async fn spectra<B: Backend>(
    session: &Session<B>,
    text: &ProbeText<'_>,
) -> Result<Vec<Spectrum>, EngineError> {
    let shape = session.sequence().shape();
    let (d, mut all) = (shape.head_dim, Vec::new());
    for layer in shape.layers() {
        let (q, k) = session.sequence().gram_sums(layer).await?;
        for (side, sums) in [("q", q), ("k", k)] {
            for (head, sum) in sums.chunks_exact(d * d).enumerate() {
                let matrix = DMatrix::from_iterator(d, d, sum.iter().map(|x| f64::from(*x)));
                let mut values: Vec<f64> =
                    matrix.symmetric_eigenvalues().iter().map(|x| x.max(0.0).sqrt()).collect();
                values.sort_by(|a, b| b.total_cmp(a));
                let (text, length) = (text.name.to_owned(), text.length);
                let (layer, side) = (layer.index(), side.into());
                all.push(Spectrum { text, length, layer, head, side, values });
            }
        }
    }
    Ok(all)
}

/// Sums over the probed steps of one query head.
#[derive(Clone, Debug, Default)]
struct HeadSums {
    recall: Vec<f32>,
    mass: Vec<f32>,
    error: Vec<f32>,
    bound: Vec<f32>,
    recall_group: f64,
    mass_best: f64,
    attended: usize,
    loss_bound: f64,
    /// True top tokens in each part of the context, and how many of them were attended.
    ages: [(usize, usize); AGES],
}

/// One policy's measurements on one text.
struct Meter<'a> {
    text: &'a ProbeText<'a>,
    label: &'a PolicyLabel,
    nll: f64,
    tokens: usize,
    /// `[layer][query head]`.
    heads: Vec<Vec<HeadSums>>,
    /// `[layer][KV head]`: what the last steps recalled, newest last.
    recalled: Vec<Vec<Vec<HashSet<u32>>>>,
    /// `[layer][KV head][R]`: hits and misses.
    cache: Vec<Vec<[(u64, u64); CACHE_STEPS.len()]>>,
}

impl<'a> Meter<'a> {
    fn new<B: Backend>(
        session: &Session<B>,
        text: &'a ProbeText<'a>,
        label: &'a PolicyLabel,
    ) -> Self {
        let shape = session.sequence().shape();
        Self {
            text,
            label,
            nll: 0.0,
            tokens: 0,
            heads: vec![vec![HeadSums::default(); shape.n_q_heads]; shape.n_layers],
            recalled: vec![vec![Vec::new(); shape.n_kv_heads]; shape.n_layers],
            cache: vec![vec![Default::default(); shape.n_kv_heads]; shape.n_layers],
        }
    }

    /// After a step whose next token should have been `next`.
    fn step<B: Backend>(&mut self, session: &Session<B>, step: usize, next: u32) {
        self.nll += nll(session.logits(), next);
        self.tokens += 1;
        let sequence = session.sequence();
        let probed = step.is_multiple_of(self.text.stride.max(1));
        for layer in sequence.shape().layers() {
            let mode = sequence.layers()[layer].mode();
            for head in sequence.shape().heads() {
                if mode == LayerMode::Recall {
                    let recalled = sequence.last_recalled(layer, head).collect();
                    self.count_hits(layer, head, recalled);
                }
                if probed && !matches!(mode, LayerMode::Dense | LayerMode::Local) {
                    self.probe_group(session, layer, head);
                }
            }
        }
    }

    fn count_hits(&mut self, layer: LayerId, head: HeadId, now: HashSet<u32>) {
        let past = &mut self.recalled[layer][head];
        for (steps, counts) in CACHE_STEPS.iter().zip(&mut self.cache[layer][head]) {
            let was_recent =
                |token: &&u32| past.iter().rev().take(*steps).any(|s| s.contains(token));
            // The first step finds an empty cache in any case.
            if !past.is_empty() {
                let hits = now.iter().filter(was_recent).count();
                counts.0 += hits as u64;
                counts.1 += (now.len() - hits) as u64;
            }
        }
        past.push(now);
        let most = CACHE_STEPS[CACHE_STEPS.len() - 1];
        if past.len() > most {
            past.remove(0);
        }
    }

    /// The query heads of one KV head in the last step.
    fn probe_group<B: Backend>(&mut self, session: &Session<B>, layer: LayerId, head: HeadId) {
        let sequence = session.sequence();
        let (shape, n) = (sequence.shape(), sequence.n_tokens());
        let d = shape.head_dim;
        let mut bytes = vec![0; n * shape.row_bytes()];
        sequence.store().read_rows(layer, head, 0..n, &mut bytes);
        let rows = decode_f32(shape.kv_dtype, &bytes);
        let positions = &sequence.layers()[layer].positions[head];
        // Row of each position.
        let mut row_of = vec![0usize; n];
        positions.iter().enumerate().for_each(|(row, p)| row_of[*p as usize] = row);
        let key = |p: usize| &rows[row_of[p] * 2 * d..][..d];
        let value = |p: usize| &rows[row_of[p] * 2 * d + d..][..d];
        let attended: BTreeSet<u32> = sequence.attended_tokens(layer, head).into_iter().collect();
        // B itself and not what was attended: who attends less has not asked for less.
        let budget = match self.label.budget {
            0 => n,
            budget => budget.min(n),
        };
        let largest_value = (0..n).map(|p| norm(value(p))).fold(0.0, f64::max);
        let traced = &sequence.traced()[layer];
        let mut tops = Vec::new();
        for h in shape.query_heads(head) {
            let q = &traced.q[h * d..(h + 1) * d];
            let scores: Vec<f64> =
                (0..n).map(|p| f64::from(shape.scale) * dot(q, key(p))).collect();
            let weights = softmax(&scores);
            let top = best(&weights, budget);
            let sums = &mut self.heads[layer][h];
            let mass: f64 = attended.iter().map(|p| weights[*p as usize]).sum();
            sums.mass.push(mass as f32);
            sums.mass_best += top.iter().map(|p| weights[*p as usize]).sum::<f64>();
            let taken = top.iter().filter(|p| attended.contains(p)).count();
            sums.recall.push(taken as f32 / budget as f32);
            sums.attended += attended.len();
            sums.loss_bound += 2.0 * (1.0 - mass).max(0.0) * largest_value;
            let mut full = vec![0.0; d];
            for (p, weight) in weights.iter().enumerate() {
                full.iter_mut().zip(value(p)).for_each(|(f, v)| *f += weight * f64::from(*v));
            }
            let out = &traced.out[h * d..(h + 1) * d];
            // U / Z as a share of both.
            sums.bound.extend(traced.bounds.get(h).map(|x| (x / (1.0 + x)) as f32));
            let apart = full.iter().zip(out).map(|(f, o)| (f - f64::from(*o)).powi(2)).sum::<f64>();
            let size = full.iter().map(|f| f * f).sum::<f64>();
            sums.error.push((apart / size.max(1e-30)).sqrt() as f32);
            for p in &top {
                let age = &mut sums.ages[*p as usize * AGES / n];
                age.0 += 1;
                age.1 += usize::from(attended.contains(p));
            }
            tops.push(top);
        }
        let shared = shared_choice(&tops, n, budget);
        for (h, top) in shape.query_heads(head).zip(&tops) {
            let reached = top.iter().filter(|p| shared.contains(p)).count();
            self.heads[layer][h].recall_group += reached as f64 / budget as f64;
        }
    }

    fn records<B: Backend>(self, session: &Session<B>) -> Vec<Record> {
        let (text, length) = (self.text.name.to_owned(), self.text.length);
        let certified = session.stats().bounds.median();
        let mut all = vec![Record::Perplexity(Perplexity {
            text: text.clone(),
            policy: self.label.clone(),
            position: length,
            tokens: self.tokens,
            nll: self.nll,
        })];
        for (layer, heads) in self.heads.iter().enumerate() {
            for (head, sums) in heads.iter().enumerate().filter(|(_, s)| !s.recall.is_empty()) {
                let steps = sums.recall.len();
                let mean = |sum: f64| sum / steps as f64;
                let mean_of = |all: &[f32]| mean(all.iter().map(|x| f64::from(*x)).sum());
                let share =
                    |(all, taken): &(usize, usize)| (*all > 0).then(|| *taken as f64 / *all as f64);
                all.push(Record::Probe(Probe {
                    text: text.clone(),
                    policy: self.label.clone(),
                    length,
                    layer,
                    head,
                    steps,
                    recall: mean_of(&sums.recall),
                    recall_group: mean(sums.recall_group),
                    mass: mean_of(&sums.mass),
                    mass_best: mean(sums.mass_best),
                    attended: mean(sums.attended as f64),
                    error: mean_of(&sums.error),
                    recall_steps: sums.recall.clone(),
                    mass_steps: sums.mass.clone(),
                    error_steps: sums.error.clone(),
                    bound_steps: sums.bound.clone(),
                    stride: self.text.stride,
                    loss_bound: mean(sums.loss_bound),
                    certified,
                    recency: sums.ages.iter().map(share).collect(),
                }));
            }
        }
        for (layer, heads) in self.cache.iter().enumerate() {
            for (head, counts) in heads.iter().enumerate() {
                for (cache_steps, (hits, misses)) in CACHE_STEPS.iter().zip(counts) {
                    if hits + misses > 0 {
                        all.push(Record::Cache(Cache {
                            text: text.clone(),
                            policy: self.label.clone(),
                            cache_steps: *cache_steps,
                            length,
                            layer,
                            head,
                            hits: *hits,
                            misses: *misses,
                        }));
                    }
                }
            }
        }
        all
    }
}

/// The choice of `budget` tokens that serves the heads of a group best: those that most heads have
/// among their best.
fn shared_choice(tops: &[Vec<u32>], n: usize, budget: usize) -> HashSet<u32> {
    let mut wanted = vec![0u32; n];
    tops.iter().flatten().for_each(|p| wanted[*p as usize] += 1);
    let wanted: Vec<f64> = wanted.into_iter().map(f64::from).collect();
    best(&wanted, budget).into_iter().collect()
}

/// Indices of the largest numbers, the first among equals.
fn best(values: &[f64], count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    let by = |a: &u32, b: &u32| values[*b as usize].total_cmp(&values[*a as usize]).then(a.cmp(b));
    let count = count.min(order.len());
    if count > 0 && count < order.len() {
        order.select_nth_unstable_by(count - 1, by);
    }
    order.truncate(count);
    order
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
}

fn norm(x: &[f32]) -> f64 {
    dot(x, x).sqrt()
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|w| w / sum).collect()
}

/// Negative log likelihood of a token, in nats.
fn nll(logits: &[f32], id: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|x| f64::from(x - max).exp()).sum();
    sum.ln() - f64::from(logits[id as usize] - max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_are_found_and_ties_go_to_the_first() {
        let mut found = best(&[0.1, 0.5, 0.5, 0.9, 0.5], 3);
        found.sort_unstable();
        assert_eq!(found, [1, 2, 3]);
        assert_eq!(best(&[1.0], 4), [0]);
        assert!(best(&[], 2).is_empty());
    }

    #[test]
    fn a_shared_choice_takes_what_most_heads_want() {
        let shared = shared_choice(&[vec![0, 1], vec![1, 2], vec![2, 1]], 4, 2);
        assert_eq!(shared, HashSet::from([1, 2]));
    }

    #[test]
    fn equal_logits_are_equally_likely() {
        assert!((nll(&[0.5; 8], 3) - 8f64.ln()).abs() < 1e-9);
        assert!(nll(&[30.0, 0.0], 0) < 1e-9);
    }
}
