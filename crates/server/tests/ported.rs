//! What llama.cpp's own server is tested for (`tools/server/tests/unit` in its repository), where
//! this server has the same. The cases are theirs, what is expected is written anew.
//!
//! All of their tests, by file, without `test_`; `*` is all that begin so. Where no file is named
//! the test is here.
//!
//! | file | test | where |
//! |---|---|---|
//! | basic | server_start_simple | `streams`: `/health` while it loads and after |
//! | | server_props, server_models | `pages`, and here |
//! | | server_slots | `pages`; there is no flag that takes them away |
//! | | no_ui | `page`, `guards` |
//! | | server_model_aliases_and_tags | `pages`; tags do not apply: one model is served |
//! | | server_multiple_addresses | does not apply: one address, others by a proxy |
//! | | load_split_model | does not apply: files are the loader's, tested in `model` |
//! | chat_completion | chat_completion, `.._stream`, `.._with_timings_per_token` | ported |
//! | | chat_completion_cached_tokens, return_progress | ported |
//! | | `*_with_openai_library` | `tests/clients`, with that package |
//! | | chat_template, apply_chat_template | ported |
//! | | chat_template_assistant_prefill | ported |
//! | | chat_template_continue_final_message_* | does not apply: the field is refused by name |
//! | | completion_with_response_format, `*_json_schema`, `*_grammar` | ported |
//! | | invalid_chat_completion_req | ported |
//! | | logprobs, logprobs_stream, logit_bias | ported |
//! | | context_size_exceeded, `.._stream` | `refusals` |
//! | | chat_completions_multiple_choices | ported |
//! | | chat_completions_token_count | does not apply: no such path; `/v1/messages/count_tokens` |
//! | | verbose_debug | does not apply: prompts are not sent back |
//! | compat_anthropic | anthropic_messages_*, `*_tool_*`, `*_count_tokens*` | ported, `forms` |
//! | | `*_stop_sequences`, `*_temperature`, `*_top_p`, `*_top_k`, `*_metadata` | ported, `forms` |
//! | | anthropic_missing_messages, `*_empty_messages` | `forms` |
//! | | anthropic_streaming_*, `*_vs_openai_different_response_format` | `forms` |
//! | | anthropic_thinking* | `thoughts` |
//! | | anthropic_vision_*, `*_with_image` | does not apply: pictures are refused (ported) |
//! | compat_gcp | all | does not apply: no such endpoint |
//! | compat_oai_responses | responses_*_with_openai_library | `tests/clients`, `forms` |
//! | | responses_stream_with_llama_telemetry | ported |
//! | completion | completion, completion_stream | `native` |
//! | | completion_stream_vs_non_stream, completion_with_tokens_input | ported, `batches` |
//! | | completion_*_openai_library* | `tests/clients` |
//! | | consistent_result_same_seed, different_result_different_seed | ported |
//! | | consistent_result_different_batch_size, cache_vs_nocache_prompt | `repeat` |
//! | | nocache_long_input_prompt | `answers`, `repeat`: `cache_prompt` false |
//! | | json_prompt_* | does not apply: pictures and sound; `refusals`: an object as prompt |
//! | | completion_parallel_slots | ported |
//! | | completion_unified | does not apply: contexts of requests share no buffer of fixed length |
//! | | completion_response_fields | does not apply: no such field |
//! | | n_probs, n_probs_stream, n_probs_post_sampling | ported, `batches` |
//! | | n_probs_post_backend_sampling | does not apply: there is one sampler |
//! | | logit_bias | ported |
//! | | cancel_request | `streams`, `faults` |
//! | | completion_prompt_cache | `contexts`, `scopes`: what is kept in memory |
//! | ctx_shift | ctx_shift_disabled_* | `refusals`, `native`: a context that is full |
//! | | ctx_shift_enabled | does not apply: nothing is ever cut off |
//! | embedding, rerank, lora, infill | all | does not apply: no such endpoints |
//! | ignore_eos | all | does not apply: `generation_settings` are not sent back |
//! | kv_keep_only_active | all | does not apply: contexts are of no slot; `contexts`: `--keep` |
//! | mcp_servers, proxy, tools_builtin | all | does not apply: the server runs no tools |
//! | metrics | metrics_prometheus_format | `metrics`, within the crate |
//! | | metrics_prompt_processed_and_cached, metrics_predicted_total_matches_requests | ported |
//! | | metrics_timings_are_finite, metrics_timings_on_prompt_progress | ported |
//! | | metrics_slots_idle_after_completion | `pages` |
//! | | metrics_generation_rate_excludes_first_token | does not apply: speeds count all tokens |
//! | | metrics_disabled, metrics_embedding_* | does not apply: always there; no embeddings |
//! | router, sleep | all | does not apply: one model, which stays |
//! | security | access_*, `*_api_key*` | `guards`, over every route |
//! | | cors_options, cors_origins_* | `guards`: origins that are named, and no others |
//! | | cors_proxy_*, local_media_file | does not apply: no address and no file is fetched |
//! | slot_save | slot_save_restore, slot_erase | `slots` |
//! | | slot_restore_legacy_token_list | does not apply: files of our own form |
//! | | `*_multimodal`, `*_image*`, `*_media_*` | does not apply: pictures |
//! | speculative | with_and_without_draft, multi_requests_parallel | `drafts` |
//! | | slot_ctx_not_exceeded | `drafts`, `refusals` |
//! | | different_draft_min_draft_max, synth_*, with_ctx_shift | does not apply: no such options |
//! | stream | all | does not apply: answers are not kept to be read again |
//! | template | reasoning, add_generation_prompt | `thoughts`, and here; templates in `model` |
//! | | date_inside_prompt | templates in `model` |
//! | tokenize | tokenize_detokenize, tokenize_with_bos, tokenize_with_pieces | ported, `answers` |
//! | tool_call | completion_with_required_*, completion_without_* | `forms`: required, free |
//! | | weather, calc_result, thoughts, hello_world | does not apply: answers of large models |
//! | vision_api | all | does not apply: pictures |

