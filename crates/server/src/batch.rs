//! Several prompts in one request: each is a request to the engine of its own, and their events
//! come together as those of one request with more answers.

use std::pin::pin;

use futures_util::future::{Either, select};
use longview_engine::{BlockCounts, PrefillMode};
use longview_reader::LeftOut;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use crate::job::{Event, MAX_EVENTS, Progress, Summary};

/// One prompt of several.
pub(crate) struct Part {
    pub(crate) events: Receiver<Event>,
    /// Its tokens.
    pub(crate) n_tokens: usize,
}

/// The events of all of them. Answer `k` of prompt `i` becomes answer `i * n + k`; the first
/// failure is that of all, and who leaves lets go of all.
pub(crate) fn together(parts: Vec<Part>, n: usize) -> Receiver<Event> {
    let (events, receiver) = channel(MAX_EVENTS);
    let mut all = All::new(&parts, n);
    // Little waits here: a client that takes nothing is to be seen by the engine's thread.
    let (sender, mut inbox) = channel(1);
    for (i, part) in parts.into_iter().enumerate() {
        tokio::spawn(forward(i, part.events, sender.clone()));
    }
    drop(sender);
    tokio::spawn(async move {
        while let Some((i, event)) = next(&mut inbox, &events).await {
            let Some(event) = all.take(i, event) else { continue };
            let is_last = matches!(event, Event::Done(_) | Event::Failed(_));
            if events.send(event).await.is_err() || is_last {
                return;
            }
        }
    });
    receiver
}

/// The next event; `None` when there is none any more, or nobody who waits for it.
async fn next(inbox: &mut Receiver<(usize, Event)>, to: &Sender<Event>) -> Option<(usize, Event)> {
    match select(pin!(inbox.recv()), pin!(to.closed())).await {
        Either::Left((event, _)) => event,
        Either::Right(_) => None,
    }
}

/// Ends, and so lets go of the request, when nobody waits for it.
async fn forward(i: usize, mut events: Receiver<Event>, to: Sender<(usize, Event)>) {
    loop {
        let event = match select(pin!(events.recv()), pin!(to.closed())).await {
            Either::Left((Some(event), _)) => event,
            Either::Left((None, _)) | Either::Right(_) => return,
        };
        if to.send((i, event)).await.is_err() {
            return;
        }
    }
}

/// What all prompts have come to.
struct All {
    n: usize,
    n_tokens: usize,
    progress: Vec<Option<Progress>>,
    ended: Vec<Option<Summary>>,
}

impl All {
    fn new(parts: &[Part], n: usize) -> Self {
        Self {
            n,
            n_tokens: parts.iter().map(|part| part.n_tokens).sum(),
            progress: vec![None; parts.len()],
            ended: vec![None; parts.len()],
        }
    }

    /// What an event of prompt `i` is to the client.
    fn take(&mut self, i: usize, event: Event) -> Option<Event> {
        let first = i * self.n;
        Some(match event {
            Event::Progress(progress) => {
                self.progress[i] = Some(progress);
                Event::Progress(self.progress())
            }
            Event::Piece { choice, text, logprobs, tokens, .. } => {
                // Those of one prompt are not those of the request.
                let (choice, timings) = (first + choice, None);
                Event::Piece { choice, text, logprobs, tokens, timings }
            }
            Event::Finished { choice, reason, stop } => {
                Event::Finished { choice: first + choice, reason, stop }
            }
            Event::Done(summary) => {
                self.ended[i] = Some(summary);
                let all: Option<Vec<&Summary>> = self.ended.iter().map(Option::as_ref).collect();
                Event::Done(sum(&all?))
            }
            // Which answer a step is of cannot be told, so it is not asked for.
            Event::Step(_) => return None,
            Event::Failed(error) => Event::Failed(error),
        })
    }

    fn progress(&self) -> Progress {
        let known = || self.progress.iter().flatten();
        Progress {
            total: self.n_tokens,
            cached: known().map(|progress| progress.cached).sum(),
            processed: known().map(|progress| progress.processed).sum(),
            time_ms: known().map(|progress| progress.time_ms).max().unwrap_or(0),
            is_timed: false,
        }
    }
}

/// Tokens and times of all; the wait is the longest one.
fn sum(all: &[&Summary]) -> Summary {
    let of = |count: fn(&Summary) -> usize| all.iter().map(|one| count(one)).sum::<usize>();
    let ms = |time: fn(&Summary) -> f64| all.iter().map(|one| time(one)).sum::<f64>();
    // Of each answer's steps, so it weighs as much as it has tokens.
    let attended = all.iter().filter_map(|one| Some((one.attended?, one.n_predicted as f64)));
    let (weighted, weight) =
        attended.fold((0.0, 0.0), |(sum, n), (mean, weight)| (sum + mean * weight, n + weight));
    Summary {
        n_prompt: of(|one| one.n_prompt),
        n_cached: of(|one| one.n_cached),
        n_predicted: of(|one| one.n_predicted),
        n_drafts: of(|one| one.n_drafts),
        n_drafted: of(|one| one.n_drafted),
        n_accepted: of(|one| one.n_accepted),
        prompt_ms: ms(|one| one.prompt_ms),
        predicted_ms: ms(|one| one.predicted_ms),
        waited_ms: all.iter().map(|one| one.waited_ms).fold(0.0, f64::max),
        policy: all.first().map(|one| one.policy.clone()).unwrap_or_default(),
        // All have the seed of their request.
        seed: all.first().and_then(|one| one.seed),
        attended: (weight > 0.0).then(|| weighted / weight),
        left_out: all.iter().filter_map(|one| one.left_out).reduce(LeftOut::with),
        n_tokens: of(|one| one.n_tokens),
        prefill: all.iter().fold(PrefillMode::Exact, |how, one| how.with(one.prefill)),
        blocks: BlockCounts {
            all: all.iter().map(|one| one.blocks.all).sum(),
            attended: all.iter().map(|one| one.blocks.attended).sum(),
        },
        // Several prompts leave nothing in a slot.
        left: None,
        seen: None,
    }
}
