//! The name of a request: in its answer, whatever that is, and on its lines of the log, so that a
//! client, a gateway and the server speak of the same one.

use std::fmt;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Response};
use axum::middleware::Next;

use crate::random;

/// The header of requests and answers.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Letters of an id that a client chose.
const MAX_LETTERS: usize = 128;

/// A name of letters that a log and a header can hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(Arc<str>);

impl RequestId {
    /// The client's own, where it gives one that is short and of visible ASCII; else a new one.
    fn of(headers: &HeaderMap) -> Self {
        let mut given = headers.get_all(REQUEST_ID).iter();
        // Of several nobody knows which one is meant.
        let only = given.next().filter(|_| given.next().is_none());
        let is_sane = |text: &&str| {
            (1..=MAX_LETTERS).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_graphic())
        };
        let own = only.and_then(|value| value.to_str().ok()).filter(is_sane);
        Self(own.map_or_else(|| random::name().into(), Arc::from))
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names a request for all that handles it, and its answer.
pub(crate) async fn name(mut request: Request, next: Next) -> Response<axum::body::Body> {
    let id = RequestId::of(request.headers());
    let value = HeaderValue::from_str(&id.0);
    request.extensions_mut().insert(id);
    let mut answer = next.run(request).await;
    if let Ok(value) = value {
        answer.headers_mut().insert(REQUEST_ID, value);
    }
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sane_id_is_kept_and_any_other_is_replaced() {
        let of = |values: &[&[u8]]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append(REQUEST_ID, HeaderValue::from_bytes(value).expect("a value"));
            }
            RequestId::of(&headers).to_string()
        };
        let long = "x".repeat(MAX_LETTERS);
        for own in ["7", "req_0123-ABC.def/x+y=", "\"{}<>", long.as_str()] {
            assert_eq!(of(&[own.as_bytes()]), own);
        }
        let too_long = "x".repeat(MAX_LETTERS + 1);
        let none: [&[&[u8]]; 7] = [
            &[],
            &[b""],
            &[b"two words"],
            &[b"tab\there"],
            &["ä".as_bytes()],
            &[too_long.as_bytes()],
            &[b"a", b"b"],
        ];
        for given in none {
            let drawn = of(given);
            assert!(drawn.len() == 32 && drawn.bytes().all(|b| b.is_ascii_hexdigit()), "{given:?}");
            assert_ne!(drawn, of(given), "each request has another one");
        }
    }
}
