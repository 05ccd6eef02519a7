//! The key-values, read back before anything is written: what they say must be what the model says.

use std::collections::HashSet;
use std::path::Path;

use super::error::ExportError;
use super::tensors::OutTensor;
use crate::config::{LocalLayers, ModelConfig, RopeConfig, RopeScaling};
use crate::folder::ModelFolder;
use crate::gguf::{
    GgufError, GgufModelError, GgufProblem, Header, TensorInfo, Tensors, model_config, tokenizer_of,
};
use crate::rope::RopeTable;
use crate::text::clip;
use crate::tokenizer::{Specials, Tokenizer};

/// Text with what tokenizers cut in different ways: contractions, digits, cases, marks, scripts,
/// spaces and line ends of every kind, code, and what few vocabularies have.
const SAMPLE: &str = "The quick brown fox's 12345 jumps, I'LL say: \"hello\" -- it isn't 3.14159%!\n\n\
    \n  fn main() {\n\t\tlet x_1 = a[0] + 0xFF;\r\n}\n   \u{a0} CamelCase JohnSmith's HTTPServer   \
    Grüße, naïve café, e\u{301}te\u{301}, Ελλάδα, Москва, 中文字符、日本語のテキスト, 한국어, العربية, \
    हिन्दी, ไทย, 😀👍🏽👩\u{200d}👩\u{200d}👧 ½ ² № ∑ → \u{feff}\u{200b} a/b //c \\d ... ??? !!!  \n \n1,000 x 2";

/// A context beyond what any model was made for.
const LONG: usize = 1 << 24;

/// Compares what a reader of `header` gets with `folder`; returns what differs and does no harm.
///
/// # Errors
/// Names the first thing that would change an answer.
pub(super) fn check(
    folder: &ModelFolder,
    header: &[u8],
    file_size: u64,
    tensors: &[OutTensor],
) -> Result<Vec<String>, ExportError> {
    let path = &folder.path;
    let of = |problem: GgufProblem| GgufModelError::from(GgufError { path: path.clone(), problem });
    let parsed = Header::parse(header, file_size).map_err(of)?;
    let read = |info: &TensorInfo| {
        let tensor = tensors.iter().find(|tensor| tensor.name == info.name);
        let mut bytes = vec![0; info.len];
        let read = tensor.map_or(Ok(()), |tensor| tensor.source.read_at(0, &mut bytes));
        read.map(|()| bytes).map_err(|source| GgufProblem::Read { source })
    };
    let infos = Tensors { infos: &parsed.tensors, read: &read };
    let config = model_config(&parsed.metadata, &infos, path)?;
    let mut notes = compare(&folder.config, &config, path)?;
    let parts = tokenizer_of(&parsed.metadata, config.vocab_size, path)?;
    if let (Some(own), Some(other)) = (&folder.tokenizer, &parts.tokenizer) {
        notes.extend(compare_tokens(own, other)?);
    }
    let lost = folder
        .eos_token_ids()
        .into_iter()
        .find(|id| folder.tokenizer.is_some() && !parts.ends.contains(id));
    match lost {
        Some(id) => Err(different(path, "eos_token_id", &id.to_string())),
        None => Ok(notes),
    }
}

fn different(path: &Path, field: &'static str, value: &str) -> ExportError {
    ExportError::Config { path: path.to_owned(), field, value: clip(value) }
}

/// Two numbers of which one went through an f32.
fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-6 * a.abs()
}

