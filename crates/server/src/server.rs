//! A server's threads: one for connections, one for the engine.

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

use longview_engine::Engine;
use longview_ops::Backend;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;

use crate::app::{App, State};
use crate::constraint::DEEP_STACK;
use crate::error::ServeError;
use crate::job::Message;
use crate::keys::Keys;
use crate::kv_events::KvEvents;
use crate::metrics::Metrics;
use crate::offers::Offers;
use crate::options::ServerOptions;
use crate::texts::ModelFacts;
use crate::worker::Worker;
use crate::{contexts, listen, log, routes};

/// Messages to the engine's thread beside requests.
const OTHER_MESSAGES: usize = 64;

/// What loading fails with.
pub type LoadError = Box<dyn Error + Send + Sync>;

/// A server that listens.
pub struct Server {
    address: SocketAddr,
    kv_events: Option<(SocketAddr, Option<SocketAddr>)>,
    stop: watch::Sender<bool>,
    connections: JoinHandle<()>,
    engine: JoinHandle<Result<(), ServeError>>,
}

impl Server {
    /// Listens at once, and loads the model beside: until that is done `/health` says 503.
    ///
    /// What it logs are events of `tracing`, without prompts and answers. They go to the subscriber
    /// of the thread that calls this, from all threads of the server.
    ///
    /// # Errors
    /// [`ServeError::OpenWithoutKey`], [`ServeError::SharedKey`], [`ServeError::Library`],
    /// [`ServeError::Bind`], [`ServeError::Start`]; with [`ServerOptions::kv_events`]
    /// [`ServeError::OpenKvEvents`], [`ServeError::KvEvents`], [`ServeError::NoKvEvents`].
    pub fn start<B: Backend + 'static>(
        options: ServerOptions,
        model: ModelFacts,
        load: impl FnOnce() -> Result<Engine<B>, LoadError> + Send + 'static,
    ) -> Result<Self, ServeError> {
        Self::start_beside(options, model, Offers::default(), load)
    }

    /// The same beside another part of the program that computes on the same device: both take
    /// [turns](ServerOptions::turns), and what the other has read comes by `offers`, for clients
    /// without a key or with the first one.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_beside<B: Backend + 'static>(
        options: ServerOptions,
        model: ModelFacts,
        offers: Offers<B>,
        load: impl FnOnce() -> Result<Engine<B>, LoadError> + Send + 'static,
    ) -> Result<Self, ServeError> {
        let address = SocketAddr::new(options.host, options.port);
        if !options.host.is_loopback() && options.api_keys.is_empty() {
            return Err(ServeError::OpenWithoutKey(address));
        }
        let keys = Keys::new(&options.api_keys)?;
        let libraries = options.documents.as_ref().map(|whole| keys.libraries(whole));
        let libraries = libraries.transpose()?.unwrap_or_default();
        let bind = |source| ServeError::Bind { address, source };
        let listener = TcpListener::bind(address).map_err(bind)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let start = |events| KvEvents::start(events, keys.are_needed());
        let events = options.kv_events.as_ref().map(start).transpose()?;
        let kv_events = events.as_ref().map(KvEvents::addresses);
        let n_places = options.n_slots + options.max_waiting + OTHER_MESSAGES;
        let (sender, inbox) = sync_channel(n_places);
        let metrics = Arc::new(Metrics::new(&options, model.ctx_size));
        let app = Arc::new(App::new(
            options,
            (keys, libraries),
            Arc::new(model),
            Arc::clone(&metrics),
            sender,
        ));
        let (stop, stopped) = watch::channel(false);
        let runtime = Builder::new_current_thread().enable_io().enable_time().build()?;
        let engine = {
            let (app, stop) = (Arc::clone(&app), stop.clone());
            let thread = thread::Builder::new().name("engine".to_owned());
            // It follows the grammars of answers.
            thread.stack_size(DEEP_STACK).spawn(log::same(move || {
                let result = run_engine(&app, load, inbox, (offers, events));
                app.reach(State::Ended);
                // Without an engine there is nothing to serve.
                stop.send_replace(true);
                result
            }))?
        };
        let connections = {
            let stop = stop.clone();
            thread::Builder::new().name("connections".to_owned()).spawn(log::same(move || {
                run_connections(&runtime, listener, app, &stop, stopped)
            }))?
        };
        Ok(Self { address, kv_events, stop, connections, engine })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where subscribers hear what is kept, and where they ask for what they missed.
    pub fn kv_events(&self) -> Option<(SocketAddr, Option<SocketAddr>)> {
        self.kv_events
    }

    /// Whether it has ended: by itself, if nobody told it to. [`Server::wait`] says why.
    pub fn has_ended(&self) -> bool {
        self.connections.is_finished()
    }

    /// Lets it end: nothing new is taken, and what runs may end within the time for that.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If the model could not be loaded, or the engine's thread ended by a fault.
    pub fn wait(self) -> Result<(), ServeError> {
        let connections = self.connections.join();
        let engine = self.engine.join().unwrap_or(Err(ServeError::EngineEnded));
        engine.and(connections.map_err(|_| ServeError::EngineEnded))
    }
}

