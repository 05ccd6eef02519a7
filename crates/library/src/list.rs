//! What lies in the cache.

use std::fs;
use std::path::PathBuf;
use std::time::SystemTime;

use crate::cache::{Cache, RepoFolder};
use crate::error::LibraryError;
use crate::name::ModelName;
use crate::variant::{Format, variants};

/// A model in the cache.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The name by which it is found and removed.
    pub name: ModelName,
    /// How its weights are stored; `None` where nothing is whole yet.
    pub format: Option<Format>,
    /// The quantisation of a GGUF file.
    pub quant: Option<String>,
    /// Bytes of its files that are here.
    pub bytes: u64,
    /// The folder, or the (first) GGUF file.
    pub path: PathBuf,
    /// The commit of its repository.
    pub commit: String,
    /// When it was downloaded or read last.
    pub used: Option<SystemTime>,
    /// A file that is missing, if it is not whole.
    pub missing: Option<String>,
}

/// Every model, by name; of commits that are not the newest too.
pub(crate) fn list(cache: &Cache) -> Result<Vec<Entry>, LibraryError> {
    let mut entries = Vec::new();
    for name in cache.repos()? {
        let repo = cache.repo(&name);
        let newest = repo.commit(None);
        let references = repo.references();
        let n_before = entries.len();
        for commit in repo.commits() {
            let is_newest = newest.as_ref() == Some(&commit);
            let reference = references.iter().find(|(_, known)| *known == commit);
            let revision = match reference {
                _ if is_newest => None,
                Some((reference, _)) => Some(reference.as_str()),
                None => Some(&commit[..12]),
            };
            for variant in variants(&repo, &commit) {
                entries.push(Entry {
                    name: name.with(variant.quant.as_deref(), revision),
                    format: Some(variant.format),
                    bytes: variant.bytes(),
                    used: variant.used(),
                    commit: commit.clone(),
                    quant: variant.quant,
                    path: variant.path,
                    missing: variant.missing,
                });
            }
        }
        if entries.len() == n_before {
            entries.extend(begun(&name, &repo));
        }
    }
    Ok(entries)
}

/// A download that has not come to a model yet.
fn begun(name: &ModelName, repo: &RepoFolder) -> Option<Entry> {
    let blobs = fs::read_dir(repo.blobs()).ok()?.flatten();
    let data: Vec<fs::Metadata> = blobs.filter_map(|entry| entry.metadata().ok()).collect();
    let bytes = data.iter().map(fs::Metadata::len).sum();
    (bytes > 0).then(|| Entry {
        name: name.clone(),
        format: None,
        quant: None,
        bytes,
        path: repo.path.clone(),
        commit: String::new(),
        used: data.iter().filter_map(|data| data.modified().ok()).max(),
        missing: Some("its download has not ended".to_owned()),
    })
}
