//! What a slot holds is saved, restored and erased, as llama.cpp's server does it
//! (`test_slot_save.py`): what counts is how much of the next prompt is read.

use serde_json::{Value, json};

use crate::support::{Answer, Library, Served, document, serve};
use longview_server::{ApiKey, ServerOptions};

/// Tokens of the prompt that were read, and that were known.
fn asked(served: &Served, slot: usize, prompt: &str) -> (u64, u64, Value) {
    let body = json!({ "prompt": prompt, "id_slot": slot, "n_predict": 8, "ignore_eos": true });
    let answer = served.post("/completion", &body);
    assert_eq!(answer.status, 200, "{answer:?}");
    let said = answer.json();
    assert_eq!(said["id_slot"], slot);
    let count = |name: &str| said["timings"][name].as_u64().expect("a number");
    (count("prompt_n"), count("cache_n"), said["content"].clone())
}

fn act(served: &Served, slot: usize, action: &str, filename: &str) -> Answer {
    let body = json!({ "filename": filename });
    served.post(&format!("/slots/{slot}?action={action}"), &body)
}

/// What was done to how many tokens.
fn done(served: &Served, slot: usize, action: &str, filename: &str) -> u64 {
    let answer = act(served, slot, action, filename);
    assert_eq!(answer.status, 200, "{answer:?}");
    let said = answer.json();
    assert_eq!(said["id_slot"], slot);
    if action == "erase" {
        return said["n_erased"].as_u64().expect("a number");
    }
    assert_eq!(said["filename"], filename);
    let took = said["timings"][format!("{action}_ms")].as_f64();
    assert!(took > Some(0.0), "{said}");
    let (n, bytes) = match action {
        "save" => ("n_saved", "n_written"),
        _ => ("n_restored", "n_read"),
    };
    assert!(said[bytes].as_u64() > Some(0), "{said}");
    said[n].as_u64().expect("a number")
}

#[test]
fn what_was_saved_is_not_read_again_here_nor_after_a_restart() {
    let library = Library::new();
    let (text, _) = document(60, 71);
    let (paris, berlin) = (format!("{text} It was in Paris"), format!("{text} It was in Berlin"));
    let (n_prompt, n_saved, content);
    {
        let served = serve(library.options());
        let (n_read, n_known, _) = asked(&served, 1, &paris);
        assert_eq!(n_known, 0);
        assert!(n_read > 512, "{n_read} tokens");
        n_prompt = n_read;
        n_saved = done(&served, 1, "save", "slot1.bin");
        // All but the last token of the answer, which was not computed.
        assert_eq!(n_saved, n_prompt + 7);
        // Another prompt goes on from what both begin with.
        let (n_read, n_known, _) = asked(&served, 1, &berlin);
        assert!(n_read < 8 && n_known > 512, "{n_read} {n_known}");
        assert_eq!(done(&served, 0, "restore", "slot1.bin"), n_saved);
        let (n_read, n_known, said) = asked(&served, 0, &paris);
        assert_eq!((n_read, n_known), (1, n_prompt - 1));
        content = said;
        let listed = served.get("/v1/contexts/slot1.bin").json();
        assert_eq!(listed["sessions"][0]["n_tokens"].as_u64(), Some(n_saved), "{listed}");
    }
    // It is found by its tokens, restored or not; restored it is in memory already.
    let served = serve(library.options());
    assert_eq!(served.metric("longview:contexts_kept"), 0.0);
    assert_eq!(done(&served, 2, "restore", "slot1.bin"), n_saved);
    assert_eq!(served.metric("longview:contexts_restored_total"), 1.0);
    let (n_read, n_known, said) = asked(&served, 2, &paris);
    assert_eq!((n_read, n_known), (1, n_prompt - 1));
    assert_eq!(said, content);
    // A restored slot can be saved and erased as any other.
    assert_eq!(done(&served, 2, "save", "again.bin"), n_prompt + 7);
    assert_eq!(done(&served, 2, "erase", ""), n_prompt + 7);
}

#[test]
fn what_is_erased_is_read_again() {
    let served = serve(ServerOptions::default());
    let prompt = "What is the capital of France?";
    let (n_prompt, n_known, said) = asked(&served, 1, prompt);
    assert_eq!(n_known, 0);
    assert_eq!(asked(&served, 1, prompt).0, 1);
    assert_eq!(done(&served, 1, "erase", ""), n_prompt + 7);
    assert_eq!(done(&served, 1, "erase", ""), 0, "there is nothing left");
    assert_eq!(asked(&served, 1, prompt), (n_prompt, 0, said.clone()));
    // What another slot has stays, and all texts begin with one token.
    let other = "The sky is blue and I love it.";
    let (n_read, n_known, _) = asked(&served, 2, other);
    assert_eq!(done(&served, 1, "erase", ""), n_prompt + 7);
    assert_eq!(asked(&served, 2, other).1, n_read + n_known - 1);
    assert_eq!(asked(&served, 1, prompt), (n_prompt - 1, 1, said));
    // A body is not needed for it.
    assert_eq!(served.ask("POST", "/slots/2?action=erase", &[], "").status, 200);
}

