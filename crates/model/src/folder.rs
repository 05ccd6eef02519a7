//! A Hugging Face model folder, or a GGUF file, read and checked as a whole.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::chat::ChatTemplate;
use crate::config::{ConfigError, ModelConfig};
use crate::generation::{GenerationDefaults, GenerationError};
use crate::gguf::{self, GgufModel, GgufModelError};
use crate::source::FolderFiles;
use crate::tokenizer::{Tokenizer, TokenizerConfig, TokenizerError};
use crate::weights::{TensorSet, WeightsError};

/// Everything a folder holds. Weights are mapped, not read.
pub struct ModelFolder {
    /// The folder.
    pub path: PathBuf,
    /// Dimensions and choices.
    pub config: ModelConfig,
    /// How its authors would sample.
    pub generation: GenerationDefaults,
    /// The weights, each tensor checked against the config.
    pub tensors: TensorSet,
    /// Absent in folders made for tests.
    pub tokenizer: Option<Tokenizer>,
    /// Absent in models that are not for chat. One that is broken says so when it is used.
    pub chat: Option<ChatTemplate>,
}

/// A folder that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// There is no such folder.
    #[error(
        "{}: is not a folder; name the folder that holds config.json, or a .gguf file",
        path.display()
    )]
    NotAFolder {
        /// What was named.
        path: PathBuf,
    },
    /// A folder elsewhere has no `config.json`.
    #[error("{}: holds no config.json; choose all files of the model's folder", path.display())]
    NoConfig {
        /// What the folder is called.
        path: PathBuf,
    },
    /// A `.gguf` file.
    #[error(transparent)]
    Gguf(#[from] GgufModelError),
    /// `config.json`.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// `generation_config.json`.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// `*.safetensors`.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// `tokenizer.json` or `tokenizer_config.json`.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Text was to be read or written, and there is no tokenizer.
    #[error("{}: holds no tokenizer.json, so no text can be encoded", path.display())]
    NoTokenizer {
        /// The folder.
        path: PathBuf,
    },
}

impl ModelFolder {
    /// Reads and checks every file in the folder `path`, or the GGUF file `path`.
    pub fn open(path: &Path) -> Result<Self, FolderError> {
        if is_gguf_file(path) {
            return Self::open_gguf(path);
        }
        if !path.is_dir() {
            return Err(FolderError::NotAFolder { path: path.to_owned() });
        }
        let config = ModelConfig::open(&path.join("config.json"))?;
        let tensors = TensorSet::open(path)?;
        tensors.check(&config)?;
        let tokenizer_config = open_if_there(path, "tokenizer_config.json", TokenizerConfig::open)?
            .unwrap_or_default();
        let tokenizer = open_if_there(path, "tokenizer.json", |file| {
            Tokenizer::open(file, &tokenizer_config)?.with_vocab_size(config.vocab_size)
        })?;
        let generation = open_if_there(path, "generation_config.json", GenerationDefaults::open)?;
        Ok(Self {
            path: path.to_owned(),
            generation: generation.unwrap_or_default(),
            tensors,
            tokenizer,
            chat: ChatTemplate::open(path, &tokenizer_config),
            config,
        })
    }

    fn open_gguf(path: &Path) -> Result<Self, FolderError> {
        Ok(Self::of_gguf(gguf::open(path)?))
    }

    fn of_gguf(model: GgufModel) -> Self {
        let GgufModel { config, generation, tensors, tokenizer, chat } = model;
        Self { path: tensors.path().to_owned(), config, generation, tensors, tokenizer, chat }
    }

    /// As [`ModelFolder::open`] of files that lie elsewhere.
    pub fn from_files(files: &FolderFiles) -> Result<Self, FolderError> {
        let place = |name: &str| files.name.join(name);
        let text = |name: &str| files.texts.get(name).map(String::as_str);
        let Some(config) = text("config.json") else {
            if let Some(model) = gguf::from_files(files) {
                return Ok(Self::of_gguf(model?));
            }
            return Err(FolderError::NoConfig { path: files.name.clone() });
        };
        let config = ModelConfig::parse(config, &place("config.json"))?;
        let tensors = TensorSet::from_files(files)?;
        tensors.check(&config)?;
        let settings = text("tokenizer_config.json")
            .map(|text| TokenizerConfig::parse(text, &place("tokenizer_config.json")))
            .transpose()?
            .unwrap_or_default();
        let tokenizer = text("tokenizer.json").map(|text| {
            let path = place("tokenizer.json");
            Tokenizer::parse(text.as_bytes(), &path, &settings)?.with_vocab_size(config.vocab_size)
        });
        let generation = text("generation_config.json")
            .map(|text| GenerationDefaults::parse(text, &place("generation_config.json")))
            .transpose()?;
        let chat = ChatTemplate::of_folder(&files.name, text("chat_template.jinja"), &settings);
        Ok(Self {
            path: files.name.clone(),
            generation: generation.unwrap_or_default(),
            tensors,
            tokenizer: tokenizer.transpose()?,
            chat,
            config,
        })
    }

    /// The tokenizer, or an error that names the folder.
    pub fn tokenizer(&self) -> Result<&Tokenizer, FolderError> {
        self.tokenizer.as_ref().ok_or_else(|| FolderError::NoTokenizer { path: self.path.clone() })
    }

