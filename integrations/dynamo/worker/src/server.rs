//! One Longview server, as a client on the same machine sees it.

use std::fmt;
use std::time::Duration;

use dynamo_backend_common::{CompletionUsage, DynamoError};
use reqwest::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use reqwest::{Client, Response, StatusCode};
use serde::Deserialize;

use crate::error::{broken, failed, gone, invalid, refused};
use crate::request::Body;

/// A connection to this machine is there at once, or never.
const CONNECTS: Duration = Duration::from_secs(10);
/// How long the server may take to say how it is, which is long where the machine is busy. Answers
/// take as long as they take: who generates them is found gone by the connection.
const SAYS: Duration = Duration::from_secs(10);
/// The part of a refusal that is shown where it is not in the server's form.
const SHOWN_BYTES: usize = 200;

/// A server, which this process neither starts nor ends.
#[derive(Debug)]
pub(crate) struct Server {
    client: Client,
    address: String,
}

/// How it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It serves requests.
    Ready,
    /// It answers, and serves none.
    NotReady,
    /// Nobody answers.
    Silent,
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ready => "is ready",
            Self::NotReady => "answers, and is not ready",
            Self::Silent => "does not answer",
        })
    }
}

/// How it was started.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Props {
    /// Tokens of a prompt and its answer.
    pub(crate) n_ctx: u32,
    /// Requests that run at a time.
    pub(crate) total_slots: u32,
}