use serde_json::{Value, json};

use crate::support::{Served, serve};
use longview_server::ServerOptions;

const BOOK: &str = "The meaning of life is";

fn chat(content: &str) -> Value {
    json!({
        "messages": [
            { "role": "system", "content": "Book" }, { "role": "user", "content": content },
        ],
        "max_tokens": 8,
        "ignore_eos": true,
    })
}

fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        body[name] = value.clone();
    }
    body
}

fn completed(served: &Served, more: Value) -> Value {
    let body = json!({ "prompt": BOOK, "max_tokens": 12, "ignore_eos": true });
    let answer = served.post("/v1/completions", &with(body, more));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// `test_chat_completion`, `.._stream`, `.._with_timings_per_token`.
#[test]
fn a_chat_and_its_stream_are_of_one_answer() {
    let served = serve(ServerOptions::default());
    let parts = json!([{ "type": "text", "text": "What is" }, { "type": "text", "text": " it" }]);
    let mut whole = chat("What is it");
    let said = served.post("/v1/chat/completions", &whole).json();
    assert!(said["id"].as_str().is_some_and(|id| id.starts_with("chatcmpl-")), "{said}");
    assert_eq!(said["model"], "needle");
    let choice = &said["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["role"]),
        (&json!("length"), &json!("assistant"))
    );
    assert_eq!(said["usage"]["completion_tokens"], 8);
    whole["messages"][1]["content"] = parts;
    let of_parts = served.post("/v1/chat/completions", &whole).json();
    assert_eq!(of_parts["usage"]["prompt_tokens"], said["usage"]["prompt_tokens"]);
    assert_eq!(of_parts["choices"][0]["message"], choice["message"]);
    let stream =
        with(whole, json!({ "stream": true, "stream_options": { "include_usage": true } }));
    let events = served.post("/v1/chat/completions", &stream).events();
    let (last, parts) = events.split_last().expect("events");
    assert!(parts.iter().all(|event| event["id"] == last["id"] && event["timings"].is_null()));
    let roles = parts.iter().filter(|event| !event["choices"][0]["delta"]["role"].is_null());
    assert_eq!(roles.count(), 1, "the first alone says who speaks");
    let text = parts.iter().filter_map(|event| event["choices"][0]["delta"]["content"].as_str());
    assert_eq!(choice["message"]["content"], text.collect::<String>());
    assert_eq!(last["usage"]["total_tokens"], said["usage"]["total_tokens"]);
    for figure in ["prompt_per_second", "predicted_per_second", "predicted_n"] {
        assert!(last["timings"][figure].as_f64() > Some(0.0), "{last}");
    }
}

/// `test_chat_completion_with_timings_per_token`, `test_responses_stream_with_llama_telemetry`,
/// `test_metrics_timings_on_prompt_progress`, `test_metrics_timings_are_finite`.
#[test]
fn each_part_of_a_stream_says_what_it_took_where_that_is_wanted() {
    let served = crate::support::serve_with(ServerOptions::default(), 64, Default::default());
    let long = "The quick brown fox jumps over the lazy dog. ".repeat(20);
    let more = json!({ "stream": true, "timings_per_token": true, "return_progress": true });
    let native = json!({ "prompt": long, "n_predict": 8, "ignore_eos": true });
    let turn = json!([{ "role": "user", "content": long }]);
    let anthropic = json!({ "messages": turn, "max_tokens": 8, "ignore_eos": true });
    let input = json!({ "input": long, "max_output_tokens": 8, "ignore_eos": true });
    for (path, body) in [
        ("/completion", native),
        ("/v1/chat/completions", chat(&long)),
        ("/v1/completions", json!({ "prompt": long, "max_tokens": 8, "ignore_eos": true })),
        ("/v1/messages", anthropic),
        ("/v1/responses", input),
    ] {
        let events =
            served.post(path, &with(with(body, more.clone()), json!({ "seed": 3 }))).events();
        let progress = |event: &&Value| !event["prompt_progress"].is_null();
        let (read, rest): (Vec<_>, Vec<_>) = events.iter().partition(progress);
        assert!(read.len() > 1, "{path}: {read:?}");
        for event in &read {
            let (timings, progress) = (&event["timings"], &event["prompt_progress"]);
            let n = |value: &Value| value.as_u64().expect("a number");
            assert_eq!(n(&timings["prompt_n"]) + n(&timings["cache_n"]), n(&progress["processed"]));
            assert_eq!(timings["predicted_n"], 0, "{event}");
        }
        let figures = events.iter().filter_map(|event| event["timings"].as_object());
        let figures: Vec<_> = figures.collect();
        for timings in &figures {
            let finite = |value: &Value| value.as_f64().is_some_and(|value| value >= 0.0);
            assert!(timings.values().all(finite), "{path}: {timings:?}");
        }
        let of = |name: &str| {
            let values = figures.iter().map(|timings| timings[name].as_f64());
            values.collect::<Option<Vec<_>>>().expect("numbers")
        };
        for name in ["prompt_ms", "predicted_ms", "predicted_n"] {
            assert!(of(name).is_sorted(), "{path} {name}: {:?}", of(name));
        }
        assert_eq!(of("predicted_n").last(), Some(&8.0), "{path}");
        let is_text = |event: &&&Value| {
            let text = ["/choices/0/text", "/choices/0/delta/content", "/delta/text", "/content"]
                .iter()
                .find_map(|at| event.pointer(at)?.as_str());
            text.or(event["delta"].as_str()).is_some_and(|text| !text.is_empty())
        };
        let texts: Vec<_> = rest.iter().filter(is_text).collect();
        assert!(texts.len() > 3, "{path}: {rest:?}");
        assert!(texts.iter().all(|event| event["timings"]["predicted_n"].as_u64() > Some(0)));
    }
    // Nobody else gets them, and an answer that comes as a whole has them anyhow.
    let plain = with(chat("What"), json!({ "stream": true, "return_progress": true }));
    let events = served.post("/v1/chat/completions", &plain).events();
    assert_eq!(events.iter().filter(|event| !event["timings"].is_null()).count(), 1);
    let whole = with(chat("What"), json!({ "timings_per_token": true }));
    assert_eq!(served.post("/v1/chat/completions", &whole).json()["timings"]["predicted_n"], 8);
}

/// `test_logit_bias`, of completions and of chats: an object by tokens, a list of pairs by tokens
/// and by texts.
#[test]
fn biases_are_by_tokens_or_texts_and_ban_what_is_false() {
    let served = serve(ServerOptions::default());
    let text = |bias: Value| {
        completed(&served, json!({ "logit_bias": bias }))["choices"][0]["text"].clone()
    };
    let free = text(json!({}));
    let free = free.as_str().expect("a text");
    let ids = |content: &str| {
        let ids = served.post("/tokenize", &json!({ "content": content })).json();
        ids["tokens"].as_array().expect("a list").clone()
    };
    let banned = ids(free);
    let pairs = |value: Value| -> Value { banned.iter().map(|id| json!([id, value])).collect() };
    let by_id = banned.iter().map(|id| (id.to_string(), json!(-100)));
    let object = Value::Object(by_id.collect());
    let without = text(object);
    for same in
        [pairs(json!(-100)), pairs(json!(false)), json!([[free, false]]), json!([[free, -100]])]
    {
        assert_eq!(text(same.clone()), without, "{same}");
    }
    let said = ids(without.as_str().expect("a text"));
    assert!(said.iter().all(|id| !banned.contains(id)), "{without} of {free}");
    assert_eq!(text(json!([])), free);
    // A token that is wanted comes, in a chat too.
    let wanted = banned[1].clone();
    let more = json!({ "logit_bias": [[wanted, 100]], "max_tokens": 3 });
    let answer = served.post("/v1/chat/completions", &with(chat("What"), more)).json();
    let content = answer["choices"][0]["message"]["content"].as_str().expect("a text");
    assert!(ids(content).iter().all(|id| *id == wanted), "{answer}");
    let letters = "a b c d e f g ".repeat(70);
    let many: Vec<Value> = (0..1025).map(|_| json!([1, 1])).collect();
    for wrong in [
        json!([3]),
        json!([[]]),
        json!([[1]]),
        json!([[1, 2, 3]]),
        json!([[-1, 1]]),
        json!([[1, 101]]),
        json!([[1, true]]),
        json!([[999_999, 1]]),
        json!([[["a"], 1]]),
        json!([["a ".repeat(1000), 1]]),
        json!([[letters, 1], [letters, 1], [letters, 1]]),
        json!(many),
    ] {
        let answer = served.post("/completion", &json!({ "prompt": "A", "logit_bias": wrong }));
        assert_eq!(answer.json()["error"]["param"], "logit_bias", "{answer:?}");
    }
}

/// `test_chat_template_assistant_prefill`, and the last case of `test_invalid_chat_completion_req`.
#[test]
fn a_chat_goes_on_with_what_the_assistant_began() {
    let served = serve(ServerOptions::default());
    let turn = |content: Value| {
        let turns = json!([
            { "role": "system", "content": "Book" },
            { "role": "user", "content": "What is it" },
            { "role": "assistant", "content": content },
        ]);
        json!({ "messages": turns, "max_tokens": 8, "ignore_eos": true })
    };
    let parts = json!([{ "type": "text", "text": "Wh" }, { "type": "text", "text": "ill" }]);
    let begun = "<|begin_of_text|><|im_start|>system\nBook<|im_end|>\n<|im_start|>user\nWhat is \
                 it<|im_end|>\n<|im_start|>assistant\nWhill";
    for content in [json!("Whill"), json!("Whill \n"), parts] {
        let prompt = served.post("/apply-template", &turn(content)).json();
        assert_eq!(prompt["prompt"], begun);
    }
    // What is said is what the model says to just that prompt, without what was there.
    let said = served.post("/v1/chat/completions", &turn(json!("Whill"))).json();
    let ids = json!({ "content": begun, "add_special": false });
    let ids = served.post("/tokenize", &ids).json()["tokens"].clone();
    let n = ids.as_array().map(Vec::len);
    assert_eq!(said["usage"]["prompt_tokens"].as_u64().map(|n| n as usize), n);
    let raw = completed(&served, json!({ "prompt": ids, "max_tokens": 8 }));
    assert_eq!(said["choices"][0]["message"]["content"], raw["choices"][0]["text"]);
    // Whole turns of before stay what they are.
    let whole = with(turn(json!("Whill")), json!({ "add_generation_prompt": false }));
    let whole = served.post("/apply-template", &whole).json();
    assert!(
        whole["prompt"].as_str().is_some_and(|text| text.ends_with("Whill<|im_end|>\n")),
        "{whole}"
    );
    let two = json!({ "messages": [
        { "role": "user", "content": "test" },
        { "role": "assistant", "content": "test" },
        { "role": "assistant", "content": "test" },
    ] });
    for path in ["/v1/chat/completions", "/apply-template"] {
        let answer = served.post(path, &two);
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("messages")));
    }
}

