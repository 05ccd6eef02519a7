//! Models that there are, here and at the hub.
//!
//! Nothing is asked of the network before a person says so: what is suggested is a list in this
//! file, with sizes that are about right. The hub says the exact ones when one is chosen.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use longview_library::{
    Entry, Event, Format, Library, LibraryError, ModelName, Prefer, Remote, Wanted, Watch,
};
use longview_model::config::ModelConfig;
use longview_model::folder::ModelFolder;
use longview_model::gguf::{GgufProblem, Header, Metadata, Number, Value};

use crate::engine::ModelSource;
use crate::files::{Arrival, Outbox};
use crate::fit::token_bytes;
pub use crate::fit::{
    Fit, LocalModel, Look, Models, Needs, Offer, Place, Pull, SUGGESTED, Suggested, VERDICT_TOKENS,
    Verdict, best, verdict,
};
use crate::refusals;

/// How often a download says how far it is.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// All models of the cache, and `others` that were opened by their path.
pub fn here(library: Option<&Library>, others: &[ModelSource]) -> Arrival {
    let entries = library.and_then(|library| library.list().ok()).unwrap_or_default();
    let mut models: Vec<LocalModel> = entries.into_iter().filter_map(of_entry).collect();
    for source in others {
        let Some(path) = source.path() else { continue };
        if path.exists() && models.iter().all(|model| model.source.path() != Some(path)) {
            models.push(at(source.clone()));
        }
    }
    Arrival::Models(models)
}

/// A whole model of the cache. What is not whole is no model yet: a look says how much is here.
fn of_entry(entry: Entry) -> Option<LocalModel> {
    if entry.missing.is_some() || entry.format.is_none() {
        return None;
    }
    let name = entry.name.to_string();
    Some(LocalModel { bytes: entry.bytes, ..at(ModelSource::Hub(name, entry.path)) })
}

/// A model in a folder or a file.
pub fn at(source: ModelSource) -> LocalModel {
    let opened = source.path().map(|path| ModelFolder::open(path));
    let (bytes, needs) = match opened {
        Some(Ok(folder)) => {
            let bytes = folder.tensors.file_bytes(&folder.config);
            (bytes, Ok(Needs::of(&folder.config, bytes)))
        }
        Some(Err(error)) => (0, Err(error.to_string())),
        None => (0, Err(String::new())),
    };
    LocalModel { source, bytes, needs }
}

/// Whether what was typed is a place on this computer.
pub fn is_path(text: &str) -> bool {
    let path = Path::new(text);
    path.is_absolute() || text.starts_with(['.', '~']) || text.ends_with(".gguf") || path.is_dir()
}

fn wanted<'a>(name: &'a ModelName) -> Wanted<'a> {
    Wanted { name, file: None, prefer: Prefer::Safetensors }
}

/// Asks the hub what a model is; nothing once `cancel` says to end.
pub fn look(library: &Library, text: &str, cancel: &AtomicBool) -> Option<Arrival> {
    let is_cancelled = || cancel.load(Ordering::Relaxed);
    let found = text.parse::<ModelName>().map_err(|error| error.to_string()).and_then(|name| {
        let mut watch = Watch { on_event: &mut |_| {}, is_cancelled: &is_cancelled };
        let remote = library.look(&wanted(&name), &is_header, &mut watch);
        remote.map(|remote| offer(text, &remote)).map_err(|error| refusals::models(&error))
    });
    (!is_cancelled()).then(|| Arrival::Looked(text.to_owned(), found))
}

/// Whether the beginning of a GGUF file has its whole header. The tensors behind it lie further
/// away than any of them.
fn is_header(begin: &[u8]) -> bool {
    !matches!(Header::parse(begin, u64::MAX / 2), Err(GgufProblem::HeaderTooLarge { .. }))
}

fn offer(name: &str, remote: &Remote) -> Offer {
    let needs = match remote.format {
        Format::Gguf => Header::parse(&remote.begin, remote.begin_of_bytes)
            .map(|header| Needs {
                weights: remote.total_bytes,
                token: gguf_token(&header.metadata),
            })
            .map_err(|problem| problem.to_string()),
        _ => std::str::from_utf8(&remote.begin)
            .map_err(|error| error.to_string())
            .and_then(|text| ModelConfig::from_json(text).map_err(|error| error.to_string()))
            .map(|config| Needs::of(&config, remote.total_bytes)),
    };
    Offer {
        name: name.to_owned(),
        n_files: remote.n_files,
        bytes: remote.total_bytes,
        present: remote.present_bytes,
        license: remote.license.clone(),
        needs,
    }
}

