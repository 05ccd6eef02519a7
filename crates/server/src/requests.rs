//! Bodies of requests as handlers read them, without a connection and without an engine: for tests
//! that send any bytes.

use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use crate::app::{App, State, parse};
use crate::asked::Endpoint;
use crate::caller::Caller;
use crate::constraint::Grammars;
use crate::error::ApiError;
use crate::keys::{Keys, Scope};
use crate::metrics::Metrics;
use crate::options::ServerOptions;
use crate::texts::ModelFacts;
use crate::{about, complete, contexts, messages, responses};

/// What handlers know of a server, and no engine behind it.
pub struct Requests {
    app: Caller,
}

/// What a body is read as, by the path that it is sent to.
pub const FORMS: [&str; 7] = [
    "/v1/completions",
    "/completion",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/contexts",
    "/apply-template",
];

impl Requests {
    /// For requests to a model. Schemas and grammars are converted, and go no further: what follows
    /// is the work of llguidance, with threads of its own.
    pub fn new(model: ModelFacts) -> Self {
        let options = ServerOptions { port: 0, ..ServerOptions::default() };
        let metrics = Arc::new(Metrics::new(&options, model.ctx_size));
        // Nothing is sent there.
        let (sender, _) = sync_channel(1);
        let kept = (Keys::none(), Vec::new());
        let mut app = App::new(options, kept, Arc::new(model), metrics, sender);
        app.grammars = Grammars::unread();
        app.reach(State::Ready);
        Self { app: Caller::new(Arc::new(app), Scope::default()) }
    }

    /// Reads a body that is sent to `path`, one of [`FORMS`]; what the prompt has of tokens, or of
    /// bytes where it is a text.
    ///
    /// # Errors
    /// With what the client is told.
    pub fn read(&self, path: &str, body: &[u8]) -> Result<usize, String> {
        self.sent(path, body).map_err(|error| error.json().to_string())
    }

    fn sent(&self, path: &str, body: &[u8]) -> Result<usize, ApiError> {
        let app = &self.app;
        match path {
            "/completion" => complete::n_tokens(app, body, Endpoint::Native),
            "/v1/chat/completions" => complete::n_tokens(app, body, Endpoint::Chat),
            "/v1/responses" => responses::n_tokens(app, body),
            "/v1/messages" => messages::n_tokens(app, body),
            "/v1/contexts" => contexts::n_tokens(app, &parse(body)?),
            "/apply-template" => about::template_text(app, body).map(|text| text.len()),
            _ => complete::n_tokens(app, body, Endpoint::Completions),
        }
    }
}
