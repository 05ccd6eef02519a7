//! What a request took, as llama.cpp says it.

use serde_json::{Value, json};

use crate::job::Summary;

/// llama.cpp's timings.
pub(crate) fn timings_json(summary: &Summary) -> Value {
    let Summary { n_prompt, n_cached, n_predicted, .. } = *summary;
    let n_read = n_prompt - n_cached;
    let per_s = |n: usize, ms: f64| n as f64 * 1e3 / ms.max(1e-6);
    let per_token = |n: usize, ms: f64| ms / n.max(1) as f64;
    let mut timings = json!({
        "cache_n": n_cached,
        "prompt_n": n_read,
        "prompt_ms": summary.prompt_ms,
        "prompt_per_token_ms": per_token(n_read, summary.prompt_ms),
        "prompt_per_second": per_s(n_read, summary.prompt_ms),
        "predicted_n": n_predicted,
        "predicted_ms": summary.predicted_ms,
        "predicted_per_token_ms": per_token(n_predicted, summary.predicted_ms),
        "predicted_per_second": per_s(n_predicted, summary.predicted_ms),
        "queue_ms": summary.waited_ms,
    });
    // As llama.cpp, where there are drafts.
    if summary.n_drafted > 0 {
        timings["draft_n"] = summary.n_drafted.into();
        timings["draft_n_accepted"] = summary.n_accepted.into();
    }
    timings
}
