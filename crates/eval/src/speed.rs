//! What a decoded token costs against the context, and a prompt against its index.
//!
//! Steps are those of generation: text is fed token by token through select, resolve and attend,
//! each step ending with logits. Contexts longer than what is prefilled are filled up with the
//! rows of the prefilled text, over and over; prefill of a million tokens would take hours.

use std::ops::ControlFlow;
use std::time::Duration;

use longview_core::{HeadId, LayerId};
use longview_engine::{Engine, EngineError, RepeatedRows, Session};
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset, Stats};

use crate::policies::Candidate;
use crate::record::Speed;

/// Steps before those that are timed: the device cache begins empty.
pub const WARM_UP: usize = 4;

/// What to measure.
#[derive(Clone, Debug)]
pub struct SpeedTest<'a> {
    /// Tokens of a text: prefilled ones, then those that are decoded.
    pub ids: &'a [u32],
    /// The longest context that is prefilled; tokens beyond it are injected.
    pub prefilled: usize,
    /// Numbers of decoded tokens to report, in rising order; the last one is decoded.
    pub steps: &'a [usize],
}

impl SpeedTest<'_> {
    /// Tokens of text that measuring at `context` needs.
    pub fn needed(&self, context: usize) -> usize {
        context.min(self.prefilled) + self.n_steps() + WARM_UP
    }

    /// Room that a session needs to measure at `context`.
    pub fn room(&self, context: usize) -> usize {
        context + self.n_steps() + WARM_UP
    }

    fn n_steps(&self) -> usize {
        self.steps.last().copied().unwrap_or(0)
    }
}

/// Prefills the text and copies its rows.
///
/// # Errors
/// If the prefill fails, as for a context that is smaller than `ids`.
pub async fn rows_of<B: Backend>(
    engine: &mut Engine<B>,
    ids: &[u32],
) -> Result<RepeatedRows, EngineError> {
    let mut session = engine.session(&neutral())?;
    RepeatedRows::read(engine, &mut session, ids).await
}

/// Small and quickly made: what rows are laid down under.
fn neutral() -> PolicyOptions {
    PolicyOptions::new(Preset::StreamingLlm)
}

/// Measures each policy after a prefill of `context` tokens of its own; `sink` gets one record for
/// each number of steps.
///
/// # Errors
/// The first that a policy meets.
pub async fn after_prefill<B: Backend>(
    engine: &mut Engine<B>,
    test: &SpeedTest<'_>,
    context: usize,
    policies: &[Candidate],
    sink: &mut dyn FnMut(Speed),
) -> Result<(), EngineError> {
    for policy in policies {
        let mut session = engine.session(&policy.options)?;
        let prompt = &test.ids[..context];
        engine.prefill(&mut session, prompt, &mut |_| ControlFlow::Continue(())).await?;
        let known = Speed {
            prefill_s: Some(session.timings().prefill.as_secs_f64()),
            index_s: (session.stats().clusterings > 0)
                .then(|| session.stats().cluster_wait.as_secs_f64()),
            ..of(policy, context)
        };
        decode(engine, &mut session, test, &known, sink).await?;
    }
    Ok(())
}

/// Measures each policy over `context` tokens that repeat `rows`.
///
/// # Errors
/// The first that a policy meets: `h2o` and `infllm` by its own scores cannot follow rows that
/// were not computed under them.
pub async fn after_injection<B: Backend>(
    engine: &mut Engine<B>,
    test: &SpeedTest<'_>,
    rows: &RepeatedRows,
    context: usize,
    policies: &[Candidate],
    sink: &mut dyn FnMut(Speed),
) -> Result<(), EngineError> {
    let mut session = engine.session(&neutral())?;
    let text = &test.ids[..rows.n_tokens()];
    // What indexes learn from a prefill (sums of queries, the last ones) comes from a real one.
    engine.prefill(&mut session, text, &mut |_| ControlFlow::Continue(())).await?;
    let ids: Vec<u32> = text.iter().copied().cycle().take(context - text.len()).collect();
    let mut fill = |layer: LayerId, head: HeadId, first: usize, out: &mut [f32]| {
        rows.fill(layer, head, first, out);
    };
    session.inject(&ids, &mut fill).await?;
    for policy in policies {
        session.set_policy(&policy.options).await?;
        let known = Speed { injected: true, ..of(policy, context) };
        decode(engine, &mut session, test, &known, sink).await?;
        session.truncate(context).await?;
    }
    Ok(())
}

fn of(policy: &Candidate, context: usize) -> Speed {
    Speed { policy: policy.label.clone(), context, ..Speed::default() }
}

/// One step's time and what of it went where.
#[derive(Clone, Copy, Debug, Default)]
struct StepTime {
    all: Duration,
    select: Duration,
    fetch: Duration,
    attend: Duration,
}

async fn decode<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    test: &SpeedTest<'_>,
    known: &Speed,
    sink: &mut dyn FnMut(Speed),
) -> Result<(), EngineError> {
    let first = known.context.min(test.prefilled);
    let fed = &test.ids[first..test.needed(known.context)];
    let (warm_up, timed) = fed.split_at(WARM_UP);
    for id in warm_up {
        engine.feed(session, std::slice::from_ref(id)).await?;
    }
    session.reset_stats();
    let mut times = Vec::with_capacity(timed.len());
    for (done, id) in (1..).zip(timed) {
        let (start, before) = (engine.backend().now(), times_of(session.stats()));
        engine.feed(session, std::slice::from_ref(id)).await?;
        let (end, after) = (engine.backend().now(), times_of(session.stats()));
        times.push(StepTime {
            all: end.saturating_sub(start),
            select: after.select - before.select,
            fetch: after.fetch - before.fetch,
            attend: after.attend - before.attend,
        });
        if test.steps.contains(&done) {
            let median = |part: fn(&StepTime) -> Duration| median(times.iter().map(part));
            sink(Speed {
                steps: done,
                step_s: median(|time| time.all),
                select_s: median(|time| time.select),
                fetch_s: median(|time| time.fetch),
                attend_s: median(|time| time.attend),
                decode_s: times.iter().map(|time| time.all.as_secs_f64()).sum(),
                hit_rate: session.stats().hit_rate(),
                device_bytes: session.sequence().device_kv_bytes(),
                host_bytes: session.sequence().store().size_bytes(),
                ..known.clone()
            });
        }
    }
    Ok(())
}

fn times_of(stats: &Stats) -> StepTime {
    let Stats { select, fetch, attend, .. } = *stats;
    StepTime { all: Duration::ZERO, select, fetch, attend }
}

/// In seconds.
fn median(times: impl Iterator<Item = Duration>) -> f64 {
    let mut times: Vec<Duration> = times.collect();
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}
