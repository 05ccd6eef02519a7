//! How long reading and answering take on this machine: measured over short contexts, and drawn
//! out to long ones.
//!
//! A chunk of a prompt costs products, which do not depend on what was read before, and attention,
//! in proportion to that. An index costs the same for each token. A decode step costs products, the
//! attention to what it attends, and for its selection in proportion to the context. Measured are
//! the sums, at several lengths; what grows with the length is told apart by the step's own clocks.

use std::ops::ControlFlow;
use std::time::Duration;

use longview_core::{HeadId, LayerId};
use longview_ops::Backend;
use longview_scheduler::{BudgetOption, PolicyOptions, Preset};

use crate::engine::Engine;
use crate::error::EngineError;
use crate::policy::resolve_policy;
use crate::prefill::Progress;
use crate::repeated_rows::RepeatedRows;
use crate::session::Session;

/// Chunks of the text whose rows are repeated: the first is timed while another one follows it, as
/// most chunks of a long prompt are.
const CHUNKS: usize = 2;

/// Steps before those that are timed, and these.
const STEPS: [usize; 2] = [3, 9];

/// Times a chunk is read; the fastest counts.
const READS: usize = 2;

/// What reading and answering take.
#[derive(Clone, Debug)]
pub struct Timing {
    /// Tokens of a chunk.
    chunk: usize,
    /// Tokens before a chunk, and the seconds that one of its tokens took.
    reading: Vec<(usize, f64)>,
    /// Full attention.
    full: PolicyTiming,
    policies: Vec<Option<PolicyTiming>>,
}

/// A policy over the longest context that was measured.
#[derive(Clone, Copy, Debug, Default)]
struct PolicyTiming {
    /// Tokens of the context.
    tokens: usize,
    /// Contexts up to so many tokens are attended whole, and have no index.
    attend_all: usize,
    /// Seconds for each token.
    index_s: f64,
    /// Seconds of a step that do not depend on the context, and those that grow with it.
    fixed_s: f64,
    growing_s: f64,
}

impl PolicyTiming {
    fn step_s(&self, tokens: usize) -> f64 {
        self.fixed_s + self.growing_s * tokens as f64 / self.tokens as f64
    }
}

impl Timing {
    /// Tokens of text that measuring needs: any text, or any tokens.
    pub fn n_text<B: Backend>(engine: &Engine<B>) -> usize {
        CHUNKS * engine.options().chunk_size
    }

    /// The context size of an engine that measures at up to `depth` tokens in chunks of `chunk`.
    pub fn context(depth: usize, chunk: usize) -> usize {
        depth + CHUNKS * chunk + STEPS[0] + STEPS[1]
    }

    /// Measures reading, and steps under each policy, resolved as for a context of `context`
    /// tokens. The engine's context holds [`Timing::context`]; `ids` are [`Timing::n_text`] tokens.
    ///
    /// # Errors
    /// If something cannot be computed. A policy that cannot follow a prompt that was not read
    /// under it is left out.
    pub async fn measure<B: Backend>(
        engine: &mut Engine<B>,
        ids: &[u32],
        policies: &[PolicyOptions],
        context: usize,
    ) -> Result<Self, EngineError> {
        let (chunk, size) = (engine.options().chunk_size, engine.options().ctx_size);
        let depth = size.saturating_sub(Self::context(0, chunk)).max(ids.len());
        let mut session = engine.session(&PolicyOptions::new(Preset::StreamingLlm))?;
        let mut reading = vec![(0, read_s(engine, &mut session, ids).await?)];
        let rows = RepeatedRows::read(engine, &mut session, ids).await?;
        for depth in [depth / 4, depth] {
            if depth <= reading[reading.len() - 1].0 {
                continue;
            }
            session.truncate(session.n_tokens().min(depth)).await?;
            inject(&mut session, &rows, ids, depth).await?;
            reading.push((depth, read_s(engine, &mut session, ids).await?));
        }
        let mut measured = Vec::with_capacity(policies.len());
        let full = PolicyOptions::new(Preset::Full);
        let full = answer_s(engine, &mut session, ids, (&full, context)).await?;
        for policy in policies {
            if policy.preset == Preset::Full {
                measured.push(Some(full));
                continue;
            }
            match answer_s(engine, &mut session, ids, (policy, context)).await {
                Ok(timing) => measured.push(Some(timing)),
                Err(EngineError::Scheduler(_)) => measured.push(None),
                Err(error) => return Err(error),
            }
        }
        Ok(Self { chunk, reading, full, policies: measured })
    }

    /// Seconds to read `tokens` tokens and to index them for the policy of this number; `None` if
    /// it was left out.
    pub fn read_s(&self, policy: usize, tokens: usize) -> Option<f64> {
        let timing = self.policies[policy]?;
        let chunks = (0..tokens).step_by(self.chunk);
        let read: f64 =
            chunks.map(|start| self.token_s(start) * self.chunk.min(tokens - start) as f64).sum();
        let index = if tokens > timing.attend_all { timing.index_s * tokens as f64 } else { 0.0 };
        Some(read + index)
    }

    /// Seconds of a decode step behind `tokens` tokens under the policy of this number.
    pub fn step_s(&self, policy: usize, tokens: usize) -> Option<f64> {
        let timing = self.policies[policy]?;
        let attends_all = tokens <= timing.attend_all;
        Some(if attends_all { self.full.step_s(tokens) } else { timing.step_s(tokens) })
    }

