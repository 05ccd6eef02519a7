//! Chat templates: what real ones need, rendered as Hugging Face does, and bad ones refused.

use serde_json::{Value as Json, json};

use super::*;
use crate::testing::{TempFolder, fixture};

fn special() -> SpecialTokens {
    SpecialTokens {
        bos: Some("<|begin|>".into()),
        eos: Some("<|im_end|>".into()),
        ..Default::default()
    }
}

fn compile(source: &str) -> ChatTemplate {
    ChatTemplate::compile(source, "t.jinja", special()).unwrap()
}

fn render(source: &str) -> Result<String, ChatError> {
    compile(source).render(&[ChatMessage::new("user", "hi")], &RenderOptions::default())
}

#[test]
fn templates_render_as_in_transformers() {
    let folder = fixture("chat-templates");
    let golden = std::fs::read_to_string(folder.join("golden.json")).unwrap();
    let cases: Vec<Json> = serde_json::from_str(&golden).unwrap();
    assert!(cases.len() >= 11);
    for (index, case) in cases.iter().enumerate() {
        let style = case["style"].as_str().unwrap();
        let source = std::fs::read_to_string(folder.join(format!("{style}.jinja"))).unwrap();
        let options = RenderOptions {
            add_generation_prompt: case["add_generation_prompt"].as_bool().unwrap(),
            tools: Some(case["tools"].clone()),
            extra: case["extra"].as_object().unwrap().clone(),
            now_unix_s: None,
        };
        let text = compile(&source).render(case["messages"].as_array().unwrap(), &options);
        assert_eq!(text.unwrap(), case["text"].as_str().unwrap(), "case {index}, {style}");
    }
}

#[test]
fn broken_templates_name_the_line() {
    let broken = |source: &str| {
        ChatTemplate::compile(source, "m/t.jinja", special()).map(drop).unwrap_err().to_string()
    };
    let text = broken("a\n{% if x %}\n{{ y }");
    assert!(text.starts_with("m/t.jinja: the chat template is broken in line 3: syntax"), "{text}");
    let text = broken("{% for %}");
    assert!(text.starts_with("m/t.jinja: the chat template is broken in line 1: "), "{text}");
    assert_eq!(
        broken(&" ".repeat(MAX_TEMPLATE_BYTES + 1)),
        "m/t.jinja: the chat template has 1048577 bytes, above the cap of 1048576"
    );
}

#[test]
fn failures_while_running_name_the_line() {
    let text = render("a\n{{ messages.x.y }}").unwrap_err().to_string();
    assert!(text.starts_with("t.jinja: the chat template failed in line 2: undefined"), "{text}");
    let text = render("{{ nothing('x') }}").unwrap_err().to_string();
    assert!(text.starts_with("t.jinja: the chat template failed in line 1: unknown fun"), "{text}");
    let text = render("{{ missing | tojson }}").unwrap_err().to_string();
    assert!(text.ends_with("tojson: undefined is not JSON"), "{text}");
}

#[test]
fn a_template_may_refuse_in_its_own_words() {
    let text =
        render("{% macro m() %}{{ raise_exception('no \"system\"') }}{% endmacro %}{{ m() }}")
            .unwrap_err();
    assert_eq!(
        text.to_string(),
        "the model's chat template refuses this conversation: no \"system\""
    );
}

#[test]
fn a_template_without_end_is_stopped() {
    let source =
        "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
    let text = render(source).unwrap_err().to_string();
    assert_eq!(text, "t.jinja: the chat template did not end within 10000000 steps");
}

#[test]
fn the_date_is_the_callers() {
    let options = RenderOptions { now_unix_s: Some(1_795_248_309), ..Default::default() };
    let template = compile("{{ strftime_now('%d %b %Y') }}");
    assert_eq!(template.render::<ChatMessage>(&[], &options).unwrap(), "21 Nov 2026");
}

#[test]
fn json_can_be_ascii_and_tight() {
    let text = render("{{ {'ü🙂': [1, 2]} | tojson(ensure_ascii=true, separators=(',', ':')) }}");
    assert_eq!(text.unwrap(), "{\"\\u00fc\\ud83d\\ude42\":[1,2]}");
}

fn open(config: Json, file: Option<&str>) -> Result<Option<ChatTemplate>, ChatError> {
    let folder = TempFolder::new();
    if let Some(source) = file {
        std::fs::write(folder.path().join("chat_template.jinja"), source).unwrap();
    }
    ChatTemplate::open(folder.path(), &TokenizerConfig::from_json(&config.to_string()).unwrap())
}

#[test]
fn the_file_wins_and_named_templates_are_chosen_by_use() {
    let plain = |template: &ChatTemplate, tools: Option<Json>| {
        let options = RenderOptions { tools, ..Default::default() };
        template.render::<ChatMessage>(&[], &options).unwrap()
    };
    assert!(open(json!({}), None).unwrap().is_none());
    let one = json!({"chat_template": "config {{ bos_token }}", "bos_token": "<s>"});
    assert_eq!(plain(&open(one.clone(), None).unwrap().unwrap(), None), "config <s>");
    assert_eq!(plain(&open(one, Some("file\n")).unwrap().unwrap(), None), "file");
    let named = json!({"chat_template": [
        {"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}
    ]});
    let template = open(named, None).unwrap().unwrap();
    assert_eq!(plain(&template, None), "d");
    assert_eq!(plain(&template, Some(json!([{"name": "f"}]))), "t");
    let text = open(json!({"chat_template": [{"name": "rag", "template": "r"}]}), None);
    let text = text.map(drop).unwrap_err().to_string();
    assert!(text.ends_with("none of the chat templates (rag) is called \"default\""), "{text}");
}
