//! A network between a client and a server, which fails on purpose.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Bytes that are passed on at once.
const PIECE: usize = 16 << 10;

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Nothing.
    None,
    /// Nobody listens.
    Closed,
    /// So many connections are cut when they have brought more than this many bytes.
    Cut {
        /// Bytes of an answer.
        after: u64,
        /// How often it still happens.
        times: u32,
    },
    /// So many answers have a bit changed in this byte of what their connection brings.
    Flip {
        /// Bytes before it.
        at: u64,
        /// How often it still happens.
        times: u32,
    },
    /// So many requests are told to come later.
    Busy {
        /// How often it still happens.
        times: u32,
    },
    /// All answers together come at so many bytes a second.
    Slow {
        /// Bytes of all connections.
        bytes_per_s: u64,
    },
    /// All requests together go at so many bytes a second.
    SlowWrites {
        /// Bytes of all connections.
        bytes_per_s: u64,
    },
    /// Requests to write objects whose address has this in it go so much later, also where their
    /// client has left.
    HoldWrites {
        /// A part of an address.
        of: &'static str,
        /// How much later.
        by: Duration,
    },
    /// The connection is closed when this many requests to write have passed.
    CutWrites {
        /// Requests to write that still pass.
        after: u32,
    },
}

/// The network. It ends with the program.
#[derive(Clone, Debug)]
pub struct Proxy {
    address: SocketAddr,
    fault: Arc<Mutex<Fault>>,
    /// Held by who sends an answer on a slow network: it is one for all.
    link: Arc<Mutex<()>>,
}

impl Proxy {
    /// One to `server`.
    ///
    /// # Errors
    /// What the system says.
    pub fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let proxy = Self {
            address: listener.local_addr()?,
            fault: Arc::new(Mutex::new(Fault::None)),
            link: Arc::default(),
        };
        let own = proxy.clone();
        thread::Builder::new().name("proxy".to_owned()).spawn(move || {
            for client in listener.incoming().flatten() {
                let own = own.clone();
                thread::spawn(move || own.connect(client, server));
            }
        })?;
        Ok(proxy)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Lets this go wrong from now on.
    pub fn set(&self, fault: Fault) {
        *self.lock() = fault;
    }

    /// What goes wrong now, with the times that are left.
    pub fn fault(&self) -> Fault {
        *self.lock()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Fault> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(&self, client: TcpStream, server: SocketAddr) {
        if self.fault() == Fault::Closed {
            return;
        }
        let Ok(server) = TcpStream::connect(server) else { return };
        let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { return };
        let own = self.clone();
        let asks = thread::spawn(move || own.pass_requests(from, to));
        let _ = self.pass_answers(&server, &client);
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
        let _ = asks.join();
    }

    fn pass_requests(&self, mut from: TcpStream, mut to: TcpStream) {
        let (mut piece, mut held) = (vec![0; PIECE], None);
        loop {
            let n = match from.read(&mut piece) {
                Ok(n) if n > 0 => n,
                _ => break,
            };
            let is_put = piece.starts_with(b"PUT ");
            let is_request = is_put
                || [&b"GET "[..], b"HEAD ", b"POST ", b"DELETE "]
                    .iter()
                    .any(|m| piece.starts_with(m));
            if is_request && self.refuses(is_put, &mut from) {
                break;
            }
            held = self.delay(&piece[..n], is_put).or(held);
            if to.write_all(&piece[..n]).is_err() {
                break;
            }
        }
        // A server drops what it is at when its client closes the connection.
        if let Some(by) = held {
            thread::sleep(by);
        }
        let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
    }

    /// Waits before a piece of a request goes on; how long a request to write was held.
    fn delay(&self, piece: &[u8], is_put: bool) -> Option<Duration> {
        match self.fault() {
            Fault::SlowWrites { bytes_per_s } => {
                let _link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
                thread::sleep(Duration::from_secs_f64(piece.len() as f64 / bytes_per_s as f64));
                None
            }
            Fault::HoldWrites { of, by } if is_put => {
                let line = piece.split(|byte| *byte == b'\n').next().unwrap_or(piece);
                if !String::from_utf8_lossy(line).contains(of) {
                    return None;
                }
                thread::sleep(by);
                Some(by)
            }
            _ => None,
        }
    }

    /// Whether a request does not reach the server.
    fn refuses(&self, is_put: bool, client: &mut TcpStream) -> bool {
        let mut fault = self.lock();
        match &mut *fault {
            Fault::Closed => true,
            Fault::Busy { times } if *times > 0 => {
                *times -= 1;
                let answer =
                    "HTTP/1.1 503 Slow Down\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
                let _ = client.write_all(answer.as_bytes());
                true
            }
            Fault::CutWrites { after } if is_put => {
                let is_over = *after == 0;
                *after = after.saturating_sub(1);
                is_over
            }
            _ => false,
        }
    }

    fn pass_answers(&self, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        let (mut piece, mut n_passed) = (vec![0; PIECE], 0_u64);
        loop {
            let n = from.read(&mut piece)?;
            if n == 0 {
                return Ok(());
            }
            let end = n_passed + n as u64;
            let pause = {
                let mut fault = self.lock();
                match &mut *fault {
                    Fault::Closed => return Ok(()),
                    Fault::Cut { after, times } if *times > 0 && end > *after => {
                        *times -= 1;
                        return Ok(());
                    }
                    Fault::Flip { at, times } if *times > 0 && (n_passed..end).contains(at) => {
                        *times -= 1;
                        piece[(*at - n_passed) as usize] ^= 1;
                        None
                    }
                    Fault::Slow { bytes_per_s } => {
                        Some(Duration::from_secs_f64(n as f64 / *bytes_per_s as f64))
                    }
                    _ => None,
                }
            };
            if let Some(pause) = pause {
                let _link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
                thread::sleep(pause);
            }
            to.write_all(&piece[..n])?;
            n_passed = end;
        }
    }
}
