//! The page at `/`: files that `cargo xtask web --page` made of `web/`, compressed, as browsers
//! take them. They hold nothing of anybody, so they need no key; what the page asks for does.
//!
//! They are committed because the program is built where there is no Node; CI makes them anew and
//! compares.

use std::io::Read;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use flate2::read::GzDecoder;

use crate::error::ApiError;

/// Scripts, styles and requests of this server alone, no frames, and no text that becomes elements:
/// with trusted types the browser refuses every way to make elements of what a model said.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self' data:; base-uri 'none'; form-action 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// A file of the page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asset {
    Html,
    Script,
    Style,
    Icon,
}

impl Asset {
    fn gzip(self) -> &'static [u8] {
        match self {
            Self::Html => include_bytes!("../page/index.html.gz"),
            Self::Script => include_bytes!("../page/page.js.gz"),
            Self::Style => include_bytes!("../page/page.css.gz"),
            Self::Icon => include_bytes!("../page/icon.svg.gz"),
        }
    }

    fn kind(self) -> &'static str {
        match self {
            Self::Html => "text/html; charset=utf-8",
            Self::Script => "text/javascript; charset=utf-8",
            Self::Style => "text/css; charset=utf-8",
            Self::Icon => "image/svg+xml",
        }
    }

    /// The file, or that the browser has it already.
    pub(crate) fn respond(self, asked: &HeaderMap) -> Result<Response<Body>, ApiError> {
        let bytes = self.gzip();
        let tag = format!("\"{}\"", &blake3::hash(bytes).to_hex()[..16]);
        let mut response = Response::new(Body::empty());
        let has_it = words(asked, header::IF_NONE_MATCH).any(|word| word == tag);
        let takes_gzip = words(asked, header::ACCEPT_ENCODING)
            .any(|word| word.split(';').next().is_some_and(|name| name.trim() == "gzip"));
        let headers = response.headers_mut();
        // Not by a layer: it would be around all routes, and they are answers to programs.
        for (name, value) in [
            (header::CONTENT_TYPE, self.kind()),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::REFERRER_POLICY, "no-referrer"),
            // It may be kept, and is asked for each time: the next version has the same names.
            (header::CACHE_CONTROL, "no-cache"),
            (header::VARY, "accept-encoding"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        for name in ["cross-origin-opener-policy", "cross-origin-resource-policy"] {
            headers.insert(name, HeaderValue::from_static("same-origin"));
        }
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            headers.insert(header::ETAG, tag);
        }
        if has_it {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
        } else if takes_gzip {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            *response.body_mut() = Body::from(bytes);
        } else {
            let mut plain = Vec::new();
            let read = GzDecoder::new(bytes).read_to_end(&mut plain);
            read.map_err(|error| ApiError::internal(error.to_string()))?;
            *response.body_mut() = Body::from(plain);
        }
        Ok(response)
    }
}

/// Words of a header, between commas.
fn words(headers: &HeaderMap, name: header::HeaderName) -> impl Iterator<Item = &str> {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(str::trim)
}
