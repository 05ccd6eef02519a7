//! Connections: `axum::serve` cannot bound the time and size of heads, so this is its loop with
//! bounds.

use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use futures_util::future::{Either, select};
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep, sleep_until};

use crate::idle::Waiting;
use crate::options::Limits;

/// Headers of a request, and their bytes together.
const MAX_HEADERS: usize = 64;
const MAX_HEADER_BYTES: usize = 16 << 10;
/// Pause after an error of the system, such as too many open files.
const PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until `stop` says true, then waits for those that are open: at most as long
/// as what runs may take.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: watch::Receiver<bool>,
) {
    let places = Arc::new(Semaphore::new(limits.connections));
    let mut stopped = stop.clone();
    loop {
        // Where all places are taken, further connections wait in the system's queue.
        let accepted = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (place, listener.accept().await)
        };
        let ended = pin!(stopped.wait_for(|stop| *stop));
        let (place, stream) = match select(pin!(accepted), ended).await {
            Either::Left(((place, Ok((stream, _))), _)) => (place, stream),
            Either::Left(((_, Err(_)), _)) => {
                sleep(PAUSE).await;
                continue;
            }
            Either::Right(_) => break,
        };
        let (router, stop) = (router.clone(), stop.clone());
        tokio::spawn(async move {
            connection(stream, router, limits, stop).await;
            drop(place);
        });
    }
    drop(listener);
    let all = places.acquire_many(limits.connections as u32);
    let _ = tokio::time::timeout(limits.drain + Duration::from_secs(1), all).await;
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    mut stop: watch::Receiver<bool>,
) {
    let _ = stream.set_nodelay(true);
    let waiting = Waiting::new(limits.header, limits.idle);
    let io = TokioIo::new(Watched::new(stream, limits.stall, waiting.clone()));
    let mut builder = http1::Builder::new();
    // The stream knows how long it waits for a head, and how long for a request at all.
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(None)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEADER_BYTES);
    let router = TowerToHyperService::new(router);
    let service = service_fn(move |request| {
        waiting.is_asked();
        let (answered, waiting) = (router.call(request), waiting.clone());
        async move { answered.await.map(|answer| answer.map(|body| waiting.answer(body))) }
    });
    let mut served = pin!(builder.serve_connection(io, service));
    let is_served = {
        let ended = pin!(stop.wait_for(|stop| *stop));
        matches!(select(served.as_mut(), ended).await, Either::Left(_))
    };
    // What a client did wrong is its own business: it has its answer or has gone.
    if !is_served {
        served.as_mut().graceful_shutdown();
        let _ = served.await;
    }
}

/// A stream on which a write that makes no progress for some time is an error, and so is one on
/// which the next request does not come. (`tower-http` has a bound for the time in which a part of
/// an answer is made, not in which it is taken.)
struct Watched {
    stream: TcpStream,
    stall: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
    requests: Waiting,
    /// Until when the next one is waited for.
    due: Option<Pin<Box<Sleep>>>,
}

impl Watched {
    fn new(stream: TcpStream, stall: Duration, requests: Waiting) -> Self {
        Self { stream, stall, waiting: None, requests, due: None }
    }

    /// What came of a write: where it waits, the time runs.
    fn watched<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.waiting = None;
            return result;
        }
        let end = Instant::now() + self.stall;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(sleep_until(end)));
        ready!(waiting.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        if result.is_ready() {
            if buffer.filled().len() > before {
                self.requests.came();
            }
            return result;
        }
        let Some(end) = self.requests.end(context) else { return Poll::Pending };
        let due = self.due.get_or_insert_with(|| Box::pin(sleep_until(end)));
        if due.deadline() != end {
            due.as_mut().reset(end);
        }
        ready!(due.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.watched(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
