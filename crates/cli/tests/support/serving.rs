//! A server of `longview serve`, and requests to it or to what stands before it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::thread;
use std::time::Duration;

/// Headers of a request, each a name and a value.
pub type Headers<'a> = &'a [(&'a str, &'a str)];

/// A server that is killed when the test is done with it.
pub struct Serving {
    /// Its process.
    pub child: Child,
    /// Host and port.
    pub address: String,
    said: Option<thread::JoinHandle<String>>,
}

impl Serving {
    /// Starts it, and waits until it serves.
    pub fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("http://") {
            line.clear();
            assert!(err.read_line(&mut line).unwrap() > 0, "it ended");
        }
        let address = line.split_once("http://").unwrap().1.split_once('/').unwrap().0.to_owned();
        let said = thread::spawn(move || {
            let mut rest = String::new();
            let _ = err.read_to_string(&mut rest);
            rest
        });
        let serving = Self { child, address, said: Some(said) };
        while serving.ask("GET", "/health", &[], "").0 != 200 {
            thread::sleep(Duration::from_millis(10));
        }
        serving
    }

    /// The status and the body of its answer.
    pub fn ask(&self, method: &str, path: &str, headers: Headers<'_>, body: &str) -> (u16, String) {
        ask(&self.address, method, path, headers, body)
    }

    /// As nothing can be done against; what it had said.
    pub fn kill(mut self) -> String {
        self.end();
        self.said.take().unwrap().join().unwrap()
    }

    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.end();
    }
}

/// Sends a request, whose answer comes out of the stream.
pub fn send(
    address: &str,
    method: &str,
    path: &str,
    headers: Headers<'_>,
    body: &str,
) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\n\r\n", body.len());
    stream.write_all((head + body).as_bytes()).unwrap();
    stream
}

/// The status and the body of an answer.
pub fn ask(
    address: &str,
    method: &str,
    path: &str,
    headers: Headers<'_>,
    body: &str,
) -> (u16, String) {
    let mut answer = String::new();
    send(address, method, path, headers, body).read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
