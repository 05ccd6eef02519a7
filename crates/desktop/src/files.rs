//! Files that a person chooses, drops or names: dialogs and disks are waited for on threads of
//! their own, and what comes of them arrives as a message.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;
use std::thread;

use longview_library::documents::{Documents, DocumentsError, Id, NewDocument, Source};

use crate::engine::{DocumentId, Failure, FailureKind, Wake};
use crate::strings;

/// Larger files are no documents: no model here reads so much.
const MOST_BYTES: u64 = 64 << 20;

/// What came of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// A text to open.
    Text {
        /// The file's name.
        title: String,
        /// What is in it.
        text: String,
    },
    /// A document is in the library.
    Kept(DocumentId, Id),
    /// What is in the library.
    Library(Vec<KeptDocument>),
    /// Answers were saved under this name.
    Saved(String),
    /// Something went wrong.
    Failed(Failure),
}

/// A document of the library, as far as a list shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptDocument {
    /// Its name in files.
    pub id: Id,
    /// Its name for people.
    pub name: String,
    /// Whether what was read of it stays, however full the library is.
    pub is_pinned: bool,
    /// Most tokens that a model has read of it.
    pub tokens: usize,
}

/// What is in the library, the document that was used last first.
pub fn list(library: &Documents) -> Arrival {
    let documents = match library.list() {
        Ok(documents) => documents,
        Err(error) => return refused(&error),
    };
    let kept = documents.into_iter().map(|document| KeptDocument {
        id: document.id,
        is_pinned: document.pinned,
        tokens: document.sessions.iter().map(|s| s.n_tokens).max().unwrap_or(0),
        name: document.name,
    });
    Arrival::Library(kept.collect())
}

/// Puts a text into the library.
pub fn keep(library: &Documents, document: DocumentId, title: &str, text: &str) -> Arrival {
    let kind = Path::new(title).extension().and_then(|kind| kind.to_str()).unwrap_or("txt");
    let source = Source { name: title.to_owned(), kind: kind.to_owned(), bytes: text.len() as u64 };
    let new = NewDocument { text, name: None, sources: vec![source] };
    match library.add(new) {
        Ok(kept) => Arrival::Kept(document, kept.id),
        Err(error) => refused(&error),
    }
}

/// Does something with the library and lists it again.
pub fn change(
    library: &Documents,
    what: impl FnOnce(&Documents) -> Result<(), DocumentsError>,
) -> Arrival {
    match what(library) {
        Ok(()) => list(library),
        Err(error) => refused(&error),
    }
}

/// What went wrong with the library.
pub fn refused(error: &DocumentsError) -> Arrival {
    Arrival::Failed(Failure { kind: FailureKind::NotKept, message: error.to_string() })
}

/// Asks for names of files. It may wait for the person: it runs on a thread of its own.
pub trait Dialogs: Send + Sync + 'static {
    /// A text to open.
    fn open(&self) -> Option<PathBuf>;
    /// A name for the answers.
    fn save(&self, suggested: &str) -> Option<PathBuf>;
}

/// The dialogs of the desktop, through its portal.
pub struct SystemDialogs;

impl Dialogs for SystemDialogs {
    fn open(&self) -> Option<PathBuf> {
        let dialog = rfd::FileDialog::new().set_title(strings::OPEN_FILE);
        let dialog = dialog.add_filter("Text", &["txt", "md", "text", "html", "pdf", "docx"]);
        dialog.add_filter("All", &["*"]).pick_file()
    }

    fn save(&self, suggested: &str) -> Option<PathBuf> {
        rfd::FileDialog::new().set_file_name(suggested).save_file()
    }
}

/// Where arrivals go.
#[derive(Clone)]
pub struct Outbox {
    /// To the window.
    pub sender: Sender<Arrival>,
    /// So that it looks.
    pub wake: Wake,
}

impl Outbox {
    /// Runs `work` beside the window; what it returns arrives there.
    pub fn later(&self, work: impl FnOnce() -> Option<Arrival> + Send + 'static) {
        let Self { sender, wake } = self.clone();
        thread::spawn(move || {
            if let Some(arrival) = work() {
                let _ = sender.send(arrival);
                wake();
            }
        });
    }
}

/// Reads a text.
pub fn read(path: &Path) -> Arrival {
    let shown = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let failed = |what: String| {
        let message = format!("{}: {what}", path.display());
        Arrival::Failed(Failure { kind: FailureKind::File, message })
    };
    match std::fs::metadata(path) {
        Err(error) => return failed(error.to_string()),
        // A pipe or a device may never end.
        Ok(found) if !found.is_file() => return failed("is no file".to_owned()),
        Ok(found) if found.len() > MOST_BYTES => {
            let most = crate::figures::bytes(MOST_BYTES);
            return failed(format!("is larger than {most}"));
        }
        Ok(_) => {}
    }
    if ["pdf", "docx", "html", "htm"].iter().any(|kind| has_ending(path, kind)) {
        return extracted(path, &shown).unwrap_or_else(failed);
    }
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) => return failed(error.to_string()),
    };
    match String::from_utf8(bytes) {
        Ok(text) => {
            let text = text.strip_prefix('\u{feff}').map_or(text.clone(), str::to_owned);
            Arrival::Text { title: shown, text }
        }
        Err(_) => failed(strings::NOT_TEXT.to_owned()),
    }
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending))
}

/// The text of a file that is more than text, read by a process with limits.
fn extracted(path: &Path, title: &str) -> Result<Arrival, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let text = longview_library::text::extract(file, title, MOST_BYTES);
    let text = text.map_err(|error| error.to_string())?.text;
    Ok(Arrival::Text { title: title.to_owned(), text })
}

/// Writes answers, in a file that is complete or not there.
pub fn write(path: &Path, text: &str) -> Arrival {
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let written = std::fs::write(&fresh, text).and_then(|()| std::fs::rename(&fresh, path));
    match written {
        Ok(()) => Arrival::Saved(path.display().to_string()),
        Err(error) => {
            let _ = std::fs::remove_file(&fresh);
            let message = format!("{}: {error}", path.display());
            Arrival::Failed(Failure { kind: FailureKind::File, message })
        }
    }
}
