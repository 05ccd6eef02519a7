//! A library whose hub is on this machine and whose cache is a folder of the test.

pub mod server;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use longview_library::{
    Event, Found, Library, LibraryError, ModelName, Patience, Prefer, Settings, Wanted, Watch,
};

use self::server::TestHub;

/// A cache that is removed at the end of a test.
pub struct TestCache(PathBuf);

impl TestCache {
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("longview-library-{}-{n}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The folder of a repository.
    pub fn repo(&self, repo: &str) -> PathBuf {
        self.0.join("hub").join(format!("models--{}", repo.replace('/', "--")))
    }

    /// A file of the commit that a test hub begins with.
    pub fn file(&self, repo: &str, name: &str) -> PathBuf {
        self.repo(repo).join("snapshots").join("c".repeat(40)).join(name)
    }

    /// Names in a folder of a repository, in order.
    pub fn names(&self, repo: &str, folder: &str) -> Vec<String> {
        let entries = fs::read_dir(self.repo(repo).join(folder)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Every file below the cache.
    pub fn all(&self) -> Vec<PathBuf> {
        fn walk(folder: &Path, found: &mut Vec<PathBuf>) {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                if entry.file_type().unwrap().is_dir() {
                    walk(&entry.path(), found);
                } else {
                    found.push(entry.path());
                }
            }
        }
        let mut found = Vec::new();
        walk(&self.0, &mut found);
        found
    }

    /// With this hub; `more` are further variables.
    pub fn library(&self, hub: &TestHub, more: &[(&str, &str)]) -> Library {
        self.library_at(&hub.endpoint(), more)
    }

    /// With a hub at this address.
    pub fn library_at(&self, endpoint: &str, more: &[(&str, &str)]) -> Library {
        let variable = |name: &str| -> Option<OsString> {
            let own = more.iter().find(|(known, _)| *known == name);
            match (own, name) {
                (Some((_, value)), _) => Some(value.into()),
                (None, "HF_HOME") => Some(self.0.clone().into()),
                (None, "HF_ENDPOINT") => Some(endpoint.into()),
                _ => None,
            }
        };
        let mut settings = Settings::from_variables(false, variable).unwrap();
        settings.patience = Patience {
            attempts: 4,
            pause: Duration::from_millis(5),
            silence: Duration::from_millis(400),
            longest_pause: Duration::from_secs(2),
        };
        Library::new(settings)
    }
}

impl Drop for TestCache {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn name(text: &str) -> ModelName {
    text.parse().unwrap()
}

/// Downloads, and notes in words what was told.
pub fn pull_told(library: &Library, text: &str) -> (Result<Found, LibraryError>, Vec<String>) {
    let mut told = Vec::new();
    let mut note = |event: Event<'_>| match event {
        Event::Planned { n_files, total_bytes, present_bytes } => {
            told.push(format!("plan {n_files} {total_bytes} {present_bytes}"));
        }
        Event::Retry { reason, attempt, .. } => told.push(format!("retry {attempt}: {reason}")),
        Event::Locked { file } => told.push(format!("locked {file}")),
        _ => {}
    };
    let name = name(text);
    let wanted = Wanted { name: &name, file: None, prefer: Prefer::Safetensors };
    let mut watch = Watch { on_event: &mut note, is_cancelled: &|| false };
    let result = library.pull(&wanted, &mut watch);
    (result, told)
}

pub fn pull(library: &Library, text: &str) -> Result<Found, LibraryError> {
    pull_told(library, text).0
}

pub fn find(library: &Library, text: &str) -> Result<Found, LibraryError> {
    let name = name(text);
    library.find(&Wanted { name: &name, file: None, prefer: Prefer::Safetensors })
}

/// A repository of a folder with safetensors.
pub fn add_folder(hub: &TestHub, repo: &str) {
    hub.file(repo, "README.md", "# A model")
        .file(repo, "config.json", "{\"model_type\": \"llama\"}")
        .file(repo, "tokenizer.json", server::noise(5000))
        .file(repo, "model.safetensors", server::noise(300_000))
        .file(repo, "pytorch_model.bin", server::noise(2000))
        .file(repo, "optimizer.pt", server::noise(2000));
}
