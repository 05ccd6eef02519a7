//! Tokens that follow a prompt, chosen greedily in f32.

use std::ops::ControlFlow;

use longview_engine::SessionStep;
use longview_scheduler::{PolicyOptions, Preset, SpanMode};
use pollster::block_on;

use super::checkpoint::{Checked, Checkpoint, Way};
use super::reference::Answer;

/// Two logits that are closer may change places by arithmetic in another order.
const TIE: f32 = 1e-3;

/// Largest difference of the best logit. Logits are up to 30, and hundreds of terms of f32 are
/// added in another order in each of some 200 products.
const MAX_LOGIT_ERROR: f32 = 5e-3;

/// The tokens of the reference follow its prompt, up to the first near tie.
pub(super) fn same_answer(checkpoint: &Checkpoint<'_>, index: usize) -> Checked {
    let (prompt, answer) = checkpoint.reference.prompt(index);
    let mut engine = checkpoint.engine(Way::F32, prompt.len() + answer.greedy.len(), 1)?;
    let full = PolicyOptions::new(Preset::Full);
    let mut session = engine.session(&full).map_err(|e| e.to_string())?;
    let mut go_on = |_| ControlFlow::Continue(());
    block_on(engine.prefill(&mut session, &prompt, &mut go_on)).map_err(|e| e.to_string())?;
    let mut walk = Walk::default();
    for step in 0..answer.greedy.len() {
        if walk.step(answer, step, session.logits())?.is_break() {
            break;
        }
        let id = [answer.greedy[step]];
        let mut batch = [SessionStep::new(&mut session, &id, SpanMode::Policy)];
        block_on(engine.step(&mut batch)).map_err(|e| e.to_string())?;
    }
    Ok(walk.told(answer.greedy.len()))
}

/// How far an answer is the reference's.
#[derive(Default)]
struct Walk {
    n_same: usize,
    worst: f32,
    tie: Option<f32>,
}

impl Walk {
    /// Compares a step; breaks off behind a near tie that went the other way.
    fn step(
        &mut self,
        answer: &Answer,
        step: usize,
        logits: &[f32],
    ) -> Result<ControlFlow<()>, String> {
        let (wanted, [best, second]) = (answer.greedy[step] as usize, answer.best[step]);
        let error = (logits[wanted] - best).abs();
        if error.is_nan() || error > MAX_LOGIT_ERROR {
            return Err(format!("step {step}: the logit of {wanted} is off by {error}"));
        }
        self.worst = self.worst.max(error);
        let found = (0..logits.len()).max_by(|a, b| logits[*a].total_cmp(&logits[*b]));
        if found == Some(wanted) {
            self.n_same += 1;
            return Ok(ControlFlow::Continue(()));
        }
        if best - second >= TIE {
            return Err(format!("step {step} is {found:?}, not {wanted} by {}", best - second));
        }
        self.tie = Some(best - second);
        Ok(ControlFlow::Break(()))
    }

    fn told(&self, n: usize) -> String {
        let tie = self.tie.map_or_else(String::new, |gap| format!(", then a tie of {gap:.1e}"));
        format!("{} of {n} tokens{tie}; logits off by up to {:.1e}", self.n_same, self.worst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(best: [f32; 2]) -> Answer {
        Answer { greedy: vec![2], best: vec![best] }
    }

    #[test]
    fn a_token_is_the_references_or_a_near_tie() {
        let mut walk = Walk::default();
        let clear = answer([5.0, 4.0]);
        assert_eq!(walk.step(&clear, 0, &[1.0, 4.0, 5.001]), Ok(ControlFlow::Continue(())));
        let tie = answer([5.0, 4.9995]);
        assert_eq!(walk.step(&tie, 0, &[1.0, 5.001, 5.0]), Ok(ControlFlow::Break(())));
        assert!(walk.told(2).starts_with("1 of 2 tokens, then a tie of "), "{}", walk.told(2));
        let close = answer([5.0, 4.998]);
        let wrong = walk.step(&close, 0, &[1.0, 5.001, 5.0]).unwrap_err();
        assert!(wrong.starts_with("step 0 is Some(1), not 2"), "{wrong}");
    }

    #[test]
    fn a_logit_that_is_off_fails_though_the_token_is_right() {
        for logit in [5.01, f32::NAN] {
            let found = Walk::default().step(&answer([5.0, 4.0]), 0, &[1.0, 4.0, logit]);
            assert!(found.unwrap_err().contains("the logit of 2 is off by"));
        }
    }
}
