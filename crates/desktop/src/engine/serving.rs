//! The switch that serves the library to other programs: what is wanted, what there is to serve
//! with, and the thread that brings both together.
//!
//! A window says what it wants, and never waits. The engine's thread says when there is a model and
//! when it goes. The thread of the [`Host`] starts and ends servers, one at a time, and tells.

use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::contract::{Failure, FailureKind};

/// The port at first: that of `longview serve`.
const PORT: u16 = 8080;
/// How often a server is looked at that might have ended by itself.
const LOOK: Duration = Duration::from_millis(500);

/// Whether and how the library is served.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Serve {
    /// Whether it is.
    pub on: bool,
    /// The port; 0: one that is free.
    pub port: u16,
    /// What clients must send; empty: nothing.
    pub key: String,
}

impl Default for Serve {
    fn default() -> Self {
        Self { on: false, port: PORT, key: String::new() }
    }
}

/// What is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// Where it listens, on this machine.
    pub address: SocketAddr,
    /// What clients call the model.
    pub model: String,
    /// Whether it is the one inside the program.
    pub is_embedded: bool,
    /// Tokens of a prompt and its answer at most.
    pub context: usize,
}

/// What the window knows of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Serving {
    /// Nothing is served.
    #[default]
    Off,
    /// It will be, when the engine is there.
    Starting,
    /// It is.
    On(Served),
    /// It will not be any more: what runs is ending.
    Ending,
    /// It is not, though it is wanted.
    Failed(Failure),
}

/// A server that listens.
pub trait LibraryServer: Send {
    /// What it serves.
    fn served(&self) -> Served;

    /// Whether it has ended by itself.
    fn has_ended(&self) -> bool;

    /// Lets it end: nothing new is taken. Returns at once.
    fn stop(&self);

    /// Waits for its end.
    ///
    /// # Errors
    /// Why it ended, if nobody told it to.
    fn wait(self: Box<Self>) -> Result<(), Failure>;
}

/// Starts a server over the engine that there is.
pub type StartServer =
    Arc<dyn Fn(&Serve) -> Result<Box<dyn LibraryServer>, Failure> + Send + Sync + 'static>;

/// Hears what comes of it.
type Tell = Box<dyn Fn(Serving) + Send>;

/// One model that can be served with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published(u64);

/// What a server was started for: the wish and the model.
type Reason = (u64, Published);

/// Starts and ends servers as the window and the engine say. Clones are of the same one.
#[derive(Clone, Default)]
pub struct Host(Arc<Inner>);

#[derive(Default)]
struct Inner {
    wishes: Mutex<Wishes>,
    changed: Condvar,
}

#[derive(Default)]
struct Wishes {
    /// What is wanted, with a number: the same wanted again is tried again.
    wanted: Option<(u64, Serve)>,
    engine: Option<(Published, StartServer)>,
    /// The model of the server that listens, starts or ends.
    running: Option<Published>,
    last: u64,
    ends: bool,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").finish_non_exhaustive()
    }
}

impl Host {
    /// Begins to do what is wanted, on a thread of its own that `tell` is called on.
    pub fn run(&self, tell: impl Fn(Serving) + Send + 'static) {
        let (inner, tell): (_, Tell) = (Arc::clone(&self.0), Box::new(tell));
        let thread = thread::Builder::new().name("serving".into());
        // Without a thread nothing is served, and nobody is told that it is.
        let _ = thread.spawn(move || inner.run(&tell));
    }

    /// Says what is wanted from now on; what was wanted before ends. Never waits.
    pub fn want(&self, serve: Option<Serve>) {
        let mut wishes = self.0.wishes();
        let number = wishes.number();
        wishes.wanted = serve.map(|serve| (number, serve));
        self.0.changed.notify_all();
    }

    /// Says that there is a model, and how a server is started over it.
    pub fn publish(&self, start: StartServer) -> Published {
        let mut wishes = self.0.wishes();
        let published = Published(wishes.number());
        wishes.engine = Some((published, start));
        self.0.changed.notify_all();
        published
    }

