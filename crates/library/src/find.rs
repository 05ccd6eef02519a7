//! From a name to what lies in the cache.

use std::path::PathBuf;

use crate::cache::Cache;
use crate::error::LibraryError;
use crate::gguf;
use crate::name::near;
use crate::select::{Prefer, Wanted};
use crate::variant::{Format, Variant, variants};

/// A whole model in the cache.
#[derive(Clone, Debug)]
pub struct Found {
    /// The folder, or the (first) GGUF file.
    pub path: PathBuf,
    /// How its weights are stored.
    pub format: Format,
    /// The quantisation of a GGUF file.
    pub quant: Option<String>,
    /// Bytes of its files.
    pub bytes: u64,
    /// The commit of its repository.
    pub commit: String,
}

/// The model that is wanted.
///
/// # Errors
/// [`LibraryError::NotHere`] with names like it, [`LibraryError::NoQuant`] with what there is, or
/// [`LibraryError::Incomplete`].
pub(crate) fn find(cache: &Cache, wanted: &Wanted<'_>) -> Result<Found, LibraryError> {
    let repo = cache.repo(wanted.name);
    let Some(commit) = repo.commit(wanted.name.revision()) else {
        return Err(not_here(cache, wanted)?);
    };
    let all = variants(&repo, &commit);
    let Some(variant) = choose(&all, wanted) else {
        return Err(if all.is_empty() { not_here(cache, wanted)? } else { absent(&all, wanted) });
    };
    if let Some(missing) = &variant.missing {
        return Err(LibraryError::Incomplete {
            name: wanted.name.to_string(),
            missing: missing.clone(),
        });
    }
    let bytes = variant.bytes();
    let Variant { path, format, quant, .. } = variant.clone();
    Ok(Found { path, format, quant, bytes, commit })
}

fn choose<'a>(all: &'a [Variant], wanted: &Wanted<'_>) -> Option<&'a Variant> {
    if let Some(name) = wanted.file {
        return all
            .iter()
            .filter(|variant| variant.format == Format::Gguf)
            .find(|variant| variant.files.iter().any(|file| file.name == name));
    }
    let folder = all.iter().find(|variant| variant.format == Format::Safetensors);
    let gguf = chosen_gguf(all, wanted.name.quant());
    match (wanted.name.quant(), wanted.prefer) {
        (Some(_), _) => gguf,
        (None, Prefer::Gguf) => gguf.or(folder),
        (None, Prefer::Safetensors) => folder.or(gguf),
    }
}

fn chosen_gguf<'a>(all: &'a [Variant], quant: Option<&str>) -> Option<&'a Variant> {
    let names = |variant: &'a Variant| variant.files.iter().map(|file| file.name.as_str());
    let of_gguf = || all.iter().filter(|variant| variant.format == Format::Gguf);
    // What is whole goes before what is not, unless it is asked for.
    let whole = gguf::groups(of_gguf().filter(|v| v.missing.is_none()).flat_map(names));
    let every = gguf::groups(of_gguf().flat_map(names));
    let group = gguf::choose(&whole, quant).or_else(|| gguf::choose(&every, quant))?;
    let files = group.files();
    of_gguf().find(|variant| names(variant).any(|name| files.iter().any(|file| file == name)))
}

/// The repository is here, and what is asked for is not.
fn absent(all: &[Variant], wanted: &Wanted<'_>) -> LibraryError {
    let name = wanted.name.with(None, None).to_string();
    let near = all.iter().filter(|variant| variant.missing.is_none());
    let near = near.map(|variant| match &variant.quant {
        Some(quant) => format!("{name}:{quant}"),
        None => name.clone(),
    });
    LibraryError::NotHere { name: wanted.name.to_string(), near: near.collect() }
}

fn not_here(cache: &Cache, wanted: &Wanted<'_>) -> Result<LibraryError, LibraryError> {
    let repos = cache.repos()?;
    let known = repos.iter().map(|name| name.repo()).filter(|repo| *repo != wanted.name.repo());
    let near = near(wanted.name.repo(), known).into_iter().map(str::to_owned).collect();
    Ok(LibraryError::NotHere { name: wanted.name.to_string(), near })
}
