//! Pages of other sites that may ask: their origins are named when the server starts.
//!
//! A browser asks first whether a page may send what it wants to send (a preflight), and hands the
//! answer on to the page only where a header names the page's origin. Both are answered for origins
//! that were named exactly; there is no pattern, and no credentials of the browser come with it.
//! What a page asks needs the key all the same.

use std::collections::BTreeSet;
use std::fmt;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};

use crate::request_id::REQUEST_ID;

/// What the routes know.
const METHODS: &str = "GET, HEAD, POST, DELETE";
/// Seconds for which a browser need not ask again.
const MAX_AGE_S: u16 = 600;

/// An origin of pages, as a browser writes it: `https://chat.example`, with its port if that is not
/// the scheme's own.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Origin(String);

/// What is no origin of pages, with what is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadOrigin {
    /// A pattern, or what browsers write for pages without an origin.
    #[error("pages of all sites are never allowed; name each as https://chat.example")]
    All,
    /// No scheme.
    #[error("an origin has a scheme; write https://chat.example or http://localhost:3000")]
    Scheme,
    /// More than an origin.
    #[error(
        "an origin ends with its host or port; leave out what follows, as in https://chat.example"
    )]
    Rest,
    /// No host as browsers write it.
    #[error(
        "the host must be as browsers write it, of letters, digits, '.' and '-'; other letters as \
         xn--, and IPv6 as [::1]"
    )]
    Host,
    /// No port.
    #[error("the port must be a number from 1 to 65535")]
    Port,
}

impl Origin {
    /// Reads one.
    ///
    /// # Errors
    /// [`BadOrigin`].
    pub fn parse(text: &str) -> Result<Self, BadOrigin> {
        let text = text.to_ascii_lowercase();
        if text.contains('*') || text == "null" {
            return Err(BadOrigin::All);
        }
        let (scheme, rest) = text.split_once("://").ok_or(BadOrigin::Scheme)?;
        let in_scheme = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        if !scheme.starts_with(|c: char| c.is_ascii_alphabetic()) || !scheme.bytes().all(in_scheme)
        {
            return Err(BadOrigin::Scheme);
        }
        if rest.contains(['/', '?', '#', '@']) {
            return Err(BadOrigin::Rest);
        }
        let (host, port) = host_and_port(rest);
        if !is_host(host) {
            return Err(BadOrigin::Host);
        }
        let port = port.map(|port| port.parse::<u16>().ok().filter(|port| *port > 0));
        let port = port.map(|port| port.ok_or(BadOrigin::Port)).transpose()?;
        // Browsers leave out what is the case anyhow.
        let port = match (scheme, port) {
            ("http", Some(80)) | ("https", Some(443)) | (_, None) => String::new(),
            (_, Some(port)) => format!(":{port}"),
        };
        Ok(Self(format!("{scheme}://{host}{port}")))
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn host_and_port(text: &str) -> (&str, Option<&str>) {
    match text.rsplit_once(':') {
        // A colon within brackets is of the address.
        Some((host, port)) if !port.contains(']') => (host, Some(port)),
        _ => (text, None),
    }
}

fn is_host(host: &str) -> bool {
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    !host.is_empty() && host.bytes().all(is_letter)
}

/// Whether the pages of this origin are allowed.
pub(crate) fn are_of(allowed: &BTreeSet<Origin>, origin: &HeaderValue) -> bool {
    let origin = origin.to_str().ok();
    origin.is_some_and(|origin| allowed.iter().any(|allowed| allowed.0 == origin))
}

/// The answer where a browser asks what a page of an allowed origin may send; `None` for another
/// request.
pub(crate) fn preflight(allowed: &BTreeSet<Origin>, request: &Request) -> Option<Response<Body>> {
    let headers = request.headers();
    let is_allowed = headers.get(ORIGIN).is_some_and(|origin| are_of(allowed, origin));
    let asks =
        request.method() == Method::OPTIONS && headers.contains_key(&ACCESS_CONTROL_REQUEST_METHOD);
    if !is_allowed || !asks {
        return None;
    }
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::NO_CONTENT;
    let said = answer.headers_mut();
    said.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
    said.insert(ACCESS_CONTROL_MAX_AGE, MAX_AGE_S.into());
    // Clients send headers of their own beside the key's, which mean nothing here.
    if let Some(asked) = headers.get(ACCESS_CONTROL_REQUEST_HEADERS) {
        said.insert(ACCESS_CONTROL_ALLOW_HEADERS, asked.clone());
    }
    Some(answer)
}

/// Lets the page that asked read the answer, if its origin is allowed. Caches are told that another
/// page's answer is another one.
pub(crate) fn mark(
    allowed: &BTreeSet<Origin>,
    origin: Option<&HeaderValue>,
    headers: &mut HeaderMap,
) {
    if allowed.is_empty() {
        return;
    }
    headers.append(VARY, HeaderValue::from_static("origin"));
    if let Some(origin) = origin.filter(|origin| are_of(allowed, origin)) {
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        headers.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from(REQUEST_ID));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_exact() {
        for (text, wanted) in [
            ("https://chat.example", "https://chat.example"),
            ("HTTPS://Chat.Example:443", "https://chat.example"),
            ("http://localhost:3000", "http://localhost:3000"),
            ("http://localhost:80", "http://localhost"),
            ("https://[::1]:8443", "https://[::1]:8443"),
            ("http://[::1]", "http://[::1]"),
            ("chrome-extension://abcdef", "chrome-extension://abcdef"),
        ] {
            assert_eq!(Origin::parse(text).map(|o| o.to_string()).as_deref(), Ok(wanted), "{text}");
        }
        for (text, wanted) in [
            ("*", BadOrigin::All),
            ("null", BadOrigin::All),
            ("https://*.example", BadOrigin::All),
            ("", BadOrigin::Scheme),
            ("chat.example", BadOrigin::Scheme),
            ("://chat.example", BadOrigin::Scheme),
            ("https://chat.example/", BadOrigin::Rest),
            ("https://me@chat.example", BadOrigin::Rest),
            ("https://chat.example?x", BadOrigin::Rest),
            ("https://", BadOrigin::Host),
            ("https://:80", BadOrigin::Host),
            ("https://ch at.example", BadOrigin::Host),
            ("https://chät.example", BadOrigin::Host),
            ("https://[::x]", BadOrigin::Host),
            ("https://chat.example:0", BadOrigin::Port),
            ("https://chat.example:", BadOrigin::Port),
            ("https://chat.example:70000", BadOrigin::Port),
        ] {
            assert_eq!(Origin::parse(text), Err(wanted), "{text}");
        }
    }
}