/// `test_n_probs`, `test_n_probs_stream`, `test_n_probs_post_sampling`.
#[test]
fn probabilities_after_sampling_are_those_of_what_could_be_drawn() {
    let served = serve(ServerOptions::default());
    let body = json!({ "prompt": "Today was the day.", "n_probs": 10, "n_predict": 5, "seed": 7,
                       "temperature": 1.0, "ignore_eos": true, "post_sampling_probs": true });
    let probs = |more: Value| {
        let answer = served.post("/completion", &with(body.clone(), more)).json();
        let probs = answer["completion_probabilities"].as_array();
        probs.unwrap_or_else(|| panic!("{answer}")).clone()
    };
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{value}"));
    for (more, most) in [(json!({}), 10), (json!({ "top_k": 3 }), 3)] {
        let tokens = probs(more);
        assert_eq!(tokens.len(), 5);
        for token in &tokens {
            assert!(
                token["id"].is_u64() && token["token"].is_string() && token["bytes"].is_array()
            );
            assert!(token["logprob"].is_null() && token["top_logprobs"].is_null(), "{token}");
            let top = token["top_probs"].as_array().expect("a list");
            let all: Vec<f64> = top.iter().map(|token| number(&token["prob"])).collect();
            assert!(all.is_sorted_by(|a, b| a >= b) && all.iter().all(|p| 0.0 < *p && *p <= 1.0));
            let sum: f64 = all.iter().sum();
            assert!(all.len() == most || (sum - 1.0).abs() < 1e-4, "{token}");
            assert!(most == 10 || (sum - 1.0).abs() < 1e-4, "{token}");
            let own = top.iter().find(|other| other["id"] == token["id"]);
            assert!(own.is_none_or(|own| own["prob"] == token["prob"]), "{token}");
            assert!(number(&token["prob"]) > 0.0);
        }
    }
    // Where the best is taken, nothing else could be.
    for token in probs(json!({ "temperature": 0 })) {
        assert_eq!(
            (number(&token["prob"]), token["top_probs"].as_array().map(Vec::len)),
            (1.0, Some(1))
        );
    }
    // Before sampling they are logarithms, one token in each event.
    let plain = with(body.clone(), json!({ "post_sampling_probs": false, "stream": true }));
    let events = served.post("/completion", &plain).events();
    let tokens: Vec<_> = events
        .iter()
        .filter_map(|event| event["completion_probabilities"].as_array())
        .flatten()
        .collect();
    assert_eq!(tokens.len(), 5);
    for token in tokens {
        assert!(
            number(&token["logprob"]) <= 0.0
                && token["top_logprobs"].as_array().map(Vec::len) == Some(10)
        );
    }
}

