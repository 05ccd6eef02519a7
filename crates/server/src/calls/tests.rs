//! Calls of each family of models, however an answer is cut.

use super::*;
use crate::tools::{HERMES, STYLES, TAGGED};

/// What an answer is that comes in pieces of `n` letters: its text, then its calls.
fn read_in_pieces(style: Style, answer: &str, n: usize) -> (String, Vec<(String, String)>) {
    let mut calls = Calls::new(Some(style)).typed(ToolTypes::of(&tools()));
    let letters: Vec<char> = answer.chars().collect();
    let pieces = letters.chunks(n).map(|piece| piece.iter().collect::<String>());
    let mut parts: Vec<Part> = pieces.flat_map(|piece| calls.push(&piece)).collect();
    parts.extend(calls.finish(false));
    let (mut text, mut found, mut n_ended) = (String::new(), Vec::new(), 0);
    for part in parts {
        match part {
            Part::Thought(thought) => panic!("a thought: {thought}"),
            Part::Text(more) => text += &more,
            Part::Begin(call) => {
                let is_sound = call.id.bytes().all(|b| b.is_ascii_alphanumeric());
                assert!(call.id.len() == 9 && is_sound, "{call:?}");
                found.push((call.name, String::new()));
            }
            Part::Arguments(more) => found.last_mut().expect("a call").1 += &more,
            Part::End => n_ended += 1,
        }
    }
    assert_eq!(n_ended, found.len(), "{answer}");
    (text, found)
}

/// A tool with an argument of each type.
fn tools() -> [Value; 1] {
    let types = serde_json::json!({
        "a": { "type": "string" }, "n": { "type": "integer" }, "x": { "type": "number" },
        "yes": { "type": "boolean" }, "list": { "type": "array" },
        "map": { "type": "object" }, "maybe": { "type": ["string", "null"] },
        "one": { "enum": ["b", "c"] }, "either": { "anyOf": [
            { "type": "integer" }, { "type": "string" },
        ] },
    });
    let function = serde_json::json!({ "name": "f", "parameters": { "properties": types } });
    [serde_json::json!({ "type": "function", "function": function })]
}

fn check(style: Style, answer: &str, text: &str, calls: &[(&str, &str)]) {
    let calls: Vec<_> = calls.iter().map(|(n, a)| ((*n).to_owned(), (*a).to_owned())).collect();
    for n in [1, 2, 5, 1000] {
        let found = read_in_pieces(style, answer, n);
        assert_eq!(found, (text.to_owned(), calls.clone()), "{answer} by {n}");
    }
}

