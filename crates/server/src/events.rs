//! Events of one request as its handler takes them, and the line that the log has of it in the end.
//! The line says all in words, and in fields for logs that programs read.

use std::sync::Arc;
use std::time::Instant;

use tokio::sync::mpsc::Receiver;
use tracing::field::display;
use tracing::info;

use crate::app::App;
use crate::error::ApiError;
use crate::job::{Event, Summary};
use crate::keys::Scope;
use crate::request_id::RequestId;

/// What a client asked: no more of it than the table of routes says.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) request_id: Option<RequestId>,
    pub(crate) since: Instant,
}

/// From the engine's thread, for one request. A client that leaves drops them before their end.
pub(crate) struct Events {
    receiver: Receiver<Event>,
    /// Until its line is written.
    asked: Option<Asked>,
    /// Where it leaves its tokens.
    slot: Option<(Arc<App>, Scope, usize)>,
}

impl Events {
    pub(crate) fn new(receiver: Receiver<Event>, asked: Option<Asked>) -> Self {
        Self { receiver, asked, slot: None }
    }

    /// The same of a request that leaves its tokens in a slot, if it names one.
    pub(crate) fn leaving(mut self, app: Arc<App>, slot: Option<(Scope, usize)>) -> Self {
        self.slot = slot.map(|(scope, slot)| (app, scope, slot));
        self
    }

    /// The next one; none where the engine's thread ended.
    pub(crate) async fn recv(&mut self) -> Option<Event> {
        let event = self.receiver.recv().await;
        match &event {
            Some(Event::Done(summary)) => {
                if let (Some((app, scope, slot)), Some(left)) = (self.slot.take(), &summary.left) {
                    app.held().put(scope, slot, Arc::clone(left));
                }
                self.served(summary);
            }
            Some(Event::Failed(error)) => self.failed(error),
            None => self.failed(&ApiError::ended()),
            Some(_) => {}
        }
        event
    }

    fn served(&mut self, summary: &Summary) {
        let Some(Asked { method, path, request_id, since }) = self.asked.take() else { return };
        let ms = since.elapsed().as_millis() as u64;
        let Summary { n_prompt, n_cached, n_predicted, .. } = *summary;
        info!(
            request_id = request_id.map(display),
            method,
            route = path,
            status = 200,
            ms,
            n_prompt,
            n_cached,
            n_predicted,
            "{method} {path}: 200 in {ms} ms, {n_prompt} tokens of prompt, {n_cached} of them \
             cached, {n_predicted} generated"
        );
    }

    fn failed(&mut self, error: &ApiError) {
        let Some(Asked { method, path, request_id, since }) = self.asked.take() else { return };
        let (status, ms) = (error.status().as_u16(), since.elapsed().as_millis() as u64);
        let request_id = request_id.map(display);
        info!(request_id, method, route = path, status, ms, "{method} {path}: {status} in {ms} ms");
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let Some(Asked { method, path, request_id, since }) = self.asked.take() else { return };
        let ms = since.elapsed().as_millis() as u64;
        let request_id = request_id.map(display);
        info!(request_id, method, route = path, ms, "{method} {path}: left after {ms} ms");
    }
}
