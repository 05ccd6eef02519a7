//! A terminal that tests type into and look at: a tmux server of their own.

use std::cell::Cell;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{TempFolder, needle};

/// Until then what is awaited has to be there. A test that waits for less is a test of the machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs its arguments and writes the exit code to the file that `$0` names: tmux may miss the end
/// of a program. The trap lets the shell go on after a Ctrl-C, which both get.
const RECORDER: &str = r#"trap : INT; "$@"; echo $? > "$0""#;

/// A terminal with `longview run` in it, and a folder for its files.
pub struct Screen {
    folder: TempFolder,
    /// Each program has a server: one that ends may still be there when the next begins.
    n_started: Cell<usize>,
}

impl Screen {
    /// A folder, and no terminal yet.
    pub fn new() -> Self {
        Self { folder: TempFolder::new(), n_started: Cell::new(0) }
    }

    /// Where the files of the test are.
    pub fn folder(&self) -> &TempFolder {
        &self.folder
    }

    /// Starts `longview run` on the embedded model in a window of `columns` columns and 40 rows, in
    /// place of what ran before. A word that begins with @ is a file of the folder.
    pub fn start(&self, columns: usize, words: &[&str]) {
        let model = needle().display().to_string();
        let state = format!("XDG_STATE_HOME={}", self.folder.file("state").display());
        let size = [columns.to_string(), "40".to_owned()];
        let words = words.iter().map(|word| match word.strip_prefix('@') {
            Some(name) => self.folder.file(name).display().to_string(),
            None => (*word).to_owned(),
        });
        let mut all: Vec<String> = Vec::new();
        let options = ["start-server", ";", "set", "-g", "remain-on-exit", "on", ";"];
        let session = ["new-session", "-d", "-x", &size[0], "-y", &size[1], "-e", &state];
        self.end();
        self.n_started.set(self.n_started.get() + 1);
        let code = self.folder.file(&self.code_file()).display().to_string();
        let shell = ["sh", "-c", RECORDER, &code];
        let program = [env!("CARGO_BIN_EXE_longview"), "run", "-m", &model, "--device", "cpu"];
        for part in [&options[..], &session, &shell, &program, &["--temp", "0"]] {
            all.extend(part.iter().map(|word| (*word).to_owned()));
        }
        all.extend(words);
        self.tmux(&all);
    }

    /// Where the program's exit code is written.
    fn code_file(&self) -> String {
        format!("code{}", self.n_started.get())
    }

    fn end(&self) {
        // It is gone already if its program could not start.
        let output = self.command().arg("kill-server").output();
        output.expect("tmux is there: `cargo xtask setup` installs it");
    }

    fn command(&self) -> Command {
        let mut command = Command::new("tmux");
        command.env_remove("TMUX").env_remove("LONGVIEW_HISTORY");
        command.env("TMUX_TMPDIR", self.folder.path()).env("LC_ALL", "C.UTF-8");
        let socket = format!("chat{}", self.n_started.get());
        command.args(["-L", &socket, "-f", "/dev/null"]);
        command
    }

    fn tmux<S: AsRef<str>>(&self, words: &[S]) -> String {
        let mut command = self.command();
        command.args(words.iter().map(AsRef::as_ref));
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command:?}: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Types a text.
    pub fn text(&self, text: &str) {
        self.tmux(&["send-keys", "-l", text]);
    }

    /// Presses keys by their names: `Enter`, `C-c`, `Left`.
    pub fn keys(&self, keys: &[&str]) {
        self.tmux(&[&["send-keys"], keys].concat());
    }

    /// Types a text and ends the line.
    pub fn line(&self, text: &str) {
        self.text(text);
        self.keys(&["Enter"]);
    }

    /// Pastes a text, as a terminal does it.
    pub fn paste(&self, text: &str) {
        self.tmux(&["set-buffer", text]);
        self.tmux(&["paste-buffer", "-p"]);
    }

    /// Makes the window as wide.
    pub fn resize(&self, columns: usize) {
        self.tmux(&["resize-window", "-x", &columns.to_string(), "-y", "40"]);
    }

    /// What the window shows and what scrolled out of it, without empty lines.
    pub fn lines(&self) -> Vec<String> {
        self.captured(&["-S", "-"])
    }

    /// What the window shows, without empty lines.
    pub fn visible(&self) -> Vec<String> {
        self.captured(&[])
    }

    fn captured(&self, words: &[&str]) -> Vec<String> {
        let text = self.tmux(&[&["capture-pane", "-p"], words].concat());
        let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
        lines.map(str::to_owned).collect()
    }

    /// The same, with lines that the terminal wrapped put together.
    pub fn shown(&self) -> String {
        self.tmux(&["capture-pane", "-p", "-J", "-S", "-"])
    }

    /// Waits until the lines are as wanted.
    #[track_caller]
    pub fn wait(&self, wanted: &str, is_there: impl Fn(&[String]) -> bool) -> Vec<String> {
        let start = Instant::now();
        loop {
            let lines = self.lines();
            if is_there(&lines) {
                return lines;
            }
            let shown = lines.join("\n");
            assert!(start.elapsed() < DEADLINE, "waited for {wanted}; the screen has:\n{shown}");
            // Looking is a process each time.
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for `text` on the screen.
    #[track_caller]
    pub fn wait_for(&self, text: &str) -> Vec<String> {
        self.wait(text, |_| self.shown().contains(text))
    }

    /// Waits for an empty prompt as the last line.
    #[track_caller]
    pub fn wait_for_prompt(&self) -> Vec<String> {
        self.wait("a prompt", |lines| lines.last().is_some_and(|line| line == ">"))
    }

    /// Asks and waits for `answer` and the prompt after it.
    #[track_caller]
    pub fn ask(&self, line: &str, answer: &str) -> Vec<String> {
        self.line(line);
        self.wait_for(answer);
        self.wait_for_prompt()
    }

    /// Waits for the end of the program and returns its exit code.
    #[track_caller]
    pub fn code(&self) -> i32 {
        let code = || std::fs::read_to_string(self.folder.file(&self.code_file())).ok();
        let is_written = || code().is_some_and(|code| code.ends_with('\n'));
        self.wait("the end of the program", |_| is_written());
        code().unwrap().trim().parse().unwrap()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.end();
    }
}
