//! What the library, the hub and the engine refuse, in the words of a window.
//!
//! Their own messages are for the command line too: they name its verbs and options. Whoever has a
//! window presses buttons, so each of these names the thing and the button or the setting that
//! helps. What names neither verbs nor options is taken as it is.

use std::io::ErrorKind;
use std::path::Path;

use longview_core::Grouped;
use longview_engine::EngineError;
use longview_library::LibraryError;
use longview_library::documents::DocumentsError;
use longview_reader::ReaderError;
use longview_scheduler::{SchedulerError, SessionFileError};
use longview_startup::keeper::KeepError;

use crate::figures::bytes;

/// The hub, unless a variable names another one.
const HUB: &str = "https://huggingface.co";

/// What the library of documents refuses.
pub fn documents(error: &DocumentsError) -> String {
    match error {
        DocumentsError::NoPlace => "This system names no folder for data of programs. Set the \
            environment variable LONGVIEW_LIBRARY to a folder, and start Longview again."
            .to_owned(),
        DocumentsError::Foreign { folder } => format!(
            "{}: holds other files, and is no library. {}",
            folder.display(),
            elsewhere("an empty folder")
        ),
        DocumentsError::Damaged { path, what } => format!("{}: {what}", path.display()),
        DocumentsError::NotFound { .. } => "The document is not in the library any more: another \
            program has removed it. Open its file again."
            .to_owned(),
        DocumentsError::NameTaken { name } => {
            format!("Another document is called {name}. Choose another name.")
        }
        DocumentsError::BadName { name, reason } => {
            format!("{name:?} cannot be a name: {}. Choose another one.", name_reason(reason))
        }
        DocumentsError::InUse { name } => {
            format!("{name}: another Longview reads it now. Wait for it, or end it.")
        }
        DocumentsError::OverQuota { name, needed_bytes, quota_bytes, pinned_bytes } => format!(
            "{name}: takes {}, and the library may hold {} ({} of it pinned). Raise \"Limit of \
             the library\" in Settings, Advanced, or unpin documents in the list.",
            bytes(*needed_bytes),
            bytes(*quota_bytes),
            bytes(*pinned_bytes)
        ),
        DocumentsError::NoSpace { folder, needed_bytes, free_bytes } => format!(
            "{}: the disk has no room{}. Remove other files, or choose \"Free its space\" or \
             \"Delete\" in the menus of documents that you do not need.",
            folder.display(),
            room(*needed_bytes, *free_bytes)
        ),
        DocumentsError::NoLocks { path, source } => format!(
            "{}: files cannot be locked there ({source}). {}",
            path.display(),
            elsewhere("a folder on a disk of this computer")
        ),
        DocumentsError::Io { action, path, source } if is_forbidden(source.kind()) => format!(
            "{}: cannot be {action} ({source}). Allow Longview to write to that folder, or set the \
             environment variable LONGVIEW_LIBRARY to another one and start Longview again.",
            path.display()
        ),
        other => other.to_string(),
    }
}

fn elsewhere(where_to: &str) -> String {
    format!(
        "Set the environment variable LONGVIEW_LIBRARY to {where_to}, and start Longview again."
    )
}

/// Why a name is none, for people who know no options.
fn name_reason(reason: &str) -> &str {
    reason.split(',').next().unwrap_or(reason)
}

/// Whether the system does not let this program write.
fn is_forbidden(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

fn room(needed: Option<u64>, free: Option<u64>) -> String {
    let needed = needed.map(|n| format!("{} are needed", bytes(n)));
    let free = free.map(|n| format!("{} are free", bytes(n)));
    let parts: Vec<String> = needed.into_iter().chain(free).collect();
    if parts.is_empty() { String::new() } else { format!(": {}", parts.join(" and ")) }
}

/// What is refused where models are looked at, downloaded or removed.
pub fn models(error: &LibraryError) -> String {
    match error {
        LibraryError::Offline { name, .. } => format!(
            "{name}: is not on this computer, and HF_HUB_OFFLINE says that nothing is downloaded. \
             Unset that environment variable, and start Longview again."
        ),
        LibraryError::Unreachable { host, reason } => format!(
            "{} cannot be reached ({reason}). Check the connection to the internet, and try \
             again.{}",
            hub(host),
            endpoint(host)
        ),
        LibraryError::GaveUp { file, reason, .. } => format!(
            "{file}: nothing comes ({reason}). Check the connection to the internet, and try again."
        ),
        LibraryError::NoRepository { repo, host, has_token } => format!(
            "{repo}: {} has no such model, or it is private. Check the name.{}",
            hub(host),
            private(*has_token)
        ),
        LibraryError::Gated { repo, page, has_token } => format!(
            "{repo}: its authors ask you to accept their terms first. Do so at {page}.{}",
            private(*has_token)
        ),
        LibraryError::BadToken { host } => format!(
            "{} refuses the access token. Set the environment variable HF_TOKEN to a valid one or \
             unset it, and start Longview again.",
            hub(host)
        ),
        LibraryError::NoSpace { folder, needed_bytes, free_bytes } => format!(
            "{}: the disk has no room{}. Remove other files, or delete models under \"On this \
             computer\".",
            folder.display(),
            room(Some(*needed_bytes), *free_bytes)
        ),
        LibraryError::Setting { variable, reason } => {
            format!("The environment variable {variable} {}.", reason.replace('`', ""))
        }
        LibraryError::NotHere { name, .. } => format!("{name}: is not on this computer."),
        LibraryError::Incomplete { name, missing } => format!(
            "{name}: {missing} is missing. Type this name above and press Find: the download \
             fetches the rest."
        ),
        LibraryError::InUse { name } => {
            format!("{name}: another program downloads it now. Wait for it, or end it.")
        }
        other => other.to_string(),
    }
}

/// What people call a host.
fn hub(host: &str) -> String {
    if host == HUB { "Hugging Face".to_owned() } else { host.to_owned() }
}

/// Who has never heard of that variable has not set it.
fn endpoint(host: &str) -> &'static str {
    if host == HUB { "" } else { " The environment variable HF_ENDPOINT names this address." }
}

