//! Files of a model, mutated at random with fixed seeds: each is used or refused with a message,
//! and nothing panics, aborts or runs on. The test's thread has the 2 MiB of stack that threads
//! have.

use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::chat::{ChatMessage, ChatTemplate, RenderOptions};
use crate::config::ModelConfig;
use crate::generation::GenerationDefaults;
use crate::gguf;
use crate::testing::fixture;
use crate::tokenizer::{SpecialTokens, Specials, Tokenizer, TokenizerConfig};

/// splitmix64: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    fn pick<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Text with a few of its parts cut, doubled, moved, or replaced by one of `words`.
fn mutate_text(text: &str, words: &[&str], random: &mut Random) -> String {
    let mut letters: Vec<char> = text.chars().collect();
    for _ in 0..=random.below(4) {
        let at = random.below(letters.len());
        let end = (at + random.below(20)).min(letters.len());
        match random.below(5) {
            0 => drop(letters.drain(at..end)),
            1 => {
                let part: Vec<char> = letters[at..end].to_vec();
                let times = *random.pick(&[2, 3, 300]);
                letters.splice(at..at, part.repeat(times));
            }
            2 => {
                let part: Vec<char> = letters.drain(at..end).collect();
                let to = random.below(letters.len());
                letters.splice(to..to, part);
            }
            _ => {
                let word = random.pick(words);
                letters.splice(at..end, word.chars());
            }
        }
    }
    letters.into_iter().collect()
}

/// `value` with a few of its parts removed or replaced.
fn mutate_json(value: &mut Value, random: &mut Random) {
    let strange = [
        json!(null),
        json!(true),
        json!(-1),
        json!(0),
        json!(1),
        json!(u64::MAX),
        json!(1e300),
        json!(0.5),
        json!(""),
        json!("\u{1b}[31m"),
        json!("AAAA"),
        json!("Sequence"),
        json!([]),
        json!({}),
        json!([[[]]]),
        json!("x".repeat(20_000)),
        json!({"Regex": "((((a*)*)*)*)*"}),
        json!({"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"}),
        json!(4_294_967_295_u64),
    ];
    let at = match value {
        Value::Object(map) if !map.is_empty() && random.below(8) > 0 => {
            let key = map.keys().nth(random.below(map.len())).cloned().unwrap();
            if random.below(12) == 0 {
                map.remove(&key);
                return;
            }
            &mut map[&key]
        }
        Value::Array(list) if !list.is_empty() && random.below(8) > 0 => {
            let index = random.below(list.len());
            match random.below(12) {
                0 => return drop(list.remove(index)),
                1 => return list.push(list[index].clone()),
                _ => &mut list[index],
            }
        }
        other => {
            *other = random.pick(&strange).clone();
            return;
        }
    };
    mutate_json(at, random);
}

/// Calls `one` with random numbers `n` times; the message of what is refused is short and plain.
fn many(seed: u64, n: usize, mut one: impl FnMut(&mut Random) -> Result<(), String>) {
    let (mut random, start) = (Random(seed), Instant::now());
    let mut n_refused = 0;
    for case in 0..n {
        let before = Instant::now();
        if let Err(message) = one(&mut random) {
            n_refused += 1;
            assert!(message.len() < 2_000, "case {case}: {} bytes", message.len());
            assert!(!message.contains("untagged enum"), "case {case}: {message}");
            let control = |letter: char| letter.is_control() && letter != '\n';
            assert!(!message.contains(control), "case {case}: {message:?}");
        }
        let took = before.elapsed();
        assert!(took < Duration::from_secs(10), "case {case}: {took:?}");
    }
    assert!(n_refused > n / 20 && n_refused < n, "{n_refused} of {n} were refused");
    assert!(start.elapsed() < Duration::from_secs(60));
}

#[test]
fn mutated_templates_render_or_are_refused() {
    let sources = ["llama", "qwen", "mistral", "print"].map(|style| {
        let path = fixture("chat-templates").join(format!("{style}.jinja"));
        std::fs::read_to_string(path).unwrap()
    });
    let words = [
        "{{",
        "}}",
        "{%",
        "%}",
        "{#",
        "#}",
        "not ",
        "1+",
        "|upper",
        ".a",
        "(",
        "[",
        "{",
        "'",
        "\"",
        "{% if 1 %}",
        "{% elif 1 %}",
        "{% for m in messages %}",
        "{% endfor %}",
        "messages",
        "namespace(",
        "range(99999)",
        "|tojson",
        "|indent(9999999999)",
        "loop",
        "~",
        "*99",
        "\\",
        "{% set ns.x = ns %}",
        "\u{1f642}",
        "\0",
        "raise_exception('\u{1b}[31m')",
        "%1000000000d",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "-1",
        "[::-1]",
        "|sort",
        "|list",
    ];
    let messages = [ChatMessage::new("system", "Be brief."), ChatMessage::new("user", "hi")];
    many(1, 3_000, |random| {
        let source = random.pick(&sources).clone();
        let source = mutate_text(&source, &words, random);
        let options = RenderOptions { add_generation_prompt: true, ..Default::default() };
        let template = ChatTemplate::compile(&source, "t.jinja", SpecialTokens::default());
        let text = template.and_then(|template| template.render(&messages, &options));
        text.map(drop).map_err(|error| error.to_string())
    });
}

