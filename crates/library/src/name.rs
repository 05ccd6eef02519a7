//! Names of models: `USER/REPO`, with a quantisation or a revision of it.

use std::fmt;
use std::str::FromStr;

use crate::remote_path::RemotePath;

/// The most characters of a user's or a repository's name at the hub.
const MAX_PART: usize = 96;

/// `USER/REPO[:QUANT][@REVISION]`, each part checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ModelName {
    repo: String,
    quant: Option<String>,
    revision: Option<String>,
}

/// A text that is no name of a model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text}: is no name of a model: {reason}; write USER/REPO, USER/REPO:QUANT or \
     USER/REPO@REVISION"
)]
pub struct NameError {
    text: String,
    reason: &'static str,
}

impl ModelName {
    /// `USER/REPO`. A few old models have no user.
    pub fn repo(&self) -> &str {
        &self.repo
    }

    /// The quantisation of a GGUF file, such as `Q4_K_M`, as it was written.
    pub fn quant(&self) -> Option<&str> {
        self.quant.as_deref()
    }

    /// A branch, a tag or a commit.
    pub fn revision(&self) -> Option<&str> {
        self.revision.as_deref()
    }

    /// The name of a repository as a whole.
    pub(crate) fn of_repo(repo: &str) -> Result<Self, &'static str> {
        check_repo(repo)?;
        Ok(Self { repo: repo.to_owned(), quant: None, revision: None })
    }

    /// The same repository, this quantisation and revision.
    pub(crate) fn with(&self, quant: Option<&str>, revision: Option<&str>) -> Self {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        Self { repo: self.repo.clone(), quant: owned(quant), revision: owned(revision) }
    }

    /// The folder of the cache that holds the repository.
    pub(crate) fn folder(&self) -> String {
        format!("models--{}", self.repo.replace('/', "--"))
    }

    /// The name behind a folder of the cache; `None` for other folders.
    pub(crate) fn of_folder(folder: &str) -> Option<Self> {
        Self::of_repo(&folder.strip_prefix("models--")?.replacen("--", "/", 1)).ok()
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.repo)?;
        if let Some(quant) = &self.quant {
            write!(f, ":{quant}")?;
        }
        if let Some(revision) = &self.revision {
            write!(f, "@{revision}")?;
        }
        Ok(())
    }
}

impl FromStr for ModelName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        parse(text).map_err(|reason| NameError { text: text.to_owned(), reason })
    }
}

/// What addresses of models on the hub begin with.
const HUB: [&str; 4] = ["https://", "http://", "huggingface.co/", "hf.co/"];

fn parse(text: &str) -> Result<ModelName, &'static str> {
    // As it is copied from a browser.
    let text = HUB.iter().fold(text, |text, start| text.strip_prefix(start).unwrap_or(text));
    let is_mark = |c: char| matches!(c, ':' | '@');
    let end = text.find(is_mark).unwrap_or(text.len());
    let mut name = ModelName::of_repo(&text[..end])?;
    let mut rest = &text[end..];
    while let Some(mark) = rest.chars().next() {
        let behind = &rest[mark.len_utf8()..];
        let part = &behind[..behind.find(is_mark).unwrap_or(behind.len())];
        rest = &behind[part.len()..];
        let (place, check): (_, fn(&str) -> _) = match mark {
            ':' => (&mut name.quant, check_quant),
            _ => (&mut name.revision, check_revision),
        };
        if place.is_some() {
            return Err("a part of it stands twice");
        }
        check(part)?;
        *place = Some(part.to_owned());
    }
    Ok(name)
}

fn check_repo(repo: &str) -> Result<(), &'static str> {
    let parts: Vec<&str> = repo.split('/').collect();
    if parts.len() > 2 {
        return Err("it has more than one `/`");
    }
    for part in parts {
        let is_right = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if part.is_empty() {
            return Err("a part of it is empty");
        }
        if !part.chars().all(is_right) {
            return Err("it has characters other than letters, digits, `-`, `_` and `.`");
        }
        // The cache writes `--` in place of the slash.
        if part.contains("--") || part.contains("..") {
            return Err("it contains `--` or `..`");
        }
        if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) {
            return Err("a part of it begins or ends with `-` or `.`");
        }
        if part.len() > MAX_PART {
            return Err("it is longer than names are");
        }
    }
    Ok(())
}

