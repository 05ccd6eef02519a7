//! A step in which answers take part, and what a fault of the program ends.

use std::panic::{AssertUnwindSafe, catch_unwind};

use longview_engine::{Engine, SessionStep};
use longview_ops::Backend;
use longview_scheduler::SpanMode;
use pollster::block_on;

use super::choice::Choice;
use crate::error::ApiError;

/// One step for a batch of answers, with a result for each. Where the program failed in it, each is
/// computed alone: the one at fault ends, and no other.
pub(super) fn step<B: Backend>(
    engine: &mut Engine<B>,
    batch: &mut [(usize, &mut Choice<B>)],
    most_rows: u64,
) -> Vec<Result<(), ApiError>> {
    match guarded(|| step_together(engine, batch, most_rows)) {
        Ok(results) => results,
        Err(_) if batch.len() > 1 && !engine.backend().is_lost() => {
            let parts = batch.chunks_mut(1);
            let alone = parts.map(|part| guarded(|| step_together(engine, part, most_rows)));
            alone.map(|results| results?.into_iter().collect()).collect()
        }
        Err(error) => vec![Err(error); batch.len()],
    }
}

/// An error where nothing was computed for anybody.
fn step_together<B: Backend>(
    engine: &mut Engine<B>,
    batch: &mut [(usize, &mut Choice<B>)],
    most_rows: u64,
) -> Result<Vec<Result<(), ApiError>>, ApiError> {
    batch.iter_mut().for_each(|(_, choice)| choice.trace_if_due(most_rows));
    let ids: Vec<_> = batch.iter_mut().map(|(_, choice)| choice.next_ids(engine)).collect();
    let steps = batch.iter_mut().zip(&ids).map(|((_, choice), ids)| {
        let Choice { session, sampler, needs_logits, .. } = &mut **choice;
        let step = SessionStep::new(session, ids, SpanMode::Policy);
        if *needs_logits { step } else { step.for_sampler(sampler) }
    });
    let mut steps: Vec<_> = steps.collect();
    let results = block_on(engine.step_each(&mut steps))?;
    Ok(results.into_iter().map(|result| result.map_err(ApiError::from)).collect())
}

/// A fault of the program in the work for one request is the end of that request alone. The engine
/// takes a step that did not end back when the session is used next, as after a cancelled one.
pub(super) fn guarded<T>(work: impl FnOnce() -> Result<T, ApiError>) -> Result<T, ApiError> {
    let fault = "a fault of the program ended this request; others go on";
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(ApiError::internal(fault)))
}
