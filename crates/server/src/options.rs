//! What a server is told when it starts.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use longview_library::documents::Documents;
use longview_library::shared::Share;

use crate::keys::ApiKey;
use crate::origins::Origin;
use crate::turns::Turns;

/// How a server listens and what it allows.
#[derive(Clone)]
pub struct ServerOptions {
    /// Where to listen.
    pub host: IpAddr,
    /// The port; 0: one that is free.
    pub port: u16,
    /// What every request but those for `/health` and the page's files must bring one of; none:
    /// all are served. Each sees contexts of its scope alone.
    pub api_keys: Vec<ApiKey>,
    /// Values of the `Host` header that are served beside the server's own names.
    pub allowed_hosts: BTreeSet<String>,
    /// Origins of pages of other sites that may ask, beside the server's own page.
    pub allowed_origins: BTreeSet<Origin>,
    /// Requests that run at the same time.
    pub n_slots: usize,
    /// Requests that wait; one more is told to come later.
    pub max_waiting: usize,
    /// Contexts that are kept in memory.
    pub max_kept: usize,
    /// Bytes of prompts that are kept on disk beside the contexts of `documents`, in each scope;
    /// 0: none.
    pub prompt_bytes: u64,
    /// Bytes that the keys, values and indexes of what runs and of what is kept may take in
    /// memory; `None`: as many as there are.
    pub session_memory: Option<u64>,
    /// Says how many bytes of memory the system has left; `None`: nobody knows.
    pub free_memory: Option<fn() -> Option<u64>>,
    /// The library in which contexts are kept on disk; those of keys with names, or of several
    /// keys, in libraries within its folder.
    pub documents: Option<Documents>,
    /// Storage that several servers share: what is read for a context is copied there, and comes
    /// from there. It needs `documents`.
    pub share: Option<Share>,
    /// Where routers hear what is kept, in a build with the feature `kv-events`.
    pub kv_events: Option<KvEventsOptions>,
    /// Whether there is a page for people at `/`.
    pub has_page: bool,
    /// What limits a client.
    pub limits: Limits,
    /// Whether SIGTERM and Ctrl-C end the server.
    pub catches_signals: bool,
    /// Turns at the device, where other parts of the program compute on it too.
    pub turns: Turns,
}

/// Where routers hear which blocks of tokens a server keeps. The messages have tokens in them and
/// are sent to whoever connects: addresses that others reach need a server with keys, as the
/// server's own address does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEventsOptions {
    /// Where subscribers connect; port 0: one that is free.
    pub address: SocketAddr,
    /// Where they ask for messages that they missed.
    pub replay: Option<SocketAddr>,
    /// What messages begin with, by which subscribers choose.
    pub topic: String,
}

impl KvEventsOptions {
    /// An address as ZeroMQ writes it, `tcp://127.0.0.1:5557`. `tcp://` may be left out, and `*` is
    /// all addresses of the machine.
    ///
    /// # Errors
    /// For anything else.
    pub fn parse_address(text: &str) -> Result<SocketAddr, BadEndpoint> {
        let address = text.strip_prefix("tcp://").unwrap_or(text);
        let address = match address.strip_prefix("*:") {
            Some(port) => format!("0.0.0.0:{port}"),
            None => address.replacen("localhost:", "127.0.0.1:", 1),
        };
        address.parse().map_err(|_| BadEndpoint)
    }
}

/// No address of a ZeroMQ socket that there can be here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is no address like tcp://127.0.0.1:5557; a name of a machine is none either")]
pub struct BadEndpoint;

/// What limits a client, so that none of them holds what all need.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of a request's body.
    pub body_bytes: usize,
    /// Connections at the same time.
    pub connections: usize,
    /// Time for the head of a request.
    pub header: Duration,
    /// Time for its body.
    pub body: Duration,
    /// Time for the next request on a connection that has had one.
    pub idle: Duration,
    /// Time in which a client must take a part of its answer.
    pub stall: Duration,
    /// Time between signs of life in a stream.
    pub ping: Duration,
    /// Time for what runs when the server is told to end.
    pub drain: Duration,
    /// Time that an answer waits for its next token while prompts of others are read.
    pub max_stall: Duration,
    /// KV rows that the host reads to look at the attention of a step. Nobody's answer goes on
    /// meanwhile: as many take some tenths of a second.
    pub looked_at_rows: u64,
    /// Time between two looks for contexts whose time is over.
    pub sweep: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            body_bytes: 16 << 20,
            connections: 1024,
            header: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            body: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            ping: Duration::from_secs(15),
            drain: Duration::from_secs(30),
            max_stall: Duration::from_millis(200),
            looked_at_rows: 1 << 20,
            sweep: Duration::from_secs(5),
        }
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 8080,
            api_keys: Vec::new(),
            allowed_hosts: BTreeSet::new(),
            allowed_origins: BTreeSet::new(),
            n_slots: 4,
            max_waiting: 64,
            max_kept: 8,
            prompt_bytes: 8 << 30,
            session_memory: None,
            free_memory: None,
            documents: None,
            share: None,
            kv_events: None,
            has_page: true,
            limits: Limits::default(),
            catches_signals: false,
            turns: Turns::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_sockets_are_read_as_zeromq_writes_them() {
        let read = |text: &str| KvEventsOptions::parse_address(text).map(|at| at.to_string());
        for (text, wanted) in [
            ("tcp://127.0.0.1:5557", "127.0.0.1:5557"),
            ("127.0.0.1:5557", "127.0.0.1:5557"),
            ("tcp://localhost:1", "127.0.0.1:1"),
            ("tcp://*:5557", "0.0.0.0:5557"),
            ("tcp://[::1]:5557", "[::1]:5557"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(wanted), "{text}");
        }
        for text in
            ["", "5557", "tcp://127.0.0.1", "ipc:///tmp/x", "tcp://other:1", "tcp://*:70000"]
        {
            assert_eq!(read(text), Err(BadEndpoint), "{text}");
        }
    }
}
