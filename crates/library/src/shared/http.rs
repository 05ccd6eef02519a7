//! Requests to a storage, through the HTTP client that downloads models: no second one is built.
//!
//! A request blocks the thread that makes it. What runs beside another runs on a thread of its own.

use std::io::Read;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::BodyExt;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};
use object_store::{ClientConfigKey, ClientOptions};
use ureq::{Agent, Error};

use crate::origin::Origin;

/// The longest wait for a connection.
const CONNECT: Duration = Duration::from_secs(4);

/// Bytes of an answer, at most, but for those that bring an object: a storage that is not trusted
/// may send any number.
const MAX_ANSWER: u64 = 16 << 20;

/// Goes with a request: bytes of the object that it asks for, at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most(pub(super) u64);

/// Why an answer is not read.
#[derive(Debug, thiserror::Error)]
#[error("the answer is longer than {} bytes", self.0)]
pub(super) struct TooLong(u64);

impl TooLong {
    /// Whether it is why there is this error.
    pub(super) fn is_why(error: &object_store::Error) -> bool {
        let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(error) = next {
            if error.is::<Self>() {
                return true;
            }
            next = error.source();
        }
        false
    }
}

/// An address of another machine without encryption.
#[derive(Debug, thiserror::Error)]
#[error(
    "{scheme_and_host} would get texts and credentials in clear: give an https address, or set \
     {variable}=true"
)]
struct InClear {
    scheme_and_host: String,
    variable: &'static str,
}

/// Makes clients.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connector {
    /// How long a request may take.
    pub(super) request: Duration,
    /// What in the environment allows requests to other machines in clear.
    pub(super) variable: &'static str,
}

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows = options.get_config_value(&ClientConfigKey::AllowHttp).unwrap_or_default();
        // As the options read it.
        let allows_http = ["1", "true", "on", "yes", "y"].contains(&&*allows.to_ascii_lowercase());
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
        Ok(HttpClient::new(Client { agent, direct, allows_http, variable: self.variable }))
    }
}

#[derive(Debug)]
struct Client {
    /// Through the proxy that the environment names.
    agent: Agent,
    /// For this machine itself.
    direct: Agent,
    /// Whether others may be asked in clear, and what in the environment says so.
    allows_http: bool,
    variable: &'static str,
}

#[async_trait]
impl HttpService for Client {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let (head, body) = request.into_parts();
        let body = body.collect().await?.to_bytes();
        let is_here = Origin::of(&head.uri).is_some_and(|origin| origin.is_loopback());
        if !is_here && !self.allows_http && head.uri.scheme_str() == Some("http") {
            let host = head.uri.host().unwrap_or_default();
            let scheme_and_host = format!("http://{host}");
            let why = InClear { scheme_and_host, variable: self.variable };
            return Err(HttpError::new(HttpErrorKind::Unknown, why));
        }
        let most = head.extensions.get::<Most>().map(|most| most.0);
        let agent = if is_here { &self.direct } else { &self.agent };
        let has_body = !body.is_empty() || matches!(head.method.as_str(), "PUT" | "POST");
        let answer = if has_body {
            agent.run(ureq::http::Request::from_parts(head, &*body))
        } else {
            agent.run(ureq::http::Request::from_parts(head, ()))
        };
        let (head, body) = answer.map_err(failed)?.into_parts();
        // What is no success brings no object, but says why.
        let most = most.filter(|_| head.status.is_success()).unwrap_or(MAX_ANSWER);
        let too_long = || HttpError::new(HttpErrorKind::Unknown, TooLong(most));
        let expected = body.content_length().unwrap_or(0);
        if expected > most {
            return Err(too_long());
        }
        let mut bytes = Vec::new();
        let room = bytes.try_reserve_exact(usize::try_from(expected).unwrap_or(usize::MAX));
        room.map_err(|error| HttpError::new(HttpErrorKind::Unknown, error))?;
        let reader = body.into_with_config().limit(u64::MAX).reader();
        let read = reader.take(most.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| failed(Error::Io(error)))?;
        if bytes.len() as u64 > most {
            return Err(too_long());
        }
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