#[test]
fn a_slot_that_is_saved_twice_has_its_latest_tokens_and_other_contexts_stay() {
    let library = Library::new();
    let served = serve(library.options());
    let (n_first, ..) = asked(&served, 0, "It was");
    assert_eq!(done(&served, 0, "save", "chat"), n_first + 7);
    let (n_read, n_known, _) = asked(&served, 0, "It was a very long day, and then it was over.");
    assert_eq!(done(&served, 0, "save", "chat"), n_read + n_known + 7);
    let list = served.get("/v1/contexts").json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(done(&served, 3, "restore", "chat"), n_read + n_known + 7);
    // The name of what is no slot is not taken.
    let text = json!({ "text": "A plain day.", "name": "book" });
    assert_eq!(served.post("/v1/contexts", &text).status, 200);
    let taken = act(&served, 0, "save", "book");
    assert_eq!((taken.status, &taken.json()["error"]["param"]), (400, &json!("filename")));
    // It can be restored all the same: it is a context as any other.
    assert!(done(&served, 1, "restore", "book") > 2);
    let about = json!({ "prompt": " And", "context_id": "book", "n_predict": 1 });
    let about = served.post("/completion", &about).json();
    assert!(about["timings"]["prompt_n"].as_u64() < Some(4), "{about}");
}

#[test]
fn what_is_no_slot_action_or_file_is_refused() {
    let library = Library::new();
    let served = serve(ServerOptions { n_slots: 2, ..library.options() });
    asked(&served, 1, "It was");
    let file = json!({ "filename": "a" });
    for (path, body, param) in [
        ("/slots/2?action=save", &file, "id"),
        ("/slots/-1?action=save", &file, "id"),
        ("/slots/x?action=save", &file, "id"),
        ("/slots/1", &file, "action"),
        ("/slots/1?action=", &file, "action"),
        ("/slots/1?action=load", &file, "action"),
        ("/slots/1?action=save&action=erase", &file, "action"),
        ("/slots/0?action=save", &file, "id"),
        ("/slots/1?action=save", &json!({}), "filename"),
        ("/slots/1?action=save", &json!({ "filename": 3 }), "filename"),
        ("/slots/1?action=save", &json!({ "filename": "" }), "filename"),
        ("/slots/1?action=save", &json!({ "filename": "a\nb" }), "filename"),
        ("/slots/1?action=restore", &json!({}), "filename"),
    ] {
        let answer = served.post(path, body);
        let found = answer.json()["error"]["param"].clone();
        assert_eq!((answer.status, found), (400, json!(param)), "{path} {body} {answer:?}");
    }
    let missing = act(&served, 1, "restore", "nothing");
    assert_eq!((missing.status, missing.code().as_str()), (404, "context_not_found"));
    assert_eq!(served.ask("POST", "/slots/1?action=save", &[], "{").code(), "invalid_json");
    for slot in [json!(2), json!(-2), json!("1"), json!(1.5)] {
        let answer = served.post("/completion", &json!({ "prompt": "A", "id_slot": slot }));
        assert_eq!(answer.json()["error"]["param"], "id_slot", "{slot}: {answer:?}");
    }
    // A path is a name as any other, and nothing is written but what the library writes.
    assert!(done(&served, 1, "save", "../../etc/slot") > 0);
    assert!(done(&served, 0, "restore", "../../etc/slot") > 0);
    let documents = library.options().documents.expect("a library");
    assert!(!documents.folder().join("../../etc/slot").exists());
    let without = serve(ServerOptions::default());
    asked(&without, 0, "It was");
    assert_eq!(act(&without, 0, "save", "a").code(), "no_library");
    assert_eq!(act(&without, 0, "restore", "a").code(), "no_library");
}

#[test]
fn a_slot_is_of_its_key() {
    let library = Library::new();
    let keys = ["alice:one", "bob:two"].map(|key| ApiKey::parse(key).expect("a key"));
    let served = serve(ServerOptions { api_keys: keys.into(), ..library.options() });
    let ask = |key: &str, path: &str, body: Value| {
        let key = format!("Bearer {key}");
        served.ask("POST", path, &[("authorization", &key)], &body.to_string())
    };
    let prompt = json!({ "prompt": "It was", "n_predict": 4, "ignore_eos": true });
    assert_eq!(ask("one", "/completion", prompt.clone()).status, 200);
    let file = json!({ "filename": "mine" });
    let (save, restore) = ("/slots/0?action=save", "/slots/0?action=restore");
    assert_eq!(ask("two", save, file.clone()).code(), "empty_slot");
    assert_eq!(ask("two", "/slots/0?action=erase", json!({})).json()["n_erased"], 0);
    assert_eq!(ask("one", save, file.clone()).status, 200);
    assert_eq!(ask("two", restore, file.clone()).code(), "context_not_found");
    assert_eq!(ask("one", restore, file).status, 200);
    let known = ask("one", "/completion", prompt).json();
    assert_eq!(known["timings"]["prompt_n"], 1);
}
