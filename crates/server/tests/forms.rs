//! The forms of other APIs: Anthropic's messages, OpenAI's responses, and calls of tools in all.

use serde_json::{Value, json};

use crate::support::{Answer, document, expected, facts_of_model, serve, serve_template};
use longview_server::{ApiKey, ServerOptions};

/// The events of a stream whose events have names, which are those that their data says.
fn named(answer: &Answer) -> Vec<Value> {
    let parts = answer.body.split("\n\n").filter(|part| part.starts_with("event: "));
    let read = |part: &str| {
        let (name, data) = part.split_once('\n').expect("two lines");
        let data = data.strip_prefix("data: ").expect("data");
        let data: Value = serde_json::from_str(data).expect("JSON");
        assert_eq!(name, format!("event: {}", data["type"].as_str().expect("a type")));
        data
    };
    parts.map(read).collect()
}

fn kinds(events: &[Value]) -> Vec<&str> {
    let mut kinds: Vec<&str> = events.iter().map(|e| e["type"].as_str().expect("one")).collect();
    kinds.dedup();
    kinds
}

fn weather() -> Value {
    json!({
        "type": "object",
        "properties": { "city": { "enum": ["Bern", "Rome"] }, "days": { "type": "integer",
            "minimum": 1, "maximum": 9 } },
        "required": ["city", "days"],
        "additionalProperties": false,
    })
}

#[test]
fn messages_answer_in_anthropics_form() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(30, 3);
    let mut body = json!({
        "model": "needle",
        "max_tokens": 40,
        "system": [{ "type": "text", "text": "It was.", "cache_control": { "type": "ephemeral" } }],
        "messages": [{ "role": "user", "content": [
            { "type": "text", "text": text },
            { "type": "text", "text": facts[0].question },
        ] }],
    });
    let first = served.post("/v1/messages", &body).json();
    assert_eq!((&first["type"], &first["role"]), (&json!("message"), &json!("assistant")));
    let said = first["content"][0]["text"].as_str().expect("a text").to_owned();
    assert!(said.contains(expected(&facts[0]).trim()), "{first}");
    let count = served.post("/v1/messages/count_tokens", &body).json();
    assert_eq!(first["usage"]["input_tokens"], count["input_tokens"], "nothing was known");
    assert_eq!(first["usage"]["cache_read_input_tokens"], 0);
    // Again in a stream: the same text, and all but the last token is known.
    body["stream"] = json!(true);
    let answer = served.post("/v1/messages", &body);
    let events = named(&answer);
    let start = &events[0]["message"]["usage"];
    assert_eq!(start["input_tokens"], 1, "{start}");
    assert_eq!(
        start["cache_read_input_tokens"].as_u64(),
        count["input_tokens"].as_u64().map(|n| n - 1)
    );
    let deltas = events.iter().filter_map(|e| e["delta"]["text"].as_str());
    assert_eq!(deltas.collect::<String>(), said);
    let order = [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ];
    assert_eq!(kinds(&events), order, "{answer:?}");
    assert!(!answer.body.contains("[DONE]"));
    let last = &events[events.len() - 2];
    assert_eq!(last["usage"]["output_tokens"], first["usage"]["output_tokens"]);
    // It ends by a text, and goes on with what the assistant has begun to say.
    body["stream"] = json!(false);
    body["stop_sequences"] = json!(["."]);
    let stopped = served.post("/v1/messages", &body).json();
    assert_eq!(stopped["stop_reason"], "stop_sequence", "{stopped}");
    assert_eq!(stopped["stop_sequence"], ".");
    let begun = said.split_at(said.find(' ').expect("words")).0.to_owned();
    let turns = body["messages"].as_array_mut().expect("a list");
    turns.push(json!({ "role": "assistant", "content": begun }));
    let more = served.post("/v1/messages/count_tokens", &body).json();
    assert!(more["input_tokens"].as_u64() > count["input_tokens"].as_u64(), "{more}");
    body["max_tokens"] = json!(1);
    let cut = served.post("/v1/messages", &body).json();
    assert_eq!(cut["stop_reason"], "max_tokens", "{cut}");
}

