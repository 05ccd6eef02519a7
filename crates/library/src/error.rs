//! What can go wrong between a name and a model: each error names the thing and what to do.

use std::io;
use std::path::PathBuf;

use crate::name::NameError;
use crate::size::Size;

/// A model that cannot be downloaded, found or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LibraryError {
    /// Whoever watches has ended it.
    #[error("cancelled; what was downloaded is kept, and the next download goes on from there")]
    Cancelled,
    /// No name of a model.
    #[error(transparent)]
    Name(#[from] NameError),
    /// An environment variable.
    #[error("{variable}: {reason}")]
    Setting {
        /// Its name.
        variable: &'static str,
        /// What is wrong and what it must be.
        reason: String,
    },
    /// Nothing may be downloaded.
    #[error(
        "{name}: is not here, and offline nothing is downloaded; {}",
        online(*by_variable)
    )]
    Offline {
        /// The model.
        name: String,
        /// Whether HF_HUB_OFFLINE says so.
        by_variable: bool,
    },
    /// Nobody answers.
    #[error(
        "{host}: cannot be reached ({reason}); check the connection, HF_ENDPOINT and HTTPS_PROXY"
    )]
    Unreachable {
        /// The host.
        host: String,
        /// What the system says.
        reason: String,
    },
    /// The hub knows no such repository, or does not show it.
    #[error("{repo}: there is no such model at {host}, or it is private; {}", private(*has_token))]
    NoRepository {
        /// `USER/REPO`.
        repo: String,
        /// The hub.
        host: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// Its authors want to know who uses it.
    #[error("{repo}: is gated; accept its terms at {page}, {}", gated(*has_token))]
    Gated {
        /// `USER/REPO`.
        repo: String,
        /// Where its terms are.
        page: String,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// The hub refuses the token.
    #[error(
        "{host}: refuses the token; set HF_TOKEN to one that is valid (settings, access tokens, at \
         the hub), or unset it"
    )]
    BadToken {
        /// The hub.
        host: String,
    },
    /// The repository has no such branch, tag or commit.
    #[error("{repo}: has no revision {revision}; leave out `@{revision}` for the newest")]
    NoRevision {
        /// `USER/REPO`.
        repo: String,
        /// What was asked for.
        revision: String,
    },
    /// The repository has no such file.
    #[error("{repo}: has no file {file}{}", instead(available))]
    NoFile {
        /// `USER/REPO`.
        repo: String,
        /// What was asked for.
        file: String,
        /// Files of that kind.
        available: Vec<String>,
    },
    /// The repository has no GGUF file of this quantisation.
    #[error("{repo}: has no GGUF file of quantisation {quant}{}", instead(available))]
    NoQuant {
        /// `USER/REPO`.
        repo: String,
        /// What was asked for.
        quant: String,
        /// What there is.
        available: Vec<String>,
    },
    /// The repository holds nothing that can be run.
    #[error(
        "{repo}: has neither safetensors with config.json nor a GGUF file{}",
        pickle(*has_pickle)
    )]
    NoWeights {
        /// `USER/REPO`.
        repo: String,
        /// Whether it has weights of another kind.
        has_pickle: bool,
    },
    /// A name that could lie outside of the cache.
    #[error("{repo}: a file is named {file:?}, which is refused: {reason}; use another repository")]
    UnsafeName {
        /// `USER/REPO`.
        repo: String,
        /// The name.
        file: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// An answer that the hub does not give.
    #[error("{host}: answers with {what}; is HF_ENDPOINT the address of a hub?")]
    BadAnswer {
        /// The host.
        host: String,
        /// What is wrong with it.
        what: String,
    },
    /// An answer with another status.
    #[error("{host}: answers {file} with status {status}")]
    Status {
        /// The host.
        host: String,
        /// What was asked for.
        file: String,
        /// The status.
        status: u16,
    },
    /// A redirect that is not followed.
    #[error("{host}: redirects {reason}; is HF_ENDPOINT the address of a hub?")]
    Redirect {
        /// The host.
        host: String,
        /// Where to.
        reason: String,
    },
    /// The hub asks for a pause that is too long to wait for.
    #[error(
        "{host}: asks for a pause of {seconds} s (too many requests); try again then{}",
        limit(*has_token)
    )]
    Busy {
        /// The host.
        host: String,
        /// The pause.
        seconds: u64,
        /// Whether a token was sent.
        has_token: bool,
    },
    /// It failed too often.
    #[error(
        "{file}: {attempts} attempts in a row failed, the last one because {reason}; what was \
         downloaded is kept, and the next download goes on from there"
    )]
    GaveUp {
        /// The file.
        file: String,
        /// How many.
        attempts: u32,
        /// Why the last one failed.
        reason: String,
    },
    /// What came is not what the hub listed.
    #[error(
        "{file}: has the hash {actual}, and the hub lists {expected}; nothing of it was kept; try \
         again, and tell the hub's operator if it stays"
    )]
    WrongHash {
        /// The file.
        file: String,
        /// What the hub listed.
        expected: String,
        /// What came.
        actual: String,
    },
    /// Not enough room, or none left.
    #[error(
        "{}: no room: {}; free some, or set HF_HOME to a folder elsewhere",
        folder.display(),
        room(*needed_bytes, *free_bytes)
    )]
    NoSpace {
        /// The cache.
        folder: PathBuf,
        /// What is still to be written.
        needed_bytes: u64,
        /// What is free, where that is known.
        free_bytes: Option<u64>,
    },
    /// The cache holds no such model.
    #[error("{name}: is not here{}", alike(near))]
    NotHere {
        /// The model.
        name: String,
        /// Models that are here and have names like it.
        near: Vec<String>,
    },
    /// The cache holds a part of the model.
    #[error("{name}: is here in part, without {missing}; `longview pull {name}` fetches the rest")]
    Incomplete {
        /// The model.
        name: String,
        /// A file that is missing.
        missing: String,
    },
    /// Another program downloads it.
    #[error("{name}: is being downloaded by another program; end that first")]
    InUse {
        /// The model.
        name: String,
    },
    /// A file or folder of the cache.
    #[error("{}: cannot be {action} ({source})", path.display())]
    Io {
        /// What was to be done with it.
        action: &'static str,
        /// Which one.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl LibraryError {
    /// An error of the system on the way to `map_err`.
    pub(crate) fn io(
        action: &'static str,
        path: &std::path::Path,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { action, path, source }
    }
}