/// `test_metrics_prompt_processed_and_cached`, `test_metrics_predicted_total_matches_requests`.
#[test]
fn counters_are_the_sums_of_what_answers_say() {
    let served = serve(ServerOptions::default());
    let (mut read, mut cached, mut predicted, mut longest) = (0.0, 0.0, 0.0, 0.0f64);
    let prompt = "the quick brown fox jumps over the lazy dog";
    for n in [1, 4, 4, 16] {
        let body = json!({ "prompt": prompt, "n_predict": n, "ignore_eos": true });
        let answer = served.post("/completion", &body).json();
        let of = |name: &str| answer["timings"][name].as_f64().expect("a number");
        (read, cached) = (read + of("prompt_n"), cached + of("cache_n"));
        predicted += of("predicted_n");
        longest = longest.max(answer["tokens_cached"].as_f64().expect("a number"));
    }
    let several = json!({ "prompt": prompt, "n": 3, "max_tokens": 5, "ignore_eos": true });
    let usage = served.post("/v1/completions", &several).json()["usage"].clone();
    predicted += usage["completion_tokens"].as_f64().expect("a number");
    let known = usage["prompt_tokens_details"]["cached_tokens"].as_f64().expect("a number");
    cached += known;
    read += usage["prompt_tokens"].as_f64().expect("a number") - known;
    assert!(cached > 0.0 && predicted == 40.0, "{cached} {predicted}");
    for (name, wanted) in [
        ("llamacpp:prompt_tokens_total", read),
        ("llamacpp:prompt_tokens_cached_total", cached),
        ("llamacpp:tokens_predicted_total", predicted),
        ("llamacpp:n_tokens_max", longest),
        ("llamacpp:requests_processing", 0.0),
    ] {
        assert_eq!(served.metric(name), wanted, "{name}");
    }
}

