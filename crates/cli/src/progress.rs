//! Prefill on stderr: a bar where it is a terminal, one line at the end.

use std::ops::ControlFlow;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use longview_engine::Progress;

use crate::failure::Interrupted;
use crate::interrupt::InterruptGuard;
use crate::out::note;
use crate::units;

/// The bar of one prefill; draws nothing where stderr is no terminal.
pub struct PrefillBar(ProgressBar);

impl PrefillBar {
    /// An empty bar for `n_tokens` tokens.
    pub fn new(n_tokens: usize) -> Self {
        let bar = ProgressBar::new(n_tokens as u64);
        let style = ProgressStyle::with_template(
            "prefill [{bar:32}] {human_pos}/{human_len} tokens  {msg}",
        );
        bar.set_style(style.expect("a constant template").progress_chars("=> "));
        bar.tick();
        Self(bar)
    }

    /// Takes the bar away and says how much of `what` was computed, for a program that ends now.
    pub fn last_words(&self, what: &'static str) -> impl Fn() + Send + 'static {
        let bar = self.0.clone();
        move || {
            bar.finish_and_clear();
            note(Interrupted(format!(
                "{} of {} {what} tokens were computed; they are not kept, because nothing is \
                 written to disk",
                units::count(bar.position()),
                units::count(bar.length().unwrap_or_default()),
            )));
        }
    }

    /// Shows how far the prefill is, and breaks off if Ctrl-C was pressed.
    pub fn update(&self, progress: Progress, guard: &InterruptGuard<'_>) -> ControlFlow<()> {
        self.0.set_position(progress.done as u64);
        self.0.set_message(format!(
            "{} tokens/s  ETA {}",
            units::rate(Some(progress.tokens_per_s())),
            clock(progress.eta())
        ));
        if guard.is_raised() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

impl Drop for PrefillBar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// `1:05`.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_rounded_up() {
        assert_eq!(clock(Duration::from_millis(64_100)), "1:05");
        assert_eq!(clock(Duration::ZERO), "0:00");
    }
}