#[test]
fn calls_are_found_in_the_form_of_each_family() {
    let [hermes, mistral, phi, internlm, llama] = STYLES;
    let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"é}<\"}}\n</tool_call>";
    let arguments = r#"{"a": "é}<"}"#;
    check(hermes, one, "", &[("f", arguments)]);
    let two = format!("Well.\n{one}\n{one}");
    check(hermes, &two, "Well.", &[("f", arguments), ("f", arguments)]);
    let list =
        r#"[TOOL_CALLS][{"name": "f", "arguments": {}}, {"name": "g", "arguments": {"b": 1}}]"#;
    check(mistral, list, "", &[("f", "{}"), ("g", r#"{"b": 1}"#)]);
    check(mistral, r#"So[TOOL_CALLS]f[ARGS]{"b": 1}"#, "So", &[("f", r#"{"b": 1}"#)]);
    check(mistral, r#"[TOOL_CALLS]f{"b": 1}"#, "", &[("f", r#"{"b": 1}"#)]);
    let phi_call = r#"<|tool_call|>[{"name": "f", "arguments": {}}]<|/tool_call|>"#;
    check(phi, phi_call, "", &[("f", "{}")]);
    let act = r#"I look.<|action_start|><|plugin|>{"name": "f", "parameters": {}}<|action_end|>"#;
    check(internlm, act, "I look.", &[("f", "{}")]);
    check(llama, r#"{"name": "f", "parameters": {"b": 1}}"#, "", &[("f", r#"{"b": 1}"#)]);
    let tagged = r#"<|python_tag|>{"type": "function", "name": "f", "parameters": {}}"#;
    check(llama, tagged, "", &[("f", "{}")]);
}

#[test]
fn calls_in_an_unusual_order_and_cut_off_ones_are_calls_too() {
    let [hermes, mistral, _, _, llama] = STYLES;
    let turned = "<tool_call>{\"arguments\": {\"b\": 1}, \"name\": \"f\"}</tool_call>\n";
    check(hermes, turned, "", &[("f", r#"{"b":1}"#)]);
    let text = r#"<tool_call>{"name": "f", "arguments": "{}"}</tool_call>"#;
    check(hermes, text, "", &[("f", "{}")]);
    check(llama, r#"{"parameters": {}, "name": "f"}"#, "", &[("f", "{}")]);
    let list = r#"[TOOL_CALLS][{"arguments": {}, "name": "f"}]"#;
    check(mistral, list, "", &[("f", "{}")]);
    let cut = "<tool_call>{\"name\": \"f\", \"arguments\": {\"b\": \"}";
    check(hermes, cut, "", &[("f", "{\"b\": \"}")]);
}

#[test]
fn a_call_that_is_cut_off_before_its_arguments_shows_nothing_of_its_form() {
    let [hermes, mistral, _, _, llama] = STYLES;
    let [coder, glm] = TAGGED;
    let cut = |style: Style, answer: &str| {
        let mut said = Vec::new();
        for n in [1, 3, 1000] {
            let mut calls = Calls::new(Some(style)).typed(ToolTypes::of(&tools()));
            let letters: Vec<char> = answer.chars().collect();
            let pieces = letters.chunks(n).map(|piece| piece.iter().collect::<String>());
            let mut parts: Vec<Part> = pieces.flat_map(|piece| calls.push(&piece)).collect();
            parts.extend(calls.finish(true));
            let text = parts.into_iter().map(|part| match part {
                Part::Text(text) => text,
                other => panic!("{other:?} of {answer}"),
            });
            said.push(text.collect::<String>());
        }
        said.dedup();
        assert_eq!(said.len(), 1, "{answer}: {said:?}");
        said.remove(0)
    };
    let call = "I look.\n<tool_call>\n{\"name\": \"f\", \"arguments\": ";
    for end in "I look.\n<t".len()..=call.len() {
        assert_eq!(cut(hermes, &call[..end]), "I look.", "{}", &call[..end]);
    }
    for (style, answer, text) in [
        (hermes, "So<tool_call>{\"arguments\": {\"a\": 1", "So"),
        (mistral, "So [TOOL_CALLS] [{\"na", "So"),
        (mistral, "[TOOL_CALLS]f[AR", ""),
        (llama, "{\"name\": \"f\", \"par", ""),
        (coder, "So\n<tool_call>\n<function=f", "So"),
        (coder, "So\n<function=f", "So"),
        (coder, "So\n<func", "So"),
        (glm, "<tool_call>f\n<arg_k", ""),
        // What is none, or need not be, is as it was.
        (hermes, "2 <", "2 <"),
        (hermes, "<tool_call> is a mark", "<tool_call> is a mark"),
        (llama, "{\"a\": 1", "{\"a\": 1"),
    ] {
        assert_eq!(cut(style, answer), text, "{answer}");
    }
}

#[test]
fn what_is_no_call_stays_text() {
    let [hermes, mistral, _, _, llama] = STYLES;
    for text in ["", "2 < 3", "<tool", "a <tool_call", "plain text ", "<tool_call>{\"name\": 3"] {
        check(hermes, text, text, &[]);
    }
    let broken = "<tool_call>{\"name\": \"f\"}</tool_call> and on";
    check(hermes, broken, broken, &[]);
    check(mistral, "[TOOL_CALLS] [", "[TOOL_CALLS] [", &[]);
    check(llama, "{\"a\": 1}", "{\"a\": 1}", &[]);
    check(
        llama,
        "Well {\"name\": \"f\", \"parameters\": {}}",
        "Well {\"name\": \"f\", \"parameters\": {}}",
        &[],
    );
    // A list of arguments is none.
    let listed = "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>";
    check(HERMES, listed, listed, &[]);
}

#[test]
fn arguments_between_marks_become_json() {
    let [coder, glm] = TAGGED;
    let call = "<tool_call>\n<function=f>\n<parameter=a>\nfn main() {\n    \"é\"\n}\n\n\
                </parameter>\n<parameter=n>\n3\n</parameter>\n</function>\n</tool_call>";
    let arguments = r#"{"a": "fn main() {\n    \"é\"\n}\n", "n": 3}"#;
    check(coder, call, "", &[("f", arguments)]);
    let two = format!("Well.\n\n{call}\n{call}\n");
    check(coder, &two, "Well.", &[("f", arguments), ("f", arguments)]);
    let none = "<tool_call>\n<function=g>\n</function>\n</tool_call>";
    check(coder, none, "", &[("g", "{}")]);
    let pairs = "I look.<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1 < 2</arg_value>\n\
                 <arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>";
    check(glm, pairs, "I look.", &[("f", r#"{"a": "1 < 2", "n": 3}"#)]);
    let close = "<tool_call>f<arg_key>a</arg_key><arg_value> b\n</arg_value></tool_call>";
    check(glm, close, "", &[("f", r#"{"a": " b\n"}"#)]);
    check(glm, "<tool_call>g\n</tool_call>", "", &[("g", "{}")]);
    // What they are held to with tool_choice is JSON.
    for style in TAGGED {
        let json = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\": 3}}\n</tool_call>";
        check(style, json, "", &[("f", r#"{"n": 3}"#)]);
    }
}

#[test]
fn values_between_marks_have_the_types_of_the_tool() {
    let [coder, glm] = TAGGED;
    for (key, value, json) in [
        ("a", "3", r#""3""#),
        ("a", "null", r#""null""#),
        ("n", "3", "3"),
        ("n", "three", r#""three""#),
        ("n", "123456789012345678901234567890", "123456789012345678901234567890"),
        ("x", "-2.50", "-2.50"),
        ("x", "1e999", r#""1e999""#),
        ("yes", "True", "true"),
        ("yes", "false", "false"),
        ("list", r#"["a", 1]"#, r#"["a", 1]"#),
        ("map", r#"{"b": [true]}"#, r#"{"b": [true]}"#),
        ("map", "{'b': 1}", r#""{'b': 1}""#),
        ("maybe", "null", "null"),
        ("maybe", "7", r#""7""#),
        ("one", "b", r#""b""#),
        ("either", "7", "7"),
        ("either", "seven", r#""seven""#),
        // Nothing is known of these.
        ("other", "7", "7"),
        ("other", "a b", r#""a b""#),
        ("other", r#""a""#, r#""a""#),
    ] {
        let arguments = format!("{{\"{key}\": {json}}}");
        let call = format!(
            "<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n</parameter>\n\
             </function>\n</tool_call>"
        );
        check(coder, &call, "", &[("f", &arguments)]);
        let call = format!(
            "<tool_call>f\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n\
             </tool_call>"
        );
        check(glm, &call, "", &[("f", &arguments)]);
    }
}

#[test]
fn marks_that_models_leave_out_are_not_missed() {
    let [coder, glm] = TAGGED;
    let bare = "Let me see.\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>";
    check(coder, bare, "Let me see.", &[("f", r#"{"n": 3}"#)]);
    check(coder, &format!("{bare}\n</tool_call>"), "Let me see.", &[("f", r#"{"n": 3}"#)]);
    let ends = "<tool_call> <function=f>\n<parameter=a> b/*.json  <parameter=n>3</tool_call>";
    check(coder, ends, "", &[("f", r#"{"a": " b/*.json  ", "n": 3}"#)]);
    let unended = "<tool_call><function=f><parameter=n>3</parameter>";
    check(coder, unended, "", &[("f", r#"{"n": 3}"#)]);
    let twice = "<tool_call><function=f><parameter=a>b</parameter><parameter=a>c</parameter>\
                 <parameter=n>3</parameter></function></tool_call>";
    check(coder, twice, "", &[("f", r#"{"a": "b", "n": 3}"#)]);
    let between = "<tool_call><function=f>so <parameter=\n<parameter=n>3</parameter> </function>";
    check(coder, between, "", &[("f", r#"{"n": 3}"#)]);
    // Cut off: what came is there, and does not look complete.
    let cut = "<tool_call><function=f><parameter=a>\nbegun\n";
    check(coder, cut, "", &[("f", "{\"a\": \"begun\\n")]);
    check(coder, "<tool_call><function=f><parameter=n>12", "", &[("f", "{\"n\": ")]);
    let cut = "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>be</arg_v";
    check(glm, cut, "", &[("f", "{\"a\": \"be</arg_v")]);
}

#[test]
fn what_is_no_call_between_marks_stays_text() {
    let [coder, glm] = TAGGED;
    for text in [
        "<tool_call>\n<function=>\n</tool_call> and on",
        "<tool_call>nothing</tool_call>",
        "<tool_call> [1, 2] </tool_call>",
        "<tool_call>\n<function=f",
        "<tool_call>",
        "a <tool_ca",
        "The mark \n <function=other> of no tool",
        "<function= f",
        " <function",
        "<parameter=a>b</parameter>",
    ] {
        check(coder, text, text, &[]);
    }
    for text in [
        "<tool_call>nothing at all</tool_call> and on",
        "<tool_call>f <arg_val>x</tool_call>",
        "<tool_call>\n</tool_call>",
        "<tool_call>f\n<arg_k",
        "<arg_key>a</arg_key>",
    ] {
        check(glm, text, text, &[]);
    }
}

#[test]
fn texts_between_marks_go_out_as_they_come() {
    let [coder, _] = TAGGED;
    let mut calls = Calls::new(Some(coder)).typed(ToolTypes::of(&tools()));
    let begun = calls.push("<tool_call>\n<function=f>");
    assert!(matches!(&begun[..], [Part::Begin(call)] if call.name == "f"), "{begun:?}");
    let arguments = |text: &str| [Part::Arguments(text.to_owned())];
    assert_eq!(calls.push("<parameter=a>\nfn"), arguments("{\"a\": \"fn"));
    assert_eq!(calls.push(" main\n"), arguments(" main"));
    assert_eq!(calls.push("{}</par"), arguments("\\n{}"));
    assert_eq!(calls.push("ameter>"), arguments("\""));
    assert_eq!(calls.push("<parameter=n>4"), arguments(", \"n\": "));
    assert_eq!(calls.push("2\n</parameter>"), arguments("42"));
    let end = [Part::Arguments("}".to_owned()), Part::End];
    assert_eq!(calls.push("\n</function>"), end);
    assert_eq!((calls.push("\n</tool_call>"), calls.finish(false)), (vec![], vec![]));
}

/// Any bytes that a model may write end as text or as calls.
#[test]
fn nothing_that_is_written_makes_it_fail() {
    let words = [
        "<tool_call>",
        "</tool_call>",
        "<function=f>",
        "<function=",
        "</function>",
        "<parameter=a>",
        "<parameter=n>",
        "<parameter=",
        "</parameter>",
        "f",
        "\n",
        "3",
        "é",
        "\"",
        "{",
        "}",
        "<arg_key>",
        "</arg_key>",
        "<arg_value>",
        "</arg_value>",
        "<",
        ">",
    ];
    let mut rng = longview_core::SplitMix64::new(9);
    for _ in 0..4_000 {
        let n = 1 + rng.next_u64() as usize % 12;
        let answer: String = (0..n).map(|_| words[rng.next_u64() as usize % words.len()]).collect();
        for style in TAGGED {
            let whole = read_in_pieces(style, &answer, 1000);
            assert_eq!(read_in_pieces(style, &answer, 1), whole, "{answer:?}");
        }
    }
}

#[test]
fn text_and_arguments_go_out_before_a_call_is_complete() {
    let mut calls = Calls::new(Some(HERMES));
    assert_eq!(calls.push("Let me see. <tool"), [Part::Text("Let me see.".to_owned())]);
    assert_eq!(calls.push("s are"), [Part::Text(" <tools are".to_owned())]);
    let mut calls = Calls::new(Some(HERMES));
    let begun = calls.push("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"");
    assert!(matches!(&begun[0], Part::Begin(call) if call.name == "f"), "{begun:?}");
    assert_eq!(begun[1..], [Part::Arguments("{\"a\"".to_owned())]);
    assert_eq!(calls.push(": [{}]"), [Part::Arguments(": [{}]".to_owned())]);
    assert_eq!(calls.push("}}"), [Part::Arguments("}".to_owned()), Part::End]);
    assert_eq!(calls.push("</tool_call>"), []);
    assert_eq!(calls.finish(false), []);
    let mut none = Calls::new(None);
    assert_eq!(none.push("<tool_call>"), [Part::Text("<tool_call>".to_owned())]);
}
