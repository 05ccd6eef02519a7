//! The tokenizer of a file, as a `tokenizer.json` would have it: one parser checks both, and one
//! crate runs both.
//!
//! Two kinds: byte-level BPE with merges (`gpt2`), and SentencePiece's BPE (`llama`), which has
//! scores in place of merges. These are made again as Hugging Face's converter makes them: every
//! way to cut a piece into two known ones, best piece first.

use std::collections::HashMap;
use std::path::Path;

use serde_json::{Value, json};

use super::error::{GgufModelError, GgufProblem};
use super::metadata::{Metadata, Number, Texts};
use super::pre::Pre;
use crate::config::MAX_VOCAB;
use crate::text::clip;
use crate::tokenizer::{SpecialTokens, Tokenizer, TokenizerConfig};

const MODEL: &str = "tokenizer.ggml.model";
const TOKENS: &str = "tokenizer.ggml.tokens";
const MERGES: &str = "tokenizer.ggml.merges";

/// Tokens that end an answer, by their texts: files name one or two of them, and models say others
/// too. As in llama.cpp, but for those that are no control tokens.
const ENDS: [&str; 10] = [
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<EOT>",
    "</s>",
];

/// Whether the token `text` ends an answer wherever it is a control token.
pub(crate) fn is_named_end(text: &str) -> bool {
    ENDS.contains(&text)
}

/// Work that the pieces of a vocabulary may make, in bytes that are compared. Published ones make
/// 10 MB. In 64 bits, because in a browser `usize` has 32 and this would be 0 there.
const MAX_SPLIT_BYTES: u64 = 4 << 30;

/// What the number of a token's type says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Part of a text, or a byte of one.
    Plain,
    /// Stands for what is not known, or for one byte: no part of a merge.
    Other,
    /// A sign of the model's own.
    Control,
    /// A text that is always a token of its own.
    Added,
}

impl Kind {
    fn of(number: Number) -> Self {
        match number.whole() {
            Some(2 | 6) => Kind::Other,
            Some(3) => Kind::Control,
            Some(4) => Kind::Added,
            _ => Kind::Plain,
        }
    }
}

/// What a file says of texts.
pub(crate) struct TokenizerParts {
    /// `None` in files without a vocabulary.
    pub tokenizer: Option<Tokenizer>,
    pub config: TokenizerConfig,
    /// Every token that ends an answer.
    pub ends: Vec<u32>,
}

/// The tokenizer of the file `path`, of which the model has `vocab_size` embeddings.
pub(crate) fn tokenizer(
    metadata: &Metadata,
    vocab_size: usize,
    path: &Path,
) -> Result<TokenizerParts, GgufModelError> {
    let Some(vocabulary) =
        Vocabulary::read(metadata, vocab_size).map_err(|problem| problem.of(path))?
    else {
        let config = TokenizerConfig::default();
        return Ok(TokenizerParts { tokenizer: None, config, ends: Vec::new() });
    };
    let built = vocabulary.build().map_err(|problem| problem.of(path))?;
    let tokenizer = Tokenizer::parse(&built.json, path, &built.config)?
        .with_digest(metadata.digest("tokenizer.ggml."))
        .with_vocab_size(vocab_size)?;
    Ok(TokenizerParts { tokenizer: Some(tokenizer), config: built.config, ends: built.ends })
}

/// Two tokens that become one.
type Merge<'a> = [&'a str; 2];

/// The vocabulary, checked.
struct Vocabulary<'a> {
    metadata: &'a Metadata,
    is_sentence_piece: bool,
    tokens: &'a Texts,
    kinds: Vec<Kind>,
    /// Ids by text.
    ids: HashMap<&'a str, u32>,
}

/// A `tokenizer.json`, and what stands beside it.
struct Built {
    json: Vec<u8>,
    config: TokenizerConfig,
    ends: Vec<u32>,
}