fn check_quant(quant: &str) -> Result<(), &'static str> {
    let is_right = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if quant.is_empty() || quant.len() > MAX_PART || !quant.chars().all(is_right) {
        return Err("what stands behind `:` is no quantisation such as Q4_K_M");
    }
    Ok(())
}

fn check_revision(revision: &str) -> Result<(), &'static str> {
    RemotePath::parse(revision).map(drop).map_err(|_| "what stands behind `@` is no revision")
}

/// The names most like `wanted`, the best first.
pub(crate) fn near<'a>(wanted: &str, known: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted = wanted.to_lowercase();
    let likeness = |name: &str| {
        let name = name.to_lowercase();
        let is_part = name.contains(&wanted) || wanted.contains(&name);
        if is_part { 1.0 } else { strsim::jaro_winkler(&wanted, &name) }
    };
    let mut found: Vec<(f64, &str)> = known.map(|name| (likeness(name), name)).collect();
    found.retain(|(likeness, _)| *likeness > 0.8);
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(b.1)));
    found.into_iter().map(|(_, name)| name).take(3).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_quantisation_and_a_revision() {
        let name: ModelName = "ggml-org/gemma-3-270m:Q8_0@refs/pr/1".parse().unwrap();
        assert_eq!((name.repo(), name.quant()), ("ggml-org/gemma-3-270m", Some("Q8_0")));
        assert_eq!(name.revision(), Some("refs/pr/1"));
        assert_eq!(name.to_string(), "ggml-org/gemma-3-270m:Q8_0@refs/pr/1");
        let turned: ModelName = "a/b@v1:q4_0".parse().unwrap();
        assert_eq!(turned.to_string(), "a/b:q4_0@v1");
        let plain: ModelName = "gpt2".parse().unwrap();
        assert_eq!((plain.quant(), plain.revision()), (None, None));
    }

    #[test]
    fn names_may_be_copied_from_a_browser() {
        for address in ["https://huggingface.co/", "http://huggingface.co/", "hf.co/"] {
            let name: ModelName = format!("{address}a/b:Q4_K_M").parse().unwrap();
            assert_eq!((name.repo(), name.quant()), ("a/b", Some("Q4_K_M")));
        }
        assert!("https://example.com/a/b".parse::<ModelName>().is_err());
    }

    #[test]
    fn what_is_no_name_says_why() {
        for (text, reason) in [
            ("", "a part of it is empty"),
            ("a/", "a part of it is empty"),
            ("/a", "a part of it is empty"),
            ("a/b/c", "more than one `/`"),
            ("../b", "contains `--` or `..`"),
            ("a--b/c", "contains `--` or `..`"),
            (".a/b", "begins or ends"),
            ("a/b.", "begins or ends"),
            ("a b/c", "characters other than"),
            ("a\\b", "characters other than"),
            ("a/b\0", "characters other than"),
            ("é/b", "characters other than"),
            ("a/b:", "no quantisation"),
            ("a/b:Q4/0", "no quantisation"),
            ("a/b:Q4:Q8", "twice"),
            ("a/b@", "no revision"),
            ("a/b@../x", "no revision"),
            ("a/b@/x", "no revision"),
        ] {
            let error = text.parse::<ModelName>().unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("USER/REPO"), "{text:?}: {error}");
        }
        assert!(format!("a/{}", "b".repeat(97)).parse::<ModelName>().is_err());
    }

    #[test]
    fn a_folder_of_the_cache_is_a_name() {
        let name: ModelName = "org/my-model_1.5".parse().unwrap();
        assert_eq!(name.folder(), "models--org--my-model_1.5");
        assert_eq!(ModelName::of_folder(&name.folder()), Some(name));
        assert_eq!(ModelName::of_folder("models--gpt2").unwrap().repo(), "gpt2");
        for other in ["datasets--a--b", "models--a--..", "models--", ".locks"] {
            assert_eq!(ModelName::of_folder(other), None, "{other}");
        }
    }

    #[test]
    fn near_names_are_found() {
        let known = ["Qwen/Qwen2.5-0.5B-Instruct", "google/gemma-3-270m", "gpt2"];
        let near = |wanted| near(wanted, known.into_iter());
        assert_eq!(near("qwen/qwen2.5-0.5b-instrukt"), ["Qwen/Qwen2.5-0.5B-Instruct"]);
        assert_eq!(near("gemma-3-270m"), ["google/gemma-3-270m"]);
        assert_eq!(near("mistralai/Mixtral"), [""; 0]);
    }
}