/// `test_completion_parallel_slots`.
#[test]
fn more_requests_than_slots_are_all_answered_as_alone() {
    let prompts = ["Write a very long book.", "Write a poem.", "What is it?", "The sky is blue."];
    for (n_slots, n_requests) in [(1, 3), (2, 2), (2, 4), (4, 2), (4, 6)] {
        let served = serve(ServerOptions { n_slots, ..ServerOptions::default() });
        let body = |i: usize| {
            json!({ "prompt": prompts[i % prompts.len()], "seed": 42, "temperature": 1.0,
                    "n_predict": 40, "ignore_eos": true })
        };
        let content = |i: usize| served.post("/completion", &body(i)).json()["content"].clone();
        let together: Vec<Value> = std::thread::scope(|scope| {
            let content = &content;
            let asked: Vec<_> = (0..n_requests).map(|i| scope.spawn(move || content(i))).collect();
            let slots = served.get("/slots").json();
            assert_eq!(slots.as_array().map(Vec::len), Some(n_slots));
            asked.into_iter().map(|asked| asked.join().expect("an answer")).collect()
        });
        for (i, said) in together.iter().enumerate() {
            assert!(said.as_str().is_some_and(|said| said.len() > 10), "{said}");
            assert_eq!(*said, content(i), "{n_slots} slots, request {i}");
        }
    }
}