#[test]
fn messages_are_refused_in_anthropics_form() {
    let options = ServerOptions {
        api_keys: vec![ApiKey::parse("secret").expect("a key")],
        ..ServerOptions::default()
    };
    let served = serve(options);
    let ask = |key: &str, body: &Value| {
        served.ask("POST", "/v1/messages", &[("x-api-key", key)], &body.to_string())
    };
    let kind = |answer: &Answer| {
        let json = answer.json();
        assert_eq!(json["type"], "error", "{json}");
        (answer.status, json["error"]["type"].as_str().unwrap_or_default().to_owned())
    };
    let turn = json!([{ "role": "user", "content": "A" }]);
    assert_eq!(kind(&ask("wrong", &json!({}))), (401, "authentication_error".to_owned()));
    let other = json!({ "model": "claude", "max_tokens": 1, "messages": turn });
    assert_eq!(kind(&ask("secret", &other)), (404, "not_found_error".to_owned()));
    for (body, param) in [
        (json!({ "messages": turn }), "max_tokens"),
        (json!({ "max_tokens": 0.5, "messages": turn }), "max_tokens"),
        (json!({ "max_tokens": 1 }), "messages"),
        (json!({ "max_tokens": 1, "messages": [] }), "messages"),
        (json!({ "max_tokens": 1, "messages": turn, "system": 3 }), "system"),
        (json!({ "max_tokens": 1, "messages": turn, "stop_sequences": 3 }), "stop_sequences"),
        (
            json!({ "max_tokens": 1, "messages": turn, "tools": [{ "name": "a b" }] }),
            "tools[0].name",
        ),
        (
            json!({ "max_tokens": 1, "messages": turn, "tools": [{ "type": "bash_1" }] }),
            "tools[0].type",
        ),
        (
            json!({ "max_tokens": 1, "messages": turn, "tool_choice": { "type": "any" } }),
            "tool_choice",
        ),
        (
            json!({ "max_tokens": 1, "messages": turn, "thinking": { "type": "enabled" } }),
            "thinking",
        ),
        (
            json!({ "max_tokens": 1, "messages": [{ "role": "system", "content": "" }] }),
            "messages[0].role",
        ),
        (
            json!({ "max_tokens": 1, "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }),
            "messages[0].content[0].type",
        ),
    ] {
        let answer = ask("secret", &body);
        assert_eq!(kind(&answer), (400, "invalid_request_error".to_owned()), "{body}");
        assert_eq!(answer.json()["error"]["param"], param, "{answer:?}");
    }
    // Who does not keep up is told in a stream as elsewhere.
    let long = "a quiet day ".repeat(3000);
    let long = json!({ "max_tokens": 1, "stream": true, "messages": [{ "role": "user", "content": long }] });
    assert_eq!(ask("secret", &long).code(), "context_length_exceeded");
}

#[test]
fn responses_answer_in_openais_newer_form() {
    let served = serve(ServerOptions::default());
    let (text, facts) = document(30, 3);
    let mut body = json!({
        "model": "needle",
        "instructions": "It was.",
        "input": format!("{text}{}", facts[0].question),
        "max_output_tokens": 40,
        "store": true,
    });
    let first = served.post("/v1/responses", &body).json();
    assert_eq!((&first["object"], &first["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(first["store"], false, "nothing is kept");
    let said = first["output"][0]["content"][0]["text"].as_str().expect("a text").to_owned();
    assert!(said.contains(expected(&facts[0]).trim()), "{first}");
    assert_eq!(first["usage"]["input_tokens_details"]["cached_tokens"], 0);
    // The same as items, in a stream.
    body["input"] = json!([{ "role": "user", "content": [
        { "type": "input_text", "text": text }, { "type": "input_text", "text": facts[0].question },
    ] }]);
    body["stream"] = json!(true);
    let answer = served.post("/v1/responses", &body);
    let events = named(&answer);
    let order = [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ];
    assert_eq!(kinds(&events), order, "{answer:?}");
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i, "{event}");
    }
    let deltas = events.iter().filter(|e| e["type"] == "response.output_text.delta");
    assert_eq!(deltas.filter_map(|e| e["delta"].as_str()).collect::<String>(), said);
    let last = &events[events.len() - 1]["response"];
    assert_eq!(last["output"][0]["content"][0]["text"], said);
    let n = last["usage"]["input_tokens"].as_u64().expect("a number");
    assert_eq!(last["usage"]["input_tokens_details"]["cached_tokens"], n - 1);
    // Cut off by its limit, and held to a form.
    let cut = json!({ "input": "It was", "max_output_tokens": 1 });
    let cut = served.post("/v1/responses", &cut).json();
    assert_eq!(cut["status"], "incomplete", "{cut}");
    assert_eq!(cut["incomplete_details"]["reason"], "max_output_tokens");
    let schema = json!({ "type": "integer", "minimum": 3, "maximum": 5 });
    let format = json!({ "format": { "type": "json_schema", "name": "n", "schema": schema } });
    let held = served.post("/v1/responses", &json!({ "input": "It was", "text": format })).json();
    let held = held["output"][0]["content"][0]["text"].as_str().expect("a text").to_owned();
    assert!(["3", "4", "5"].contains(&held.as_str()), "{held}");
    for (field, param) in [
        (json!({ "input": 3 }), "input"),
        (json!({ "input": [] }), "input"),
        (json!({ "input": [{ "type": "item_reference" }] }), "input[0].type"),
        (json!({ "input": [{ "role": "robot", "content": "a" }] }), "input[0].role"),
        (json!({ "input": "a", "previous_response_id": "resp_1" }), "previous_response_id"),
        (json!({ "input": "a", "conversation": "conv_1" }), "conversation"),
        (json!({ "input": "a", "background": true }), "background"),
        (json!({ "input": "a", "truncation": "auto" }), "truncation"),
        (json!({ "input": "a", "text": 1 }), "text"),
        (json!({ "input": "a", "text": { "format": { "type": "xml" } } }), "text.format"),
        (json!({ "input": "a", "tools": [{ "type": "web_search" }] }), "tools[0].type"),
    ] {
        let answer = served.post("/v1/responses", &field);
        assert_eq!(answer.status, 400, "{field}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{answer:?}");
    }
}

#[test]
fn a_tool_that_must_be_called_is_called_in_each_form() {
    let served = serve(ServerOptions::default());
    let is_sound = |name: &Value, arguments: &Value| {
        assert_eq!(name, "get_weather");
        assert!(arguments["city"] == "Bern" || arguments["city"] == "Rome", "{arguments}");
        assert!(arguments["days"].as_u64().is_some_and(|n| (1..=9).contains(&n)), "{arguments}");
    };
    let read = |text: &Value| -> Value {
        serde_json::from_str(text.as_str().expect("a text")).expect("JSON")
    };
    let function = json!({ "name": "get_weather", "parameters": weather() });
    let mut chat = json!({
        "messages": [{ "role": "user", "content": "How is it?" }],
        "tools": [{ "type": "function", "function": function }],
        "tool_choice": "required",
        "temperature": 2.0,
        "seed": 0,
    });
    let answer = served.post("/v1/chat/completions", &chat).json();
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
    assert!(choice["message"]["content"].is_null(), "{answer}");
    let call = &choice["message"]["tool_calls"][0];
    is_sound(&call["function"]["name"], &read(&call["function"]["arguments"]));
    // The result goes back with the call, and both are part of the next prompt.
    let result = json!({ "role": "tool", "tool_call_id": call["id"], "content": "sun" });
    let mut next = chat.clone();
    next["tool_choice"] = json!("none");
    next["max_tokens"] = json!(4);
    next["messages"].as_array_mut().expect("a list").extend([choice["message"].clone(), result]);
    let next = served.post("/v1/chat/completions", &next);
    assert_eq!(next.status, 200, "{next:?}");
    assert!(next.json()["choices"][0]["message"]["tool_calls"].is_null(), "{next:?}");
    // In a stream, and by name.
    chat["stream"] = json!(true);
    chat["tool_choice"] = json!({ "type": "function", "function": { "name": "get_weather" } });
    let events = served.post("/v1/chat/completions", &chat).events();
    let of = |key: &str| {
        let deltas = events.iter().map(|e| &e["choices"][0]["delta"]["tool_calls"][0]["function"]);
        json!(deltas.filter_map(|f| f[key].as_str()).collect::<String>())
    };
    is_sound(&of("name"), &read(&of("arguments")));
    let ends = events.iter().filter_map(|e| e["choices"][0]["finish_reason"].as_str());
    assert_eq!(ends.collect::<Vec<_>>(), ["tool_calls"]);
    // Anthropic's form.
    let mut body = json!({
        "max_tokens": 100,
        "messages": [{ "role": "user", "content": "How is it?" }],
        "tools": [{ "name": "get_weather", "input_schema": weather() }],
        "tool_choice": { "type": "any" },
    });
    let answer = served.post("/v1/messages", &body).json();
    assert_eq!(answer["stop_reason"], "tool_use", "{answer}");
    is_sound(&answer["content"][0]["name"], &answer["content"][0]["input"]);
    let result = json!([{
        "type": "tool_result", "tool_use_id": answer["content"][0]["id"], "content": "sun",
    }]);
    let mut next = body.clone();
    next["tool_choice"] = json!({ "type": "none" });
    next["messages"].as_array_mut().expect("a list").extend([
        json!({ "role": "assistant", "content": answer["content"] }),
        json!({ "role": "user", "content": result }),
    ]);
    assert_eq!(served.post("/v1/messages", &next).status, 200);
    body["stream"] = json!(true);
    let events = named(&served.post("/v1/messages", &body));
    let start = events.iter().find(|e| e["content_block"]["type"] == "tool_use").expect("one");
    let parts = events.iter().filter_map(|e| e["delta"]["partial_json"].as_str());
    is_sound(&start["content_block"]["name"], &read(&json!(parts.collect::<String>())));
    // Responses.
    let mut body = json!({
        "input": "How is it?",
        "tools": [{ "type": "function", "name": "get_weather", "parameters": weather() }],
        "tool_choice": "required",
    });
    let answer = served.post("/v1/responses", &body).json();
    let call = answer["output"][0].clone();
    assert_eq!(call["type"], "function_call", "{answer}");
    is_sound(&call["name"], &read(&call["arguments"]));
    let output =
        json!({ "type": "function_call_output", "call_id": call["call_id"], "output": "sun" });
    let next = json!({
        "input": [{ "role": "user", "content": "How is it?" }, call, output],
        "max_output_tokens": 4,
    });
    assert_eq!(served.post("/v1/responses", &next).status, 200);
    body["stream"] = json!(true);
    let events = named(&served.post("/v1/responses", &body));
    let done = events.iter().find(|e| e["type"] == "response.function_call_arguments.done");
    is_sound(&json!("get_weather"), &read(&done.expect("one")["arguments"]));
}

#[test]
fn tools_that_are_none_are_refused_by_name() {
    let served = serve(ServerOptions::default());
    let tool = |function: Value| json!([{ "type": "function", "function": function }]);
    let many: Vec<Value> = (0..129)
        .map(|i| json!({ "type": "function", "function": { "name": format!("f{i}") } }))
        .collect();
    for (field, param) in [
        (json!({ "tools": 3 }), "tools"),
        (json!({ "tools": many }), "tools"),
        (json!({ "tools": [{ "type": "custom" }] }), "tools[0].type"),
        (json!({ "tools": tool(json!({})) }), "tools[0].name"),
        (json!({ "tools": tool(json!({ "name": "a\"b" })) }), "tools[0].name"),
        (
            json!({ "tools": tool(json!({ "name": "a", "description": 3 })) }),
            "tools[0].description",
        ),
        (json!({ "tools": tool(json!({ "name": "a", "parameters": 3 })) }), "tools[0].parameters"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tool_choice": "maybe" }), "tool_choice"),
        (
            json!({ "tools": tool(json!({ "name": "a" })),
                "tool_choice": { "type": "function", "function": { "name": "b" } } }),
            "tool_choice",
        ),
        (
            json!({ "tools": tool(json!({ "name": "a" })), "tool_choice": "required",
                "response_format": { "type": "json_object" } }),
            "tool_choice",
        ),
        (
            json!({ "tools": tool(json!({ "name": "a", "parameters": { "type": "bug" } })),
                "tool_choice": "required" }),
            "tools",
        ),
        (json!({ "parallel_tool_calls": "no" }), "parallel_tool_calls"),
        (
            json!({ "messages": [{ "role": "user", "content": "a", "tool_calls": [] }] }),
            "messages[0].tool_calls",
        ),
        (
            json!({ "messages": [{ "role": "assistant", "tool_calls": [{}] }] }),
            "messages[0].tool_calls[0].function.name",
        ),
    ] {
        let mut body = json!({ "messages": [{ "role": "user", "content": "a" }] });
        for (name, value) in field.as_object().expect("an object") {
            body[name] = value.clone();
        }
        let answer = served.post("/v1/chat/completions", &body);
        assert_eq!(answer.status, 400, "{field}: {answer:?}");
        assert_eq!(answer.json()["error"]["param"], param, "{answer:?}");
    }
}

const CODER: &str = "{% for t in tools %}{{ t | tojson }}{% endfor %}\
    {% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}<tool_call>\n\
    <function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}\
    <parameter={{ k }}>\n{{ v }}\n</parameter>\n{% endfor %}</function>\n</tool_call>\
    {% endfor %}{% endfor %}";
const GLM: &str = "{% for t in tools %}{{ t | tojson }}{% endfor %}\
    {% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}\n<tool_call>\
    {{ c.function.name }}\n{% for k, v in c.function.arguments | items %}\
    <arg_key>{{ k }}</arg_key>\n<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>\
    {% endfor %}{% endfor %}";

/// The embedded model calls no tools: it is held to calls as these families write them.
#[test]
fn calls_between_marks_are_those_of_each_endpoint() {
    let coder = r#"root ::= "I look.\n\n<tool_call>\n<function=weather>\n<parameter=city>\nBern\n\
                   </parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>""#;
    let glm = r#"root ::= "I look.\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern\
                 </arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>""#;
    let wanted = json!({ "city": "Bern", "days": 3 });
    for (family, template, grammar) in [("coder", CODER, coder), ("glm", GLM, glm)] {
        let served = serve_template(template);
        let grammar = grammar.replace("\\\n", "").replace("                   ", "");
        let grammar = grammar.replace("                 ", "");
        let function = json!({ "name": "weather", "parameters": weather() });
        let mut chat = json!({
            "messages": [{ "role": "user", "content": "How is it?" }], "grammar": grammar,
            "tools": [{ "type": "function", "function": function }], "max_tokens": 300,
        });
        let answer = served.post("/v1/chat/completions", &chat).json();
        let (choice, message) = (&answer["choices"][0], &answer["choices"][0]["message"]);
        assert_eq!(choice["finish_reason"], "tool_calls", "{family} {answer}");
        let call = &message["tool_calls"][0]["function"];
        assert_eq!((&message["content"], &call["name"]), (&json!("I look."), &json!("weather")));
        assert_eq!(call["arguments"], r#"{"city": "Bern", "days": 3}"#);
        assert_eq!(message["tool_calls"].as_array().map(Vec::len), Some(1));
        chat["stream"] = json!(true);
        let events = served.post("/v1/chat/completions", &chat).events();
        let deltas = events.iter().map(|event| &event["choices"][0]["delta"]["tool_calls"][0]);
        let parts: Vec<_> =
            deltas.filter_map(|delta| delta["function"]["arguments"].as_str()).collect();
        assert_eq!(parts.concat(), r#"{"city": "Bern", "days": 3}"#);
        assert!(parts.len() > 3, "{parts:?}");
        // The call goes back as the model wrote it.
        let turns = json!({ "messages": [
            { "role": "user", "content": "How is it?" }, message, { "role": "tool", "content": "x" },
        ] });
        let prompt = served.post("/apply-template", &turns).json()["prompt"].to_string();
        let marks = if family == "glm" { "<arg_value>3</arg_value>" } else { "<parameter=days>" };
        assert!(prompt.contains(marks), "{prompt}");
        let tool = json!({ "name": "weather", "input_schema": weather() });
        let mut turns = json!({
            "messages": chat["messages"], "grammar": grammar, "tools": [tool], "max_tokens": 300,
        });
        let answer = served.post("/v1/messages", &turns).json();
        let content = &answer["content"];
        assert_eq!((&content[0]["text"], &content[1]["input"]), (&json!("I look."), &wanted));
        turns["stream"] = json!(true);
        let events = named(&served.post("/v1/messages", &turns));
        let parts = events.iter().filter_map(|event| event["delta"]["partial_json"].as_str());
        let arguments: Value = serde_json::from_str(&parts.collect::<String>()).expect("JSON");
        assert_eq!(arguments, wanted);
        let tool = json!({ "type": "function", "name": "weather", "parameters": weather() });
        let items = json!({ "input": "How is it?", "grammar": grammar, "tools": [tool] });
        let answer = served.post("/v1/responses", &items).json();
        let call = &answer["output"][1];
        assert_eq!((&call["type"], &call["name"]), (&json!("function_call"), &json!("weather")));
        assert_eq!(call["arguments"], r#"{"city": "Bern", "days": 3}"#);
    }
}

/// How published templates of these families tell of tools and of calls, in short.
const TEMPLATES: [(&str, &str); 7] = [
    ("Qwen3-Coder", CODER),
    ("GLM-4.5", GLM),
    (
        "Qwen",
        "{% for t in tools %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}\
        {% for c in m.tool_calls %}<tool_call>{{ c.function | tojson }}</tool_call>{% endfor %}\
        {% endfor %}",
    ),
    (
        "Mistral",
        "[AVAILABLE_TOOLS]{{ tools | tojson }}{% for m in messages %}{% if m.tool_calls %}\
        {% if m.tool_calls[0].id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}\
        [TOOL_CALLS]{{ m.tool_calls | tojson }}{% else %}{{ m.content }}{% endif %}{% endfor %}",
    ),
    (
        "Phi",
        "<|tool|>{{ tools | tojson }}<|/tool|>{% for m in messages %}{{ m.content }}\
        {% if m.tool_calls %}<|tool_call|>{{ m.tool_calls | tojson }}{% endif %}{% endfor %}",
    ),
    (
        "InternLM",
        "{{ tools | tojson }}{% for m in messages %}{{ m.content }}\
        {% if m.tool_calls %}<|action_start|><|plugin|>{% endif %}{% endfor %}",
    ),
    (
        "Llama",
        "{{ tools | tojson }} Respond with {\"name\": function name, \"parameters\": \
        dictionary}.{% for m in messages %}{{ m.content }}{% if m.tool_calls %}\
        {{ m.tool_calls[0].function.arguments.city }}{% endif %}{% endfor %}",
    ),
];

#[test]
fn calls_are_written_and_read_in_the_form_of_the_template() {
    let function = json!({ "name": "get_weather", "parameters": weather() });
    let mut body = json!({
        "messages": [{ "role": "user", "content": "How is it?" }],
        "tools": [{ "type": "function", "function": function }],
        "tool_choice": "required",
        "temperature": 2.0,
        "seed": 0,
    });
    for (family, template) in TEMPLATES {
        let served = serve_template(template);
        let prompt = served.post("/apply-template", &body).json();
        let prompt = prompt["prompt"].as_str().expect("a text");
        assert!(
            prompt.contains("get_weather") && prompt.contains("How is it?"),
            "{family} {prompt}"
        );
        for stream in [false, true] {
            body["stream"] = json!(stream);
            let answer = served.post("/v1/chat/completions", &body);
            assert_eq!(answer.status, 200, "{family} {answer:?}");
            let message = if stream {
                let events = answer.events();
                let deltas = events.iter().map(|e| &e["choices"][0]["delta"]["tool_calls"][0]);
                let deltas: Vec<&Value> = deltas.filter(|call| call.is_object()).collect();
                assert!(deltas.len() > 2 && deltas.iter().all(|call| call["index"] == 0));
                let parts = deltas.iter().filter_map(|d| d["function"]["arguments"].as_str());
                let arguments: String = parts.collect();
                let mut call = deltas[0].clone();
                call["function"]["arguments"] = json!(arguments);
                json!({ "tool_calls": [call] })
            } else {
                answer.json()["choices"][0]["message"].clone()
            };
            let call = &message["tool_calls"][0];
            let arguments = call["function"]["arguments"].as_str();
            let arguments = arguments.unwrap_or_else(|| panic!("{family} {answer:?}"));
            let arguments: Value = serde_json::from_str(arguments).expect("JSON");
            assert!(arguments["days"].as_u64().is_some_and(|n| n <= 9), "{family} {arguments}");
            // The call goes back through the template, with its arguments as a value.
            let mut after = body.clone();
            after["messages"].as_array_mut().expect("a list").extend([
                json!({ "role": "assistant", "content": null, "tool_calls": [call] }),
                json!({ "role": "tool", "tool_call_id": call["id"], "content": "sun and wind" }),
            ]);
            let prompt = served.post("/apply-template", &after).json();
            let prompt = prompt["prompt"].as_str().unwrap_or_else(|| panic!("{family} {prompt}"));
            assert!(prompt.contains("sun and wind"), "{family} {prompt}");
            assert!(!prompt.contains("\\\"city"), "{family}: no JSON within JSON: {prompt}");
        }
    }
}

#[test]
fn several_calls_are_told_apart_and_a_template_without_tools_is_told_in_a_message() {
    let served = serve(ServerOptions::default());
    let function = json!({ "name": "f", "parameters": { "type": "object", "properties": {},
        "additionalProperties": false } });
    let body = json!({
        "messages": [{ "role": "system", "content": "Be brief." },
            { "role": "user", "content": "Go on." }],
        "tools": [{ "type": "function", "function": function }],
        "tool_choice": "required",
        "parallel_tool_calls": true,
        "temperature": 4.0,
        "seed": 3,
        "max_tokens": 400,
    });
    let prompt = served.post("/apply-template", &body).json();
    let prompt = prompt["prompt"].as_str().expect("a text");
    assert!(prompt.contains("Be brief.\n\nYou may call these tools"), "{prompt}");
    let answer = served.post("/v1/chat/completions", &body).json();
    let calls = answer["choices"][0]["message"]["tool_calls"].as_array().expect("a list");
    assert!(calls.iter().all(|call| call["function"]["name"] == "f"), "{answer}");
    let mut ids: Vec<_> = calls.iter().map(|call| call["id"].as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), calls.len(), "each has an id of its own: {answer}");
}

#[test]
fn tokens_of_an_answer_are_said_where_they_are_wanted() {
    let served = serve(ServerOptions::default());
    let asked = |stream: bool| {
        json!({ "prompt": "It was a plain day.", "max_tokens": 12, "temperature": 0,
                "return_token_ids": true, "stream": stream })
    };
    let whole = served.post("/v1/completions", &asked(false)).json();
    let choice = &whole["choices"][0];
    let ids = |list: &Value| -> Vec<u32> {
        let list = list.as_array().expect("a list").iter();
        list.map(|id| id.as_u64().expect("a number") as u32).collect()
    };
    let all = ids(&choice["token_ids"]);
    assert_eq!(all.len() as u64, whole["usage"]["completion_tokens"].as_u64().expect("a number"));
    let text = facts_of_model().tokenizer.decode(&all, true).expect("a text");
    assert_eq!(text, choice["text"].as_str().expect("a text"));
    // In a stream each is sent as it comes, also where its text has to wait.
    let events = served.post("/v1/completions", &asked(true)).events();
    let parts = events.iter().filter_map(|event| event["choices"][0].get("token_ids"));
    let parts: Vec<Vec<u32>> = parts.map(ids).collect();
    assert!(parts.iter().all(|part| !part.is_empty()), "{parts:?}");
    assert_eq!(parts.concat(), all);
    // Nobody else gets any.
    let plain = served.post("/v1/completions", &json!({ "prompt": "A", "max_tokens": 2 })).json();
    assert!(plain["choices"][0].get("token_ids").is_none());
}
