//! Turns of a conversation as a template reads them that knows less than the client says.

use serde_json::{Value, json};

use crate::support::{Served, serve_template};

/// Knows texts by roles, and nothing of tools.
const PLAIN: &str = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}";
/// Knows the role as well.
const DEVELOPER: &str = "{% for m in messages %}{% if m.role == 'developer' %}[!]{% endif %}[{{ m.role }}]\
     {{ m.content }}{% endfor %}";

fn applied(served: &Served, body: &Value) -> String {
    let answer = served.post("/apply-template", body);
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()["prompt"].as_str().expect("a text").to_owned()
}

#[test]
fn the_developer_is_the_system_where_the_template_knows_none() {
    let function = json!({ "name": "f", "parameters": { "type": "object" } });
    let mut body = json!({ "messages": [
        { "role": "developer", "content": "Be brief." }, { "role": "user", "content": "Go on." },
    ] });
    let served = serve_template(PLAIN);
    assert_eq!(applied(&served, &body), "[system]Be brief.\n[user]Go on.\n");
    body["tools"] = json!([{ "type": "function", "function": function }]);
    let prompt = applied(&served, &body);
    assert!(prompt.starts_with("[system]Be brief.\n\nYou may call these tools"), "{prompt}");
    assert_eq!(prompt.matches("[system]").count(), 1, "{prompt}");
    // It is the same in all endpoints.
    let n_tokens = |path: &str, body: &Value, counted: &str| {
        let answer = served.post(path, body).json();
        answer["usage"][counted].as_u64().unwrap_or_else(|| panic!("{path} {answer}"))
    };
    body["max_tokens"] = json!(1);
    let chat = n_tokens("/v1/chat/completions", &body, "prompt_tokens");
    body["messages"][0]["role"] = json!("system");
    assert_eq!(chat, n_tokens("/v1/chat/completions", &body, "prompt_tokens"));
    let items = |role: &str| {
        json!({ "max_output_tokens": 1, "input": [
            { "role": role, "content": "Be brief." }, { "role": "user", "content": "Go on." },
        ] })
    };
    let developer = n_tokens("/v1/responses", &items("developer"), "input_tokens");
    assert_eq!(developer, n_tokens("/v1/responses", &items("system"), "input_tokens"));

    let served = serve_template(DEVELOPER);
    body["messages"][0]["role"] = json!("developer");
    let prompt = applied(&served, &body);
    assert!(prompt.starts_with("[!][developer]Be brief.\n\nYou may call"), "{prompt}");
    assert!(!prompt.contains("[system]"), "{prompt}");
}
