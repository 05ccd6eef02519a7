//! The sockets: one that tells all subscribers, and one where they ask for what they missed.
//!
//! ZeroMQ's PUB sockets keep nothing for who connects later, so after a connection all that is held
//! is told once more, to everybody: it begins with the event that clears, and a subscriber that had
//! it loses nothing. Slow subscribers miss messages, which they see by the sequence number.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Instant, timeout_at};
use tracing::warn;
use zeromq::{
    Endpoint, Host, PubSocket, RouterSocket, Socket, SocketEvent, SocketRecv, SocketSend,
    ZmqMessage,
};

use super::book::{Book, Chain, Event, Tier};
use super::held::Shared;
use super::on_disk::OnDisk;
use super::wire;
use crate::error::ServeError;
use crate::options::KvEventsOptions;

/// Events of one message, at most.
const MAX_EVENTS: usize = 16;
/// What is kept for who asks again: messages, as in vLLM, and their bytes.
const KEPT_MESSAGES: usize = 10_000;
const KEPT_BYTES: usize = 64 << 20;
/// A subscription comes as a message of its own behind the connection, and nothing says when it is
/// there: all is told after this time, and once more after a longer one.
const SETTLES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// Between two looks at the disk, where other programs may have removed something.
const LOOKS: Duration = Duration::from_secs(5);
/// What stands for the sequence number behind the last message of an answer.
const END: u64 = u64::MAX;

/// Where it listens.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addresses {
    pub(super) events: SocketAddr,
    pub(super) replay: Option<SocketAddr>,
}

/// Both sockets, and what was told.
pub(super) struct Publisher {
    socket: PubSocket,
    addresses: Addresses,
    topic: Bytes,
    next: u64,
    sent: Arc<Mutex<Sent>>,
    book: Book,
    on_disk: OnDisk,
    shared: Arc<Shared>,
    /// Connections that have not been told all.
    newcomers: Arc<Mutex<Vec<Instant>>>,
}

/// Messages that were sent last.
#[derive(Default)]
struct Sent {
    messages: VecDeque<(u64, Bytes)>,
    n_bytes: usize,
}

impl Publisher {
    pub(super) async fn bind(
        options: &KvEventsOptions,
        shared: Arc<Shared>,
    ) -> Result<Self, ServeError> {
        let mut socket = PubSocket::new();
        let mut monitor = socket.monitor();
        let events = bind(&mut socket, options.address).await?;
        let newcomers: Arc<Mutex<Vec<Instant>>> = Arc::default();
        let (came, told) = (Arc::clone(&newcomers), Arc::clone(&shared));
        tokio::spawn(async move {
            while let Some(event) = monitor.next().await {
                if matches!(event, SocketEvent::Accepted(..)) {
                    came.lock().unwrap_or_else(PoisonError::into_inner).push(Instant::now());
                    told.changed.notify_one();
                }
            }
        });
        let sent: Arc<Mutex<Sent>> = Arc::default();
        let mut replay = None;
        if let Some(address) = options.replay {
            let mut router = RouterSocket::new();
            replay = Some(bind(&mut router, address).await?);
            tokio::spawn(answer(router, Arc::clone(&sent)));
        }
        Ok(Self {
            socket,
            addresses: Addresses { events, replay },
            topic: Bytes::from(options.topic.clone()),
            next: 0,
            sent,
            book: Book::default(),
            on_disk: OnDisk::default(),
            shared,
            newcomers,
        })
    }

    pub(super) fn addresses(&self) -> Addresses {
        self.addresses
    }

    /// Tells what changes until the engine's thread has ended.
    pub(super) async fn run(mut self) {
        // When all is to be told, for whom.
        let mut due: Vec<Instant> = Vec::new();
        // Who heard a server before this one has heard what is not true any more.
        self.publish(&[Event::Cleared]).await;
        loop {
            let next = due.iter().copied().chain([Instant::now() + LOOKS]).min();
            let _ =
                timeout_at(next.unwrap_or_else(Instant::now), self.shared.changed.notified()).await;
            let came =
                std::mem::take(&mut *self.newcomers.lock().unwrap_or_else(PoisonError::into_inner));
            due.extend(came.iter().flat_map(|at| SETTLES.map(|settles| *at + settles)));
            let Some(events) = self.changes() else { return };
            self.publish(&events).await;
            let now = Instant::now();
            if due.iter().any(|at| *at <= now) {
                due.retain(|at| *at > now);
                let all = self.book.all();
                self.publish(&all).await;
            }
        }
    }

