//! stdout for results, stderr for everything about them.
//!
//! Nothing here panics where a reader has gone: writing to stdout returns the error, which
//! `failure` takes for a quiet end, and notes that nobody can read are dropped.

use std::fmt;
use std::io::{self, IsTerminal, StdoutLock, Write};

use anyhow::Result;
use serde::Serialize;

use crate::clean::{self, Shown, escaped};

/// The locked stdout. A terminal gets no control characters but line ends and tabs.
pub fn stdout() -> Shown<StdoutLock<'static>> {
    let out = io::stdout().lock();
    let is_terminal = out.is_terminal();
    Shown::new(out, is_terminal)
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
