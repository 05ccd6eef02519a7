//! What gateways choose a server by, while requests run and wait.

use std::io::{BufRead, BufReader};

use longview_server::ServerOptions;
use serde_json::json;

use crate::support::serve;

const RUNNING: &str = "vllm:num_requests_running";
const WAITING: &str = "vllm:num_requests_waiting";
const KV_USAGE: &str = "vllm:kv_cache_usage_perc";
const OLD_KV_USAGE: &str = "vllm:gpu_cache_usage_perc";

#[test]
fn gateways_see_what_runs_what_waits_and_what_it_takes() {
    // One place: the second request waits until the first one is done.
    let served = serve(ServerOptions { n_slots: 1, ..ServerOptions::default() });
    let body = json!({
        "prompt": "The baker walked to the meadow.", "max_tokens": -1, "ignore_eos": true,
        "stream": true,
    });
    let ask = || served.send("POST", "/v1/completions", &[], &body.to_string());
    let mut first = BufReader::new(ask());
    let mut line = String::new();
    while !line.starts_with("data: ") {
        line.clear();
        assert!(first.read_line(&mut line).expect("an answer") > 0, "it streams");
    }
    served.wait_for(RUNNING, 1.0);
    let second = ask();
    served.wait_for(WAITING, 1.0);

    let page = served.get("/metrics").body;
    let gauge = |name: &str| -> f64 {
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("{name}: {page}")).parse().expect("a number")
    };
    assert_eq!((gauge(RUNNING), gauge(WAITING)), (1.0, 1.0));
    let usage = gauge(KV_USAGE);
    assert!(usage > 0.0 && usage <= 1.0, "{usage} of the only place");
    assert_eq!(gauge(OLD_KV_USAGE), usage);

    drop((first, second));
    served.wait_for(WAITING, 0.0);
    served.wait_for(RUNNING, 0.0);
    served.wait_for(KV_USAGE, 0.0);
}