#[test]
fn mutated_tokenizers_encode_or_are_refused() {
    let files = ["tokenizer-bpe", "tokenizer-metaspace"].map(|name| {
        let text = std::fs::read_to_string(fixture(name).join("tokenizer.json")).unwrap();
        let whole: Value = serde_json::from_str(&text).unwrap();
        (text, whole)
    });
    let words = ["{", "}", "[", "]", ",", "\"", "null", "-1", "99999999999", "\\u0000", "1e999"];
    let config = TokenizerConfig::default();
    many(2, 1_500, |random| {
        let (text, whole) = random.pick(&files);
        let text = if random.below(3) == 0 {
            mutate_text(text, &words, random)
        } else {
            let mut json = whole.clone();
            for _ in 0..=random.below(3) {
                // Most of the file is vocabulary; most of what can go wrong is elsewhere.
                let parts = ["normalizer", "pre_tokenizer", "post_processor", "decoder", "model"];
                let part = parts.get(random.below(6)).and_then(|part| json.get_mut(part));
                match part {
                    Some(part) => mutate_json(part, random),
                    None => mutate_json(&mut json, random),
                }
            }
            json.to_string()
        };
        let path = Path::new("tokenizer.json");
        let tokenizer = Tokenizer::parse(text.as_bytes(), path, &config);
        let used = tokenizer.and_then(|tokenizer| {
            let text = "The keeper\n\u{e9}\u{1f642} sees 12345  ships.";
            let ids = tokenizer.encode(text, Specials::Add)?;
            tokenizer.offsets(text)?;
            tokenizer.decode(&ids, false)?;
            tokenizer.decode(&[0, 7, u32::MAX], true)
        });
        used.map(drop).map_err(|error| error.to_string())
    });
}

#[test]
fn mutated_gguf_files_are_used_or_refused() {
    let whole = gguf::tests::tiny_bytes();
    let strange = [0, 1, 7, 32, 0xff, 1 << 16, 1 << 31, 1 << 32, u64::MAX >> 1, 1 << 63, u64::MAX];
    many(4, 6_000, |random| {
        let mut bytes = whole.clone();
        for _ in 0..=random.below(3) {
            // Most of what can go wrong is in the header.
            let n = if random.below(4) == 0 { bytes.len() } else { bytes.len().min(1_900) };
            let (at, width) = (random.below(n), *random.pick(&[1, 4, 8]));
            let end = (at + width).min(bytes.len());
            match random.below(6) {
                0 => drop(bytes.drain(at..(at + random.below(40)).min(bytes.len()))),
                1 => {
                    let part = bytes[at..end].repeat(*random.pick(&[1, 3, 100]));
                    bytes.splice(at..at, part);
                }
                2 => {
                    let from = random.below(bytes.len().saturating_sub(width));
                    bytes.copy_within(from..from + end - at, at);
                }
                _ => {
                    let number = random.pick(&strange).wrapping_add(random.next() % 3);
                    bytes[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
                }
            }
        }
        gguf::tests::use_all(bytes)
    });
}

#[test]
fn mutated_configs_are_read_or_refused() {
    let folders = [
        "llama2-mha",
        "llama-yarn",
        "llama-dynamic",
        "llama3-gqa",
        "mistral-gqa",
        "phi3-longrope",
        "glm-partial",
        "gemma3-windows",
        "gemma3-old",
        "internlm2-fused",
        "qwen2-yarn",
    ];
    let configs: Vec<Value> = folders
        .iter()
        .map(|name| {
            let text = std::fs::read_to_string(fixture(name).join("config.json")).unwrap();
            serde_json::from_str(&text).unwrap()
        })
        .collect();
    many(3, 4_000, |random| {
        let mut json = random.pick(&configs).clone();
        for _ in 0..=random.below(2) {
            mutate_json(&mut json, random);
        }
        let config = ModelConfig::from_json(&json.to_string()).map_err(|e| e.to_string())?;
        let _ = crate::weights::expected_tensors(&config);
        let generation = GenerationDefaults::parse(&json.to_string(), Path::new("g.json"));
        generation.map(drop).map_err(|error| error.to_string())
    });
}
