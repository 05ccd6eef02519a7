//! Which files of a repository are a model. Pickles and what training left are not among them.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::error::LibraryError;
use crate::gguf;
use crate::name::ModelName;

/// Weights in one file.
pub(crate) const SINGLE: &str = "model.safetensors";
/// Which file holds which tensor, where there are several.
pub(crate) const INDEX: &str = "model.safetensors.index.json";
/// Without it weights say nothing.
pub(crate) const CONFIG: &str = "config.json";
/// An index of a model of a thousand files is about 20 MB.
pub(crate) const MAX_INDEX: u64 = 100 << 20;

/// Everything beside weights that a model may need, here or in Python.
const TEXTS: [&str; 12] = [
    CONFIG,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
];

/// Which of two is taken where a repository has both and no quantisation is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefer {
    /// The weights as they were published.
    Safetensors,
    /// The file that llama.cpp would take.
    Gguf,
}

/// What a repository is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The model.
    pub name: &'a ModelName,
    /// One GGUF file of it, by its name in the repository.
    pub file: Option<&'a str>,
    /// Which of two.
    pub prefer: Prefer,
}

/// What is to be downloaded.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// A GGUF file or its parts.
    Gguf(Vec<String>),
    /// A folder: these, and the weights that the index names if there is one.
    Folder {
        /// Everything but shards.
        files: Vec<String>,
        /// Whether there are shards.
        has_index: bool,
    },
}

/// Chooses among the files `names` of a repository.
pub(crate) fn choose(names: &[&str], wanted: &Wanted<'_>) -> Result<Choice, LibraryError> {
    let repo = || wanted.name.repo().to_owned();
    let groups = gguf::groups(names.iter().copied());
    if let Some(file) = wanted.file {
        let group = groups.iter().find(|group| group.files().iter().any(|name| name == file));
        return group.map(|group| Choice::Gguf(group.files())).ok_or_else(|| {
            let available = groups.iter().flat_map(gguf::Group::files).collect();
            LibraryError::NoFile { repo: repo(), file: file.to_owned(), available }
        });
    }
    if let Some(quant) = wanted.name.quant() {
        let group = gguf::choose(&groups, Some(quant));
        return group.map(|group| Choice::Gguf(group.files())).ok_or_else(|| {
            let available = gguf::quants(&groups);
            LibraryError::NoQuant { repo: repo(), quant: quant.to_owned(), available }
        });
    }
    let folder = || folder(names);
    let gguf = || gguf::choose(&groups, None).map(|group| Choice::Gguf(group.files()));
    let choice = match wanted.prefer {
        Prefer::Safetensors => folder().or_else(gguf),
        Prefer::Gguf => gguf().or_else(folder),
    };
    choice.ok_or_else(|| {
        let is_pickle = |name: &&str| [".bin", ".pt", ".pth"].iter().any(|end| name.ends_with(end));
        LibraryError::NoWeights { repo: repo(), has_pickle: names.iter().any(is_pickle) }
    })
}

fn folder(names: &[&str]) -> Option<Choice> {
    let has = |name: &str| names.contains(&name);
    if !has(CONFIG) || !(has(SINGLE) || has(INDEX)) {
        return None;
    }
    let has_index = !has(SINGLE);
    let weights = if has_index { INDEX } else { SINGLE };
    let texts = TEXTS.iter().filter(|name| has(name)).map(|name| (*name).to_owned());
    Some(Choice::Folder { files: texts.chain([weights.to_owned()]).collect(), has_index })
}

/// Whether a file in a snapshot belongs to a folder of safetensors.
pub(crate) fn is_text(name: &str) -> bool {
    TEXTS.contains(&name)
}

/// The files that an index names; `None` if it is no index.
pub(crate) fn shards(index: &[u8]) -> Option<BTreeSet<String>> {
    let index: Value = serde_json::from_slice(index).ok()?;
    let map = index.get("weight_map")?.as_object()?;
    map.values().map(|file| file.as_str().map(str::to_owned)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(names: &[&str], name: &str, prefer: Prefer) -> Result<Choice, String> {
        let name: ModelName = name.parse().unwrap();
        let wanted = Wanted { name: &name, file: None, prefer };
        choose(names, &wanted).map_err(|error| error.to_string())
    }

    fn gguf(name: &str) -> Choice {
        Choice::Gguf(vec![name.to_owned()])
    }

    const BOTH: [&str; 9] = [
        "README.md",
        "config.json",
        "m-Q4_K_M.gguf",
        "m-Q8_0.gguf",
        "model.safetensors",
        "optimizer.pt",
        "original/consolidated.00.pth",
        "pytorch_model.bin",
        "tokenizer.json",
    ];

    #[test]
    fn a_folder_is_what_is_needed_and_no_more() {
        let files = ["config.json", "tokenizer.json", "model.safetensors"];
        let folder = Choice::Folder { files: files.map(str::to_owned).into(), has_index: false };
        assert_eq!(choice(&BOTH, "a/b", Prefer::Safetensors), Ok(folder));
        assert_eq!(choice(&BOTH, "a/b", Prefer::Gguf), Ok(gguf("m-Q4_K_M.gguf")));
        assert_eq!(choice(&BOTH, "a/b:q8_0", Prefer::Safetensors), Ok(gguf("m-Q8_0.gguf")));
        let sharded = ["config.json", INDEX, "model-00001-of-00001.safetensors"];
        let files = ["config.json", INDEX].map(str::to_owned).into();
        let folder = Choice::Folder { files, has_index: true };
        assert_eq!(choice(&sharded, "a/b", Prefer::Safetensors), Ok(folder));
    }

    #[test]
    fn a_repository_without_what_is_asked_for_says_what_it_has() {
        let error = choice(&BOTH, "a/b:Q2_K", Prefer::Gguf).unwrap_err();
        assert!(error.contains("Q2_K; it has Q4_K_M, Q8_0"), "{error}");
        let error = choice(&["config.json", "pytorch_model.bin"], "a/b", Prefer::Gguf);
        assert!(error.unwrap_err().contains("pickles"));
        let error = choice(&["README.md"], "a/b", Prefer::Gguf).unwrap_err();
        assert!(error.contains("neither safetensors") && !error.contains("pickle"), "{error}");
        let error = choice(&["README.md"], "a/b:Q8_0", Prefer::Gguf).unwrap_err();
        assert!(error.contains("it has no GGUF files"), "{error}");
    }

    #[test]
    fn an_index_names_shards() {
        let index = br#"{"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}"#;
        assert_eq!(shards(index), Some(["x.safetensors".to_owned()].into()));
        for wrong in [&b"{"[..], b"[]", br#"{"weight_map": {"a": 1}}"#, b"{}"] {
            assert_eq!(shards(wrong), None);
        }
    }
}