fn private(has_token: bool) -> &'static str {
    if has_token {
        " The access token in the environment variable HF_TOKEN must be of an account that may \
         read it."
    } else {
        " With an account that may read it, set the environment variable HF_TOKEN to an access \
         token of that account, and start Longview again."
    }
}

/// What a reader refuses: the model, the device, memory, a session.
pub fn reader(error: &ReaderError) -> String {
    match error {
        ReaderError::Engine(error) => engine(error),
        ReaderError::CacheTooSmall { needed, limit, .. } => format!(
            "{} of device memory are needed for what a step attends, and {} are allowed",
            bytes(*needed),
            bytes(*limit)
        ),
        other => other.to_string(),
    }
}

/// What the engine refuses.
fn engine(error: &EngineError) -> String {
    match error {
        EngineError::Memory { needed, weights, kv, available, .. } => {
            lacking("memory", [needed, weights, kv, available])
        }
        EngineError::DeviceMemory { needed, weights, kv, available, .. } => {
            lacking("device memory", [needed, weights, kv, available])
        }
        EngineError::HostMemory { needed, kv, available, .. } => {
            lacking("host memory", [needed, &0, kv, available])
        }
        EngineError::DeviceBuffer { needed, available, tokens, .. } => format!(
            "{} are needed in one piece, and the device has {} at most: it can read up to {} \
             tokens. For longer documents choose the processor (CPU) in Settings",
            bytes(*needed),
            bytes(*available),
            Grouped::from(*tokens)
        ),
        EngineError::PromptTooLong { prompt, used, context } => format!(
            "the question has {} tokens, and there is room for {}: ask a shorter one",
            Grouped::from(*prompt),
            Grouped::from(context.saturating_sub(used + 1))
        ),
        EngineError::PromptFarTooLong { .. } => {
            "the question is far too long: ask a shorter one".to_owned()
        }
        EngineError::Scheduler(SchedulerError::ContextFull { needed, capacity }) => format!(
            "{} tokens do not fit into a context of {}: ask a shorter question",
            Grouped::from(*needed),
            Grouped::from(*capacity)
        ),
        EngineError::Policy(error) | EngineError::Scheduler(SchedulerError::Policy(error)) => {
            format!(
                "this budget and this choice of tokens do not go together ({}). Choose another \
                 one in Settings, Advanced",
                error.to_string().replace("--", "")
            )
        }
        EngineError::Session(error) => session(error),
        other => other.to_string(),
    }
}

fn lacking(what: &str, [needed, weights, kv, available]: [&u64; 4]) -> String {
    let model = match weights {
        0 => String::new(),
        weights => format!("{} for the model, ", bytes(*weights)),
    };
    format!(
        "{} of {what} are needed ({model}{} for keys and values), and {} are free",
        bytes(*needed),
        bytes(*kv),
        bytes(*available)
    )
}

/// What is wrong with a session file.
pub fn session(error: &SessionFileError) -> String {
    match error {
        SessionFileError::NotASession => "this is no session of Longview. Open the document \
            itself."
            .to_owned(),
        SessionFileError::ReadSparsely { .. } => "the document was read in another way than this \
            app reads. Open the document itself."
            .to_owned(),
        SessionFileError::TooLong { tokens, capacity, .. } => format!(
            "the session has {} tokens, and {} have room. Open the document itself.",
            Grouped::from(*tokens),
            Grouped::from(*capacity)
        ),
        other => other.to_string(),
    }
}

