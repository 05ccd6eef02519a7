//! Answers as they are generated (server-sent events), with signs of life in between.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, Response, header};
use futures_util::stream;
use serde_json::Value;

use crate::error::ApiError;
use crate::events::Events;
use crate::job::{Event, Summary};
use crate::timings::timings_json;

/// Makes of events what a client reads.
pub(crate) trait Script: Send + 'static {
    /// What an event is in this endpoint's form.
    fn event(&mut self, event: Event) -> Vec<Value>;
    /// Whether a complete stream ends with OpenAI's mark.
    fn ends_with_mark(&self) -> bool;
    /// Whether each event is named by the `type` that its data has.
    fn has_names(&self) -> bool {
        false
    }
    /// The last event of an answer that failed.
    fn error(&mut self, error: &ApiError) -> Value {
        error.json()
    }
    /// A sign of life.
    fn ping(&self) -> String {
        ": ping\n\n".to_owned()
    }
}

/// An answer in events.
pub(crate) fn respond(events: Events, script: impl Script, ping: Duration) -> Response<Body> {
    let state = Some((events, script));
    let parts = stream::unfold(state, move |state| async move {
        let (mut events, mut script) = state?;
        let (text, is_last) = next(&mut events, &mut script, ping).await;
        let state = (!is_last).then_some((events, script));
        Some((Ok::<_, std::convert::Infallible>(Bytes::from(text)), state))
    });
    let mut response = Response::new(Body::from_stream(parts));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The next part of the stream, and whether it is the last.
async fn next(events: &mut Events, script: &mut impl Script, ping: Duration) -> (String, bool) {
    let Ok(event) = tokio::time::timeout(ping, events.recv()).await else {
        return (script.ping(), false);
    };
    let (error, is_done) = match &event {
        None => (Some(ApiError::ended()), false),
        Some(Event::Failed(error)) => (Some(error.clone()), false),
        Some(Event::Done(_)) => (None, true),
        Some(_) => (None, false),
    };
    let has_names = script.has_names();
    if let Some(error) = error {
        return (data(&script.error(&error), has_names), true);
    }
    let timings = event.as_ref().and_then(timings_of);
    let mut values = event.map(|event| script.event(event)).unwrap_or_default();
    if let Some(timings) = timings {
        values.iter_mut().for_each(|value| value["timings"] = timings.clone());
    }
    let mut text: String = values.iter().map(|value| data(value, has_names)).collect();
    if is_done && script.ends_with_mark() {
        text += "data: [DONE]\n\n";
    }
    (text, is_done)
}

/// What the request took so far, where it wants to know that with each part.
fn timings_of(event: &Event) -> Option<Value> {
    let summary = match event {
        Event::Piece { timings, .. } => timings.as_deref()?,
        Event::Progress(progress) if progress.is_timed => &Summary {
            n_prompt: progress.processed,
            n_cached: progress.cached,
            prompt_ms: progress.time_ms as f64,
            ..Summary::default()
        },
        _ => return None,
    };
    Some(timings_json(summary))
}

fn data(value: &Value, has_name: bool) -> String {
    let name = value["type"].as_str().filter(|_| has_name);
    let name = name.map(|name| format!("event: {name}\n")).unwrap_or_default();
    format!("{name}data: {value}\n\n")
}
