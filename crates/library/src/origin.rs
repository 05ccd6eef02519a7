//! Addresses: which host one names, and where a redirect leads.

use std::fmt;
use std::net::IpAddr;

use ureq::http::Uri;

/// Scheme, host and port: what a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    is_https: bool,
    host: String,
    port: u16,
}

impl Origin {
    /// Of a whole address; `None` if it is of another kind or holds a user's name.
    pub(crate) fn of(uri: &Uri) -> Option<Self> {
        let is_https = match uri.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = uri.authority()?;
        if authority.as_str().contains('@') {
            return None;
        }
        let port = authority.port_u16().unwrap_or(if is_https { 443 } else { 80 });
        Some(Self { is_https, host: authority.host().to_ascii_lowercase(), port })
    }

    /// Whether nobody on the way reads along.
    pub(crate) fn is_https(&self) -> bool {
        self.is_https
    }

    /// Whether it is this machine itself.
    pub(crate) fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        host == "localhost" || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, usual) = if self.is_https { ("https", 443) } else { ("http", 80) };
        write!(f, "{scheme}://{}", self.host)?;
        if self.port != usual { write!(f, ":{}", self.port) } else { Ok(()) }
    }
}

/// The address that `location` means in an answer of `from`; `None` if it means none.
pub(crate) fn follow(from: &Uri, location: &str) -> Option<Uri> {
    let location = location.split('#').next()?;
    let scheme = from.scheme_str()?;
    let authority = from.authority()?;
    let has_scheme = location.split_once("://").is_some_and(|(scheme, _)| {
        !scheme.is_empty()
            && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    });
    let whole = if has_scheme {
        location.to_owned()
    } else if location.starts_with("//") {
        format!("{scheme}:{location}")
    } else if location.starts_with('/') {
        format!("{scheme}://{authority}{location}")
    } else if location.is_empty() {
        return None;
    } else {
        let folder = from.path().rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{scheme}://{authority}{folder}/{location}")
    };
    whole.parse().ok()
}

/// `text` as a part of an address: everything but plain letters is written in hexadecimal digits.
pub(crate) fn encoded(text: &str, keeps_slashes: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
        if is_plain || (keeps_slashes && byte == b'/') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(text: &str) -> Option<Origin> {
        Origin::of(&text.parse().ok()?)
    }

    #[test]
    fn an_origin_is_scheme_host_and_port() {
        assert_eq!(origin("https://Hub.example/a"), origin("https://hub.example:443/b?c"));
        for other in ["http://hub.example", "https://hub.example:444", "https://a.hub.example"] {
            assert_ne!(origin("https://hub.example"), origin(other), "{other}");
        }
        for none in ["/path", "ftp://x/y", "https://user:secret@hub.example/"] {
            assert_eq!(origin(none), None, "{none}");
        }
        assert_eq!(origin("http://[::1]:8080/x").unwrap().to_string(), "http://[::1]:8080");
    }

    #[test]
    fn loopback_is_told_from_others() {
        for here in ["http://127.0.0.1:1", "http://localhost", "http://[::1]:80"] {
            assert!(origin(here).unwrap().is_loopback(), "{here}");
        }
        for there in ["http://127.example", "http://10.0.0.1", "http://localhost.example"] {
            assert!(!origin(there).unwrap().is_loopback(), "{there}");
        }
    }

    #[test]
    fn redirects_lead_where_they_say() {
        let from: Uri = "https://hub.example/a/b?c".parse().unwrap();
        let to = |location: &str| follow(&from, location).map(|uri| uri.to_string());
        assert_eq!(to("/x/y").unwrap(), "https://hub.example/x/y");
        assert_eq!(to("y?z").unwrap(), "https://hub.example/a/y?z");
        assert_eq!(to("//cdn.example/y").unwrap(), "https://cdn.example/y");
        assert_eq!(to("https://cdn.example/y#f").unwrap(), "https://cdn.example/y");
        assert_eq!(to(""), None);
        assert_eq!(to("https://"), None);
    }

    #[test]
    fn parts_of_addresses_are_encoded() {
        assert_eq!(encoded("refs/pr/1", false), "refs%2Fpr%2F1");
        assert_eq!(encoded("a b/é?#%.gguf", true), "a%20b/%C3%A9%3F%23%25.gguf");
    }
}
