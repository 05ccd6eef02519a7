//! The targets: their inputs, and how the fuzzer is called for each.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use crate::process::{root, target_directory};

/// Every target of `longview-fuzz`, and how long its inputs may be: beyond a few pages they are
/// slow and say nothing new.
pub(super) const TARGETS: &[Target] = &[
    Target { name: "gguf", max_bytes: 16_384 },
    Target { name: "safetensors", max_bytes: 4_096 },
    Target { name: "config", max_bytes: 2_048 },
    Target { name: "tokenizer", max_bytes: 4_096 },
    Target { name: "chat", max_bytes: 4_096 },
    Target { name: "session", max_bytes: 8_192 },
    Target { name: "request", max_bytes: 2_048 },
];

pub(super) struct Target {
    pub(super) name: &'static str,
    max_bytes: usize,
}

/// Seconds that one input may take.
const MAX_SECONDS: u32 = 10;

/// Where everything is that a run makes.
pub(super) fn folder() -> Result<PathBuf> {
    Ok(target_directory()?.join("fuzz"))
}

impl Target {
    /// The committed inputs.
    pub(super) fn corpus(&self) -> PathBuf {
        root().join("tests/fuzz/corpus").join(self.name)
    }

    /// Files of tests that are inputs, too.
    fn fixtures(&self) -> Option<PathBuf> {
        (self.name == "session").then(|| root().join("tests/fixtures/session"))
    }

    /// What runs found.
    pub(super) fn found(&self) -> Result<PathBuf> {
        let found = folder()?.join("corpus").join(self.name);
        fs::create_dir_all(&found).with_context(|| found.display().to_string())?;
        Ok(found)
    }

    pub(super) fn seeds(&self) -> impl Iterator<Item = PathBuf> {
        [self.corpus()].into_iter().chain(self.fixtures()).filter(|folder| folder.is_dir())
    }

    pub(super) fn command(&self, program: &Path) -> Result<Command> {
        let mut command = Command::new(program);
        command.env("LONGVIEW_FUZZ_TARGET", self.name).current_dir(folder()?);
        command.arg(format!("-max_len={}", self.max_bytes));
        // What the allocator of the targets bounds is here only in case it fails.
        command.args(["-rss_limit_mb=2048", "-print_final_stats=1"]);
        command.arg(format!("-timeout={MAX_SECONDS}"));
        Ok(command)
    }
}