/// `test_chat_completion_cached_tokens`.
#[test]
fn what_a_prompt_shares_with_those_before_is_counted() {
    let served = serve(ServerOptions::default());
    let mut known = Vec::new();
    for content in ["1 2 3 4 5 6", "1 2 3 4 5 6", "1 2 3 4 5 9", "1 2 3 9 9 9"] {
        let said = served.post("/v1/chat/completions", &chat(content)).json();
        let usage = &said["usage"];
        let n = usage["prompt_tokens"].as_u64().expect("a number");
        known.push(n - usage["prompt_tokens_details"]["cached_tokens"].as_u64().expect("a number"));
    }
    assert!(known[0] > known[3] && known[3] > known[2] && known[2] > known[1], "{known:?}");
    assert_eq!(known[1], 1, "all but the last token, which is computed anew");
}

/// `test_completion_with_response_format`, `.._json_schema`, `.._grammar`, `.._invalid_grammar`.
#[test]
fn chats_are_held_to_forms() {
    let served = serve(ServerOptions::default());
    let said = |more: Value| {
        let answer = served.post("/v1/chat/completions", &with(chat("Write"), more));
        let body = answer.json();
        let text = body.pointer("/choices/0/message/content").and_then(Value::as_str);
        (answer.status, text.map(str::to_owned))
    };
    let format = |format: Value| json!({ "response_format": format });
    let is = |text: &str| (200, Some(text.to_owned()));
    let constant = json!({ "const": "42" });
    assert_eq!(said(format(json!({ "type": "json_object", "schema": constant }))), is("\"42\""));
    let schema = json!({ "schema": { "const": "foo" } });
    assert_eq!(
        said(format(json!({ "type": "json_schema", "json_schema": schema }))),
        is("\"foo\"")
    );
    assert_eq!(said(json!({ "json_schema": constant })), is("\"42\""));
    assert_eq!(said(json!({ "grammar": "root ::= \"a\"{5,5}" })), is("aaaaa"));
    for more in [
        format(json!({ "type": "sound" })),
        format(json!({ "type": "json_object", "schema": 123 })),
        format(json!({ "type": "json_object", "schema": { "type": 123 } })),
        format(json!({ "type": "json_object", "schema": { "type": "hiccup" } })),
        json!({ "grammar": "root ::= this is (not valid GBNF" }),
    ] {
        assert_eq!(said(more.clone()).0, 400, "{more}");
    }
}

