//! Models that there are, here and at the hub, and whether they fit into this machine.
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

use crate::engine::{Machine, ModelSource};
use crate::files::{Arrival, Outbox};

/// Tokens of a document for which a verdict counts keys and values.
pub const VERDICT_TOKENS: u64 = 32_768;
/// Bytes of an f16 value, of which keys and values are made.
const VALUE_BYTES: u64 = 2;
/// Above this share of what is there, a fit is tight.
const TIGHT: f64 = 0.8;
/// How often a download says how far it is.
const TELL_EVERY: Duration = Duration::from_millis(100);

/// What a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Weights, as they are stored.
    pub weights: u64,
    /// Keys and values of one token; `None` where nobody knows.
    pub token: Option<u64>,
}

impl Needs {
    fn of(config: &ModelConfig, weights: u64) -> Self {
        Self { weights, token: token_bytes(config.n_layers, config.n_kv_heads, config.head_dim) }
    }

    /// Keys and values of a document of [`VERDICT_TOKENS`].
    pub fn rows(&self) -> u64 {
        self.token.unwrap_or(0).saturating_mul(VERDICT_TOKENS)
    }
}

fn token_bytes(n_layers: usize, n_kv_heads: usize, head_dim: usize) -> Option<u64> {
    let values = n_layers.checked_mul(n_kv_heads)?.checked_mul(head_dim)?;
    u64::try_from(values).ok()?.checked_mul(2 * VALUE_BYTES)
}

/// Whether a model fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// With room to spare.
    Yes,
    /// It does, and little is left.
    Tight,
    /// It does not.
    No,
    /// Nobody knows how much memory there is.
    Unknown,
}

/// Which memory decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The one that device and host share.
    Memory,
    /// The device's own.
    Device,
    /// The host's, beside a device with its own.
    Host,
}

/// A verdict, with the number that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it fits.
    pub fit: Fit,
    /// Which memory decides.
    pub place: Place,
    /// Bytes that are needed there.
    pub needed: u64,
    /// Bytes that are there.
    pub available: u64,
}

/// Whether a model and a document of [`VERDICT_TOKENS`] fit. `None` before a device is open.
pub fn verdict(needs: &Needs, machine: Option<&Machine>) -> Verdict {
    let machine = machine.copied().unwrap_or_default();
    let places = if machine.is_unified {
        vec![(Place::Memory, needs.weights.saturating_add(needs.rows()), machine.device_bytes)]
    } else {
        vec![
            (Place::Device, needs.weights, machine.device_bytes),
            (Place::Host, needs.rows(), machine.host_bytes),
        ]
    };
    let known = places.iter().filter_map(|(place, needed, available)| {
        let available = (*available)?;
        Some((*needed as f64 / available.max(1) as f64, *place, *needed, available))
    });
    match known.max_by(|a, b| a.0.total_cmp(&b.0)) {
        Some((share, place, needed, available)) => {
            let fit = match share {
                share if share > 1.0 => Fit::No,
                share if share > TIGHT => Fit::Tight,
                _ => Fit::Yes,
            };
            Verdict { fit, place, needed, available }
        }
        None => {
            let (place, needed, _) = places[0];
            Verdict { fit: Fit::Unknown, place, needed, available: 0 }
        }
    }
}

/// A chat model that is worth a download.
#[derive(Clone, Copy, Debug)]
pub struct Suggested {
    /// Its name at the hub.
    pub name: &'static str,
    /// What to call it.
    pub title: &'static str,
    /// Bytes, about.
    pub bytes: u64,
    /// Its licence.
    pub license: &'static str,
    n_layers: usize,
    n_kv_heads: usize,
    head_dim: usize,
}

const fn qwen(
    name: &'static str,
    title: &'static str,
    bytes: u64,
    [n_layers, n_kv_heads, head_dim]: [usize; 3],
) -> Suggested {
    Suggested { name, title, bytes, license: "apache-2.0", n_layers, n_kv_heads, head_dim }
}

