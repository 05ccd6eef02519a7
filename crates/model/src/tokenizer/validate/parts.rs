//! Normalizers, pre-tokenizers, decoders and post-processors: the form of each, and how much longer
//! each can make a text.

use serde_json::{Map, Value};

use super::charsmap;
use crate::config::MAX_VOCAB;
use crate::text::clip;

pub(super) const NORMALIZERS: &[&str] = &[
    "Bert",
    "BertNormalizer",
    "Strip",
    "StripAccents",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "Sequence",
    "Lowercase",
    "Nmt",
    "Precompiled",
    "Replace",
    "Prepend",
    "ByteLevel",
];
pub(super) const PRE_TOKENIZERS: &[&str] = &[
    "BertPreTokenizer",
    "ByteLevel",
    "CharDelimiterSplit",
    "Delimiter",
    "Metaspace",
    "Whitespace",
    "Sequence",
    "Split",
    "Punctuation",
    "WhitespaceSplit",
    "Digits",
    "UnicodeScripts",
    "FixedLength",
];
pub(super) const DECODERS: &[&str] = &[
    "BPEDecoder",
    "ByteLevel",
    "WordPiece",
    "Metaspace",
    "CTC",
    "Sequence",
    "Replace",
    "Fuse",
    "Strip",
    "ByteFallback",
];
const PROCESSORS: &[&str] =
    &["RobertaProcessing", "BertProcessing", "ByteLevel", "TemplateProcessing", "Sequence"];

/// Parts of one kind. Published files have up to 10.
const MAX_PARTS: usize = 100;
/// Sequences within sequences. Published files have 1.
const MAX_DEPTH: usize = 5;
/// The longest pattern, in bytes. Published ones have up to 600.
const MAX_PATTERN_BYTES: usize = 6_000;
/// Groups within groups of a pattern. Published ones have up to 4.
const MAX_GROUPS: usize = 40;
/// The product of all counts `{n}` of a pattern, as they may stand within each other. Published
/// ones reach 27.
const MAX_REPEATS: u64 = 10_000;
/// The longest text that a part inserts, and the longest list of special tokens. Published ones
/// have up to 10.
const MAX_INSERTED: usize = 1_000;

/// The parts of one kind.
pub(super) struct Parts {
    /// Its field in the file.
    pub name: &'static str,
    list: &'static str,
    known: &'static [&'static str],
    n: usize,
    /// Bytes that one byte of a text can become.
    pub growth: f64,
}

impl Parts {
    pub(super) fn new(
        name: &'static str,
        list: &'static str,
        known: &'static [&'static str],
    ) -> Self {
        Self { name, list, known, n: 0, growth: 1.0 }
    }

    /// Checks a part or `null`, and what it consists of.
    pub(super) fn check(&mut self, value: &Value) -> Result<(), String> {
        let name = self.name;
        self.part(value, 0).map_err(|reason| format!("{name}: {reason}"))
    }

    fn part(&mut self, value: &Value, depth: usize) -> Result<(), String> {
        if value.is_null() {
            return Ok(());
        }
        self.n += 1;
        if self.n > MAX_PARTS || depth > MAX_DEPTH {
            return Err(format!("more than {MAX_PARTS} parts, or {MAX_DEPTH} within each other"));
        }
        let (kind, fields) = kind_of(value, self.known)?;
        if kind == "Sequence" {
            let list = fields.get(self.list).and_then(Value::as_array);
            let list = list.ok_or_else(|| format!("Sequence: {} is not a list", self.list))?;
            return list.iter().try_for_each(|part| self.part(part, depth + 1));
        }
        self.growth *= growth(kind, fields).map_err(|reason| format!("{kind}: {reason}"))?;
        Ok(())
    }
}

/// The type of a part and its fields.
fn kind_of<'a>(
    value: &'a Value,
    known: &[&str],
) -> Result<(&'a str, &'a Map<String, Value>), String> {
    let fields = value.as_object();
    let fields = fields.ok_or_else(|| format!("{} is not an object", clip(&value.to_string())))?;
    let kind = fields.get("type").and_then(Value::as_str).ok_or("a part has no type")?;
    if !known.contains(&kind) {
        return Err(format!("type {:?} is not one of {}", clip(kind), known.join(", ")));
    }
    Ok((kind, fields))
}

/// Bytes that one byte of a text can become by a part, whose fields are checked.
fn growth(kind: &str, fields: &Map<String, Value>) -> Result<f64, String> {
    let text = |field: &str| match fields.get(field).and_then(Value::as_str) {
        Some(text) if text.len() <= MAX_INSERTED => Ok(text),
        Some(text) => {
            Err(format!("{field} has {} bytes, above the limit of {MAX_INSERTED}", text.len()))
        }
        None => Err(format!("{field} is not a text")),
    };
    Ok(match kind {
        "Replace" => {
            let (content, shortest) = (text("content")?, pattern(fields)?);
            // What matches nothing inserts between all characters.
            let inserted = content.len() as f64;
            if shortest == 0 { inserted + 1.0 } else { (inserted / shortest as f64).max(1.0) }
        }
        "Prepend" => text("prepend").map(|_| 1.0)?,
        "Split" => pattern(fields).map(|_| 1.0)?,
        "FixedLength" => match fields.get("length").map(Value::as_u64) {
            None => 1.0,
            Some(Some(1..=1_000_000)) => 1.0,
            Some(_) => return Err("length must be from 1 to 1000000".to_owned()),
        },
        "Precompiled" => {
            let map = fields.get("precompiled_charsmap").and_then(Value::as_str);
            charsmap::longest(map.ok_or("precompiled_charsmap is not a text")?)?.max(1) as f64
        }
        // Of Unicode's own tables: what a character can become, in bytes of UTF-8.
        "NFC" | "NFD" | "Lowercase" | "Bert" | "BertNormalizer" => 3.0,
        "NFKC" | "NFKD" => 11.0,
        _ => 1.0,
    })
}