impl<'a> Vocabulary<'a> {
    fn read(metadata: &'a Metadata, vocab_size: usize) -> Result<Option<Self>, GgufProblem> {
        let is_sentence_piece = match metadata.text(MODEL)? {
            None | Some("none" | "no_vocab") => return Ok(None),
            Some("gpt2") => false,
            Some("llama") => true,
            Some(other) => {
                return Err(GgufProblem::Tokenizer {
                    key: MODEL,
                    name: clip(other),
                    supported: "gpt2 (byte-level BPE), llama (SentencePiece BPE)".to_owned(),
                    hint: "; the model's folder of Hugging Face may work",
                });
            }
        };
        let tokens = metadata.texts(TOKENS)?.ok_or_else(|| missing(TOKENS))?;
        if tokens.len() > vocab_size.min(MAX_VOCAB) {
            return Err(GgufProblem::Key {
                key: TOKENS.to_owned(),
                found: format!("a list of {} texts", tokens.len()),
                expected: format!("no longer than the {vocab_size} rows of token_embd.weight"),
            });
        }
        let types = metadata.numbers("tokenizer.ggml.token_type", tokens.len())?;
        let kinds = match types {
            Some(types) => types.iter().take(tokens.len()).map(Kind::of).collect(),
            None => vec![Kind::Plain; tokens.len()],
        };
        let mut ids = HashMap::with_capacity(tokens.len());
        for (id, token) in tokens.iter().enumerate() {
            if let Some(first) = ids.insert(token, id as u32).filter(|_| !token.is_empty()) {
                let reason = format!("{:?} is entry {first} already", clip(token));
                return Err(GgufProblem::Entry { key: TOKENS, index: id, reason });
            }
        }
        Ok(Some(Self { metadata, is_sentence_piece, tokens, kinds, ids }))
    }

    fn build(&self) -> Result<Built, GgufProblem> {
        let (mut file, merges, add_bos) =
            if self.is_sentence_piece { self.sentence_piece()? } else { self.byte_level()? };
        file["version"] = json!("1.0");
        file["added_tokens"] = self.added_tokens();
        let truth = |name: &str| self.metadata.truth(&format!("tokenizer.ggml.{name}"));
        if truth("add_eos_token")? == Some(true) {
            let key = "tokenizer.ggml.add_eos_token".to_owned();
            let reason = "no token is added to the end of a text";
            return Err(GgufProblem::Unsupported { key, found: "true".to_owned(), reason });
        }
        let special = SpecialTokens {
            bos: self.special("bos", self.is_sentence_piece.then_some(1))?,
            eos: self.special("eos", self.is_sentence_piece.then_some(2))?,
            unk: self.special("unknown", self.is_sentence_piece.then_some(0))?,
            pad: self.special("padding", None)?,
        };
        let add_bos = truth("add_bos_token")?.unwrap_or(add_bos && special.bos.is_some());
        let ends = self.ends(special.eos.as_deref())?;
        let config = TokenizerConfig { special, add_bos_token: Some(add_bos), templates: None };
        Ok(Built { json: self.with_vocabulary(&file, &merges), config, ends })
    }

    /// The id that a key of the kind `NAME_token_id` gives.
    fn id(&self, name: &str) -> Result<Option<u32>, GgufProblem> {
        let key = format!("tokenizer.ggml.{name}_token_id");
        let id = self.metadata.whole(&key, 0, self.tokens.len().saturating_sub(1))?;
        Ok(id.map(|id| id as u32))
    }

    fn special(&self, name: &str, absent: Option<u32>) -> Result<Option<String>, GgufProblem> {
        let id = self.id(name)?.or(absent);
        Ok(id.and_then(|id| self.tokens.get(id as usize)).map(str::to_owned))
    }

    /// Every token that ends an answer.
    fn ends(&self, eos: Option<&str>) -> Result<Vec<u32>, GgufProblem> {
        let mut ends: Vec<u32> =
            eos.and_then(|eos| self.ids.get(eos).copied()).into_iter().collect();
        for name in ["eot", "eom"] {
            ends.extend(self.id(name)?);
        }
        let named = ENDS.iter().filter_map(|text| self.ids.get(text).copied());
        ends.extend(named.filter(|id| self.kinds[*id as usize] == Kind::Control));
        ends.sort_unstable();
        ends.dedup();
        Ok(ends)
    }

