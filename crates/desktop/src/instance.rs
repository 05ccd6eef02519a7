//! One window for each user: a second start hands its files to the first and ends.
//!
//! Whoever holds a lock is the first, and listens at a local socket (a named pipe on Windows). The
//! lock goes with its process however that ends, so a socket without a lock is a left-over.

use std::fs::{self, File, TryLockError};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use directories::ProjectDirs;
use interprocess::local_socket::{
    Listener, ListenerOptions, Name, Stream, ToFsName, ToNsName, prelude::*,
};

use crate::store::private_folder;

const LOCK: &str = "desktop.lock";
const SOCKET: &str = "desktop.sock";
/// What the first window says once it has the files.
const TAKEN: &str = "taken";
/// What it says while it closes.
const CLOSING: &str = "closing";
/// A first window that begins has its lock some milliseconds before its socket.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
/// The longest list of files, in bytes.
const MOST: u64 = 1 << 20;

/// The right to be the first window.
pub struct First {
    listener: Listener,
    /// Held as long as the program runs.
    _lock: File,
}

/// What came of asking to be the first.
pub enum Claim {
    /// It is.
    First(First),
    /// There is one already, and it has the files.
    Handed,
}

/// The folder of lock and socket: that of things which live as long as a login, where there is one.
pub fn folder() -> Option<PathBuf> {
    let folders = ProjectDirs::from("", "", "longview")?;
    let lasting = || folders.data_local_dir().join("run");
    Some(folders.runtime_dir().map_or_else(lasting, Path::to_owned))
}

/// Becomes the first window, or hands `files` to it.
///
/// # Errors
/// What the system says, or that the first window does not answer.
pub fn claim(folder: &Path, files: &[PathBuf]) -> io::Result<Claim> {
    private_folder(folder)?;
    let path = folder.join(LOCK);
    let lock = File::options().create(true).write(true).truncate(false).open(&path)?;
    match lock.try_lock() {
        Ok(()) => {
            if cfg!(unix) {
                let _ = fs::remove_file(folder.join(SOCKET));
            }
            let listener = ListenerOptions::new().name(name(folder)?).create_sync()?;
            Ok(Claim::First(First { listener, _lock: lock }))
        }
        Err(TryLockError::WouldBlock) => hand(folder, files).map(|()| Claim::Handed),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn name(folder: &Path) -> io::Result<Name<'static>> {
    if cfg!(windows) {
        // Pipes have one space of names for all users.
        let id = longview_library::documents::Id::of(folder.as_os_str().as_encoded_bytes());
        let name = format!("longview-{}", id.short());
        return name.to_ns_name::<interprocess::local_socket::GenericNamespaced>();
    }
    folder.join(SOCKET).to_fs_name::<interprocess::local_socket::GenericFilePath>()
}

fn hand(folder: &Path, files: &[PathBuf]) -> io::Result<()> {
    let begin = Instant::now();
    let mut stream = loop {
        match Stream::connect(name(folder)?) {
            Ok(stream) => break stream,
            Err(error) if begin.elapsed() > PATIENCE => return Err(error),
            Err(_) => thread::sleep(PAUSE),
        }
    };
    // The first window may have another working folder.
    let files: Vec<PathBuf> = files.iter().filter_map(|f| std::path::absolute(f).ok()).collect();
    let mut line = serde_json::to_string(&files).map_err(io::Error::other)?;
    line.push('\n');
    stream.write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    if answer.trim() == TAKEN {
        return Ok(());
    }
    Err(io::Error::other("the window that is open does not answer"))
}

impl First {
    /// Calls `taken` with what later starts hand over, as long as the program runs. It says whether
    /// there is a window still that shows them: if not, a later start opens its own.
    pub fn listen(self, taken: impl Fn(Vec<PathBuf>) -> bool + Send + 'static) {
        let Self { listener, _lock: lock } = self;
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // Whoever breaks off hands nothing over.
                let _ = receive(&stream, &taken);
            }
            // As long as it listens nobody else is the first.
            drop(lock);
        });
    }
}

fn receive(mut stream: &Stream, taken: &impl Fn(Vec<PathBuf>) -> bool) -> io::Result<()> {
    use std::io::Read as _;
    let mut line = String::new();
    let mut reader = BufReader::new(stream).take(MOST);
    reader.read_line(&mut line)?;
    let files = serde_json::from_str(&line).map_err(io::Error::other)?;
    let word = if taken(files) { TAKEN } else { CLOSING };
    stream.write_all(format!("{word}\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn the_second_hands_its_files_to_the_first() {
        let folder = std::env::temp_dir().join(format!("lv-instance-{}", std::process::id()));
        // As a process that was killed leaves it.
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join(SOCKET), b"").unwrap();
        fs::write(folder.join(LOCK), b"").unwrap();
        let Claim::First(first) = claim(&folder, &[]).unwrap() else { panic!("nobody is there") };
        let (sender, received) = mpsc::channel();
        first.listen(move |files| {
            let is_there = files != [PathBuf::from("/too-late")];
            sender.send(files).unwrap();
            is_there
        });
        for files in [vec![], vec![PathBuf::from("/a b/東京.txt"), PathBuf::from("/c")]] {
            assert!(matches!(claim(&folder, &files).unwrap(), Claim::Handed));
            assert_eq!(received.recv().unwrap(), files);
        }
        let late = claim(&folder, &["/too-late".into()]);
        assert!(late.is_err(), "a window that closes takes nothing");
        received.recv().unwrap();
        let here = vec![PathBuf::from("here.txt")];
        assert!(matches!(claim(&folder, &here).unwrap(), Claim::Handed));
        assert_eq!(received.recv().unwrap(), [std::path::absolute("here.txt").unwrap()]);
        fs::remove_dir_all(folder).unwrap();
    }
}