    /// Seconds for a token of a chunk behind `start` tokens: on the line through the two measured
    /// points around it, or through the last two.
    fn token_s(&self, start: usize) -> f64 {
        let [.., last] = self.reading[..] else { return 0.0 };
        let behind = self.reading.iter().position(|(depth, _)| *depth > start);
        let at = behind.unwrap_or(self.reading.len() - 1).max(1);
        let (Some(a), Some(b)) = (self.reading.get(at - 1), self.reading.get(at)) else {
            return last.1;
        };
        let slope = (b.1 - a.1) / (b.0 - a.0) as f64;
        (a.1 + slope * (start as f64 - a.0 as f64)).max(0.0)
    }
}

/// Seconds that a token of a chunk takes that more tokens follow. The session is as it was.
async fn read_s<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    ids: &[u32],
) -> Result<f64, EngineError> {
    let (n, mut best) = (session.n_tokens(), f64::INFINITY);
    for _ in 0..READS {
        let mut first = None;
        let mut stop = |progress: Progress| {
            let done = progress.done - progress.before;
            if done > 0 && first.is_none() {
                first = Some(progress.elapsed.as_secs_f64() / done as f64);
            }
            if done > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        engine.prefill_part(session, ids, &mut stop).await?;
        best = first.map_or(best, |seconds| seconds.min(best));
        session.truncate(n).await?;
    }
    Ok(best)
}

/// Rows up to `depth` tokens.
async fn inject<B: Backend>(
    session: &mut Session<B>,
    rows: &RepeatedRows,
    ids: &[u32],
    depth: usize,
) -> Result<(), EngineError> {
    let n = session.n_tokens();
    let more: Vec<u32> = ids.iter().copied().cycle().skip(n % ids.len()).take(depth - n).collect();
    let mut fill = |layer: LayerId, head: HeadId, first: usize, out: &mut [f32]| {
        rows.fill(layer, head, first, out);
    };
    session.inject(&more, &mut fill).await
}

/// Index and steps of a policy, resolved for a context of `context` tokens. The session has its
/// tokens again in the end.
async fn answer_s<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    ids: &[u32],
    (policy, context): (&PolicyOptions, usize),
) -> Result<PolicyTiming, EngineError> {
    let (_, resolved) = resolve_policy(policy, session.sequence().shape().n_layers, context)?;
    let policy = match resolved.budget.tokens {
        // What depends on the context's size is as it will be, not as for the context here.
        Some(tokens) if resolved.attend_all < context => {
            PolicyOptions { budget: Some(BudgetOption::Tokens(tokens)), ..policy.clone() }
        }
        _ => policy.clone(),
    };
    let tokens = session.n_tokens();
    let start = engine.backend().now();
    session.set_policy(&policy).await?;
    let indexed = engine.backend().now().saturating_sub(start);
    let [warm_up, timed] = STEPS;
    let mut parts = Vec::with_capacity(timed);
    for (step, id) in ids.iter().cycle().take(warm_up + timed).enumerate() {
        let (start, before) = (engine.backend().now(), session.stats().clone());
        engine.feed(session, std::slice::from_ref(id)).await?;
        let all = engine.backend().now().saturating_sub(start);
        let stats = session.stats();
        if step >= warm_up {
            parts.push([all, stats.select - before.select, stats.attend - before.attend]);
        }
    }
    let [all, select, attend] = [0, 1, 2].map(|part| {
        let mut times: Vec<Duration> = parts.iter().map(|parts| parts[part]).collect();
        times.sort_unstable();
        times[times.len() / 2].as_secs_f64()
    });
    let attended = &session.stats().attended_last;
    let sum = |least: usize| -> f64 {
        attended.iter().filter(|n| **n as usize >= least).map(|n| f64::from(*n)).sum()
    };
    // Of layers that attend to everything.
    let growing = sum(tokens) / sum(0).max(1.0);
    let has_index = session.policy().index.is_some();
    session.truncate(tokens).await?;
    let growing_s = (select + attend * growing).min(all);
    Ok(PolicyTiming {
        tokens,
        attend_all: resolved.attend_all,
        index_s: if has_index { indexed.as_secs_f64() / tokens as f64 } else { 0.0 },
        fixed_s: all - growing_s,
        growing_s,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timing() -> Timing {
        let full =
            PolicyTiming { tokens: 1000, fixed_s: 0.01, growing_s: 0.02, ..Default::default() };
        let recall = PolicyTiming {
            tokens: 1000,
            attend_all: 500,
            index_s: 0.001,
            fixed_s: 0.02,
            growing_s: 0.001,
        };
        Timing {
            chunk: 100,
            reading: vec![(0, 0.1), (1000, 0.2), (2000, 0.4)],
            full,
            policies: vec![Some(full), Some(recall), None],
        }
    }

    #[test]
    fn reading_grows_by_what_was_read_before() {
        let timing = timing();
        assert_eq!(timing.read_s(0, 100), Some(10.0));
        // 0.1 to 0.19 in steps of 0.01, of 100 tokens each.
        assert!((timing.read_s(0, 1000).unwrap() - 145.0).abs() < 1e-9);
        assert!((timing.read_s(0, 1050).unwrap() - 155.0).abs() < 1e-9);
        assert!((timing.token_s(3000) - 0.6).abs() < 1e-9);
        // An index from where not everything is attended on.
        assert_eq!(timing.read_s(1, 500), timing.read_s(0, 500));
        let index = timing.read_s(1, 1000).unwrap() - timing.read_s(0, 1000).unwrap();
        assert!((index - 1.0).abs() < 1e-9);
    }

    #[test]
    fn steps_grow_by_what_they_attend_and_by_what_they_score() {
        let timing = timing();
        assert_eq!(timing.step_s(0, 10_000), Some(0.01 + 0.2));
        assert_eq!(timing.step_s(1, 10_000), Some(0.02 + 0.01));
        assert_eq!(timing.step_s(1, 500), timing.step_s(0, 500));
        assert_eq!((timing.step_s(2, 500), timing.read_s(2, 500)), (None, None));
    }
}