impl Server {
    /// # Errors
    /// `InvalidArgument`: a key that no header can hold.
    pub(crate) fn new(address: &str, key: Option<&str>) -> Result<Self, DynamoError> {
        let mut headers = HeaderMap::new();
        if let Some(key) = key {
            let value = HeaderValue::from_str(&format!("Bearer {key}"));
            let mut value = value.map_err(|_| invalid("--api-key: is not a text of a header"))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let client = Client::builder().default_headers(headers).connect_timeout(CONNECTS);
        // The server is on this machine, where no proxy is.
        let client = client.no_proxy().build().map_err(|error| invalid(error.to_string()))?;
        Ok(Self { client, address: address.trim_end_matches('/').to_owned() })
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// How it is.
    pub(crate) async fn health(&self) -> Health {
        match self.get("/health").await {
            Ok(response) if response.status() == StatusCode::OK => Health::Ready,
            Ok(_) => Health::NotReady,
            Err(_) => Health::Silent,
        }
    }

    /// # Errors
    /// What the server says against it.
    pub(crate) async fn props(&self) -> Result<Props, DynamoError> {
        let response = self.get("/props").await?;
        if response.status() != StatusCode::OK {
            return Err(refusal(response).await);
        }
        response.json().await.map_err(|error| broken(format!("{}: {error}", self.address)))
    }

    /// The share of its KV rows that what runs has; `None` if it does not say.
    pub(crate) async fn kv_usage(&self) -> Option<f64> {
        let page = self.get("/metrics").await.ok()?.text().await.ok()?;
        let value = page.lines().find_map(|line| line.strip_prefix("vllm:kv_cache_usage_perc "))?;
        value.trim().parse().ok()
    }

    /// Begins an answer.
    ///
    /// # Errors
    /// Who is to blame, and what the server says.
    pub(crate) async fn complete(&self, body: &Body) -> Result<Answer, DynamoError> {
        let call = self.client.post(format!("{}/v1/completions", self.address)).json(body);
        let response = call.send().await.map_err(|error| self.unreachable(&error))?;
        if response.status() != StatusCode::OK {
            return Err(refusal(response).await);
        }
        Ok(Answer { response, lines: Lines::default(), reason: None })
    }

    async fn get(&self, path: &str) -> Result<Response, DynamoError> {
        let call = self.client.get(format!("{}{path}", self.address)).timeout(SAYS);
        call.send().await.map_err(|error| self.unreachable(&error))
    }

    fn unreachable(&self, error: &reqwest::Error) -> DynamoError {
        gone(format!("{}: no server answers ({error})", self.address))
    }
}

/// An answer that is generated. A server gives its place back when it is dropped.
pub(crate) struct Answer {
    response: Response,
    lines: Lines,
    reason: Option<String>,
}

/// A part of an answer.
#[derive(Debug)]
pub(crate) enum Part {
    Tokens(Vec<u32>),
    /// The last one: why it ended, and what it took.
    End {
        reason: Option<String>,
        usage: Box<CompletionUsage>,
    },
}

impl Answer {
    /// The next part.
    ///
    /// # Errors
    /// What the server says against it, or that it says nothing more.
    pub(crate) async fn next(&mut self) -> Result<Part, DynamoError> {
        loop {
            while let Some(line) = self.lines.next() {
                if let Some(part) = part(&line, &mut self.reason)? {
                    return Ok(part);
                }
            }
            match self.response.chunk().await {
                Ok(Some(bytes)) => self.lines.push(&bytes),
                Ok(None) => return Err(broken("the server ended the answer before its end")),
                Err(error) => return Err(broken(format!("the answer broke off: {error}"))),
            }
        }
    }
}

/// One event of the server's stream.
#[derive(Deserialize)]
struct Event {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Box<CompletionUsage>>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    token_ids: Vec<u32>,
    finish_reason: Option<String>,
}

/// What the server says against a request.
#[derive(Deserialize)]
struct Refusal {
    message: String,
    #[serde(default, rename = "type")]
    kind: String,
}

#[derive(Deserialize)]
struct Refused {
    error: Refusal,
}

/// What a line of the stream says, if anything. The reason comes before what the answer took.
fn part(line: &str, reason: &mut Option<String>) -> Result<Option<Part>, DynamoError> {
    let Some(data) = line.strip_prefix("data: ").filter(|data| *data != "[DONE]") else {
        return Ok(None);
    };
    let event: Event = serde_json::from_str(data)
        .map_err(|error| broken(format!("the server sent what is no event: {error}")))?;
    if let Some(error) = event.error {
        return Err(failed(&error.kind, error.message));
    }
    let mut tokens = Vec::new();
    for choice in event.choices {
        tokens.extend(choice.token_ids);
        *reason = choice.finish_reason.or(reason.take());
    }
    if let Some(usage) = event.usage {
        return Ok(Some(Part::End { reason: reason.take(), usage }));
    }
    Ok((!tokens.is_empty()).then_some(Part::Tokens(tokens)))
}

/// Lines of bytes that come in any pieces.
#[derive(Default)]
struct Lines {
    bytes: Vec<u8>,
}

impl Lines {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole line, without its end.
    fn next(&mut self) -> Option<String> {
        let end = self.bytes.iter().position(|byte| *byte == b'\n')?;
        let line: Vec<u8> = self.bytes.drain(..=end).collect();
        Some(String::from_utf8_lossy(&line).trim_end().to_owned())
    }
}

/// A refusal with the server's own words and numbers.
async fn refusal(response: Response) -> DynamoError {
    let status = response.status();
    let text = response.text().await.unwrap_or_default();
    refused(status, words(status, &text))
}

fn words(status: StatusCode, text: &str) -> String {
    match serde_json::from_str::<Refused>(text) {
        Ok(refused) => refused.error.message,
        Err(_) => {
            let shown: String = text.chars().take(SHOWN_BYTES).collect();
            format!("the server answers {status}: {shown}")
        }
    }
}

#[cfg(test)]
mod tests {
    use dynamo_backend_common::{BackendError, ErrorType};

    use super::*;

    const USAGE: &str = r#"{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}"#;

    #[test]
    fn lines_come_in_any_pieces() {
        let mut lines = Lines::default();
        lines.push(b"data: {\"a\"");
        assert_eq!(lines.next(), None);
        lines.push(b":\"\xc3");
        assert_eq!(lines.next(), None);
        lines.push(b"\xa4\"}\r\n\n: ping\n");
        assert_eq!(lines.next().as_deref(), Some("data: {\"a\":\"ä\"}"));
        assert_eq!(lines.next().as_deref(), Some(""));
        assert_eq!(lines.next().as_deref(), Some(": ping"));
        assert_eq!(lines.next(), None);
    }

    #[test]
    fn an_answer_is_tokens_a_reason_and_what_it_took() {
        let mut reason = None;
        let mut next = |data: &str| part(data, &mut reason).unwrap();
        let tokens = next(r#"data: {"choices":[{"token_ids":[7,8],"finish_reason":null}]}"#);
        assert!(matches!(tokens, Some(Part::Tokens(ids)) if ids == [7, 8]));
        assert!(next(r#"data: {"choices":[{"text":"","finish_reason":"length"}]}"#).is_none());
        let Some(Part::End { reason, usage }) = next(&format!("data: {{\"usage\":{USAGE}}}"))
        else {
            panic!("no end");
        };
        assert_eq!(reason.as_deref(), Some("length"));
        assert_eq!((usage.prompt_tokens, usage.completion_tokens), (3, 2));
        assert!(next("data: [DONE]").is_none());
        assert!(next(": ping").is_none());
    }

    #[test]
    fn an_error_in_the_stream_says_who_is_to_blame() {
        let line = r#"data: {"error":{"message":"lost","type":"unavailable_error","code":"x"}}"#;
        let error = part(line, &mut None).unwrap_err();
        assert_eq!(error.error_type(), ErrorType::Backend(BackendError::CannotConnect));
        assert!(error.to_string().contains("lost"), "{error}");
        let error = part("data: {", &mut None).unwrap_err();
        assert_eq!(error.error_type(), ErrorType::Backend(BackendError::StreamIncomplete));
    }

    #[test]
    fn a_refusal_has_the_servers_words() {
        let long = r#"{"error":{"message":"the prompt has 5000 tokens","type":"t"}}"#;
        assert_eq!(words(StatusCode::BAD_REQUEST, long), "the prompt has 5000 tokens");
        assert!(words(StatusCode::BAD_GATEWAY, "<html>").contains("502 Bad Gateway: <html>"));
    }
}
