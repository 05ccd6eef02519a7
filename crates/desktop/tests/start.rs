//! The real program on a screen that nobody sees, with a file as its argument.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A display server that ends with the test.
struct Screen(Child);

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts Xvfb and returns the display's name; `None` where there is no Xvfb.
fn screen() -> Option<(Screen, String)> {
    let mut command = Command::new("Xvfb");
    command.args(["-displayfd", "1", "-screen", "0", "1280x840x24", "-nolisten", "tcp"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let stdout = child.stdout.take()?;
    let screen = Screen(child);
    let mut number = String::new();
    BufReader::new(stdout).read_line(&mut number).ok()?;
    Some((screen, format!(":{}", number.trim())))
}

#[test]
fn the_program_opens_a_window_with_a_file_and_ends() {
    let (_screen, display) = screen().expect("an Xvfb: `cargo xtask setup` installs it");
    let folder = std::env::temp_dir().join(format!("longview-start-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    // A page: its text is read by a child of the program.
    let file = folder.join("story.html");
    let text = "Once upon a time there was a harbour. ".repeat(50);
    std::fs::write(&file, format!("<html><body><p>{text}</p></body></html>")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_longview-desktop"));
    command.args(["--device", "cpu", "--exit-after-start"]).arg(&file);
    command.env("DISPLAY", display).env_remove("WAYLAND_DISPLAY").env("WGPU_BACKEND", "vulkan");
    command.env("LONGVIEW_LIBRARY", folder.join("library")).env("XDG_RUNTIME_DIR", &folder);
    let mut child = command.spawn().unwrap();
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if begin.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("the program did not end");
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    assert!(status.success(), "{status}");
    std::fs::remove_dir_all(folder).unwrap();
}
