//! Text to hide things in: RULER's noise, a folder of texts, or sentences that are generated.

use std::path::{Path, PathBuf};

use longview_core::{SplitMix64, read_regular};

use crate::error::EvalError;
use crate::filler::Filler;

/// The longest file that is read, of texts and of data sets.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// The noise of RULER, of InfiniteBench and of the passkey task, sentence by sentence.
pub const NOISE: &str =
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";

/// Where essays come from.
#[derive(Clone, Debug)]
pub enum TextSource {
    /// Sentences of a small grammar, without end.
    Generated,
    /// A folder of texts, one after the other, again from the start at the end.
    Folder {
        /// The folder.
        path: PathBuf,
        /// Its sentences.
        sentences: Vec<String>,
    },
}

impl TextSource {
    /// The `*.txt` files of a folder in the order of their names.
    pub fn open(path: &Path) -> Result<Self, EvalError> {
        let read = |source| EvalError::file(path, "reading", source);
        let entries = std::fs::read_dir(path).map_err(read)?;
        let mut files = Vec::new();
        for entry in entries {
            let file = entry.map_err(read)?.path();
            if file.extension().is_some_and(|extension| extension == "txt") {
                files.push(file);
            }
        }
        files.sort();
        let mut sentences = Vec::new();
        for file in files {
            let text = text_of_file(&file)?;
            sentences.extend(split_sentences(&text).into_iter().map(normal));
        }
        if sentences.is_empty() {
            return Err(EvalError::content(path, "--text: holds no *.txt file with text"));
        }
        Ok(Self::Folder { path: path.to_owned(), sentences })
    }

    /// What the texts are, for the record of a run.
    pub fn name(&self) -> String {
        match self {
            Self::Generated => "generated".to_owned(),
            Self::Folder { path, .. } => path.display().to_string(),
        }
    }

    /// Sentences without end, from a place that the seed chooses.
    pub fn sentences(&self, seed: u64) -> Box<dyn Iterator<Item = String> + '_> {
        match self {
            Self::Generated => {
                let mut filler = Filler::new(seed);
                Box::new(std::iter::repeat_with(move || filler.sentence().trim().to_owned()))
            }
            Self::Folder { sentences, .. } => {
                let start = SplitMix64::new(seed).below(sentences.len());
                Box::new(sentences.iter().cycle().skip(start).cloned())
            }
        }
    }

    /// `n_words` words in sentences; the last one may be cut.
    pub fn essay(&self, seed: u64, n_words: usize) -> Vec<String> {
        let mut sentences = Vec::new();
        let mut left = n_words;
        let mut source = self.sentences(seed);
        while left > 0
            && let Some(sentence) = source.next()
        {
            let words: Vec<&str> = sentence.split_whitespace().take(left).collect();
            left -= words.len();
            sentences.push(words.join(" "));
        }
        sentences
    }
}

/// The text of a regular file.
pub(crate) fn text_of_file(path: &Path) -> Result<String, EvalError> {
    let bytes = read_regular(path, MAX_FILE_BYTES);
    let bytes = bytes.map_err(|error| EvalError::file(path, "reading", error))?;
    let text = String::from_utf8(bytes)
        .map_err(|error| EvalError::content(path, format!("is not UTF-8: {error}")))?;
    // The mark that some editors put there is no part of it.
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// The sentences of a text: each ends with `.`, `!` or `?`, closing quotes included, before white
/// space. Nothing is lost but white space around them.
pub fn split_sentences(text: &str) -> Vec<&str> {
    let mut sentences = Vec::new();
    let (mut start, mut ended) = (0, false);
    for (at, c) in text.char_indices() {
        match c {
            '.' | '!' | '?' => ended = true,
            '"' | '\'' | ')' | '\u{201d}' | '\u{2019}' => {}
            c if c.is_whitespace() && ended => {
                sentences.push(text[start..at].trim());
                (start, ended) = (at, false);
            }
            _ => ended = false,
        }
    }
    sentences.push(text[start..].trim());
    sentences.retain(|sentence| !sentence.is_empty());
    sentences
}

/// One space between words.
fn normal(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// `n` sentences of noise.
pub fn noise(n: usize) -> Vec<&'static str> {
    let all = split_sentences(NOISE);
    (0..n).map(|i| all[i % all.len()]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_where_a_reader_would_end_them() {
        let text = "He came. \"Did he?\" she asked.\n\nYes! It is 3.5 miles.";
        assert_eq!(
            split_sentences(text),
            ["He came.", "\"Did he?\"", "she asked.", "Yes!", "It is 3.5 miles."]
        );
        assert_eq!(split_sentences("no end"), ["no end"]);
        assert!(split_sentences(" \n").is_empty());
        assert_eq!(noise(6)[..2], ["The grass is green.", "The sky is blue."]);
        assert_eq!(noise(6)[5], "The grass is green.");
    }

    #[test]
    fn an_essay_has_as_many_words_as_asked_for() {
        for n in [1, 17, 1000] {
            let essay = TextSource::Generated.essay(3, n);
            assert_eq!(essay.join(" ").split(' ').count(), n);
        }
        assert_eq!(TextSource::Generated.essay(3, 50), TextSource::Generated.essay(3, 50));
        assert!(TextSource::Generated.essay(3, 0).is_empty());
    }

    #[test]
    fn a_folder_is_read_in_order_and_begins_again() {
        let folder = std::env::temp_dir().join(format!("longview-text-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("b.txt"), "Two two.\nThree three three.").unwrap();
        std::fs::write(folder.join("a.txt"), "One.").unwrap();
        std::fs::write(folder.join("c.md"), "Not this.").unwrap();
        let source = TextSource::open(&folder).unwrap();
        let some: Vec<String> = source.sentences(1).take(6).collect();
        assert_eq!(some[..3], some[3..], "three sentences come again");
        assert_eq!(source.essay(1, 12).join(" ").split(' ').count(), 12);
        std::fs::remove_dir_all(&folder).unwrap();
        let error = TextSource::open(&folder).unwrap_err().to_string();
        assert!(error.contains("longview-text-"), "{error}");
    }
}
