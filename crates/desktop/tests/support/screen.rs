//! A screen that nobody sees, and the program on it.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use image::{Rgb, RgbImage};
use x11rb::connection::Connection as _;
use x11rb::protocol::Event;
use x11rb::protocol::xproto::{
    AtomEnum, ChangeWindowAttributesAux, ClientMessageEvent, ConnectionExt as _, EventMask,
    Window as WindowId,
};
use x11rb::rust_connection::RustConnection;

/// Longer than anything here takes on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Waits until `is_so`.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "waited for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A display server that ends with the test, and a folder for what programs on it keep.
pub struct Screen {
    server: Child,
    display: String,
    /// Everything of this test.
    pub folder: PathBuf,
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Screen {
    /// Starts Xvfb.
    pub fn start(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("longview-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(folder.join("config/longview")).unwrap();
        // The looks of the system are another thing on each machine.
        std::fs::write(folder.join("config/longview/desktop.json"), r#"{"theme": "light"}"#)
            .unwrap();
        let mut command = Command::new("Xvfb");
        command.args(["-displayfd", "1", "-screen", "0", "1280x840x24", "-nolisten", "tcp"]);
        command.arg("-fbdir").arg(&folder);
        let server = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut server = server.expect("an Xvfb: `cargo xtask setup` installs it");
        let mut number = String::new();
        BufReader::new(server.stdout.take().unwrap()).read_line(&mut number).unwrap();
        Self { server, display: format!(":{}", number.trim()), folder }
    }

    /// The program, with its library and all else that it keeps in the folder.
    pub fn program(&self, words: &[&str], files: &[&Path]) -> Program {
        let mut command = Command::new(env!("CARGO_BIN_EXE_longview-desktop"));
        command.args(["--device", "cpu"]).args(words).args(files);
        command.env("DISPLAY", &self.display).env_remove("WAYLAND_DISPLAY");
        command.env("WGPU_BACKEND", "vulkan").env("LONGVIEW_LIBRARY", self.folder.join("library"));
        command.env("XDG_RUNTIME_DIR", &self.folder);
        command.env("XDG_CONFIG_HOME", self.folder.join("config"));
        command.env("XDG_DATA_HOME", self.folder.join("data"));
        Program(command.spawn().unwrap())
    }

    /// What is on it now: Xvfb keeps that in a file in the format of `xwd`.
    pub fn picture(&self) -> RgbImage {
        let bytes = std::fs::read(self.folder.join("Xvfb_screen0")).unwrap();
        let field = |i: usize| {
            let four = bytes[4 * i..4 * i + 4].try_into().expect("four bytes");
            u32::from_be_bytes(four) as usize
        };
        let [header, width, height] = [0, 4, 5].map(field);
        let [is_big_end, bits, line, n_colors] = [7, 11, 12, 19].map(field);
        assert_eq!((is_big_end, bits), (0, 32), "blue, green, red and nothing");
        let pixels = &bytes[header + 12 * n_colors..];
        RgbImage::from_fn(width as u32, height as u32, |x, y| {
            let at = y as usize * line + 4 * x as usize;
            Rgb([pixels[at + 2], pixels[at + 1], pixels[at]])
        })
    }

    /// Somebody who sees what window managers are asked for.
    pub fn manager(&self) -> Manager {
        let (connection, screen) = x11rb::connect(Some(&self.display)).unwrap();
        let root = connection.setup().roots[screen].root;
        let events = ChangeWindowAttributesAux::new().event_mask(EventMask::SUBSTRUCTURE_NOTIFY);
        connection.change_window_attributes(root, &events).unwrap().check().unwrap();
        Manager { connection, root }
    }
}

/// The program while it runs. It ends with the test.
pub struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Program {
    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// Waits for its end.
    pub fn end(&mut self) -> ExitStatus {
        let mut status = None;
        until("the program's end", || {
            status = self.0.try_wait().unwrap();
            status.is_some()
        });
        status.expect("it ended")
    }

    /// Whether it has not ended.
    pub fn runs(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }
}

/// A client of the screen that hears what is said to window managers.
pub struct Manager {
    connection: RustConnection,
    root: WindowId,
}

impl Manager {
    /// The program's window.
    pub fn window(&self) -> WindowId {
        let mut found = None;
        until("a window", || {
            let tree = self.connection.query_tree(self.root).unwrap().reply().unwrap();
            found = tree.children.into_iter().find(|window| self.title(*window) == "Longview");
            found.is_some()
        });
        found.expect("it was found")
    }

    fn title(&self, window: WindowId) -> String {
        let (name, text) = (AtomEnum::WM_NAME, AtomEnum::STRING);
        let asked = self.connection.get_property(false, window, name, text, 0, 64).unwrap();
        let title = asked.reply().map(|reply| reply.value).unwrap_or_default();
        String::from_utf8_lossy(&title).into_owned()
    }

    /// Closes a window, as the button in its frame does.
    pub fn close(&self, window: WindowId) {
        let [protocols, delete] = [&b"WM_PROTOCOLS"[..], b"WM_DELETE_WINDOW"]
            .map(|name| self.connection.intern_atom(false, name).unwrap().reply().unwrap().atom);
        let message = ClientMessageEvent::new(32, window, protocols, [delete, 0, 0, 0, 0]);
        let sent = self.connection.send_event(false, window, EventMask::NO_EVENT, message);
        sent.unwrap().check().unwrap();
    }

    /// Waits until a window asks to be brought forward, and says which.
    pub fn asked_forward(&self) -> WindowId {
        let name = self.connection.intern_atom(false, b"_NET_ACTIVE_WINDOW").unwrap();
        let forward = name.reply().unwrap().atom;
        let mut asked = None;
        until("a window that comes forward", || {
            while let Some(event) = self.connection.poll_for_event().unwrap() {
                if let Event::ClientMessage(message) = event
                    && message.type_ == forward
                {
                    asked = Some(message.window);
                }
            }
            asked.is_some()
        });
        asked.expect("it asked")
    }
}
