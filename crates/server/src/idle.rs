//! What a connection is waited for: a request that has begun to come, or one that may.
//!
//! hyper has one bound for both, so that a client that keeps its connection for the next question
//! would have no longer for it than for the head of one.

use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};
use tokio::time::Instant;

/// Shared by the stream of a connection and its answers.
#[derive(Clone, Debug)]
pub(crate) struct Waiting(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    phase: Phase,
    /// Who waits for something to come. It was told that there is no end to that while an answer
    /// was on its way.
    reader: Option<Waker>,
    header: Duration,
    idle: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The head of a request is due since then: the first one from the beginning on.
    Head(Instant),
    /// A request is answered; its body has a bound of its own.
    Answer,
    /// All is answered since then.
    Idle(Instant),
}

impl Waiting {
    pub(crate) fn new(header: Duration, idle: Duration) -> Self {
        let phase = Phase::Head(Instant::now());
        Self(Arc::new(Mutex::new(Inner { phase, reader: None, header, idle })))
    }

    /// Something came.
    pub(crate) fn came(&self) {
        self.change(|phase| match phase {
            Phase::Idle(_) => Phase::Head(Instant::now()),
            phase => phase,
        });
    }

    /// The head of a request is complete.
    pub(crate) fn is_asked(&self) {
        self.change(|_| Phase::Answer);
    }

    /// When the connection ends where nothing comes. Who asks is woken when that changes.
    pub(crate) fn end(&self, context: &Context<'_>) -> Option<Instant> {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match inner.phase {
            Phase::Head(since) => Some(since + inner.header),
            Phase::Answer => {
                inner.reader = Some(context.waker().clone());
                None
            }
            Phase::Idle(since) => Some(since + inner.idle),
        }
    }

    /// An answer's body, behind which the connection is idle.
    pub(crate) fn answer(&self, body: Body) -> Body {
        Body::new(Answer { body, waiting: self.clone() })
    }

    fn change(&self, to: impl FnOnce(Phase) -> Phase) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        inner.phase = to(inner.phase);
        if inner.phase != Phase::Answer
            && let Some(reader) = inner.reader.take()
        {
            reader.wake();
        }
    }
}

/// A body that is dropped when all of it is sent, or nobody wants it any more.
struct Answer {
    body: Body,
    waiting: Waiting,
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.waiting.change(|_| Phase::Idle(Instant::now()));
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