    /// What changed since the last time; `None`: nothing will any more.
    fn changes(&mut self) -> Option<Vec<Event>> {
        let (in_memory, sessions) = {
            let held = self.shared.held.lock().unwrap_or_else(PoisonError::into_inner);
            if held.is_over {
                return None;
            }
            (held.in_memory.clone(), held.on_disk.clone())
        };
        let of = |wanted: Tier| -> Vec<Arc<Chain>> {
            let own = in_memory.iter().filter(|(_, tier, _)| *tier == wanted);
            own.map(|(.., chain)| Arc::clone(chain)).collect()
        };
        let mut events = Vec::new();
        if let Some(sessions) = sessions {
            let chains = self.on_disk.chains(&sessions);
            events.extend(self.book.update(Tier::Disk, chains));
        }
        for tier in [Tier::Device, Tier::Host] {
            events.extend(self.book.update(tier, of(tier)));
        }
        Some(events)
    }

    async fn publish(&mut self, events: &[Event]) {
        for events in events.chunks(MAX_EVENTS) {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let payload = match wire::batch(now.as_secs_f64(), events) {
                Ok(payload) => Bytes::from(payload),
                Err(error) => {
                    warn!("KV events: not sent: {error}");
                    continue;
                }
            };
            let number = self.next;
            self.next += 1;
            let keep = || self.sent.lock().unwrap_or_else(PoisonError::into_inner);
            keep().keep(number, payload.clone());
            let frames = vec![self.topic.clone(), of_number(number), payload];
            let Ok(message) = ZmqMessage::try_from(frames) else { continue };
            if let Err(error) = self.socket.send(message).await {
                warn!("KV events: not sent: {error}");
            }
        }
    }
}

impl Sent {
    fn keep(&mut self, number: u64, payload: Bytes) {
        self.n_bytes += payload.len();
        self.messages.push_back((number, payload));
        while self.messages.len() > KEPT_MESSAGES || self.n_bytes > KEPT_BYTES {
            let Some((_, oldest)) = self.messages.pop_front() else { return };
            self.n_bytes -= oldest.len();
        }
    }

    fn since(&self, number: u64) -> Vec<(u64, Bytes)> {
        self.messages.iter().filter(|(sent, _)| *sent >= number).cloned().collect()
    }
}

fn of_number(number: u64) -> Bytes {
    Bytes::copy_from_slice(&number.to_be_bytes())
}

/// Answers who missed something: the messages from a number on, then one without events.
async fn answer(mut router: RouterSocket, sent: Arc<Mutex<Sent>>) {
    while let Ok(request) = router.recv().await {
        let frames = request.into_vec();
        let [client, empty, number] = &frames[..] else { continue };
        let Ok(number) = <[u8; 8]>::try_from(&number[..]) else { continue };
        let number = u64::from_be_bytes(number);
        let mut messages = sent.lock().unwrap_or_else(PoisonError::into_inner).since(number);
        messages.push((END, Bytes::new()));
        for (number, payload) in messages {
            let frames = vec![client.clone(), empty.clone(), of_number(number), payload];
            let Ok(message) = ZmqMessage::try_from(frames) else { break };
            // Who left needs no more of it.
            if router.send(message).await.is_err() {
                break;
            }
        }
    }
}

/// Binds a socket; its address where the port was free to choose.
async fn bind(socket: &mut impl Socket, address: SocketAddr) -> Result<SocketAddr, ServeError> {
    let bound = socket.bind(&format!("tcp://{address}")).await;
    let failed = |reason: String| ServeError::KvEvents { address, reason };
    match bound.map_err(|error| failed(error.to_string()))? {
        Endpoint::Tcp(Host::Ipv4(ip), port) => Ok(SocketAddr::new(ip.into(), port)),
        Endpoint::Tcp(Host::Ipv6(ip), port) => Ok(SocketAddr::new(ip.into(), port)),
        other => Err(failed(format!("it listens at {other}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_for_who_asks_again_has_limits() {
        let mut sent = Sent::default();
        for number in 0..KEPT_MESSAGES as u64 + 5 {
            sent.keep(number, Bytes::from_static(b"events"));
        }
        assert_eq!(sent.since(0).first().map(|(number, _)| *number), Some(5));
        assert_eq!(sent.since(10_001).len(), 4);
        let large = Bytes::from(vec![0; KEPT_BYTES / 2 + 1]);
        sent.keep(20_000, large.clone());
        sent.keep(20_001, large);
        let left: Vec<u64> = sent.since(0).iter().map(|(number, _)| *number).collect();
        assert_eq!((left, sent.n_bytes), (vec![20_001], KEPT_BYTES / 2 + 1));
    }
}
