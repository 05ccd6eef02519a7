//! How a text is cut into words before byte-level BPE, by the name that GGUF gives it.

use serde_json::{Value, json};

use super::error::GgufProblem;
use crate::text::clip;

/// A way to cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// At the matches of a pattern.
    Pattern(&'static str),
    /// As GPT-2: the pattern that the crate has built in.
    Gpt2,
    /// Digits alone, then as GPT-2.
    DigitsThenGpt2,
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pre {
    name: &'static str,
    cut: Cut,
    /// A word that is a token as a whole is that token, whatever its merges say.
    pub ignore_merges: bool,
    /// Plain text begins with the bos token where the file does not say.
    pub add_bos: bool,
    /// Letters and their marks are composed first.
    nfc: bool,
}

/// GPT-4's, with up to three digits together: Llama 3, GLM-4, Phi-4.
const THREE_DIGITS: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// The same with every digit alone.
const ONE_DIGIT: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral Nemo's: words end before a capital.
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o's, of Phi-4-mini too.
const GPT_4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const fn pre(name: &'static str, cut: Cut) -> Pre {
    Pre { name, cut, ignore_merges: false, add_bos: false, nfc: false }
}

const TABLE: [Pre; 15] = [
    Pre { ignore_merges: true, add_bos: true, ..pre("llama-bpe", Cut::Pattern(THREE_DIGITS)) },
    Pre { ignore_merges: true, add_bos: true, ..pre("llama3", Cut::Pattern(THREE_DIGITS)) },
    Pre { ignore_merges: true, add_bos: true, ..pre("llama-v3", Cut::Pattern(THREE_DIGITS)) },
    Pre { ignore_merges: true, add_bos: true, ..pre("tekken", Cut::Pattern(TEKKEN)) },
    Pre { nfc: true, ..pre("qwen2", Cut::Pattern(ONE_DIGIT)) },
    Pre { nfc: true, ..pre("deepseek-r1-qwen", Cut::Pattern(ONE_DIGIT)) },
    pre("glm4", Cut::Pattern(THREE_DIGITS)),
    pre("chatglm-bpe", Cut::Pattern(THREE_DIGITS)),
    pre("dbrx", Cut::Pattern(THREE_DIGITS)),
    pre("smaug-bpe", Cut::Pattern(THREE_DIGITS)),
    pre("gpt-4o", Cut::Pattern(GPT_4O)),
    pre("smollm", Cut::DigitsThenGpt2),
    pre("starcoder", Cut::DigitsThenGpt2),
    pre("gpt-2", Cut::Gpt2),
    pre("phi-2", Cut::Gpt2),
];

impl Pre {
    /// What `name` of `tokenizer.ggml.pre` stands for.
    pub(super) fn from_name(name: Option<&str>) -> Result<&'static Self, GgufProblem> {
        const KEY: &str = "tokenizer.ggml.pre";
        // Files of before May 2024 have none, and those of unknown tokenizers this one: llama.cpp
        // reads both in a way that fits no model.
        let Some(name) = name.filter(|name| *name != "default") else {
            return Err(GgufProblem::Tokenizer {
                key: KEY,
                name: name.unwrap_or("missing").to_owned(),
                supported: Self::supported(),
                hint: "; convert the model again with a converter of today",
            });
        };
        TABLE.iter().find(|pre| pre.name == name).ok_or_else(|| GgufProblem::Tokenizer {
            key: KEY,
            name: clip(name),
            supported: Self::supported(),
            hint: "; the model's folder of Hugging Face works",
        })
    }

    /// The name of what `pre_tokenizer` of a `tokenizer.json` does, if it has one; `prefers` picks
    /// between those that read alike.
    pub(crate) fn name_of(
        pre_tokenizer: &Value,
        ignore_merges: bool,
        prefers: &[&str],
    ) -> Option<&'static str> {
        let cuts = |pre: &&Self| pre.is_alike(pre_tokenizer) && pre.ignore_merges == ignore_merges;
        let all: Vec<&Self> = TABLE.iter().filter(cuts).collect();
        let preferred = prefers.iter().find_map(|name| all.iter().find(|pre| pre.name == *name));
        preferred.or(all.first()).map(|pre| pre.name)
    }

    /// Whether `pre_tokenizer` cuts at the same places; what it says of offsets does not matter.
    fn is_alike(&self, pre_tokenizer: &Value) -> bool {
        fn bare(value: &Value) -> Value {
            let mut value = value.clone();
            if let Some(fields) = value.as_object_mut() {
                fields.remove("trim_offsets");
            }
            value
        }
        let own = self.pre_tokenizer();
        match (own.get("pretokenizers"), pre_tokenizer.get("pretokenizers")) {
            (None, None) => bare(&own) == bare(pre_tokenizer),
            (Some(Value::Array(own)), Some(Value::Array(other))) => {
                own.iter().map(bare).eq(other.iter().map(bare))
            }
            _ => false,
        }
    }

    fn supported() -> String {
        TABLE.map(|pre| pre.name).join(", ")
    }

    /// `normalizer` of a `tokenizer.json`.
    pub(super) fn normalizer(&self) -> Value {
        if self.nfc { json!({"type": "NFC"}) } else { Value::Null }
    }

    /// `pre_tokenizer` of a `tokenizer.json`.
    pub(super) fn pre_tokenizer(&self) -> Value {
        let bytes = |use_regex: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
                   "use_regex": use_regex})
        };
        let parts = match self.cut {
            Cut::Gpt2 => return bytes(true),
            // Compiling a pattern takes longer than everything else about a small file, and no file
            // says what is in it: a fuzzer has the one that is compiled once.
            Cut::Pattern(_) if cfg!(fuzzing) => return bytes(true),
            Cut::DigitsThenGpt2 => {
                [json!({"type": "Digits", "individual_digits": true}), bytes(true)]
            }
            Cut::Pattern(pattern) => {
                let split = json!({"type": "Split", "pattern": {"Regex": pattern},
                                   "behavior": "Isolated", "invert": false});
                [split, bytes(false)]
            }
        };
        json!({"type": "Sequence", "pretokenizers": parts})
    }
}

