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
    let options = RenderOptions { may_drop: true, ..RenderOptions::default() };
    compile(source).render(&[ChatMessage::new("user", "hi")], &options)
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
            may_drop: style == "print",
            ..RenderOptions::default()
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
        "t.jinja: the model's chat template refuses this conversation: no \"system\""
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
    let path = folder.path().join("tokenizer_config.json");
    let config = TokenizerConfig::parse(&config.to_string(), &path).unwrap();
    let Some(template) = ChatTemplate::open(folder.path(), &config) else { return Ok(None) };
    template.check().map(|()| Some(template))
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

/// Does `work` on a thread with the stack that threads have.
fn on_2_mib(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(2 << 20).spawn(work).unwrap();
    thread.join().unwrap();
}

#[test]
fn what_the_limits_allow_fits_on_the_stack() {
    use super::limits::{MAX_BLOCKS, MAX_BRACKETS, MAX_TAG_TOKENS};
    let n = MAX_TAG_TOKENS - 10;
    let tags = [
        format!("{} true", "not ".repeat(n)),
        format!("{}1", "-".repeat(n)),
        format!("{}1", "1+".repeat(n / 2)),
        format!("{}m", "m~".repeat(n / 2)),
        format!("{}1", "2**".repeat(n / 2)),
        format!("{}1", "m and ".repeat(n / 2)),
        format!("'a'{}", "|upper".repeat(n / 2)),
        format!("m{}", ".a".repeat(n / 2)),
        format!("m{}", "[1]".repeat(n / 3)),
        format!("m{}", "()".repeat(n / 2)),
        format!("{}1", "1 if m else ".repeat(n / 4)),
        format!("m{}", " is not none".repeat(n / 3)),
        format!("{}1{}", "(".repeat(MAX_BRACKETS), ")".repeat(MAX_BRACKETS)),
        format!("{}1{}", "[".repeat(MAX_BRACKETS), "]".repeat(MAX_BRACKETS)),
        format!("{}1{}", "{1:".repeat(MAX_BRACKETS), "}".repeat(MAX_BRACKETS)),
        format!("{}1{}", "m(1 + ".repeat(MAX_BRACKETS), ")".repeat(MAX_BRACKETS)),
    ];
    let blocks = [
        ("{% if m %}", "{% endif %}"),
        ("{% for x in m %}", "{% endfor %}"),
        ("{% macro m() %}", "{% endmacro %}"),
        ("{% call m() %}", "{% endcall %}"),
        ("{% set x %}", "{% endset %}"),
        ("{% filter upper %}", "{% endfilter %}"),
    ];
    for (open, close) in blocks {
        for tag in tags.clone() {
            let (open, close) = (open.repeat(MAX_BLOCKS), close.repeat(MAX_BLOCKS));
            let source = format!("{open}{{{{ {tag} }}}}{close}");
            on_2_mib(move || {
                let template = ChatTemplate::compile(&source, "t.jinja", special());
                let options = RenderOptions { may_drop: true, ..RenderOptions::default() };
                // Deep ones are refused by minijinja's own limits, in words.
                let _ = template.and_then(|t| t.render::<ChatMessage>(&[], &options));
            });
        }
    }
    let elifs = format!("{{% if m %}}{}{{% endif %}}", "{% elif m %}".repeat(MAX_BLOCKS - 1));
    on_2_mib(move || drop(compile(&elifs)));
}

#[test]
fn calls_and_values_within_each_other_are_bounded() {
    on_2_mib(|| {
        let text = render("{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}").unwrap_err();
        assert!(text.to_string().contains("recursion limit exceeded"), "{text}");
        let looped = "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}";
        assert!(render(looped).unwrap_err().to_string().contains("recursion limit"));
        for source in [
            "{% set n = namespace() %}{% set n.x = n %}{{ n }}",
            "{% set n = namespace() %}{% set n.x = [n] %}{{ n | tojson }}",
        ] {
            let text = render(source).unwrap_err().to_string();
            assert!(text.contains("a value with more than 100 lists within lists"), "{text}");
        }
    });
}

