//! stdout for results, stderr for everything about them.
//!
//! Nothing here panics where a reader has gone: writing to stdout returns the error, which
//! `failure` takes for a quiet end, and notes that nobody can read are dropped.

use std::fmt;
use std::io::{self, IsTerminal, StdoutLock, Write};

use anyhow::Result;
use serde::Serialize;

use crate::clean::{self, Shown, escaped};

/// The locked stdout; its errors say whose they are.
pub struct Stdout(Shown<StdoutLock<'static>>);

/// The locked stdout. A terminal gets no control characters but line ends and tabs.
pub fn stdout() -> Stdout {
    let out = io::stdout().lock();
    let is_terminal = out.is_terminal();
    Stdout(Shown::new(out, is_terminal))
}

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(of_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(of_stdout)
    }
}

/// An error of writing to stdout that says so. It stays of its kind: a pipe that was closed, and a
/// write that is tried again, are told by it.
pub fn of_stdout(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("standard output cannot be written ({error})"))
}

/// Writes `bytes` and flushes.
pub fn bytes(bytes: &[u8]) -> Result<()> {
    let mut out = stdout();
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

/// Writes a text that is shown as it comes.
pub fn piece(text: &str) -> io::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Writes one JSON object and a line end.
pub fn json(value: &impl Serialize) -> Result<()> {
    let mut text = serde_json::to_string_pretty(value)?;
    text.push('\n');
    bytes(text.as_bytes())
}

/// A line on stderr, or a few: what is longer is cut, and control characters are spelled out.
pub fn note(line: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", clean::message(&line.to_string()));
}

/// What somebody asked to see, of whatever length; control characters are spelled out.
pub fn listing(text: impl fmt::Display) {
    let _ = writeln!(io::stderr(), "{}", escaped(&text.to_string()));
}
