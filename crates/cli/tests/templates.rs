//! Chat templates, tokenizers and config files that are hostile or broken: each is one short
//! message that names the file, in seconds.

use std::fs;
#[cfg(target_os = "linux")]
use std::io::{BufRead, BufReader, Write};
#[cfg(target_os = "linux")]
use std::process::Stdio;
use std::time::{Duration, Instant};

#[cfg(target_os = "linux")]
use crate::support::command;
use crate::support::{TempFolder, run};

const TEMPLATE: &str = "chat_template.jinja";
/// What stands at the end of every message about a template.
const ADVICE: &str = "; correct the file, or give --no-chat-template";

/// Runs one token on a model, and asserts that it fails soon, with few words and these among them.
#[track_caller]
fn refuses(model: &TempFolder, parts: &[&str]) {
    refuses_with(model, &["-p", "Where is it?", "-n", "1"], parts);
}

#[track_caller]
fn refuses_with(model: &TempFolder, words: &[&str], parts: &[&str]) {
    let start = Instant::now();
    let done = run(model.path(), words);
    let took = start.elapsed();
    assert!(took < Duration::from_secs(15), "{took:?}: {}", done.stderr);
    assert!(done.stderr.lines().count() <= 10, "{}", done.stderr);
    let control = |letter: char| letter.is_control() && letter != '\n';
    assert!(!done.stderr.contains(control), "{:?}", done.stderr);
    for word in ["panicked", "overflowed its stack", "SIGABRT", "memory allocation"] {
        assert!(!done.stderr.contains(word), "{}", done.stderr);
    }
    done.fails_with(parts);
}

/// A template that does `body` and then writes the messages.
fn template(body: &str) -> String {
    format!("{body}{{% for m in messages %}}{{{{ m.content }}}}{{% endfor %}}")
}

#[test]
fn sources_that_are_too_deep_are_refused() {
    let model = TempFolder::model();
    for body in [
        format!("{{{{ {} true }}}}", "not ".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "1+".repeat(100_000)),
        format!("{{{{ \"a\"{} }}}}", "|upper".repeat(100_000)),
        format!("{{{{ messages{} }}}}", ".a".repeat(100_000)),
        "{% if 1 %}".repeat(50_000),
    ] {
        model.write(TEMPLATE, template(&body));
        refuses(
            &model,
            &["chat_template.jinja: the chat template is too complex in line 1", ADVICE],
        );
    }
    model.write(TEMPLATE, " ".repeat((1 << 20) + 1));
    refuses(&model, &["chat_template.jinja: cannot be read (it has 1048577 bytes, above", ADVICE]);
}

#[test]
fn values_that_hold_themselves_are_refused() {
    let model = TempFolder::model();
    let itself = "{% set a = namespace() %}{% set b = namespace() %}\
                  {% set a.x = b %}{% set b.x = a %}";
    for (body, part) in [
        ("{{ a }}", "more than 100 lists within lists"),
        ("{{ a | tojson }}", "more than 100 lists within lists"),
        ("{{ a == b }}", "nested too deep"),
        ("{{ 'x' ~ a }}", "nested too deep"),
        ("{{ [a, b, a] | sort }}", "nested too deep"),
    ] {
        model.write(TEMPLATE, template(&format!("{itself}{body}")));
        refuses(&model, &["chat_template.jinja: the chat template", part, ADVICE]);
    }
}

