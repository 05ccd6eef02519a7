//! The server that other programs ask: over the weights and the library of this process.

use std::io::ErrorKind;
use std::sync::Arc;
use std::time::Duration;

use longview_engine::{Draft, EngineShare, MAX_DRAFTED};
use longview_library::documents::Documents;
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_server::{
    ApiKey, Limits, LoadError, ModelFacts, Offers, ServeError, Server, ServerOptions, Turns,
};

use super::contract::{Failure, FailureKind};
use super::serving::{LibraryServer, Serve, Served};
use super::setup::{EngineSetup, ModelSource};
use crate::refusals;

/// Requests that run at the same time, and sequences of a step.
const PARALLEL: usize = 4;
/// Contexts that stay in memory for other programs.
const MOST_KEPT: usize = 4;
/// Time for requests that run when the switch is turned off.
const DRAIN: Duration = Duration::from_secs(2);

/// What a server is made of.
pub(super) struct Parts<B: Backend> {
    pub(super) share: EngineShare<B>,
    pub(super) setup: EngineSetup,
    pub(super) library: Documents,
    pub(super) turns: Turns,
    pub(super) offers: Offers<B>,
}

/// One that listens.
struct Listening {
    server: Server,
    served: Served,
}

impl<B: Backend + 'static> Parts<B> {
    /// Starts it: `folder` is the model's, opened again for its tokenizer and template.
    pub(super) fn start(
        self: &Arc<Self>,
        serve: &Serve,
        folder: ModelFolder,
    ) -> Result<Box<dyn LibraryServer>, Failure> {
        let options = self.options(serve)?;
        let facts = self.facts(folder)?;
        let (model, context) = (facts.names[0].clone(), facts.ctx_size);
        let parts = Arc::clone(self);
        let load = move || {
            let engine = parts.share.engine(PARALLEL, MAX_DRAFTED)?;
            engine.ok_or_else(|| LoadError::from("the model is loaded anew"))
        };
        let server = Server::start_beside(options, facts, self.offers.clone(), load);
        let server = server.map_err(|error| refused(&error, serve.port))?;
        let is_embedded = self.setup.model == ModelSource::Embedded;
        let served = Served { address: server.address(), model, is_embedded, context };
        Ok(Box::new(Listening { server, served }))
    }

    /// On this machine alone. Nobody hears its log: what is asked is nobody's business.
    fn options(&self, serve: &Serve) -> Result<ServerOptions, Failure> {
        let key = serve.key.trim();
        let wrong = |why: &str| failure(FailureKind::NotServed, format!("the API key {why}"));
        if key.contains(':') {
            // The server would take it for NAME:KEY, whose contexts are others than this library's.
            return Err(wrong("must have no colon"));
        }
        let keys = match key {
            "" => Vec::new(),
            key => vec![ApiKey::parse(key).map_err(|_| {
                wrong("must be letters, digits and signs without spaces, as a header carries them")
            })?],
        };
        Ok(ServerOptions {
            port: serve.port,
            api_keys: keys,
            n_slots: PARALLEL,
            max_kept: MOST_KEPT,
            // The window would not show them, so that nobody could remove them there.
            prompt_bytes: 0,
            free_memory: Some(longview_cpu::available_memory),
            documents: Some(self.library.clone()),
            limits: Limits { drain: DRAIN, ..Limits::default() },
            turns: self.turns.clone(),
            ..ServerOptions::default()
        })
    }

    fn facts(&self, folder: ModelFolder) -> Result<ModelFacts, Failure> {
        let tokenizer = folder.tokenizer().map_err(|error| failure(FailureKind::Model, error))?;
        let (name, words) = (self.setup.model.name(), self.setup.model.words());
        let mut names = vec![name, words.clone()];
        names.dedup();
        Ok(ModelFacts {
            names,
            words,
            is_embedded: self.setup.model == ModelSource::Embedded,
            tokenizer: tokenizer.clone(),
            eos_ids: folder.eos_token_ids(),
            generation: folder.generation,
            n_layers: folder.config.n_layers,
            n_kv_heads: folder.config.n_kv_heads,
            vocab_size: folder.config.vocab_size,
            chat: folder.chat,
            ctx_size: self.share.options().ctx_size,
            policy: self.setup.policy(),
            draft: Draft::Off,
            prefill: self.share.options().prefill,
        })
    }
}

impl LibraryServer for Listening {
    fn served(&self) -> Served {
        self.served.clone()
    }

    fn has_ended(&self) -> bool {
        self.server.has_ended()
    }

    fn stop(&self) {
        self.server.stop();
    }

    fn wait(self: Box<Self>) -> Result<(), Failure> {
        self.server.wait().map_err(|error| failure(FailureKind::NotServed, error))
    }
}

fn refused(error: &ServeError, port: u16) -> Failure {
    match error {
        ServeError::Bind { source, .. } if source.kind() == ErrorKind::AddrInUse => {
            failure(FailureKind::PortTaken, format!("another program has port {port}"))
        }
        ServeError::Bind { source, .. } => {
            failure(FailureKind::PortTaken, format!("port {port} cannot be used ({source})"))
        }
        ServeError::Library(error) => failure(FailureKind::NotServed, refusals::documents(error)),
        error => failure(FailureKind::NotServed, error),
    }
}

fn failure(kind: FailureKind, message: impl ToString) -> Failure {
    Failure { kind, message: message.to_string() }
}
