//! Waits for a server that loads its model, and says when one is gone: by the same rules as
//! `ready.py`.
//!
//! A server that answers that it is not ready is alive: it loads a model, or opens a lost device
//! again, and both take minutes. One that does not answer is gone within seconds, but for its
//! start, when nothing listens yet.

use std::time::{Duration, Instant};

use dynamo_backend_common::DynamoError;
use tokio::time::sleep;

use crate::error::gone;
use crate::server::{Health, Server};

/// How often it is asked whether it lives, and how often in a row it may not answer.
pub(crate) const LOOKS: Duration = Duration::from_secs(1);
const MOST_MISSED: u32 = 3;
/// How often the log says that it is waited for.
const SAYS: Duration = Duration::from_secs(15);

/// Waits, `timeout` at most.
///
/// # Errors
/// `EngineShutdown` names the server, how it is and what to do.
pub(crate) async fn wait_until_ready(
    server: &Server,
    timeout: Duration,
    looks: Duration,
) -> Result<(), DynamoError> {
    let (address, began) = (server.address(), Instant::now());
    let mut said = None;
    loop {
        let health = server.health().await;
        let waited = began.elapsed();
        if health == Health::Ready {
            tracing::info!("{address} is ready after {:.0} s", waited.as_secs_f64());
            return Ok(());
        }
        let (waited_s, timeout_s) = (waited.as_secs_f64(), timeout.as_secs_f64());
        if waited >= timeout {
            return Err(gone(format!(
                "{address} {health}, after {waited_s:.0} s: start the server there, or wait longer \
                 with --ready-timeout (now {timeout_s} s)"
            )));
        }
        if said.is_none_or(|said: Instant| said.elapsed() >= SAYS) {
            tracing::info!("{address} {health}; waited {waited_s:.0} of {timeout_s} s");
            said = Some(Instant::now());
        }
        sleep(looks.min(timeout - waited)).await;
    }
}

/// What is known of a server that was ready.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    n_missed: u32,
    not_ready_since: Option<Instant>,
}

impl Watched {
    /// Takes in how it was at `now`. Returns why it is of no use any more, if so.
    pub(crate) fn saw(
        &mut self,
        health: Health,
        now: Instant,
        timeout: Duration,
    ) -> Option<String> {
        self.n_missed = if health == Health::Silent { self.n_missed + 1 } else { 0 };
        if self.n_missed >= MOST_MISSED {
            return Some("does not answer any more".to_owned());
        }
        if health == Health::Ready {
            self.not_ready_since = None;
            return None;
        }
        let since = *self.not_ready_since.get_or_insert(now);
        (now - since >= timeout).then(|| format!("is not ready since {} s", timeout.as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    const SOON: Duration = Duration::from_millis(10);

    /// Answers `/health` with these statuses, each after its time; the last one for ever.
    fn scripted(answers: Vec<(u16, Duration)>) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        thread::spawn(move || {
            let n_last = answers.len() - 1;
            for (i, stream) in listener.incoming().enumerate() {
                let (status, after) = answers[i.min(n_last)];
                answer(&mut BufReader::new(stream.unwrap()), status, after);
            }
        });
        Server::new(&address, None).unwrap()
    }

    fn answer(stream: &mut BufReader<TcpStream>, status: u16, after: Duration) {
        let mut line = String::new();
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).unwrap();
        }
        thread::sleep(after);
        let head = format!("HTTP/1.1 {status} X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
        let _ = stream.get_mut().write_all(head.as_bytes());
    }

    #[tokio::test]
    async fn a_server_is_waited_for_while_it_loads() {
        let server = scripted(vec![(503, Duration::ZERO), (503, Duration::ZERO), (200, SOON)]);
        wait_until_ready(&server, Duration::from_secs(60), SOON).await.unwrap();
    }

    #[tokio::test]
    async fn the_error_names_the_address_and_what_to_do() {
        let server = scripted(vec![(503, Duration::ZERO)]);
        let wait = wait_until_ready(&server, Duration::from_millis(200), SOON);
        let error = wait.await.unwrap_err().to_string();
        for part in [server.address(), "is not ready", "--ready-timeout", "0.2 s"] {
            assert!(error.contains(part), "{error}");
        }
    }

    #[tokio::test]
    async fn a_busy_machine_may_take_seconds_to_answer() {
        let server = scripted(vec![(200, Duration::from_secs(3))]);
        assert_eq!(server.health().await, Health::Ready);
    }

    #[test]
    fn one_that_answers_is_not_gone_until_the_time_is_over() {
        let (began, timeout) = (Instant::now(), Duration::from_secs(3600));
        let mut watched = Watched::default();
        let mut saw = |health, s| watched.saw(health, began + Duration::from_secs(s), timeout);
        for s in 0..1000 {
            assert_eq!(saw(Health::NotReady, s), None);
        }
        assert_eq!(saw(Health::Ready, 1000), None);
        assert_eq!(saw(Health::NotReady, 1001), None);
        assert_eq!(saw(Health::Silent, 4000), None);
        assert_eq!(saw(Health::NotReady, 4600), None);
        assert!(saw(Health::NotReady, 4601).unwrap().contains("is not ready since 3600 s"));
    }

    #[test]
    fn one_that_does_not_answer_three_times_is_gone() {
        let (now, timeout) = (Instant::now(), Duration::from_secs(3600));
        let mut watched = Watched::default();
        let mut saw = |health| watched.saw(health, now, timeout);
        assert_eq!([saw(Health::Silent), saw(Health::Silent)], [None, None]);
        assert_eq!(saw(Health::NotReady), None);
        assert_eq!([saw(Health::Silent), saw(Health::Silent)], [None, None]);
        assert!(saw(Health::Silent).unwrap().contains("does not answer"));
    }
}
