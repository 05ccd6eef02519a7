//! Running the binary, and model folders that are damaged on purpose.

pub mod serving;

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::process::Child;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder that is removed at the end of a test.
pub struct TempFolder(PathBuf);

impl TempFolder {
    /// An empty folder.
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("longview-cli-{}-{n}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A copy of the embedded model, to be damaged.
    pub fn model() -> Self {
        let folder = Self::new();
        for entry in fs::read_dir(needle()).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() {
                fs::copy(&path, folder.path().join(path.file_name().unwrap())).unwrap();
            }
        }
        folder
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file in it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a file and says where it is.
    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.file(name), bytes).unwrap();
        self.file(name)
    }

    /// Replaces `old`, which must be there, in a text file.
    pub fn edit(&self, name: &str, old: &str, new: &str) {
        let text = fs::read_to_string(self.file(name)).unwrap();
        assert!(text.contains(old), "{name} holds no {old}");
        fs::write(self.file(name), text.replacen(old, new, 1)).unwrap();
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The model of this repository.
pub fn needle() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/needle")
}

/// `longview` with these words and an empty stdin.
pub fn command<I: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = I>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longview"));
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Presses Ctrl-C for a process. Windows' consoles have no other program press it for one process
/// alone: there `cargo xtask platforms` does, from outside.
#[cfg(unix)]
pub fn interrupt(child: &Child) {
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(status.unwrap().success());
}

/// What a finished process left.
pub struct Done {
    /// Exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// stdout.
    pub stdout: String,
    /// stderr.
    pub stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }
}

impl Done {
    /// Asserts success and returns stdout.
    #[track_caller]
    pub fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "stderr: {}", self.stderr);
        self.stdout
    }

    /// Asserts exit code 1, an empty stdout and a message with all of `parts`, and no panic.
    /// Nothing but the choice of a device and of a context, and progress, may come before it.
    #[track_caller]
    pub fn fails_with(self, parts: &[&str]) {
        assert_eq!(self.code, Some(1), "stderr: {}", self.stderr);
        assert_eq!(self.stdout, "");
        let choices = ["device: ", "warning: ", "context: ", "prefill: "];
        let is_choice = |line: &str| choices.iter().any(|choice| line.starts_with(choice));
        let first = self.stderr.lines().find(|line| !is_choice(line)).unwrap_or_default();
        assert!(first.starts_with("error: "), "{}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in: {}", self.stderr);
        }
    }
}

impl Done {
    /// Asserts exit code 2, an empty stdout and a message with all of `parts`.
    #[track_caller]
    pub fn refuses_usage(self, parts: &[&str]) {
        assert_eq!(self.code, Some(2), "stderr: {}", self.stderr);
        assert_eq!(self.stdout, "");
        assert!(self.stderr.starts_with("error: "), "{}", self.stderr);
        assert!(self.stderr.lines().count() <= 10, "{}", self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is not in: {}", self.stderr);
        }
    }
}

/// Runs `longview` to its end.
pub fn longview<I: AsRef<std::ffi::OsStr>>(words: impl IntoIterator<Item = I>) -> Done {
    command(words).output().unwrap().into()
}

/// `longview run -m <model>` with further words.
pub fn run(model: &Path, words: &[&str]) -> Done {
    let mut command = command(["run", "-m"]);
    command.arg(model).args(words);
    command.output().unwrap().into()
}
