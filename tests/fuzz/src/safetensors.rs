//! safetensors files, and the index of several: the header, then tensors of a small model.

use std::sync::{Arc, LazyLock};

use longview_model::config::ModelConfig;
use longview_model::source::FolderFiles;
use longview_model::weights::{TensorSet, WeightsError, expected_tensors};

use crate::outcome::Outcome;

/// A model of twelve small tensors, some of which a file may have.
const CONFIG: &str = r#"{"architectures": ["LlamaForCausalLM"], "hidden_size": 2,
    "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1, "head_dim": 2,
    "num_key_value_heads": 1, "vocab_size": 2, "rms_norm_eps": 1e-5,
    "max_position_embeddings": 8, "tie_word_embeddings": true}"#;

static MODEL: LazyLock<ModelConfig> =
    LazyLock::new(|| ModelConfig::from_json(CONFIG).expect("a config"));

/// A shard with one tensor, for an index to name.
fn shard() -> Vec<u8> {
    let header = br#"{"a":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}}"#;
    [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat()
}

pub(super) fn run(bytes: &[u8]) -> Outcome {
    let mut files = FolderFiles { name: "m".into(), ..FolderFiles::default() };
    let is_index = bytes.first() == Some(&b'{');
    match std::str::from_utf8(bytes).ok().filter(|_| is_index) {
        Some(index) => {
            files.texts.insert("model.safetensors.index.json".to_owned(), index.to_owned());
            for name in ["a.safetensors", "b.safetensors"] {
                files.weights.insert(name.to_owned(), Arc::new(shard()));
            }
        }
        None => {
            files.weights.insert("model.safetensors".to_owned(), Arc::new(bytes.to_vec()));
        }
    }
    Outcome::of(use_all(&files))
}

fn use_all(files: &FolderFiles) -> Result<(), WeightsError> {
    let tensors = TensorSet::from_files(files)?;
    for tensor in expected_tensors(&MODEL) {
        if tensors.get(&tensor.name).is_some() {
            tensors.source(&tensor.name)?;
        }
    }
    tensors.check(&MODEL)?;
    tensors.digest(&MODEL).map(drop)
}