/// Bytes of keys and values of a token, from the key-values of a GGUF file.
fn gguf_token(metadata: &Metadata) -> Option<u64> {
    let whole = |key: &str| match metadata.get(key)? {
        Value::Number(number) => Number::whole(*number).and_then(|n| usize::try_from(n).ok()),
        _ => None,
    };
    let Some(Value::Text(arch)) = metadata.get("general.architecture") else { return None };
    let of = |key: &str| whole(&format!("{arch}.{key}"));
    let heads = of("attention.head_count")?;
    let head_dim =
        of("attention.key_length").or_else(|| of("embedding_length")?.checked_div(heads));
    token_bytes(of("block_count")?, of("attention.head_count_kv").unwrap_or(heads), head_dim?)
}

/// Downloads a model and says how far it is, until it is here or `cancel` says to end.
pub fn pull(library: &Arc<Library>, text: &str, cancel: &Arc<AtomicBool>, outbox: &Outbox) {
    let (library, name) = (Arc::clone(library), text.to_owned());
    let (cancel, told) = (Arc::clone(cancel), outbox.clone());
    outbox.later(move || {
        let pulled = name.parse::<ModelName>().map_err(|error| error.to_string());
        let pulled = pulled.and_then(|parsed| {
            let mut pace = Pace { last: None, begin: None };
            let mut tell = |event: Event<'_>| {
                if let Some(pull) = pace.step(&event) {
                    told.send(Arrival::Pulling(name.clone(), pull));
                }
            };
            let is_cancelled = || cancel.load(Ordering::Relaxed);
            let mut watch = Watch { on_event: &mut tell, is_cancelled: &is_cancelled };
            match library.pull(&wanted(&parsed), &mut watch) {
                Ok(found) => Ok(Pull::Here(ModelSource::Hub(name.clone(), found.path))),
                Err(LibraryError::Cancelled) => Ok(Pull::Cancelled),
                Err(error) => Err(refusals::models(&error)),
            }
        });
        Some(Arrival::Pulling(name, pulled.unwrap_or_else(Pull::Failed)))
    });
}

/// Which of a download's many words are worth a frame.
struct Pace {
    last: Option<Instant>,
    /// When the first bytes of this call came, and how many were there then.
    begin: Option<(Instant, u64)>,
}

impl Pace {
    fn step(&mut self, event: &Event<'_>) -> Option<Pull> {
        let running = |done, rate, note| Pull::Running { done, rate, note, is_ending: false };
        match event {
            Event::Planned { present_bytes, .. } => Some(running(*present_bytes, 0, None)),
            Event::Progress { done_bytes, .. } => {
                let (begin, had) = *self.begin.get_or_insert((Instant::now(), *done_bytes));
                let is_due = self.last.is_none_or(|last| last.elapsed() >= TELL_EVERY);
                is_due.then(|| {
                    self.last = Some(Instant::now());
                    let seconds = begin.elapsed().as_secs_f64().max(0.1);
                    running(*done_bytes, ((done_bytes - had) as f64 / seconds) as u64, None)
                })
            }
            Event::Locked { file } => Some(running(0, 0, Some(crate::strings::locked(file)))),
            Event::Retry { reason, .. } => Some(running(0, 0, Some((*reason).to_owned()))),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Machine;

    fn machine(device: u64, host: Option<u64>) -> Machine {
        let gib = |n: u64| n << 30;
        Machine {
            device_bytes: Some(gib(device)),
            host_bytes: host.map(gib),
            is_unified: host.is_none(),
        }
    }

    #[test]
    fn the_memory_that_is_fullest_decides() {
        // 4 GiB of weights, 2 GiB of keys and values.
        let needs = Needs { weights: 4 << 30, token: Some((2 << 30) / VERDICT_TOKENS) };
        let fit = |device, host| {
            let found = verdict(&needs, Some(&machine(device, host)));
            (found.fit, found.place, found.needed >> 30, found.available >> 30)
        };
        assert_eq!(fit(16, None), (Fit::Yes, Place::Memory, 6, 16));
        assert_eq!(fit(7, None), (Fit::Tight, Place::Memory, 6, 7));
        assert_eq!(fit(5, None), (Fit::No, Place::Memory, 6, 5));
        assert_eq!(fit(24, Some(64)), (Fit::Yes, Place::Device, 4, 24));
        assert_eq!(fit(24, Some(1)), (Fit::No, Place::Host, 2, 1));
        assert_eq!(verdict(&needs, None).fit, Fit::Unknown);
    }

    #[test]
    fn a_larger_machine_is_offered_a_larger_model() {
        let name = |machine: Machine| best(Some(&machine)).title;
        assert_eq!(name(machine(1, None)), "Qwen2.5 0.5B Instruct");
        assert_eq!(name(machine(16, None)), "Qwen2.5 7B Instruct");
        assert_eq!(name(machine(80, Some(128))), "Qwen2.5 32B Instruct");
        assert_eq!(best(None).title, "Qwen2.5 0.5B Instruct");
    }

    #[test]
    fn names_are_told_from_places() {
        assert!(is_path("/models/x") && is_path("./x") && is_path("~/x") && is_path("x.gguf"));
        assert!(!is_path("Qwen/Qwen2.5-0.5B-Instruct") && !is_path("org/repo:Q4_K_M"));
    }
}