/// `test_invalid_chat_completion_req`.
#[test]
fn conversations_that_are_none_are_refused() {
    let served = serve(ServerOptions::default());
    for messages in [
        json!(null),
        json!("string"),
        json!([123]),
        json!([{}]),
        json!([{ "role": 123 }]),
        json!([{ "role": "system", "content": 123 }]),
        json!([{ "content": "hello" }]),
        json!([{ "role": "system", "content": "test" }, {}]),
    ] {
        let answer = served.post("/v1/chat/completions", &json!({ "messages": messages }));
        assert_eq!(answer.status, 400, "{messages} {answer:?}");
        assert!(answer.json()["error"]["message"].is_string());
    }
}

/// `test_logprobs`, `test_logprobs_stream`, `test_n_probs`.
#[test]
fn probabilities_are_of_the_tokens_of_the_text() {
    let served = serve(ServerOptions::default());
    let body = with(chat("What"), json!({ "logprobs": true, "top_logprobs": 10 }));
    let whole = served.post("/v1/chat/completions", &body).json();
    let choice = &whole["choices"][0];
    let check = |tokens: Vec<Value>, text: &str| {
        let joined: String = tokens.iter().filter_map(|token| token["token"].as_str()).collect();
        assert_eq!(joined, text);
        assert_eq!(tokens.len(), 8);
        for token in &tokens {
            let top = token["top_logprobs"].as_array().expect("a list");
            let probs: Vec<f64> = top.iter().filter_map(|t| t["logprob"].as_f64()).collect();
            assert!(probs.len() == 10 && probs.is_sorted_by(|a, b| a >= b), "{token}");
            assert_eq!(token["logprob"], probs[0], "greedy");
            assert!(probs.iter().map(|p| p.exp()).sum::<f64>() < 1.001, "{token}");
        }
    };
    let content = |choice: &Value| choice["logprobs"]["content"].as_array().cloned();
    let text = choice["message"]["content"].as_str().expect("a text");
    check(content(choice).expect("a list"), text);
    let events =
        served.post("/v1/chat/completions", &with(body, json!({ "stream": true }))).events();
    let streamed = events.iter().filter_map(|event| content(&event["choices"][0])).flatten();
    check(streamed.collect(), text);
}

/// `test_consistent_result_same_seed`, `test_different_result_different_seed`,
/// `test_completion_with_tokens_input`, `test_completion_stream_vs_non_stream`.
#[test]
fn seeds_decide_and_tokens_are_as_good_as_their_text() {
    let served = serve(ServerOptions::default());
    let text = |more: Value| completed(&served, more)["choices"][0]["text"].clone();
    let seeded =
        |seed: u64| text(json!({ "seed": seed, "temperature": 2.0, "cache_prompt": false }));
    assert!((0..3).all(|_| seeded(42) == seeded(42)));
    assert_ne!(seeded(42), seeded(43));
    let ids = served.post("/tokenize", &json!({ "content": BOOK, "add_special": true })).json();
    assert_eq!(ids["tokens"][0], 0, "the token that begins a text");
    let whole = text(json!({}));
    assert_eq!(text(json!({ "prompt": ids["tokens"] })), whole);
    let body = json!({ "prompt": BOOK, "max_tokens": 12, "ignore_eos": true, "stream": true });
    let events = served.post("/v1/completions", &body).events();
    let parts = events.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(whole, parts.collect::<String>());
}

/// `test_return_progress`.
#[test]
fn progress_begins_with_what_is_known_and_ends_with_all() {
    let served = crate::support::serve_with(ServerOptions::default(), 64, Default::default());
    let long = "This is a test ".repeat(40);
    let body = with(chat(&long), json!({ "stream": true, "return_progress": true }));
    for is_known in [false, true] {
        let events = served.post("/v1/chat/completions", &body).events();
        let all: Vec<&Value> =
            events.iter().map(|e| &e["prompt_progress"]).filter(|p| !p.is_null()).collect();
        let (first, last) = (all[0], all[all.len() - 1]);
        assert_eq!(first["processed"], first["cache"]);
        assert_eq!(first["cache"].as_u64() > Some(0), is_known, "{first}");
        assert_eq!(last["processed"], last["total"]);
        assert!(all.is_sorted_by(|a, b| a["processed"].as_u64() < b["processed"].as_u64()));
        assert!(all.iter().all(|p| p["total"] == first["total"] && p["cache"] == first["cache"]));
        assert!(is_known || all.len() > 3, "{all:?}");
    }
}

