//! Requests. Each runs in a thread of its own that hands over what comes, so that whoever waits
//! can stop at any moment: a call into the network cannot be interrupted. A thread that nobody
//! waits for ends with its connection.
//!
//! Redirects are followed here and not by the client, because the token must not go with them: it
//! is sent to the hub's own scheme, host and port, and to nobody else.

use std::io::{ErrorKind, Read};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use ureq::http::{HeaderMap, Uri};
use ureq::{Agent, Error};

use crate::error::LibraryError;
use crate::origin::{Origin, follow};
use crate::retry::{Failure, LOOK};
use crate::settings::{Settings, Token};
use crate::watch::Watch;

/// Redirects of one request; hubs need two.
const MAX_REDIRECTS: usize = 5;
/// Bytes that are handed over at once.
const PIECE: usize = 128 << 10;
/// Pieces that wait to be written.
const N_WAITING: usize = 8;

/// Asks one hub, and the hosts that it redirects to.
pub(crate) struct Client {
    /// Through the proxy that the environment names.
    agent: Agent,
    /// For this machine itself.
    direct: Agent,
    hub: Origin,
    token: Option<Token>,
    silence: Duration,
}

/// What is asked for.
pub(crate) struct Request {
    /// The address.
    pub(crate) uri: Uri,
    /// The first byte.
    pub(crate) from: u64,
    /// Only if the content still has this mark.
    pub(crate) if_range: Option<String>,
}

/// What comes back: the head, and a body that is still on its way.
pub(crate) struct Answer {
    /// Status.
    pub(crate) status: u16,
    /// Headers.
    pub(crate) headers: HeaderMap,
    /// Who answered.
    pub(crate) origin: Origin,
    pieces: Receiver<Message>,
    silence: Duration,
}

enum Message {
    Head(u16, HeaderMap),
    Piece(Vec<u8>),
    End,
    Failed(Failure),
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Self {
        let silence = settings.patience.silence;
        let config = || {
            Agent::config_builder()
                .http_status_as_error(false)
                .max_redirects(0)
                .user_agent(concat!("longview/", env!("CARGO_PKG_VERSION")))
                .timeout_resolve(Some(silence))
                .timeout_connect(Some(silence))
                .timeout_per_read(Some(silence))
                .timeout_recv_response(Some(silence))
        };
        Self {
            agent: config().build().into(),
            direct: config().proxy(None).build().into(),
            hub: settings.endpoint.origin.clone(),
            token: settings.token.clone(),
            silence,
        }
    }

    /// Whether a token is sent to the hub.
    pub(crate) fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// Asks, and follows redirects.
    pub(crate) fn get(&self, request: Request, watch: &Watch<'_>) -> Result<Answer, Failure> {
        let mut request = request;
        for _ in 0..=MAX_REDIRECTS {
            let origin = Origin::of(&request.uri).ok_or_else(|| refused(&self.hub, "nowhere"))?;
            let uri = request.uri.clone();
            let answer = self.ask(&request, &origin, watch)?;
            if !matches!(answer.status, 301 | 302 | 303 | 307 | 308) {
                return Ok(answer);
            }
            let location = answer.header("location").unwrap_or_default();
            let next = follow(&uri, location).ok_or_else(|| refused(&origin, "nowhere"))?;
            let leads = Origin::of(&next).ok_or_else(|| refused(&origin, "nowhere"))?;
            if origin.is_https() && !leads.is_https() {
                return Err(refused(&origin, "to an address that is not encrypted").into());
            }
            request.uri = next;
        }
        Err(refused(&self.hub, "in a circle").into())
    }

    /// One request, without its redirect.
    fn ask(&self, request: &Request, to: &Origin, watch: &Watch<'_>) -> Result<Answer, Failure> {
        let agent = if to.is_loopback() { &self.direct } else { &self.agent };
        let mut call = agent.get(&request.uri);
        if let Some(token) = self.token.as_ref().filter(|_| *to == self.hub) {
            call = call.header("authorization", token.header());
        }
        if request.from > 0 {
            call = call.header("range", format!("bytes={}-", request.from));
            if let Some(mark) = &request.if_range {
                call = call.header("if-range", mark);
            }
        }
        let (sender, pieces) = mpsc::sync_channel(N_WAITING);
        let host = to.to_string();
        let work = move || talk(call, &host, &sender);
        thread::Builder::new()
            .name("download".to_owned())
            .spawn(work)
            .map_err(|error| Failure::passing(format!("no thread can be started ({error})")))?;
        let (origin, silence) = (to.clone(), self.silence);
        match receive(&pieces, silence, watch)? {
            Message::Head(status, headers) => {
                Ok(Answer { status, headers, origin, pieces, silence })
            }
            _ => Err(Failure::passing("the connection was closed")),
        }
    }
}