/// From small to large: of one family that answers at once, without thinking aloud first.
pub const SUGGESTED: [Suggested; 5] = [
    qwen("Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M", "Qwen2.5 0.5B Instruct", 490 << 20, [24, 2, 64]),
    qwen(
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF:Q4_K_M",
        "Qwen2.5 1.5B Instruct",
        1100 << 20,
        [28, 2, 128],
    ),
    qwen("Qwen/Qwen2.5-7B-Instruct-GGUF:Q4_K_M", "Qwen2.5 7B Instruct", 4500 << 20, [28, 4, 128]),
    qwen("Qwen/Qwen2.5-14B-Instruct-GGUF:Q4_K_M", "Qwen2.5 14B Instruct", 8600 << 20, [48, 8, 128]),
    qwen(
        "Qwen/Qwen2.5-32B-Instruct-GGUF:Q4_K_M",
        "Qwen2.5 32B Instruct",
        19_000 << 20,
        [64, 8, 128],
    ),
];

impl Suggested {
    /// What it takes.
    pub fn needs(&self) -> Needs {
        let token = token_bytes(self.n_layers, self.n_kv_heads, self.head_dim);
        Needs { weights: self.bytes, token }
    }
}

/// The largest suggested model that fits with room to spare, or the smallest.
pub fn best(machine: Option<&Machine>) -> &'static Suggested {
    let fits = |model: &&Suggested| verdict(&model.needs(), machine).fit == Fit::Yes;
    SUGGESTED.iter().rfind(fits).unwrap_or(&SUGGESTED[0])
}

/// A model on this computer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// How to open it.
    pub source: ModelSource,
    /// Bytes of its files.
    pub bytes: u64,
    /// What it takes, or why it cannot be used.
    pub needs: Result<Needs, String>,
}

/// What is known of a model at the hub before it is downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Its name.
    pub name: String,
    /// Its files.
    pub n_files: usize,
    /// Bytes of all of them.
    pub bytes: u64,
    /// Bytes that are here already.
    pub present: u64,
    /// Its licence, if the publisher says it.
    pub license: Option<String>,
    /// What it takes, or why it cannot be used.
    pub needs: Result<Needs, String>,
}

/// A model that a person looks at.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Look {
    /// None.
    #[default]
    Nothing,
    /// The hub is asked.
    Asking(String),
    /// This is what it says.
    Found(Offer, Pull),
    /// It says nothing of use.
    Failed(String, String),
}

/// A download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pull {
    /// It has not begun.
    No,
    /// It runs.
    Running {
        /// Bytes that are here.
        done: u64,
        /// Bytes a second.
        rate: u64,
        /// What it waits for, if it does.
        note: Option<String>,
        /// A person ended it, and it has not ended yet.
        is_ending: bool,
    },
    /// It was ended. What came is kept.
    Cancelled,
    /// It broke off. What came is kept.
    Failed(String),
    /// The model is here.
    Here(ModelSource),
}

/// What the window knows of models.
#[derive(Debug, Default)]
pub struct Models {
    /// What is being typed: a name, a folder or a file.
    pub wanted: String,
    /// What is on this computer; `None` before it was looked for.
    pub here: Option<Vec<LocalModel>>,
    /// What is looked at.
    pub look: Look,
}

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

/// Asks the hub what a model is.
pub fn look(library: &Library, text: &str) -> Arrival {
    let found = text.parse::<ModelName>().map_err(|error| error.to_string()).and_then(|name| {
        let mut watch = Watch { on_event: &mut |_| {}, is_cancelled: &|| false };
        let remote = library.look(&wanted(&name), &is_header, &mut watch);
        remote.map(|remote| offer(text, &remote)).map_err(|error| error.to_string())
    });
    Arrival::Looked(text.to_owned(), found)
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
                Err(error) => Err(error.to_string()),
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