    fn added_tokens(&self) -> Value {
        let kinds = self.kinds.iter().enumerate();
        let added = kinds.filter(|(_, kind)| matches!(kind, Kind::Control | Kind::Added));
        let token = |(id, kind): (usize, &Kind)| {
            let text = self.tokens.get(id).filter(|text| !text.is_empty())?;
            Some(json!({"id": id, "content": text, "special": *kind == Kind::Control,
                "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}))
        };
        added.filter_map(token).collect()
    }

    fn byte_level(&self) -> Result<(Value, Vec<Merge<'a>>, bool), GgufProblem> {
        let pre = Pre::from_name(self.metadata.text("tokenizer.ggml.pre")?)?;
        let merges = self.metadata.texts(MERGES)?.ok_or_else(|| missing(MERGES))?;
        let pair = |(index, merge): (usize, &'a str)| {
            // The first part may itself begin with a space.
            let end = merge.char_indices().skip(1).find(|(_, letter)| *letter == ' ');
            let pair = end.map(|(at, _)| [&merge[..at], &merge[at + 1..]]);
            pair.ok_or_else(|| {
                let reason = format!("{:?} is no pair of tokens", clip(merge));
                GgufProblem::Entry { key: MERGES, index, reason }
            })
        };
        let merges = merges.iter().enumerate().map(pair).collect::<Result<Vec<_>, _>>()?;
        let file = json!({
            "normalizer": pre.normalizer(),
            "pre_tokenizer": pre.pre_tokenizer(),
            "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                        "use_regex": false},
            "model": {"type": "BPE", "ignore_merges": pre.ignore_merges},
        });
        Ok((file, merges, pre.add_bos))
    }

    fn sentence_piece(&self) -> Result<(Value, Vec<Merge<'a>>, bool), GgufProblem> {
        let prefix = self.metadata.truth("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
        let spaces = json!({"type": "Replace", "pattern": {"String": " "}, "content": "▁"});
        let back = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let mut normalizers = vec![json!({"type": "Prepend", "prepend": "▁"}), spaces];
        let mut decoders = vec![back, json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
        if prefix {
            decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
        } else {
            normalizers.remove(0);
        }
        let unknown = self.special("unknown", Some(0))?;
        let file = json!({
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "decoder": {"type": "Sequence", "decoders": decoders},
            "model": {"type": "BPE", "byte_fallback": true, "fuse_unk": true,
                      "unk_token": unknown},
        });
        Ok((file, self.merges()?, true))
    }

    /// The merges that scores amount to.
    fn merges(&self) -> Result<Vec<Merge<'a>>, GgufProblem> {
        const SCORES: &str = "tokenizer.ggml.scores";
        let scores = self.metadata.numbers(SCORES, self.tokens.len())?;
        let scores = scores.ok_or_else(|| missing(SCORES))?;
        let scores: Vec<f64> = scores.iter().filter_map(Number::real).collect();
        if let Some(index) = scores.iter().position(|score| !score.is_finite()) {
            let reason = format!("{} is no score", scores[index]);
            return Err(GgufProblem::Entry { key: SCORES, index, reason });
        }
        let work = self.tokens.iter().map(|token| (token.len() as u64).saturating_pow(2));
        if work.fold(0, u64::saturating_add) > MAX_SPLIT_BYTES {
            let reason = "its pieces are too long for SentencePiece".to_owned();
            return Err(GgufProblem::Entry { key: TOKENS, index: 0, reason });
        }
        let id_of = |part: &str| {
            let id = *self.ids.get(part)? as usize;
            matches!(self.kinds[id], Kind::Plain | Kind::Added).then_some(id)
        };
        let mut merges = Vec::new();
        for (id, token) in self.tokens.iter().enumerate() {
            if !matches!(self.kinds[id], Kind::Plain | Kind::Added) {
                continue;
            }
            let first = merges.len();
            for (at, _) in token.char_indices().skip(1) {
                let (left, right) = token.split_at(at);
                if let (Some(l), Some(r)) = (id_of(left), id_of(right)) {
                    merges.push((scores[id], (l, r), [left, right]));
                }
            }
            merges[first..].sort_by_key(|(_, ids, _)| *ids);
        }
        let lengths = |pair: &[&str; 2]| pair.map(|part| part.chars().count());
        merges.sort_by(|(a, _, one), (b, _, other)| {
            b.total_cmp(a).then_with(|| lengths(other).cmp(&lengths(one)))
        });
        Ok(merges.into_iter().map(|(_, _, pair)| pair).collect())
    }

    /// `file` as text, with vocabulary and merges in its model. These lists are written by hand: as
    /// a tree they would take many times the room and the time.
    fn with_vocabulary(&self, file: &Value, merges: &[Merge<'_>]) -> Vec<u8> {
        const MODEL_START: &str = "\"model\":{";
        let text = file.to_string();
        let model = text.find(MODEL_START).expect("a model was written") + MODEL_START.len();
        let (before, after) = text.split_at(model);
        let mut out = before.as_bytes().to_vec();
        out.extend(b"\"vocab\":{");
        for (id, token) in self.tokens.iter().enumerate() {
            if token.is_empty() {
                write_text(&mut out, &format!("[EMPTY_{id}]"));
            } else {
                write_text(&mut out, token);
            }
            out.extend(format!(":{id},").bytes());
        }
        close(&mut out, b"},\"merges\":[");
        for [left, right] in merges {
            out.push(b'[');
            write_text(&mut out, left);
            out.push(b',');
            write_text(&mut out, right);
            out.extend(b"],");
        }
        close(&mut out, b"],");
        out.extend(after.bytes());
        out
    }
}

/// Writes a text of JSON.
fn write_text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a text, to memory");
}

/// Ends a list or an object that has a comma behind each entry.
fn close(out: &mut Vec<u8>, with: &[u8]) {
    out.pop_if(|last| *last == b',');
    out.extend(with);
}

fn missing(key: &str) -> GgufProblem {
    GgufProblem::MissingKey { key: key.to_owned() }
}
