//! Bodies of requests, by the endpoint that the first byte chooses: fields, conversations, tools,
//! schemas and grammars up to where llguidance takes them.
//!
//! A body is read as a handler of the server reads it, rendered and made tokens of; what an engine
//! would do with them is not tried here.

use std::path::Path;
use std::sync::LazyLock;

use longview_engine::{Draft, PrefillMode};
use longview_model::chat::ChatTemplate;
use longview_model::generation::GenerationDefaults;
use longview_model::tokenizer::{SpecialTokens, Tokenizer, TokenizerConfig};
use longview_scheduler::{PolicyOptions, Preset};
use longview_server::{FORMS, ModelFacts, Requests};

use crate::outcome::Outcome;

/// A template that knows tools, calls, results and thoughts, as those of many models do.
const TEMPLATE: &str = "{{ bos_token }}{% if tools %}<|im_start|>system\n{{ tools | tojson }}\
    <|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n\
    {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}\
    {% for c in m.tool_calls or [] %}<tool_call>{\"name\": {{ c.function.name | tojson }}, \
    \"arguments\": {{ c.function.arguments | tojson }}}</tool_call>{% endfor %}<|im_end|>\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n\
    {% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}{% endif %}";

/// What handlers of all inputs share, as those of a server do.
static REQUESTS: LazyLock<Requests> = LazyLock::new(|| Requests::new(facts()));

pub(super) fn run(bytes: &[u8]) -> Outcome {
    let Some((first, body)) = bytes.split_first() else { return Outcome::Refused };
    let path = FORMS[usize::from(*first) % FORMS.len()];
    Outcome::of(REQUESTS.read(path, body))
}

fn facts() -> ModelFacts {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/needle/tokenizer.json");
    let config = TokenizerConfig::default();
    let tokenizer =
        Tokenizer::open(Path::new(path), &config).expect("the embedded model's tokenizer");
    let special =
        SpecialTokens { bos: Some("<|begin_of_text|>".to_owned()), ..SpecialTokens::default() };
    let chat = ChatTemplate::compile(TEMPLATE, "t.jinja", special).expect("a template");
    ModelFacts {
        names: vec!["needle".to_owned()],
        is_embedded: true,
        words: "needle".to_owned(),
        vocab_size: tokenizer.vocab_size(),
        tokenizer,
        chat: Some(chat),
        generation: GenerationDefaults::default(),
        n_layers: 5,
        n_kv_heads: 2,
        ctx_size: 2048,
        eos_ids: vec![1],
        policy: PolicyOptions::new(Preset::DEFAULT),
        draft: Draft::Off,
        prefill: PrefillMode::Exact,
    }
}