impl Answer {
    /// A header as text.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The next bytes; `None` at the end.
    pub(crate) fn piece(&mut self, watch: &Watch<'_>) -> Result<Option<Vec<u8>>, Failure> {
        match receive(&self.pieces, self.silence, watch)? {
            Message::Piece(bytes) => Ok(Some(bytes)),
            _ => Ok(None),
        }
    }

    /// The whole body, if it is not longer than `most`.
    pub(crate) fn whole(mut self, most: usize, watch: &Watch<'_>) -> Result<Vec<u8>, Failure> {
        let mut whole = Vec::new();
        while let Some(piece) = self.piece(watch)? {
            whole.extend_from_slice(&piece);
            if whole.len() > most {
                let (host, what) = (self.origin.to_string(), "far too long a text".to_owned());
                return Err(LibraryError::BadAnswer { host, what }.into());
            }
        }
        Ok(whole)
    }
}

fn refused(host: &Origin, reason: &str) -> LibraryError {
    LibraryError::Redirect { host: host.to_string(), reason: reason.to_owned() }
}

/// What the thread says next.
fn receive(
    messages: &Receiver<Message>,
    silence: Duration,
    watch: &Watch<'_>,
) -> Result<Message, Failure> {
    let end = Instant::now() + silence;
    loop {
        watch.check()?;
        match messages.recv_timeout(LOOK) {
            Ok(Message::Failed(failure)) => return Err(failure),
            Ok(message) => return Ok(message),
            Err(RecvTimeoutError::Disconnected) => return Ok(Message::End),
            Err(RecvTimeoutError::Timeout) if Instant::now() < end => {}
            Err(RecvTimeoutError::Timeout) => {
                let seconds = silence.as_secs_f64();
                return Err(Failure::passing(format!("nothing came for {seconds:.0} s")));
            }
        }
    }
}

/// The thread: asks, and hands over what comes until nobody listens.
fn talk(
    call: ureq::RequestBuilder<ureq::typestate::WithoutBody>,
    host: &str,
    sender: &SyncSender<Message>,
) {
    let answer = match call.call() {
        Ok(answer) => answer,
        Err(error) => {
            // Whoever listened may be gone.
            let _ = sender.send(Message::Failed(failure(&error, host)));
            return;
        }
    };
    let (head, body) = answer.into_parts();
    if sender.send(Message::Head(head.status.as_u16(), head.headers)).is_err() {
        return;
    }
    let mut reader = body.into_reader();
    loop {
        let mut piece = vec![0; PIECE];
        let message = match reader.read(&mut piece) {
            Ok(0) => Message::End,
            Ok(n) => {
                piece.truncate(n);
                Message::Piece(piece)
            }
            Err(error) => Message::Failed(Failure::passing(error.to_string())),
        };
        let is_last = !matches!(message, Message::Piece(_));
        if sender.send(message).is_err() || is_last {
            return;
        }
    }
}

/// Whether it may work the next time.
fn failure(error: &Error, host: &str) -> Failure {
    let unreachable = |reason: String| LibraryError::Unreachable { host: host.to_owned(), reason };
    match error {
        Error::HostNotFound => unreachable("no such host is known".to_owned()).into(),
        Error::Tls(_)
        | Error::Rustls(_)
        | Error::InvalidProxyUrl
        | Error::ConnectProxyFailed(_) => unreachable(error.to_string()).into(),
        // Names that nobody knows, and certificates that are not accepted.
        Error::Io(error)
            if error.to_string().contains("lookup") || error.kind() == ErrorKind::InvalidData =>
        {
            unreachable(error.to_string()).into()
        }
        Error::Io(error) => Failure::passing(format!("{host}: {error}")),
        _ => Failure::passing(format!("{host}: {error}")),
    }
}