fn compare(own: &ModelConfig, read: &ModelConfig, path: &Path) -> Result<Vec<String>, ExportError> {
    for (field, own, read) in [
        ("hidden_size", own.hidden_size, read.hidden_size),
        ("intermediate_size", own.intermediate_size, read.intermediate_size),
        ("num_hidden_layers", own.n_layers, read.n_layers),
        ("num_attention_heads", own.n_q_heads, read.n_q_heads),
        ("num_key_value_heads", own.n_kv_heads, read.n_kv_heads),
        ("head_dim", own.head_dim, read.head_dim),
        ("vocab_size", own.vocab_size, read.vocab_size),
        ("max_position_embeddings", own.max_position_embeddings, read.max_position_embeddings),
        ("sliding_window", own.sliding_window.unwrap_or(0), read.sliding_window.unwrap_or(0)),
    ] {
        if own != read {
            return Err(different(path, field, &own.to_string()));
        }
    }
    for (field, own, read) in [
        ("tie_word_embeddings", own.tie_word_embeddings, read.tie_word_embeddings),
        ("attention_bias", own.qkv_bias, read.qkv_bias),
        ("attention_bias", own.o_bias, read.o_bias),
        ("mlp_bias", own.mlp_bias, read.mlp_bias),
        ("qk_norm", own.qk_norm, read.qk_norm),
    ] {
        if own != read {
            return Err(different(path, field, &own.to_string()));
        }
    }
    if !is_near(own.rms_norm_eps.into(), read.rms_norm_eps.into()) {
        return Err(different(path, "rms_norm_eps", &own.rms_norm_eps.to_string()));
    }
    if own.attention_scale() != read.attention_scale() {
        let value = own.query_scalar.unwrap_or(own.head_dim as f64).to_string();
        return Err(different(path, "query_pre_attn_scalar", &value));
    }
    if !is_same_rope(&own.rope, &read.rope) {
        return Err(different(path, "rope_scaling", &format!("{:?}", own.rope)));
    }
    if !is_same_local(own.local.as_ref(), read.local.as_ref()) {
        return Err(different(path, "layer_types", &format!("{:?}", own.local)));
    }
    let scales = (own.embedding_scale, read.embedding_scale);
    Ok((scales.0 != scales.1).then(|| scale_note(scales)).into_iter().collect())
}

fn scale_note((own, read): (f32, f32)) -> String {
    format!(
        "embeddings are multiplied by {own} in this folder, rounded to the type of its weights, \
         and by {read} in every GGUF file"
    )
}

fn is_same_local(own: Option<&LocalLayers>, read: Option<&LocalLayers>) -> bool {
    match (own, read) {
        (None, None) => true,
        (Some(own), Some(read)) => {
            own.window == read.window
                && own.is_local == read.is_local
                && is_same_rope(&own.rope, &read.rope)
        }
        _ => false,
    }
}

/// Whether heads rotate alike, whatever that is called.
fn is_same_rope(own: &RopeConfig, read: &RopeConfig) -> bool {
    let contexts = match own.scaling {
        // Which list of factors counts depends on the context.
        RopeScaling::LongRope { original_max_positions, .. } => {
            [original_max_positions, original_max_positions + 1]
        }
        // It begins beyond the context that files have.
        RopeScaling::Dynamic { .. } => [1, 1],
        _ => [1, LONG],
    };
    own.rotary_dim == read.rotary_dim
        && contexts.into_iter().all(|context| {
            let [own, read] = [own, read].map(|rope| RopeTable::new(rope, context));
            own.inv_freq().iter().zip(read.inv_freq()).all(|(a, b)| is_near(*a, *b))
                && is_near(own.attention_factor(), read.attention_factor())
        })
}

/// Whether both make the same tokens of the sample and of special tokens.
pub(super) fn compare_tokens(
    own: &Tokenizer,
    read: &Tokenizer,
) -> Result<Option<String>, ExportError> {
    let refuse = |reason| ExportError::Tokenizer { path: own.path().to_owned(), reason };
    let (parts, other) = (own.bpe_parts().map_err(refuse)?, read.bpe_parts().map_err(refuse)?);
    // What it does with spaces before a text is in a note.
    let is_own_way = parts.pre_tokenizer.get("type").is_some_and(|ty| ty == "Metaspace");
    for line in SAMPLE.lines().chain([SAMPLE]) {
        let line = if is_own_way { line.trim_start() } else { line };
        if own.encode(line, Specials::Add)? != read.encode(line, Specials::Add)? {
            let reason = format!("a reader would make other tokens of {:?}", clip(line));
            return Err(refuse(reason));
        }
    }
    let pairs = |merges: Vec<(String, String)>| merges.into_iter().collect::<HashSet<_>>();
    let (own, read) = (pairs(parts.merges), pairs(other.merges));
    let n = own.symmetric_difference(&read).count();
    Ok((n > 0).then(|| {
        format!(
            "{n} of the {} merges of this folder's tokenizer are not those that scores amount to: \
             rare words may become other tokens",
            own.len()
        )
    }))
}
