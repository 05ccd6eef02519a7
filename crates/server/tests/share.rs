//! Documents that servers share, over a link that is too slow.

use std::time::{Duration, Instant};

use longview_library::shared::{Patience, Share, ShareKey};
use longview_object_server::{BUCKET, Fault, ObjectServer, Proxy};
use longview_server::ServerOptions;
use serde_json::json;

use crate::support::{Library, Served, document, expected, serve};

/// A server that shares, and waits so long for a part.
fn sharing(library: &Library, storage: std::net::SocketAddr, request: Duration) -> Served {
    let key = ShareKey::new("the key of all servers of a test").expect("a key");
    let environment = ObjectServer::environment(storage);
    let patience = Patience { request, in_all: request * 2 };
    let address = format!("s3://{BUCKET}/servers");
    let share = Share::open_within(&address, &key, &environment, patience).expect("a storage");
    serve(ServerOptions { share: Some(share), ..library.options() })
}

#[test]
fn what_comes_too_slowly_is_read() {
    let storage = ObjectServer::start().expect("a storage");
    let network = Proxy::to(storage.address()).expect("a network");
    let (text, facts) = document(60, 11);
    let new = json!({ "text": text });
    let libraries = [Library::new(), Library::new()];
    let first = sharing(&libraries[0], storage.address(), Duration::from_secs(30));
    let built = first.post("/v1/contexts", &new).json();
    first.wait_for("longview:shared_sent_total", 1.0);

    let far = sharing(&libraries[1], network.address(), Duration::from_millis(300));
    network.set(Fault::Slow { bytes_per_s: 200_000 });
    let start = Instant::now();
    let ask = json!({
        "context_id": built["id"],
        "messages": [{ "role": "user", "content": facts[0].question }],
        "max_tokens": 40,
    });
    // It has the text alone, and its session would come in more than ten seconds.
    let read = far.post("/v1/contexts", &new).json();
    assert_eq!(read["usage"]["prompt_tokens_details"]["cached_tokens"], 0, "{read}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
    assert_eq!(far.metric("longview:shared_fetched_total"), 0.0);
    assert_eq!(far.metric("longview:shared_missed_total"), 1.0);
    let answers = [&first, &far].map(|served| served.post("/v1/chat/completions", &ask).json());
    assert_eq!(answers[0]["choices"], answers[1]["choices"]);
    let said = answers[1]["choices"][0]["message"]["content"].as_str().expect("an answer");
    assert!(said.contains(expected(&facts[0])), "{said}");
}