/// Why what was read is not kept.
pub fn keeping(error: &KeepError, folder: &Path) -> String {
    match error {
        KeepError::Documents(error) => documents(error),
        KeepError::Engine(error) => engine(error),
        KeepError::Io(error) => format!("{}: cannot be written to ({error})", folder.display()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    /// No verb and no option of the command line.
    fn is_of_window(text: &str) -> bool {
        !text.contains('`') && !text.contains("--") && !text.contains("longview ")
    }

    #[test]
    fn refusals_of_the_library_name_buttons_and_settings() {
        let refused = |error: DocumentsError| documents(&error);
        let folder = || "/books".into();
        let name = || "Letters".to_owned();
        let forbidden = || io::Error::from(ErrorKind::ReadOnlyFilesystem);
        for (text, parts) in [
            (refused(DocumentsError::NoPlace), &["LONGVIEW_LIBRARY"][..]),
            (
                refused(DocumentsError::Foreign { folder: folder() }),
                &["/books", "LONGVIEW_LIBRARY", "an empty folder"],
            ),
            (
                refused(DocumentsError::Damaged { path: folder(), what: "it is no text" }),
                &["/books", "it is no text"],
            ),
            (refused(DocumentsError::NameTaken { name: name() }), &["Letters", "another name"]),
            (
                refused(DocumentsError::BadName {
                    name: "-x".into(),
                    reason: "it begins with a dash, as options do",
                }),
                &["it begins with a dash. Choose"],
            ),
            (
                refused(DocumentsError::OverQuota {
                    name: name(),
                    needed_bytes: 3 << 20,
                    quota_bytes: 2 << 20,
                    pinned_bytes: 1 << 20,
                }),
                &["3.0 MiB", "2.0 MiB", "Limit of the library", "Settings", "unpin"],
            ),
            (
                refused(DocumentsError::NoSpace {
                    folder: folder(),
                    needed_bytes: Some(3 << 20),
                    free_bytes: Some(1 << 10),
                }),
                &["/books", "3.0 MiB are needed and 1.0 KiB are free", "Free its space", "Delete"],
            ),
            (
                refused(DocumentsError::Io {
                    action: "opened",
                    path: folder(),
                    source: forbidden(),
                }),
                &["/books", "Allow Longview to write", "LONGVIEW_LIBRARY"],
            ),
            (
                refused(DocumentsError::NotFound { word: "1234".into(), near: Vec::new() }),
                &["not in the library any more", "Open its file again"],
            ),
        ] {
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
            assert!(is_of_window(&text), "{text}");
        }
    }

    #[test]
    fn refusals_of_models_name_no_options() {
        let name = || "org/model".to_owned();
        let host = |own: &str| own.to_owned();
        for (error, part) in [
            (
                LibraryError::Unreachable { host: host(HUB), reason: "no such host".into() },
                "Hugging Face cannot be reached (no such host). Check the connection",
            ),
            (
                LibraryError::Unreachable { host: host("http://x:1"), reason: "refused".into() },
                "http://x:1 cannot be reached (refused). Check the connection to the internet, \
                 and try again. The environment variable HF_ENDPOINT",
            ),
            (
                LibraryError::Setting {
                    variable: "HF_ENDPOINT",
                    reason: "must be the address of a hub, without `?` or `#`".into(),
                },
                "environment variable HF_ENDPOINT must be the address of a hub, without ? or #.",
            ),
            (LibraryError::Offline { name: name(), by_variable: true }, "HF_HUB_OFFLINE"),
            (LibraryError::NotHere { name: name(), near: Vec::new() }, "not on this computer"),
            (LibraryError::Incomplete { name: name(), missing: "a file".into() }, "press Find"),
            (
                LibraryError::NoRepository { repo: name(), host: host(HUB), has_token: false },
                "Hugging Face has no such model, or it is private. Check the name.",
            ),
        ] {
            let text = models(&error);
            assert!(text.contains(part) && is_of_window(&text), "{text}");
        }
    }

    #[test]
    fn refusals_of_the_engine_name_no_options() {
        let too_long = EngineError::PromptTooLong { prompt: 2000, used: 4000, context: 5000 };
        let memory = EngineError::DeviceMemory {
            needed: 9 << 20,
            weights: 5 << 20,
            kv: 3 << 20,
            rest: 1 << 20,
            available: 1 << 20,
            advice: longview_engine::Advice::default(),
        };
        for (error, part) in [
            (too_long, "2,000 tokens, and there is room for 999"),
            (memory, "9.0 MiB of device memory are needed (5.0 MiB for the model"),
            (EngineError::Session(SessionFileError::NotASession), "Open the document itself"),
        ] {
            let text = reader(&error.into());
            assert!(text.contains(part) && is_of_window(&text), "{text}");
        }
    }
}
