//! Who may ask: the key, the host and the origin of a request.
//!
//! A page of another site may make a browser send requests to this machine. It cannot read answers,
//! because no header allows it to unless its origin was allowed, and where its requests would do
//! harm all the same they are refused by `Origin`; under a name of its own for this address it is
//! refused by `Host`.
//!
//! The layers of `tower-http` for it let what only reads pass, and would hand the scope on as an
//! extension that may be missing; here nothing gets to a handler without one.

use axum::http::{HeaderMap, StatusCode, header};

use crate::error::ApiError;
use crate::keys::{Keys, Scope};
use crate::options::ServerOptions;
use crate::origins;

/// Names under which a machine knows itself.
const OWN_NAMES: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// Refuses requests under another machine's name, and those of pages that may not ask.
pub(crate) fn check_site(options: &ServerOptions, headers: &HeaderMap) -> Result<(), ApiError> {
    check_host(options, headers)?;
    check_origin(options, headers)
}

/// The scope of who asks, who needs a key but for what everybody may have.
pub(crate) fn scope(keys: &Keys, headers: &HeaderMap, is_open: bool) -> Result<Scope, ApiError> {
    if is_open || !keys.are_needed() {
        return Ok(Scope::default());
    }
    check_key(keys, headers)
}

fn check_key(keys: &Keys, headers: &HeaderMap) -> Result<Scope, ApiError> {
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let given = given.and_then(bearer);
    let given = given.or_else(|| headers.get("x-api-key")?.to_str().ok());
    let message = "the key is missing or wrong: send it as `Authorization: Bearer KEY`";
    let refused = || ApiError::new(StatusCode::UNAUTHORIZED, "invalid_api_key", message);
    given.and_then(|given| keys.scope_of(given)).ok_or_else(refused)
}

/// What stands behind the scheme, whose letters may be large or small, and any blanks.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.trim_start_matches(' ').split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim_matches(' '))
}

/// Where only this machine reaches the server, requests name this machine. A server for others has
/// a key and may have any name, unless the names are given.
fn check_host(options: &ServerOptions, headers: &HeaderMap) -> Result<(), ApiError> {
    if !options.host.is_loopback() && options.allowed_hosts.is_empty() {
        return Ok(());
    }
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = name_of(host);
    let is_own = OWN_NAMES.iter().any(|own| own.eq_ignore_ascii_case(name))
        || name == options.host.to_string()
        || options.allowed_hosts.iter().any(|own| own.eq_ignore_ascii_case(name));
    if is_own {
        return Ok(());
    }
    let message = "the Host header names another machine; --allowed-host NAME allows a name";
    Err(ApiError::new(StatusCode::FORBIDDEN, "wrong_host", message))
}

/// Requests of pages come from pages of this very host or of an origin that is allowed, or not at
/// all.
fn check_origin(options: &ServerOptions, headers: &HeaderMap) -> Result<(), ApiError> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let of_origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
    let is_own = of_origin.is_some_and(|(_, of_origin)| of_origin.eq_ignore_ascii_case(host));
    if is_own || origins::are_of(&options.allowed_origins, origin) {
        return Ok(());
    }
    let message = "requests from pages of other sites are not served; --allow-origin ORIGIN allows \
                   those of a site";
    Err(ApiError::new(StatusCode::FORBIDDEN, "wrong_origin", message))
}

/// A host without its port.
fn name_of(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}
