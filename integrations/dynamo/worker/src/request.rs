//! What the server is asked for a request of Dynamo's. What it cannot do is refused, and never left
//! out in silence.

use std::sync::Arc;

use dynamo_backend_common::{DynamoError, PreprocessedRequest};
use serde::Serialize;

use crate::error::invalid;

/// The body of a call to `/v1/completions`.
#[derive(Debug, Serialize)]
pub(crate) struct Body {
    prompt: Arc<Vec<u32>>,
    stream: bool,
    stream_options: StreamOptions,
    return_token_ids: bool,
    max_tokens: u32,
    ignore_eos: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top_k: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_p: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seed: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    presence_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    frequency_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    repetition_penalty: Option<f32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    stop: Vec<String>,
}

#[derive(Debug, Serialize)]
struct StreamOptions {
    include_usage: bool,
}

impl Body {
    /// What is asked of a server with a context of `n_ctx` tokens.
    ///
    /// # Errors
    /// `InvalidArgument` names a field that the server does not have.
    pub(crate) fn of(request: PreprocessedRequest, n_ctx: u32) -> Result<Self, DynamoError> {
        check(&request)?;
        let PreprocessedRequest { token_ids, stop_conditions, sampling_options, .. } = request;
        // A prompt that is too long is the server's to refuse: it knows the numbers.
        let room = n_ctx.saturating_sub(u32::try_from(token_ids.len()).unwrap_or(u32::MAX)).max(1);
        Ok(Self {
            prompt: token_ids,
            stream: true,
            stream_options: StreamOptions { include_usage: true },
            return_token_ids: true,
            max_tokens: stop_conditions.max_tokens.unwrap_or(room),
            ignore_eos: stop_conditions.ignore_eos.unwrap_or(false),
            temperature: sampling_options.temperature,
            top_p: sampling_options.top_p,
            // Other engines write -1 for all.
            top_k: sampling_options.top_k.map(|k| if k == -1 { 0 } else { k }),
            min_p: sampling_options.min_p,
            seed: sampling_options.seed,
            presence_penalty: sampling_options.presence_penalty,
            frequency_penalty: sampling_options.frequency_penalty,
            repetition_penalty: sampling_options.repetition_penalty,
            stop: stop_conditions.stop.unwrap_or_default(),
        })
    }
}

fn check(request: &PreprocessedRequest) -> Result<(), DynamoError> {
    let PreprocessedRequest { sampling_options: sampling, stop_conditions: stops, .. } = request;
    let output = &request.output_options;
    let has_media = request.multi_modal_data.as_ref().is_some_and(|media| !media.is_empty());
    let asked = [
        ("n", sampling.n.is_some_and(|n| n > 1)),
        ("best_of", sampling.best_of.is_some_and(|n| n > 1)),
        ("use_beam_search", sampling.use_beam_search == Some(true)),
        ("include_stop_str_in_output", sampling.include_stop_str_in_output == Some(true)),
        ("guided_decoding", sampling.guided_decoding.is_some()),
        ("min_tokens", stops.min_tokens.is_some_and(|n| n > 0)),
        ("stop_token_ids", stops.stop_token_ids.as_ref().is_some_and(|ids| !ids.is_empty())),
        ("max_thinking_tokens", stops.max_thinking_tokens.is_some()),
        ("logprobs", output.logprobs.is_some()),
        ("prompt_logprobs", output.prompt_logprobs.is_some()),
        ("prompt_embeds", request.prompt_embeds.is_some()),
        ("multi_modal_data", has_media),
    ];
    match asked.iter().find(|(_, is_asked)| *is_asked) {
        Some((name, _)) => {
            Err(invalid(format!("{name}: is not supported by this worker; leave it out")))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use dynamo_backend_common::{OutputOptions, SamplingOptions, StopConditions};
    use serde_json::{Value, json};

    use super::*;

    fn request(sampling: SamplingOptions, stops: StopConditions) -> PreprocessedRequest {
        PreprocessedRequest::builder()
            .model("needle".to_owned())
            .token_ids(vec![1, 2, 3])
            .sampling_options(sampling)
            .stop_conditions(stops)
            .output_options(OutputOptions::default())
            .build()
            .unwrap()
    }

    fn body(request: PreprocessedRequest) -> Value {
        serde_json::to_value(Body::of(request, 4096).unwrap()).unwrap()
    }

    fn refusal(request: PreprocessedRequest) -> String {
        Body::of(request, 4096).unwrap_err().to_string()
    }

    #[test]
    fn fields_that_are_not_given_are_the_servers() {
        let expected = json!({
            "prompt": [1, 2, 3],
            "stream": true,
            "stream_options": { "include_usage": true },
            "return_token_ids": true,
            "max_tokens": 4093,
            "ignore_eos": false,
        });
        assert_eq!(body(request(SamplingOptions::default(), StopConditions::default())), expected);
    }

    #[test]
    fn fields_mean_the_same_to_the_server() {
        let sampling = SamplingOptions {
            temperature: Some(0.5),
            top_k: Some(-1),
            seed: Some(7),
            n: Some(1),
            ..SamplingOptions::default()
        };
        let stops = StopConditions {
            max_tokens: Some(16),
            stop: Some(vec!["\n".to_owned()]),
            ignore_eos: Some(true),
            ..StopConditions::default()
        };
        let body = body(request(sampling, stops));
        assert_eq!(body["temperature"], json!(0.5));
        assert_eq!(body["top_k"], json!(0));
        assert_eq!(body["seed"], json!(7));
        assert_eq!(body["max_tokens"], json!(16));
        assert_eq!(body["stop"], json!(["\n"]));
        assert_eq!(body["ignore_eos"], json!(true));
        assert!(body.get("top_p").is_none(), "{body}");
    }

    #[test]
    fn no_token_is_asked_for_where_none_is_wanted() {
        let stops = StopConditions { max_tokens: Some(0), ..StopConditions::default() };
        assert_eq!(body(request(SamplingOptions::default(), stops))["max_tokens"], json!(0));
    }

    #[test]
    fn a_prompt_that_fills_the_context_still_asks_for_a_token() {
        let mut long = request(SamplingOptions::default(), StopConditions::default());
        long.token_ids = Arc::new(vec![1; 5000]);
        assert_eq!(body(long)["max_tokens"], json!(1));
    }

    #[test]
    fn what_the_server_cannot_do_is_named() {
        let sampling = SamplingOptions { n: Some(2), ..SamplingOptions::default() };
        assert!(refusal(request(sampling, StopConditions::default())).contains("n: is not"));
        let stops = StopConditions { min_tokens: Some(1), ..StopConditions::default() };
        assert!(refusal(request(SamplingOptions::default(), stops)).contains("min_tokens: is"));
        let mut scored = request(SamplingOptions::default(), StopConditions::default());
        scored.output_options.logprobs = Some(0);
        assert!(refusal(scored).contains("logprobs: is not supported"));
    }
}