    /// Says that a model goes, and waits until no server has it.
    pub fn withdraw(&self, published: Published) {
        let mut wishes = self.0.wishes();
        wishes.engine.take_if(|(known, _)| *known == published);
        self.0.changed.notify_all();
        while wishes.running == Some(published) {
            wishes = self.0.changed.wait(wishes).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Says that the model that there is will go. Never waits.
    pub fn clear(&self) {
        self.0.wishes().engine = None;
        self.0.changed.notify_all();
    }

    /// Whether a server listens over this model, or is about to.
    pub fn has_server_over(&self, published: Published) -> bool {
        self.0.wishes().running == Some(published)
    }

    /// Ends the server and the thread. Does not wait for them.
    pub fn end(&self) {
        self.0.wishes().ends = true;
        self.0.changed.notify_all();
    }
}

impl Wishes {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn reason(&self) -> Option<Reason> {
        let (number, published) = (self.wanted.as_ref()?.0, self.engine.as_ref()?.0);
        (!self.ends).then_some((number, published))
    }
}

/// What the thread is to do.
enum Next {
    Start(Reason, Serve, StartServer),
    /// Nothing is to be served; whether that is for want of an engine.
    Rest {
        is_wanted: bool,
    },
    /// A server might have ended by itself.
    Look,
    End,
}

impl Inner {
    fn wishes(&self) -> MutexGuard<'_, Wishes> {
        // Nothing that holds the lock can leave it half changed.
        self.wishes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, tell: &Tell) {
        let mut server: Option<Box<dyn LibraryServer>> = None;
        // What was done about last, whether or not it came to a server.
        let mut done: Option<Reason> = None;
        let mut was_wanted = false;
        loop {
            let next = self.next(done, was_wanted, server.is_some());
            let has_ended = server.as_ref().is_some_and(|server| server.has_ended());
            if matches!(next, Next::Look) && !has_ended {
                continue;
            }
            let ended = server.take().map_or(Ok(()), |server| {
                if !has_ended {
                    tell(Serving::Ending);
                }
                server.stop();
                server.wait()
            });
            self.is_free();
            match next {
                Next::Start(reason, serve, start) => {
                    (done, was_wanted) = (Some(reason), true);
                    tell(Serving::Starting);
                    // It may have gone while the server before was waited for.
                    if !self.takes(reason) {
                        done = None;
                        continue;
                    }
                    match start(&serve) {
                        Ok(started) => {
                            tell(Serving::On(started.served()));
                            server = Some(started);
                        }
                        Err(failure) => {
                            self.is_free();
                            tell(Serving::Failed(failure));
                        }
                    }
                }
                Next::Rest { is_wanted } => {
                    (done, was_wanted) = (None, is_wanted);
                    tell(if is_wanted { Serving::Starting } else { Serving::Off });
                }
                Next::Look => {
                    let message = "the server ended by a fault of the program".to_owned();
                    let unknown = Failure { kind: FailureKind::NotServed, message };
                    tell(Serving::Failed(ended.err().unwrap_or(unknown)));
                }
                Next::End => return,
            }
        }
    }

    /// Waits until something is to be done.
    fn next(&self, done: Option<Reason>, was_wanted: bool, has_server: bool) -> Next {
        let mut wishes = self.wishes();
        loop {
            if wishes.ends {
                return Next::End;
            }
            let (reason, is_wanted) = (wishes.reason(), wishes.wanted.is_some());
            if let (Some(reason), Some((_, serve)), Some((_, start))) =
                (reason, &wishes.wanted, &wishes.engine)
                && Some(reason) != done
            {
                return Next::Start(reason, serve.clone(), Arc::clone(start));
            }
            if reason.is_none() && (done.is_some() || is_wanted != was_wanted) {
                return Next::Rest { is_wanted };
            }
            wishes = if has_server {
                let waited = self.changed.wait_timeout(wishes, LOOK);
                let (wishes, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
                if timeout.timed_out() {
                    return Next::Look;
                }
                wishes
            } else {
                self.changed.wait(wishes).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }

    /// Takes the model of `reason` for a server, if that is wanted still.
    fn takes(&self, reason: Reason) -> bool {
        let mut wishes = self.wishes();
        let is_so = wishes.reason() == Some(reason);
        if is_so {
            wishes.running = Some(reason.1);
        }
        is_so
    }

    fn is_free(&self) {
        self.wishes().running = None;
        self.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    use super::*;

    /// A server that does nothing, and what is seen of it.
    #[derive(Clone, Default)]
    struct Seen {
        n_running: Arc<AtomicUsize>,
        has_ended: Arc<AtomicBool>,
    }

    impl LibraryServer for Seen {
        fn served(&self) -> Served {
            let address = SocketAddr::from(([127, 0, 0, 1], PORT));
            Served { address, model: "none".into(), is_embedded: false, context: 1 }
        }

        fn has_ended(&self) -> bool {
            self.has_ended.load(Ordering::SeqCst)
        }

        fn stop(&self) {}

        fn wait(self: Box<Self>) -> Result<(), Failure> {
            // Long enough that who does not wait for it is found.
            thread::sleep(Duration::from_millis(20));
            self.n_running.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    }

    impl Seen {
        fn start(&self) -> StartServer {
            let seen = self.clone();
            Arc::new(move |serve: &Serve| {
                if serve.port == 1 {
                    let message = "another program has port 1".into();
                    return Err(Failure { kind: FailureKind::PortTaken, message });
                }
                assert_eq!(seen.n_running.fetch_add(1, Ordering::SeqCst), 0, "one at a time");
                Ok(Box::new(seen.clone()))
            })
        }

        fn n_running(&self) -> usize {
            self.n_running.load(Ordering::SeqCst)
        }
    }

    fn on(port: u16) -> Option<Serve> {
        Some(Serve { on: true, port, ..Serve::default() })
    }

    fn host() -> (Host, Receiver<Serving>, Seen) {
        let (host, seen) = (Host::default(), Seen::default());
        let (told, news) = channel();
        host.run(move |serving| drop(told.send(serving)));
        (host, news, seen)
    }

    /// Waits for something that is told.
    fn wait(news: &Receiver<Serving>, is_it: impl Fn(&Serving) -> bool) -> Serving {
        loop {
            let serving = news.recv_timeout(Duration::from_secs(20)).expect("it is told");
            if is_it(&serving) {
                return serving;
            }
        }
    }

    fn is_on(serving: &Serving) -> bool {
        matches!(serving, Serving::On(_))
    }

    #[test]
    fn a_server_runs_while_it_is_wanted_and_there_is_a_model() {
        let (host, news, seen) = host();
        host.want(on(PORT));
        wait(&news, |serving| *serving == Serving::Starting);
        let first = host.publish(seen.start());
        wait(&news, is_on);
        assert!(host.has_server_over(first));
        // The model goes, and another one comes.
        host.withdraw(first);
        assert_eq!(seen.n_running(), 0, "it was waited for");
        let second = host.publish(seen.start());
        wait(&news, is_on);
        host.want(None);
        wait(&news, |serving| *serving == Serving::Off);
        assert_eq!(seen.n_running(), 0);
        host.want(on(PORT));
        wait(&news, is_on);
        host.clear();
        wait(&news, |serving| *serving == Serving::Starting);
        assert_eq!(seen.n_running(), 0);
        host.withdraw(second);
        host.end();
    }

    #[test]
    fn what_fails_is_told_and_tried_again_when_it_is_wanted_again() {
        let (host, news, seen) = host();
        let published = host.publish(seen.start());
        host.want(on(1));
        let failed = wait(&news, |serving| matches!(serving, Serving::Failed(_)));
        assert!(matches!(failed, Serving::Failed(f) if f.kind == FailureKind::PortTaken));
        assert!(!host.has_server_over(published));
        host.want(on(2));
        wait(&news, is_on);
        // It ends by itself.
        seen.has_ended.store(true, Ordering::SeqCst);
        let failed = wait(&news, |serving| matches!(serving, Serving::Failed(_)));
        assert!(matches!(failed, Serving::Failed(f) if f.kind == FailureKind::NotServed));
        seen.has_ended.store(false, Ordering::SeqCst);
        host.want(on(2));
        wait(&news, is_on);
        host.end();
        host.withdraw(published);
        assert_eq!(seen.n_running(), 0, "whoever withdraws waits, also at the end");
    }
}