/// `test_apply_chat_template`, `test_tokenize_*`, `test_server_models`, and
/// `test_chat_completions_multiple_choices`.
#[test]
fn templates_tokens_models_and_several_answers() {
    let served = serve(ServerOptions::default());
    let prompt = served.post("/apply-template", &chat("What is it")).json();
    let expected = "<|begin_of_text|><|im_start|>system\nBook<|im_end|>\n<|im_start|>user\nWhat is \
                    it<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(prompt["prompt"], expected);
    let content = "A test with \u{5abd} and \u{1f917}";
    let ids = served.post("/tokenize", &json!({ "content": content })).json();
    let text = served.post("/detokenize", &json!({ "tokens": ids["tokens"] })).json();
    assert_eq!(text["content"], content);
    let pieces = json!({ "content": content, "with_pieces": true });
    let pieces = served.post("/tokenize", &pieces).json();
    let pieces = pieces["tokens"].as_array().expect("a list");
    assert_eq!(ids["tokens"], pieces.iter().map(|t| t["id"].clone()).collect::<Value>());
    // What is no text by itself is a list of bytes.
    assert!(pieces.iter().any(|token| token["piece"].is_array()), "{pieces:?}");
    let bytes = pieces.iter().flat_map(|token| match &token["piece"] {
        Value::Array(bytes) => bytes.iter().map(|b| b.as_u64().expect("a byte") as u8).collect(),
        text => text.as_str().expect("a text").as_bytes().to_vec(),
    });
    assert_eq!(String::from_utf8(bytes.collect()).as_deref(), Ok(content));
    let models = served.get("/v1/models").json();
    assert_eq!(
        (models["data"].as_array().map(Vec::len), &models["data"][0]["id"]),
        (Some(1), &json!("needle"))
    );
    let two = served.post("/v1/chat/completions", &with(chat("What"), json!({ "n": 2 }))).json();
    let choices = two["choices"].as_array().expect("a list");
    assert!(choices.len() == 2 && choices.iter().all(|c| c["finish_reason"] == "length"), "{two}");
}

/// `test_anthropic_*`: conversations with results of tools in each order, and blocks in theirs.
#[test]
fn anthropics_conversations_are_read_whole() {
    let served = serve(ServerOptions::default());
    let used = json!({ "role": "assistant", "content": [
        { "type": "thinking", "thinking": "Hm.", "signature": "x" },
        { "type": "tool_use", "id": "test123", "name": "get_weather", "input": { "a": "b" } },
    ] });
    let result = json!({ "type": "tool_result", "tool_use_id": "test123", "content": "Sunny" });
    let text = json!({ "type": "text", "text": "Here it is:" });
    let failed = json!({ "type": "tool_result", "tool_use_id": "test123", "is_error": true,
        "content": [{ "type": "text", "text": "No such city" }] });
    for content in [json!([result]), json!([text, result]), json!([result, text]), json!([failed])]
    {
        let messages = json!([
            { "role": "user", "content": "How is it?" }, used, { "role": "user", "content": content },
        ]);
        let body = json!({ "max_tokens": 4, "messages": messages, "temperature": 0.5, "seed": 0, "top_k": 40,
            "top_p": 0.9, "metadata": { "user_id": "me" } });
        let answer = served.post("/v1/messages", &body);
        assert_eq!((answer.status, &answer.json()["type"]), (200, &json!("message")), "{answer:?}");
        let count = served.post("/v1/messages/count_tokens", &json!({ "messages": messages }));
        let usage = answer.json()["usage"].clone();
        let n = |name: &str| usage[name].as_u64().expect("a number");
        let all = n("input_tokens") + n("cache_read_input_tokens");
        assert_eq!(count.json(), json!({ "input_tokens": all }));
    }
    let image = json!({ "type": "tool_result", "tool_use_id": "test123", "content": [
        { "type": "image", "source": {} }] });
    let messages =
        json!([{ "role": "user", "content": "A" }, used, { "role": "user", "content": [image] }]);
    let refused = served.post("/v1/messages", &json!({ "max_tokens": 1, "messages": messages }));
    assert_eq!(refused.json()["error"]["param"], "messages[2].content[0].content");
}