/// Checks the pattern of a part; the bytes that it matches at least.
fn pattern(fields: &Map<String, Value>) -> Result<usize, String> {
    let pattern = fields.get("pattern").and_then(Value::as_object);
    let found = |name: &str| pattern.and_then(|pattern| pattern.get(name)).and_then(Value::as_str);
    let text = found("String").or_else(|| found("Regex"));
    let text = text.ok_or("pattern must be an object with a String or a Regex")?;
    if text.is_empty() || text.len() > MAX_PATTERN_BYTES {
        let n = text.len();
        return Err(format!("the pattern has {n} bytes; it must have 1 to {MAX_PATTERN_BYTES}"));
    }
    if found("String").is_some() {
        return Ok(text.len());
    }
    check_regex(text)?;
    Ok(0)
}

/// Refuses what would take a compiler of patterns too much stack or memory.
fn check_regex(pattern: &str) -> Result<(), String> {
    let (mut depth, mut deepest, mut repeats) = (0_usize, 0_usize, 1_u64);
    let mut letters = pattern.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '(' | '[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            ')' | ']' => depth = depth.saturating_sub(1),
            '{' => {
                let inside = pattern[at + 1..].split('}').next().unwrap_or_default();
                let largest = inside.split(',').filter_map(|n| n.trim().parse::<u64>().ok()).max();
                repeats = repeats.saturating_mul(largest.unwrap_or(1).max(1));
            }
            _ => {}
        }
    }
    if deepest > MAX_GROUPS {
        return Err(format!("the pattern has more than {MAX_GROUPS} groups within groups"));
    }
    if repeats > MAX_REPEATS {
        return Err(format!("the counts of the pattern multiply to more than {MAX_REPEATS}"));
    }
    Ok(())
}

/// Checks what adds special tokens around a text.
pub(super) fn check_processor(value: &Value) -> Result<(), String> {
    processor(value, 0).map_err(|reason| format!("post_processor: {reason}"))
}

fn processor(value: &Value, depth: usize) -> Result<(), String> {
    if value.is_null() {
        return Ok(());
    }
    if depth > MAX_DEPTH {
        return Err(format!("more than {MAX_DEPTH} parts within each other"));
    }
    let (kind, fields) = kind_of(value, PROCESSORS)?;
    match kind {
        "Sequence" => {
            let list = fields.get("processors").and_then(Value::as_array);
            let list = list.ok_or("Sequence: processors is not a list")?;
            if list.len() > MAX_PARTS {
                return Err(format!("more than {MAX_PARTS} parts"));
            }
            list.iter().try_for_each(|part| processor(part, depth + 1))
        }
        "TemplateProcessing" => template(fields).map_err(|reason| format!("{kind}: {reason}")),
        _ => Ok(()),
    }
}

/// The pieces around a text: special tokens that exist, and the text, once.
fn template(fields: &Map<String, Value>) -> Result<(), String> {
    let special = fields.get("special_tokens").and_then(Value::as_object);
    let special = special.ok_or("special_tokens is not an object")?;
    for (name, token) in special {
        special_token(token).map_err(|why| format!("special token {:?}: {why}", clip(name)))?;
    }
    for (field, n_texts) in [("single", 1), ("pair", 2)] {
        let pieces = fields.get(field).and_then(Value::as_array);
        let pieces = pieces.ok_or_else(|| format!("{field} is not a list"))?;
        if pieces.len() > MAX_INSERTED {
            let n = pieces.len();
            return Err(format!("{field} has {n} pieces, above the limit of {MAX_INSERTED}"));
        }
        let mut found = 0;
        for piece in pieces {
            if piece.get("Sequence").is_some() {
                found += 1;
                let id = &piece["Sequence"]["id"];
                if id != "A" && (field == "single" || id != "B") {
                    return Err(format!("{field} has a text {}", clip(&id.to_string())));
                }
                continue;
            }
            let id = piece["SpecialToken"]["id"].as_str();
            let id = id.ok_or_else(|| format!("{field} has a piece of no known form"))?;
            if !special.contains_key(id) {
                return Err(format!("{field} names {:?}, which is no special token", clip(id)));
            }
        }
        if found != n_texts && field == "single" {
            return Err(format!("{field} holds the text {found} times instead of once"));
        }
    }
    Ok(())
}

fn special_token(token: &Value) -> Result<(), String> {
    let list = |field: &str| match token.get(field).and_then(Value::as_array) {
        Some(list) if (1..=MAX_INSERTED).contains(&list.len()) => Ok(list),
        _ => Err(format!("{field} must be a list of 1 to {MAX_INSERTED}")),
    };
    let (ids, tokens) = (list("ids")?, list("tokens")?);
    if ids.len() != tokens.len() {
        return Err(format!("{} ids for {} tokens", ids.len(), tokens.len()));
    }
    match ids.iter().find(|id| id.as_u64().is_none_or(|id| id >= MAX_VOCAB as u64)) {
        Some(id) => Err(format!("id {}; ids must be below {MAX_VOCAB}", clip(&id.to_string()))),
        None => Ok(()),
    }
}