/// The process that renders the turns of a chat is started once.
#[cfg(target_os = "linux")]
#[test]
fn one_process_renders_all_turns() {
    let model = TempFolder::model();
    model.write(TEMPLATE, template(""));
    let words = ["run", "-m", model.path().to_str().unwrap(), "--device", "cpu", "-n", "4"];
    let mut chat = command(words);
    chat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut chat = chat.spawn().unwrap();
    let children = |pid: u32| -> Vec<String> {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let of = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children"));
        let lists = threads.flatten().filter_map(|thread| of(thread).ok());
        lists
            .flat_map(|list| list.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
            .collect()
    };
    let mut stdin = chat.stdin.take().unwrap();
    let mut stdout = BufReader::new(chat.stdout.take().unwrap());
    let mut seen = Vec::new();
    for turn in ["The wind", "The rain", "The snow"] {
        writeln!(stdin, "{turn}").unwrap();
        assert!(stdout.read_line(&mut String::new()).unwrap() > 0, "{turn}: no answer");
        seen.push(children(chat.id()));
    }
    drop(stdin);
    assert!(chat.wait().unwrap().success());
    assert!(seen[0].len() == 1 && seen.iter().all(|now| *now == seen[0]), "{seen:?}");
}

#[test]
fn memory_and_time_are_bounded() {
    let model = TempFolder::model();
    let grow = |what: &str| {
        format!(
            "{{% set n = namespace(s='a', l=[0]) %}}{{% for i in range(60) %}}{what}{{% endfor %}}\
             {{{{ n.l | length }}}}"
        )
    };
    for body in [
        grow("{% set n.s = n.s ~ n.s %}"),
        grow("{% set n.s = n.s + n.s %}"),
        grow("{% set n.l = (n.l + n.l) | list %}"),
        grow("{% set n.s = n.s | replace('a', 'aa') %}"),
        grow("{% set n.s = n.s.replace('a', 'aa') %}"),
        grow("{% set n.s = [n.s, n.s] | join %}"),
        "{{ [0] * 10000000000 }}".to_owned(),
        "{{ ([0] * 10000000000) | list }}".to_owned(),
        "{{ ([0] * 10000000000) | join }}".to_owned(),
        "{{ '%1000000000d' | format(1) }}".to_owned(),
        "{{ '{:1000000000d}'.format(1) }}".to_owned(),
        "{{ 'a' | indent(1000000000, true) }}".to_owned(),
        "{{ 'a' | indent(width=1000000000, first=true) }}".to_owned(),
        "{{ {'a': 1} | tojson(indent=1000000000) }}".to_owned(),
        "{% for a in range(9999) %}{% for b in range(999) %}{{ 'x' * 1000 }}{% endfor %}{% endfor %}"
            .to_owned(),
        "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}".to_owned(),
    ] {
        model.write(TEMPLATE, template(&body));
        let words = ["-p", "Where is it?", "-n", "1"];
        refuses_with(&model, &words, &["chat_template.jinja: the chat template", ADVICE]);
    }
}

#[test]
fn what_a_template_says_or_leaves_out_is_told() {
    let model = TempFolder::model();
    model.write(TEMPLATE, "{{ raise_exception('no\u{1b}[31m\nred' ~ 'x' * 9000) }}");
    refuses(
        &model,
        &["chat_template.jinja: the model's chat template refuses this conversation: no"],
    );
    model.write(TEMPLATE, "You are helpful.");
    refuses(
        &model,
        &["chat_template.jinja: the chat template leaves out the user message", ADVICE],
    );
    model.write(TEMPLATE, "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
    assert!(!run(model.path(), &["-p", "Hi", "-n", "1"]).ok().is_empty());
    let words = ["-p", "Hi", "-n", "1", "--system", "Be brief."];
    refuses_with(&model, &words, &["the chat template leaves out the system message", ADVICE]);
    // A message may be changed as long as it is not left out.
    model.write(TEMPLATE, "{% for m in messages %}{{ m.content | upper }}{% endfor %}");
    assert!(!run(model.path(), &["-p", "Hi", "-n", "1"]).ok().is_empty());
}

#[test]
fn a_broken_template_is_no_obstacle_without_it() {
    let model = TempFolder::model();
    let plain = ["-p", "The wind", "-n", "4", "--ignore-eos", "--no-chat-template"];
    let wanted = run(model.path(), &plain).ok();
    for source in ["{% if %}", &"{% if 1 %}".repeat(5_000), "{{ 'a' * -1 }}"] {
        model.write(TEMPLATE, source);
        assert_eq!(run(model.path(), &plain).ok(), wanted);
        assert_eq!(run(model.path(), &["-p", "x", "-n", "1"]).code, Some(1));
    }
}

/// Replaces one field of a JSON file.
fn set(model: &TempFolder, file: &str, field: &str, value: serde_json::Value) {
    let text = fs::read_to_string(model.file(file)).unwrap();
    let mut json: serde_json::Value = serde_json::from_str(&text).unwrap();
    json[field] = value;
    model.write(file, json.to_string());
}

#[test]
fn tokenizers_that_contradict_themselves_are_refused() {
    use serde_json::json;
    let replace =
        json!({"type": "Replace", "pattern": {"String": "a"}, "content": "a".repeat(100)});
    let text = json!({"Sequence": {"id": "A", "type_id": 0}});
    let first = json!({"SpecialToken": {"id": "<s>", "type_id": 0}});
    for (field, value, part) in [
        (
            "normalizer",
            json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"}),
            "normalizer: Precompiled: precompiled_charsmap has only 3 bytes",
        ),
        (
            "normalizer",
            json!({"type": "Sequence", "normalizers": vec![replace; 4]}),
            "normalizer: a text could become 100000000 times as long, above the limit of 256",
        ),
        ("normalizer", json!({"type": "NFQ"}), "normalizer: type \"NFQ\" is not one of"),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single": [first, text.clone()],
                   "pair": [text.clone(), text.clone()], "special_tokens": {}}),
            "post_processor: TemplateProcessing: single names \"<s>\", which is no special token",
        ),
        (
            "post_processor",
            json!({"type": "TemplateProcessing", "single": [], "pair": [], "special_tokens": {}}),
            "single holds the text 0 times instead of once",
        ),
        ("pre_tokenizer", json!({"type": "FixedLength", "length": 0}), "length must be from 1"),
        ("model", json!({"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": []}), "have id 0"),
        ("model", json!({"type": "BPE", "vocab": {}, "merges": []}), "the vocabulary is empty"),
        ("model", json!({"type": "CPE"}), "model: type \"CPE\" is not one of BPE, Unigram"),
        ("model", json!({"type": "BPE", "vocab": {"a": 0}, "merges": 5}), "is not a tokenizer ("),
    ] {
        let model = TempFolder::model();
        set(&model, "tokenizer.json", field, value);
        refuses(&model, &["tokenizer.json: is not a tokenizer (", part, "download the file again"]);
    }
}