    /// Every token that ends an answer: by `generation_config.json`, else by `config.json`, and
    /// by the tokenizer. Sorted.
    ///
    /// Chat models end a turn with another token than a document; which file says so varies.
    pub fn eos_token_ids(&self) -> Vec<u32> {
        let mut ids = self.generation.eos_token_ids.clone();
        if ids.is_empty() {
            ids.clone_from(&self.config.eos_token_ids);
        }
        ids.extend(self.tokenizer.as_ref().and_then(Tokenizer::eos_id));
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// Whether `path` is a file that is called GGUF, or begins as such a file does.
fn is_gguf_file(path: &Path) -> bool {
    let is_called = path.extension().is_some_and(|name| name.eq_ignore_ascii_case("gguf"));
    let begins = || {
        let mut begin = [0; 4];
        let read = File::open(path).and_then(|mut file| file.read_exact(&mut begin));
        read.is_ok() && gguf::is_gguf(&begin)
    };
    path.is_file() && (is_called || begins())
}

fn open_if_there<T, E>(
    folder: &Path,
    name: &str,
    open: impl FnOnce(&Path) -> Result<T, E>,
) -> Result<Option<T>, E> {
    let path = folder.join(name);
    // A link that leads nowhere is there: who made it wants the file to be read.
    if path.symlink_metadata().is_ok() { open(&path).map(Some) } else { Ok(None) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longview_core::FileSource;

    use super::*;
    use crate::source::SharedSource;
    use crate::testing::{TempFolder, fixture};

    fn message(path: &Path) -> String {
        ModelFolder::open(path).map(drop).unwrap_err().to_string()
    }

    #[test]
    fn fixtures_open_without_a_tokenizer() {
        let folder = ModelFolder::open(&fixture("llama2-mha")).unwrap();
        assert_eq!(folder.eos_token_ids(), [1]);
        assert!(folder.chat.is_none());
        let text = folder.tokenizer().map(drop).unwrap_err().to_string();
        assert!(text.ends_with("llama2-mha: holds no tokenizer.json, so no text can be encoded"));
        assert_eq!(ModelFolder::open(&fixture("llama-sharded")).unwrap().tensors.len(), 21);
    }

    #[test]
    fn the_embedded_model_opens() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle");
        let folder = ModelFolder::open(&path).unwrap();
        assert_eq!(folder.tokenizer().unwrap().bos_id(), Some(0));
        assert_eq!(folder.eos_token_ids(), [1, 3], "the end of a text and of a turn");
        assert!(folder.chat.is_some());
    }

    /// The files of a folder as a browser hands them over.
    fn files(path: &Path) -> FolderFiles {
        let mut files = FolderFiles { name: path.to_owned(), ..FolderFiles::default() };
        for entry in std::fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_owned();
            if name.ends_with(".safetensors") {
                drop(files.weights.insert(name, Arc::new(FileSource::open(&path).unwrap())));
            } else {
                drop(files.texts.insert(name, std::fs::read_to_string(&path).unwrap()));
            }
        }
        files
    }

    #[test]
    fn files_elsewhere_are_the_same_model() {
        let needle = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle");
        for path in [needle, fixture("llama-sharded"), fixture("internlm2-fused")] {
            let (folder, twin) = (
                ModelFolder::open(&path).unwrap(),
                ModelFolder::from_files(&files(&path)).unwrap(),
            );
            assert_eq!(folder.config, twin.config);
            assert_eq!(folder.eos_token_ids(), twin.eos_token_ids());
            assert_eq!(folder.chat.is_some(), twin.chat.is_some());
            assert_eq!(folder.tensors.len(), twin.tensors.len());
            let digests = [&folder, &twin].map(|f| f.tensors.digest(&f.config).unwrap());
            assert_eq!(digests[0], digests[1]);
            for tensor in crate::weights::expected_tensors(&folder.config) {
                let (a, b) =
                    (folder.tensors.source(&tensor.name), twin.tensors.source(&tensor.name));
                assert_eq!(a.unwrap().bytes.as_ref(), b.unwrap().bytes.as_ref(), "{}", tensor.name);
            }
        }
    }

    #[test]
    fn files_that_are_missing_elsewhere_are_named() {
        let message =
            |files: &FolderFiles| ModelFolder::from_files(files).map(drop).unwrap_err().to_string();
        let whole = files(&fixture("llama-sharded"));
        let mut some = whole.clone();
        let (lost, _) = some.weights.pop_first().unwrap();
        assert!(message(&some).contains(&format!("are missing: {lost}; download them")));
        let mut none = whole.clone();
        none.texts.remove("config.json");
        assert!(message(&none).ends_with("choose all files of the model's folder"));
        let mut cut = whole;
        let short: SharedSource =
            Arc::new(FileSource::open(&fixture("llama-sharded/config.json")).unwrap());
        *cut.weights.first_entry().unwrap().get_mut() = short;
        assert!(message(&cut).contains("corrupt or not safetensors"), "{}", message(&cut));
    }

    #[test]
    fn the_first_thing_missing_is_named() {
        let folder = TempFolder::new();
        let nowhere = folder.path().join("nowhere");
        assert!(
            message(&nowhere).ends_with("name the folder that holds config.json, or a .gguf file")
        );
        assert!(message(folder.path()).contains("config.json: cannot be read ("));
        let config = fixture("llama2-mha").join("config.json");
        std::fs::copy(config, folder.path().join("config.json")).unwrap();
        assert!(message(folder.path()).contains(": no model.safetensors and no"));
    }

    #[test]
    fn weights_of_another_model_are_refused() {
        let folder = TempFolder::new();
        let copy = |name: &str, file: &str| {
            std::fs::copy(fixture(name).join(file), folder.path().join(file)).unwrap();
        };
        copy("llama2-mha", "config.json");
        copy("llama-mqa", "model.safetensors");
        let text = message(folder.path());
        assert!(text.contains("model.safetensors: 4 tensors do not fit config.json:\n"), "{text}");
        assert!(
            text.contains("self_attn.k_proj.weight: shape [16, 64], the config gives [64, 64]")
        );
    }
}