fn online(by_variable: bool) -> &'static str {
    if by_variable { "unset HF_HUB_OFFLINE" } else { "leave out --offline" }
}

fn private(has_token: bool) -> &'static str {
    if has_token {
        "check the name, and whether the token in HF_TOKEN may read it"
    } else {
        "check the name, or set HF_TOKEN to a token that may read it"
    }
}

fn gated(has_token: bool) -> &'static str {
    if has_token {
        "with the account of the token that HF_TOKEN holds"
    } else {
        "then set HF_TOKEN to a token of that account"
    }
}

fn limit(has_token: bool) -> &'static str {
    if has_token { "" } else { ", or set HF_TOKEN, which allows for more" }
}

fn pickle(has_pickle: bool) -> &'static str {
    if has_pickle {
        "; its weights are pickles, which may run code and are never downloaded; use a repository \
         with safetensors or GGUF"
    } else {
        "; use another repository"
    }
}

fn instead(available: &[String]) -> String {
    match available {
        [] => "; it has no GGUF files".to_owned(),
        names => format!("; it has {}", names.join(", ")),
    }
}

fn alike(near: &[String]) -> String {
    match near {
        [] => "; `longview ls` lists what is".to_owned(),
        names => format!("; did you mean {}?", names.join(" or ")),
    }
}

fn room(needed: u64, free: Option<u64>) -> String {
    match free {
        Some(free) => format!("{} are needed and {} are free", Size(needed), Size(free)),
        None => format!("{} more are needed", Size(needed)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_do() {
        let repo = || "org/model".to_owned();
        let quants = vec!["Q4_K_M".to_owned(), "Q8_0".to_owned()];
        for (error, parts) in [
            (
                LibraryError::NoQuant { repo: repo(), quant: "Q3_K".into(), available: quants },
                &["org/model", "Q3_K", "it has Q4_K_M, Q8_0"][..],
            ),
            (
                LibraryError::Gated { repo: repo(), page: "x/org/model".into(), has_token: false },
                &["accept its terms at x/org/model, then set HF_TOKEN"],
            ),
            (
                LibraryError::NoSpace {
                    folder: "cache".into(),
                    needed_bytes: 3 << 30,
                    free_bytes: Some(5 << 19),
                },
                &["cache: no room: 3.0 GiB are needed and 2.5 MiB are free", "HF_HOME"],
            ),
            (
                LibraryError::NotHere { name: repo(), near: vec!["org/modem".into()] },
                &["did you mean org/modem?"],
            ),
        ] {
            let text = error.to_string();
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
    }
}