#[test]
fn configs_are_checked_field_by_field() {
    use serde_json::json;
    for (file, field, value, part) in [
        ("config.json", "hidden_size", json!("big"), "hidden_size is \"big\"; it must be a whole"),
        ("config.json", "vocab_size", json!(u64::MAX), "vocab_size is 18446744073709551615; it"),
        ("config.json", "eos_token_id", json!([-1]), "eos_token_id is a list of 1; it must be"),
        (
            "config.json",
            "rope_scaling",
            json!({"rope_type": "yarn", "original_max_position_embeddings": 64}),
            "factor is missing",
        ),
        ("generation_config.json", "temperature", json!("hot"), "temperature is \"hot\"; it must"),
        ("generation_config.json", "top_p", json!(7), "top_p is 7; it must be from 0 to 1"),
        ("tokenizer_config.json", "chat_template", json!(7), "chat_template is 7; it must be"),
        ("tokenizer_config.json", "bos_token", json!("<nope>\u{1b}"), "bos_token"),
    ] {
        let model = TempFolder::model();
        set(&model, file, field, value);
        if field == "bos_token" {
            set(&model, file, "add_bos_token", json!(true));
        }
        refuses(&model, &[part, ".json: "]);
    }
    let model = TempFolder::model();
    model.edit("config.json", "\"hidden_size\": 256", "\"hidden_size\": 320");
    refuses(&model, &["tensors do not fit config.json:\n", "the config gives", "\n  and "]);
}

/// The message of a run that cannot start.
#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused() {
    use std::os::unix::fs::symlink;
    use std::process::Command;
    for name in ["config.json", "tokenizer.json", "model.safetensors", TEMPLATE] {
        let model = TempFolder::model();
        let _ = fs::remove_file(model.file(name));
        symlink("/nowhere/blob", model.file(name)).unwrap();
        let link = "it is a link to /nowhere/blob, where no file is";
        refuses(&model, &[&format!("{name}: cannot be read ({link}")]);
        fs::remove_file(model.file(name)).unwrap();
        assert!(Command::new("mkfifo").arg(model.file(name)).status().unwrap().success());
        refuses(&model, &[&format!("{name}: cannot be read (it is a pipe or a device")]);
        fs::remove_file(model.file(name)).unwrap();
        symlink("/dev/zero", model.file(name)).unwrap();
        refuses(&model, &[&format!("{name}: cannot be read (it is a pipe or a device")]);
    }
}

#[test]
fn a_second_output_projection_is_refused_unless_it_is_the_same() {
    let model = TempFolder::model();
    model.edit("config.json", "\"tie_word_embeddings\": false", "\"tie_word_embeddings\": true");
    refuses(
        &model,
        &[
            "model.safetensors: lm_head.weight differs from model.embed_tokens.weight",
            "set it to false to use lm_head.weight",
        ],
    );
    let mut bytes = fs::read(model.file("model.safetensors")).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let range = |name: &str| {
        let at = |n: usize| header[name]["data_offsets"][n].as_u64().unwrap() as usize;
        8 + length + at(0)..8 + length + at(1)
    };
    bytes.copy_within(range("model.embed_tokens.weight"), range("lm_head.weight").start);
    model.write("model.safetensors", bytes);
    run(model.path(), &["-p", "The wind", "-n", "1", "--ignore-eos"]).ok();
}

#[test]
fn a_child_that_is_called_by_hand_does_nothing() {
    for words in [&["__render-template"][..], &["__render-template", "x"]] {
        let done = crate::support::longview(words);
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(1), "", ""));
    }
}
