//! Events of one request as its handler takes them, and the line that the log has of it in the end.

use std::time::Instant;

use tokio::sync::mpsc::Receiver;
use tracing::info;

use crate::error::ApiError;
use crate::job::{Event, Summary};

/// What a client asked: no more of it than the table of routes says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) method: &'static str,
    pub(crate) path: &'static str,
    pub(crate) since: Instant,
}

/// From the engine's thread, for one request. A client that leaves drops them before their end.
pub(crate) struct Events {
    receiver: Receiver<Event>,
    /// Until its line is written.
    asked: Option<Asked>,
}

impl Events {
    pub(crate) fn new(receiver: Receiver<Event>, asked: Option<Asked>) -> Self {
        Self { receiver, asked }
    }

    /// The next one; none where the engine's thread ended.
    pub(crate) async fn recv(&mut self) -> Option<Event> {
        let event = self.receiver.recv().await;
        match &event {
            Some(Event::Done(summary)) => self.served(summary),
            Some(Event::Failed(error)) => self.failed(error),
            None => self.failed(&ApiError::ended()),
            Some(_) => {}
        }
        event
    }

    fn served(&mut self, summary: &Summary) {
        let Some(Asked { method, path, since }) = self.asked.take() else { return };
        let ms = since.elapsed().as_millis();
        let Summary { n_prompt, n_cached, n_predicted, .. } = summary;
        info!(
            "{method} {path}: 200 in {ms} ms, {n_prompt} tokens of prompt, {n_cached} of them \
             cached, {n_predicted} generated"
        );
    }

    fn failed(&mut self, error: &ApiError) {
        let Some(Asked { method, path, since }) = self.asked.take() else { return };
        let (status, ms) = (error.status().as_u16(), since.elapsed().as_millis());
        info!("{method} {path}: {status} in {ms} ms");
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        let Some(Asked { method, path, since }) = self.asked.take() else { return };
        info!("{method} {path}: left after {} ms", since.elapsed().as_millis());
    }
}
