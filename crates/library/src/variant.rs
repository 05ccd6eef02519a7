//! The models in one snapshot: a folder of safetensors, and each GGUF file or set of parts.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::cache::{RepoFolder, SnapshotFile};
use crate::gguf;
use crate::select::{CONFIG, INDEX, MAX_INDEX, SINGLE, is_text, shards};

/// How weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Format {
    /// A folder as Hugging Face has it.
    Safetensors,
    /// A file as llama.cpp has it.
    Gguf,
}

impl Format {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
        }
    }
}

/// A model in a snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Variant {
    pub(crate) format: Format,
    /// Of a GGUF file.
    pub(crate) quant: Option<String>,
    /// What to open: the folder, or the first GGUF file.
    pub(crate) path: PathBuf,
    /// Files of it that are there.
    pub(crate) files: Vec<SnapshotFile>,
    /// A file that is not, if one is missing.
    pub(crate) missing: Option<String>,
}

impl Variant {
    pub(crate) fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    pub(crate) fn used(&self) -> Option<SystemTime> {
        self.files.iter().filter_map(|file| file.used).max()
    }
}

/// The models of a snapshot: the folder first, then GGUF files by name.
pub(crate) fn variants(repo: &RepoFolder, commit: &str) -> Vec<Variant> {
    let files = repo.files(commit);
    let mut found: Vec<Variant> = folder(repo, commit, &files).into_iter().collect();
    for group in gguf::groups(files.iter().map(|file| file.name.as_str())) {
        let names = group.files();
        let of_group = |file: &&SnapshotFile| names.contains(&file.name);
        let first = group.first().or(names.first().map(String::as_str)).unwrap_or_default();
        found.push(Variant {
            format: Format::Gguf,
            quant: group.quant(),
            path: joined(repo.snapshot(commit), first),
            files: files.iter().filter(of_group).cloned().collect(),
            missing: group.missing(),
        });
    }
    found
}

fn folder(repo: &RepoFolder, commit: &str, files: &[SnapshotFile]) -> Option<Variant> {
    let has = |name: &str| files.iter().any(|file| file.name == name);
    let is_weights = |file: &SnapshotFile| file.name.ends_with(".safetensors");
    let has_gguf = files.iter().any(|file| file.name.ends_with(".gguf"));
    if !has(INDEX) && !files.iter().any(is_weights) && (has_gguf || !has(CONFIG)) {
        return None;
    }
    let path = repo.snapshot(commit);
    let index = || fs::read(path.join(INDEX)).ok().as_deref().and_then(shards);
    let is_small = |file: &SnapshotFile| file.name == INDEX && file.bytes <= MAX_INDEX;
    let shards = if has(SINGLE) || !files.iter().any(is_small) { None } else { index() };
    let weights = match &shards {
        Some(shards) => shards.iter().map(String::as_str).collect(),
        None => vec![SINGLE],
    };
    let missing = [CONFIG].into_iter().chain(weights.iter().copied()).find(|name| !has(name));
    let is_part = |file: &&SnapshotFile| {
        is_text(&file.name) || file.name == INDEX || weights.contains(&file.name.as_str())
    };
    Some(Variant {
        format: Format::Safetensors,
        quant: None,
        files: files.iter().filter(is_part).cloned().collect(),
        missing: missing.map(str::to_owned),
        path,
    })
}

/// A name that was read from the folder, below it.
fn joined(folder: PathBuf, name: &str) -> PathBuf {
    name.split('/').fold(folder, |path, part| path.join(part))
}