#[cfg(test)]
mod tests {
    use tokenizers::pre_tokenizers::PreTokenizerWrapper;
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;

    /// The words of `text`, with bars between them.
    fn words(name: &str, text: &str) -> String {
        let json = Pre::from_name(Some(name)).unwrap().pre_tokenizer();
        let cutter: PreTokenizerWrapper = serde_json::from_value(json).unwrap();
        let mut cut = PreTokenizedString::from(text);
        cutter.pre_tokenize(&mut cut).unwrap();
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        let words = splits.into_iter().map(|(_, (start, end), _)| &text[start..end]);
        words.collect::<Vec<_>>().join("|")
    }

    const TEXT: &str = "I'LL pay $12345, ok?\n\n  JohnSmith's  ";

    #[test]
    fn each_name_cuts_in_its_own_way() {
        for (names, expected) in [
            (
                "llama-bpe llama3 llama-v3 glm4 chatglm-bpe dbrx smaug-bpe",
                "I|'LL| pay| $|123|45|,| ok|?\n\n| | JohnSmith|'s|  ",
            ),
            ("qwen2 deepseek-r1-qwen", "I|'LL| pay| $|1|2|3|4|5|,| ok|?\n\n| | JohnSmith|'s|  "),
            ("tekken", "I|'LL| pay| $|1|2|3|4|5|,| ok|?\n\n| | John|Smith|'s|  "),
            ("gpt-4o", "I'LL| pay| $|123|45|,| ok|?\n\n| | John|Smith's|  "),
            ("gpt-2 phi-2", "I|'|LL| pay| $|12345|,| ok|?|\n\n | JohnSmith|'s|  "),
            ("smollm starcoder", "I|'|LL| pay| $|1|2|3|4|5|,| ok|?|\n\n | JohnSmith|'s|  "),
        ] {
            for name in names.split(' ') {
                assert_eq!(words(name, TEXT), expected, "{name}");
            }
        }
        assert_eq!(words("qwen2", "a. /\nb"), "a|.| /\n|b");
        assert_eq!(words("qwen2", "a ./\nb"), "a| ./\n|b");
        assert_eq!(words("tekken", "a ./\n/b"), "a| ./\n/|b");
        let n_named = TABLE.len();
        assert_eq!(n_named, 15, "each has its line above");
    }

    #[test]
    fn names_are_found_again() {
        let mut json = Pre::from_name(Some("glm4")).unwrap().pre_tokenizer();
        json["pretokenizers"][1]["trim_offsets"] = json!(true);
        assert_eq!(Pre::name_of(&json, false, &["dbrx", "glm4"]), Some("dbrx"));
        assert_eq!(Pre::name_of(&json, false, &["smollm"]), Some("glm4"));
        assert_eq!(Pre::name_of(&json, true, &[]), Some("llama-bpe"));
        json["pretokenizers"][1]["add_prefix_space"] = json!(true);
        assert_eq!(Pre::name_of(&json, true, &[]), None);
        for (name, expected) in [("phi-2", "gpt-2"), ("starcoder", "smollm"), ("qwen2", "qwen2")] {
            let json = Pre::from_name(Some(name)).unwrap().pre_tokenizer();
            assert_eq!(Pre::name_of(&json, false, &[]), Some(expected));
        }
        assert_eq!(Pre::name_of(&Value::Null, false, &[]), None);
    }

    #[test]
    fn only_some_take_whole_words_and_begin_with_a_token() {
        for pre in &TABLE {
            let is_llama_or_tekken = pre.name.starts_with("llama") || pre.name == "tekken";
            assert_eq!(pre.ignore_merges, is_llama_or_tekken, "{}", pre.name);
            assert_eq!(pre.add_bos, is_llama_or_tekken, "{}", pre.name);
            assert_eq!(pre.normalizer() != Value::Null, pre.name.contains("qwen"), "{}", pre.name);
        }
    }

    #[test]
    fn unknown_names_are_refused_with_what_works() {
        let message = |name| Pre::from_name(name).unwrap_err().to_string();
        let text = message(Some("deepseek-llm"));
        assert!(text.starts_with("tokenizer.ggml.pre is \"deepseek-llm\", which is not supported"));
        assert!(text.contains("llama-bpe") && text.ends_with("folder of Hugging Face works"));
        assert!(message(None).contains("is \"missing\""));
        assert!(
            message(Some("default")).ends_with("convert the model again with a converter of today")
        );
    }
}
