//! What models take, whether they fit into this machine, and what the window knows of them.

use longview_model::config::ModelConfig;

use crate::engine::{Machine, ModelSource};

/// Tokens of a document for which a verdict counts keys and values.
pub const VERDICT_TOKENS: u64 = 32_768;
/// Bytes of an f16 value, of which keys and values are made.
const VALUE_BYTES: u64 = 2;
/// Above this share of what is there, a fit is tight.
const TIGHT: f64 = 0.8;

/// What a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Weights, as they are stored.
    pub weights: u64,
    /// Keys and values of one token; `None` where nobody knows.
    pub token: Option<u64>,
}

impl Needs {
    /// Of a model with this config and so many bytes of weights.
    pub fn of(config: &ModelConfig, weights: u64) -> Self {
        Self { weights, token: token_bytes(config.n_layers, config.n_kv_heads, config.head_dim) }
    }

    /// Keys and values of a document of [`VERDICT_TOKENS`].
    pub fn rows(&self) -> u64 {
        self.token.unwrap_or(0).saturating_mul(VERDICT_TOKENS)
    }
}

/// Keys and values of one token of a model of these sizes; `None` beyond all numbers.
pub fn token_bytes(n_layers: usize, n_kv_heads: usize, head_dim: usize) -> Option<u64> {
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
