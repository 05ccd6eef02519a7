//! Events of what a server keeps, for routers in front of several servers: which blocks of exact
//! token prefixes came, in which memory, and which went. A router that hears them sends a question
//! to the server that has its document.
//!
//! The wire format is that of vLLM, which NVIDIA Dynamo and others read: messages of a ZeroMQ PUB
//! socket with a topic, a sequence number and a batch of events in MessagePack (`wire`). A thread
//! of its own compares what is kept now with what it told before (`book`), so the events follow
//! whatever happens in between; the thread of the engine only hands over what it keeps (`held`),
//! and never waits.
//!
//! Only contexts of requests without a key, or with the first one, are told: whoever reaches the
//! socket reads the tokens in its events, and it asks for no key.

mod book;
mod held;
mod on_disk;
mod publish;
mod wire;

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tokio::runtime::Builder;

use self::book::{Chain, Tier};
pub(crate) use self::held::DiskSessions;
use self::held::Shared;
use self::publish::{Addresses, Publisher};
use crate::error::ServeError;
use crate::log;
use crate::options::KvEventsOptions;

/// A context in memory.
#[derive(Clone, Copy)]
pub(crate) struct KeptTokens<'a> {
    /// A number that no other context had or will have.
    pub(crate) serial: u64,
    pub(crate) tokens: &'a [u32],
    /// Whether all of its rows lie on the device, and not in the host's memory.
    pub(crate) is_on_device: bool,
}

/// What the engine's thread tells, and the thread that tells it to others.
pub(crate) struct KvEvents {
    shared: Arc<Shared>,
    /// Contexts that were handed over last.
    told: Vec<u64>,
    addresses: Addresses,
    thread: Option<JoinHandle<()>>,
}

impl KvEvents {
    /// Listens for subscribers.
    ///
    /// # Errors
    /// [`ServeError::OpenKvEvents`], [`ServeError::KvEvents`].
    pub(crate) fn start(options: &KvEventsOptions, has_keys: bool) -> Result<Self, ServeError> {
        let all = [Some(options.address), options.replay];
        for address in all.into_iter().flatten() {
            if !address.ip().is_loopback() && !has_keys {
                return Err(ServeError::OpenKvEvents(address));
            }
        }
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let shared: Arc<Shared> = Arc::default();
        let publisher = runtime.block_on(Publisher::bind(options, Arc::clone(&shared)))?;
        let addresses = publisher.addresses();
        let thread = thread::Builder::new().name("kv-events".to_owned());
        let thread = thread.spawn(log::same(move || runtime.block_on(publisher.run())))?;
        Ok(Self { shared, told: Vec::new(), addresses, thread: Some(thread) })
    }

    /// Where subscribers connect, and where they ask for what they missed.
    pub(crate) fn addresses(&self) -> (SocketAddr, Option<SocketAddr>) {
        (self.addresses.events, self.addresses.replay)
    }

    /// Says which sessions lie on disk.
    pub(crate) fn watch_disk(&self, sessions: DiskSessions) {
        self.shared.change(|held| held.on_disk = Some(Arc::new(sessions)));
    }

    /// Says that a session on disk came or went.
    pub(crate) fn disk_changed(&self) {
        self.shared.changed.notify_one();
    }

    /// Says what is kept in memory now. Where that is what it was, nothing is done.
    pub(crate) fn tell<'a>(&mut self, kept: impl Iterator<Item = KeptTokens<'a>> + Clone) {
        if kept.clone().map(|one| one.serial).eq(self.told.iter().copied()) {
            return;
        }
        self.told = kept.clone().map(|one| one.serial).collect();
        self.shared.change(|held| {
            let before = std::mem::take(&mut held.in_memory);
            held.in_memory = kept
                .map(|one| {
                    let known = before.iter().find(|(serial, ..)| *serial == one.serial);
                    known.cloned().unwrap_or_else(|| {
                        let tier = if one.is_on_device { Tier::Device } else { Tier::Host };
                        (one.serial, tier, Arc::new(Chain::of(one.tokens)))
                    })
                })
                .collect();
        });
    }
}

impl Drop for KvEvents {
    fn drop(&mut self) {
        self.shared.change(|held| held.is_over = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
