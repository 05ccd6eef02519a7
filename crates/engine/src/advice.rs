//! What would fit where a model does not: changes of options after which memory suffices.
//!
//! Every change was planned and found to fit before anybody is told of it, so that following the
//! advice works.

use std::fmt;

use longview_core::DType;
use longview_scheduler::Preset;

/// A change of one option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A shorter context.
    Context(usize),
    /// Smaller keys and values.
    KvType(DType),
    /// Fewer tokens attended.
    Budget(usize),
    /// Fewer prompt tokens at a time.
    ChunkSize(usize),
    /// A policy that keeps less on the device.
    Policy(Preset),
}

/// Changes that would each do; within an entry all are needed together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Advice(pub(crate) Vec<Vec<Change>>);

impl Advice {
    /// The alternatives.
    pub fn alternatives(&self) -> &[Vec<Change>] {
        &self.0
    }

    /// Each alternative as words of a command line.
    pub fn options(&self) -> Vec<String> {
        let words = |changes: &Vec<Change>| {
            changes.iter().map(Change::to_string).collect::<Vec<_>>().join(" ")
        };
        self.0.iter().map(words).collect()
    }
}

impl fmt::Display for Change {
    /// As on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Context(tokens) => write!(f, "--ctx-size {tokens}"),
            Change::KvType(dtype) => write!(f, "--kv-type {dtype}"),
            Change::Budget(tokens) => write!(f, "--budget {tokens}"),
            Change::ChunkSize(tokens) => write!(f, "--chunk-size {tokens}"),
            Change::Policy(preset) => write!(f, "--policy {preset}"),
        }
    }
}

impl fmt::Display for Advice {
    /// The end of a message about memory that does not suffice.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.options();
        match options.split_last() {
            None => f.write_str("no option makes it fit: use a smaller model or more memory"),
            Some((last, [])) => write!(f, "use {last}"),
            Some((last, others)) => write!(f, "use {}, or {last}", others.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn advice_is_a_sentence() {
        let advice = |changes: &[&[Change]]| {
            Advice(changes.iter().map(|all| all.to_vec()).collect()).to_string()
        };
        let (context, chunk) = (Change::Context(2048), Change::ChunkSize(64));
        assert_eq!(advice(&[&[context]]), "use --ctx-size 2048");
        assert_eq!(advice(&[&[context], &[chunk]]), "use --ctx-size 2048, or --chunk-size 64");
        assert_eq!(advice(&[&[chunk, context]]), "use --chunk-size 64 --ctx-size 2048");
        assert!(advice(&[]).starts_with("no option makes it fit"));
    }
}
