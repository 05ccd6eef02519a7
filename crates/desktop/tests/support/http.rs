//! Another program of this machine, that speaks HTTP.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longer than any answer here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks, and waits for the answer: its status, and its body as JSON or as a text.
pub fn ask(address: SocketAddr, method: &str, path: &str, key: &str, body: &str) -> (u16, Value) {
    read(begin(address, method, path, key, body))
}

/// Asks, and leaves the answer where it is.
pub fn begin(address: SocketAddr, method: &str, path: &str, key: &str, body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(PATIENCE)).expect("a time");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\
         authorization: Bearer {key}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("it is sent");
    stream
}

/// The answer to what was begun; status 0 where there is none.
pub fn read(mut stream: TcpStream) -> (u16, Value) {
    let mut text = String::new();
    // One that is closed early has said what it had to say.
    let _ = stream.read_to_string(&mut text);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).unwrap_or(0);
    (status, serde_json::from_str(body).unwrap_or_else(|_| Value::String(body.to_owned())))
}