#[test]
fn one_call_makes_no_more_than_a_limit() {
    let twice = "{% set n = namespace(x=[0]) %}{% for i in range(40) %}\
                 {% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}";
    for (source, part) in [
        ("{{ 'a' | indent(1001) }}", "indent by 1001, above the limit of 1000"),
        ("{{ 'a' | indent(width=1001) }}", "indent by 1001, above the limit of 1000"),
        ("{{ '%1001d' | format(1) }}", "format with the number 1001, above the limit of 1000"),
        ("{{ '{:>1001}'.format(1) }}", "format with the number 1001, above the limit of 1000"),
        ("{{ [1] | tojson(indent=1001) }}", "tojson: indent 1001, above the limit of 1000"),
        ("{{ ('a' * 20000) | replace('a', 'b' * 20000) }}", "a text of 381 MiB"),
        ("{{ ('a' * 20000).replace('', 'b' * 20000) }}", "a text of 381 MiB"),
        (twice, "a value of more than 64 MiB"),
    ] {
        let text = render(source).unwrap_err().to_string();
        assert!(text.contains(part), "{source}: {text}");
    }
    assert_eq!(render("{{ 'a\nb' | indent(2, true) }}").unwrap(), "  a\n  b");
    assert_eq!(render("{{ '%5d|%s' | format(7, 'x') }}").unwrap(), "    7|x");
    assert_eq!(render("{{ 'a{}b'.format(2026) }}").unwrap(), "a2026b");
    assert_eq!(render("{{ 'abab'.replace('b', '--') }}").unwrap(), "a--a--");
}

#[test]
fn a_text_may_be_a_multiple_of_the_conversation_and_no_more() {
    let source =
        "{% for a in range(999) %}{% for b in range(999) %}{{ x }}{% endfor %}{% endfor %}";
    let source = format!("{{% set x = 'x' * 1000 %}}{source}");
    let text = render(&source).unwrap_err().to_string();
    assert_eq!(
        text,
        "t.jinja: the chat template writes more than 64 MiB from a conversation of 1 KiB"
    );
}

#[test]
fn a_message_that_is_left_out_is_an_error() {
    let options = RenderOptions::default();
    let both = [ChatMessage::new("system", "Be brief."), ChatMessage::new("user", " Where? ")];
    let text = |source: &str| compile(source).render(&both, &options).map_err(|e| e.to_string());
    let all = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}";
    assert_eq!(text(all).unwrap(), "[Be brief.][Where?]");
    let changed = "{% for m in messages %}{{ m.content | upper | replace('E', 'e') }}{% endfor %}";
    assert_eq!(text(changed).unwrap(), "Be BRIeF. WHeRe? ");
    assert_eq!(
        text("You are helpful.").unwrap_err(),
        "t.jinja: the chat template leaves out the user message"
    );
    assert_eq!(
        text("{{ messages[-1].content }}").unwrap_err(),
        "t.jinja: the chat template leaves out the system message"
    );
    let empty = [ChatMessage::new("user", " ")];
    assert_eq!(compile("x").render(&empty, &options).unwrap(), "x");
}

#[test]
fn what_a_template_raises_is_one_short_line() {
    let text =
        render("{{ raise_exception('a\n\u{1b}[31m' ~ 'x' * 100000) }}").unwrap_err().to_string();
    assert!(text.len() < 400 && !text.contains(['\n', '\u{1b}']), "{text:?}");
}

#[test]
fn a_runner_gets_the_job_and_a_broken_template_waits_for_its_use() {
    struct Here;
    impl TemplateRunner for Here {
        fn run(&self, job: &TemplateJob) -> Result<String, ChatError> {
            let json = serde_json::to_vec(job).unwrap();
            let job: TemplateJob = serde_json::from_slice(&json).unwrap();
            job.run().map(|text| format!("run: {text}"))
        }
    }
    let source = "{{ messages[0].content }}{{ bos_token }}";
    let template = compile(source).with_runner(Arc::new(Here));
    let text = template.render(&[ChatMessage::new("user", "hi")], &RenderOptions::default());
    assert_eq!(text.unwrap(), "run: hi<|begin|>");
    let folder = TempFolder::new();
    std::fs::write(folder.path().join("chat_template.jinja"), "{% if %}").unwrap();
    let broken = ChatTemplate::open(folder.path(), &TokenizerConfig::default()).unwrap();
    assert!(broken.check().unwrap_err().to_string().contains("is broken in line 1"));
    let broken = broken.with_runner(Arc::new(Here));
    assert!(broken.check().unwrap_err().to_string().contains("is broken in line 1"));
}
