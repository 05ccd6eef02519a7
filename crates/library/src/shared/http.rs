//! Requests to a storage, through the HTTP client that downloads models: no second one is built.
//!
//! A request blocks the thread that makes it. What runs beside another runs on a thread of its own.

use std::io::Read;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use ureq::{Agent, Error};

use crate::origin::Origin;

/// The longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(4);

/// Makes clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connector {
    /// How long a request may take.
    pub(super) request: Duration,
    /// Bytes of an answer, at most: a storage that is not trusted may send any number.
    pub(super) max_answer: u64,
}

impl HttpConnector for Connector {
    fn connect(&self, _: &ClientOptions) -> object_store::Result<HttpClient> {
        let config = || {
            Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .user_agent(concat!("longview/", env!("CARGO_PKG_VERSION")))
                .timeout_resolve(Some(CONNECT))
                .timeout_connect(Some(CONNECT))
                .timeout_global(Some(self.request))
        };
        let (agent, direct) = (config().build().into(), config().proxy(None).build().into());
        Ok(HttpClient::new(Client { agent, direct, max_answer: self.max_answer }))
    }
}

#[derive(Debug)]
struct Client {
    /// Through the proxy that the environment names.
    agent: Agent,
    /// For this machine itself.
    direct: Agent,
    max_answer: u64,
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let is_here = Origin::of(&head.uri).is_some_and(|origin| origin.is_loopback());
        let agent = if is_here { &self.direct } else { &self.agent };
        let has_body = !body.is_empty() || matches!(head.method.as_str(), "PUT" | "POST");
        let answer = if has_body {
            agent.run(ureq::http::Request::from_parts(head, &*body))
        } else {
            agent.run(ureq::http::Request::from_parts(head, ()))
        };
        let (head, body) = answer.map_err(failed)?.into_parts();
        let mut bytes = Vec::new();
        let expected = body.content_length().unwrap_or(0);
        // More than that is an error, not a part of it.
        let mut reader = body.into_with_config().limit(self.max_answer).reader();
        bytes.reserve(usize::try_from(expected.min(self.max_answer)).unwrap_or(0));
        reader.read_to_end(&mut bytes).map_err(|error| failed(Error::Io(error)))?;
        Ok(HttpResponse::from_parts(head, Bytes::from(bytes).into()))
    }
}

/// What kind of failure it is decides whether the request is made again.
fn failed(error: Error) -> HttpError {
    let kind = match &error {
        Error::Timeout(_) => HttpErrorKind::Timeout,
        Error::HostNotFound | Error::ConnectionFailed => HttpErrorKind::Connect,
        Error::Io(error) => match error.kind() {
            std::io::ErrorKind::TimedOut => HttpErrorKind::Timeout,
            std::io::ErrorKind::ConnectionRefused => HttpErrorKind::Connect,
            _ => HttpErrorKind::Interrupted,
        },
        Error::Protocol(_) => HttpErrorKind::Interrupted,
        _ => HttpErrorKind::Unknown,
    };
    HttpError::new(kind, error)
}
