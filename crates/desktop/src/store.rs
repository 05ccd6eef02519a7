//! Settings and conversations on the disk, where the platform keeps such things.
//!
//! A file is written beside its name, put on the disk and renamed, so it is the old one or the new
//! one whenever the program ends. One thread writes, in order; it is waited for at the end.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};

use directories::ProjectDirs;
use longview_library::documents::Id;
use serde::{Deserialize, Serialize};

use crate::document::Exchange;
use crate::settings::Settings;

/// The version of a conversation's file.
const VERSION: u32 = 1;
const SETTINGS: &str = "desktop.json";

/// Where settings and conversations lie.
#[derive(Clone, Debug)]
pub struct Places {
    /// The folder of the settings.
    pub config: PathBuf,
    /// The folder of conversations.
    pub conversations: PathBuf,
}

impl Places {
    /// Those of this system; `None` if it names no folder for it.
    pub fn of_system() -> Option<Self> {
        let folders = ProjectDirs::from("", "", "longview")?;
        Some(Self {
            config: folders.config_dir().to_owned(),
            conversations: folders.data_dir().join("conversations"),
        })
    }

    /// Both below one folder.
    pub fn below(folder: &Path) -> Self {
        Self { config: folder.join("config"), conversations: folder.join("conversations") }
    }

    /// The settings that were kept, or those at first. A file that cannot be understood is moved
    /// aside, and its name comes back too.
    pub fn settings(&self) -> (Settings, Option<PathBuf>) {
        let path = self.config.join(SETTINGS);
        let Ok(text) = fs::read_to_string(&path) else { return (Settings::default(), None) };
        match serde_json::from_str(&text) {
            Ok(settings) => (settings, None),
            Err(_) => {
                let aside = path.with_extension("damaged.json");
                let _ = fs::rename(&path, &aside);
                (Settings::default(), Some(aside))
            }
        }
    }

    /// What was asked about a text before; nothing if that was nothing, or cannot be understood.
    pub fn conversation(&self, id: Id) -> Vec<Exchange> {
        let text = fs::read_to_string(self.conversation_path(id)).unwrap_or_default();
        let kept = serde_json::from_str::<Conversation>(&text).ok();
        kept.filter(|kept| kept.version == VERSION).map_or_else(Vec::new, |kept| kept.exchanges)
    }

    fn conversation_path(&self, id: Id) -> PathBuf {
        self.conversations.join(format!("{id}.json"))
    }
}

/// A conversation as it lies on the disk.
#[derive(Serialize, Deserialize)]
struct Conversation {
    version: u32,
    exchanges: Vec<Exchange>,
}

enum Job {
    Write(PathBuf, Vec<u8>),
    Remove(PathBuf),
}

/// Writes what is to be kept.
pub struct Store {
    places: Places,
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Store {
    /// Writes to `places`; `failed` hears of what cannot be written.
    pub fn new(places: Places, failed: impl Fn(String) + Send + 'static) -> Self {
        let (jobs, inbox) = mpsc::channel();
        let work = move || {
            for job in inbox {
                let (path, done) = match job {
                    Job::Write(path, bytes) => (path.clone(), write(&path, &bytes)),
                    Job::Remove(path) => (path.clone(), remove(&path)),
                };
                if let Err(error) = done {
                    failed(format!("{}: {error}", path.display()));
                }
            }
        };
        // Without the thread nothing is kept, and all else works.
        let thread = thread::Builder::new().name("store".into()).spawn(work).ok();
        Self { places, jobs: Some(jobs), thread }
    }

    /// Where things are.
    pub fn places(&self) -> &Places {
        &self.places
    }

    fn send(&self, job: Job) {
        if let Some(jobs) = &self.jobs {
            let _ = jobs.send(job);
        }
    }

    /// Keeps the settings.
    pub fn keep_settings(&self, settings: &Settings) {
        if let Ok(text) = serde_json::to_vec_pretty(settings) {
            self.send(Job::Write(self.places.config.join(SETTINGS), text));
        }
    }

    /// Keeps what was asked about a text. An empty conversation leaves no file.
    pub fn keep_conversation(&self, id: Id, exchanges: &[Exchange]) {
        let path = self.places.conversation_path(id);
        if exchanges.is_empty() {
            return self.send(Job::Remove(path));
        }
        let kept = Conversation { version: VERSION, exchanges: exchanges.to_vec() };
        if let Ok(text) = serde_json::to_vec(&kept) {
            self.send(Job::Write(path, text));
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

/// Writes a file as a whole or not at all, and for its user alone.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    private_folder(path.parent().unwrap_or(Path::new(".")))?;
    write_with(path, bytes, private_file)
}

/// Writes a file that a person has named as a whole or not at all.
pub fn write_shared(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_with(path, bytes, |path| File::create(path))
}

fn write_with(
    path: &Path,
    bytes: &[u8],
    create: impl FnOnce(&Path) -> io::Result<File>,
) -> io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let written = create(&fresh).and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written?;
    // A name is on the disk when its folder is. Windows writes folders itself, and not every file
    // system has that.
    if cfg!(unix) {
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
    }
    Ok(())
}

/// Makes a folder that nobody else looks into; one that is there stays as it is.
pub fn private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(folder)
}

fn private_file(path: &Path) -> io::Result<File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Reply;
    use crate::engine::Attention;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("longview-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        folder
    }

    #[test]
    fn what_is_kept_is_there_at_the_next_start() {
        let folder = folder("store");
        let places = Places::below(&folder);
        let id = Id::of(b"a text");
        let store = Store::new(places.clone(), |error| panic!("{error}"));
        let settings = Settings { device: "cpu".into(), ..Settings::default() };
        let mut exchange = Exchange { question: "Who?".into(), replies: Vec::new() };
        exchange.replies.push(Reply::kept(Attention::Budget(512), "Anna.".into(), None));
        store.keep_settings(&settings);
        store.keep_conversation(id, std::slice::from_ref(&exchange));
        drop(store);
        assert_eq!(places.settings(), (settings, None));
        let kept = places.conversation(id);
        assert_eq!((kept.len(), kept[0].question.as_str()), (1, "Who?"));
        assert_eq!(kept[0].replies[0].text, "Anna.");
        assert!(places.conversation(Id::of(b"another")).is_empty());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode(&places.conversations), 0o700);
            assert_eq!(mode(&places.conversation_path(id)), 0o600);
        }
        Store::new(places.clone(), |error| panic!("{error}")).keep_conversation(id, &[]);
        assert!(!places.conversation_path(id).exists(), "waited for");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn settings_that_cannot_be_understood_are_moved_aside() {
        let folder = folder("damaged");
        let places = Places::below(&folder);
        write(&places.config.join(SETTINGS), b"{\"device\": ").unwrap();
        let (settings, aside) = places.settings();
        assert_eq!(settings, Settings::default());
        assert_eq!(fs::read(aside.unwrap()).unwrap(), b"{\"device\": ");
        assert_eq!(places.settings().1, None);
        fs::remove_dir_all(folder).unwrap();
    }
}