/// Loads, then serves until it is told to end.
fn run_engine<B: Backend>(
    app: &App,
    load: impl FnOnce() -> Result<Engine<B>, LoadError>,
    inbox: Receiver<Message>,
    (offers, events): (Offers<B>, Option<KvEvents>),
) -> Result<(), ServeError> {
    let engine = load().map_err(ServeError::Load)?;
    let (model, options) = (Arc::clone(&app.model), app.options.clone());
    let kept = (app.libraries.clone(), app.prompts.clone(), app.shares.clone());
    let worker = Worker::new(engine, model, options, Arc::clone(&app.metrics), inbox, kept);
    let worker = worker.map(|worker| worker.with_slots(Arc::clone(&app.slots)).with_offers(offers));
    let worker = worker.map(|worker| worker.with_events(events));
    let worker = worker.map_err(|error| ServeError::Load(error.json().to_string().into()))?;
    app.reach(State::Ready);
    // A fault of the program ends the engine's thread alone: clients and the caller are told.
    std::panic::catch_unwind(AssertUnwindSafe(|| worker.serve()))
        .map_err(|_| ServeError::EngineEnded)
}

fn run_connections(
    runtime: &Runtime,
    listener: TcpListener,
    app: Arc<App>,
    stop: &watch::Sender<bool>,
    mut stopped: watch::Receiver<bool>,
) {
    let limits = app.options.limits;
    runtime.block_on(async {
        let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
            let _ = app.inbox.try_send(Message::Drain);
            return;
        };
        if app.options.catches_signals {
            let stop = stop.clone();
            tokio::spawn(async move { on_signals(&stop).await });
        }
        if app.options.documents.is_some() {
            tokio::spawn(contexts::sweep(Arc::clone(&app)));
        }
        let router = routes::router(Arc::clone(&app));
        let drained = Arc::clone(&app);
        let waits = stopped.clone();
        let drain = tokio::spawn(async move {
            if stopped.wait_for(|stop| *stop).await.is_ok() {
                drained.reach(State::Draining);
                // Its queue has room for all requests and for this.
                let _ = drained.inbox.try_send(Message::Drain);
            }
        });
        listen::serve(listener, router, limits, waits).await;
        let _ = drain.await;
    });
}

/// The first signal lets the server end; the second ends the program.
#[cfg(unix)]
async fn on_signals(stop: &watch::Sender<bool>) {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut interrupt), Ok(mut terminate)) =
        (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
    else {
        return;
    };
    let mut next = async || {
        let (interrupted, terminated) =
            (std::pin::pin!(interrupt.recv()), std::pin::pin!(terminate.recv()));
        futures_util::future::select(interrupted, terminated).await;
    };
    next().await;
    stop.send_replace(true);
    next().await;
    std::process::exit(INTERRUPTED);
}

#[cfg(not(unix))]
async fn on_signals(stop: &watch::Sender<bool>) {
    if tokio::signal::ctrl_c().await.is_ok() {
        stop.send_replace(true);
        if tokio::signal::ctrl_c().await.is_ok() {
            std::process::exit(INTERRUPTED);
        }
    }
}

/// What the shell gets where a second signal ends the program.
const INTERRUPTED: i32 = 130;
