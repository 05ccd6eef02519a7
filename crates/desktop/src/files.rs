//! Files that a person chooses, drops or names: disks are waited for on threads of their own, and
//! what comes of them arrives as a message.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::thread;

use longview_core::FileSource;
use longview_library::documents::{
    Documents, DocumentsError, Id, NewDocument, Source, name_of_file,
};
use longview_scheduler::SessionFile;

use crate::document::Exchange;
use crate::engine::{DocumentId, Failure, FailureKind, ModelSource, Serving, Wake};
use crate::fit::{LocalModel, Offer, Pull};
use crate::{refusals, store, strings};

/// Larger files are no documents: no model here reads so much.
const MOST_BYTES: u64 = 64 << 20;

/// Files of a folder at most.
const MOST_FILES: usize = 500;
/// Endings of files that a folder is searched for, and dialogs show.
pub const ENDINGS: [&str; 7] = ["txt", "md", "text", "html", "htm", "pdf", "docx"];
/// The ending of a session file, as `longview kv export` and `--save-session` write it.
pub const SESSION: &str = "lvs";
/// What stands between the texts of two files, as `longview kv build` has it.
pub const BETWEEN: &str = "\n\n";

/// A file as a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// What a document of it is called.
    pub title: String,
    /// What is in it.
    pub text: Arc<str>,
    /// What it was.
    pub source: Source,
    /// The session file that it is in: what a model has read of it.
    pub session: Option<PathBuf>,
}

/// What files are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To become a document, or several.
    Open,
    /// To stand behind what a document has.
    Add(DocumentId),
}

/// What came of work beside the window.
#[derive(Clone, Debug)]
pub enum Arrival {
    /// Files to open, in order.
    Pieces(Purpose, Vec<Piece>),
    /// A text of the library.
    Text {
        /// Its name.
        title: String,
        /// The files that it was made of.
        sources: Vec<Source>,
        /// What is in it.
        text: String,
    },
    /// What was asked about a document on another day.
    Conversation(DocumentId, Vec<Exchange>),
    /// A later start hands files over.
    Handed(Vec<PathBuf>),
    /// The models that are here.
    Models(Vec<LocalModel>),
    /// What the hub says of the model of this name.
    Looked(String, Result<Offer, String>),
    /// How far its download is.
    Pulling(String, Pull),
    /// A model was chosen on this computer.
    Chosen(ModelSource),
    /// A document is in the library, under this name.
    Kept(DocumentId, Id, String),
    /// The library does not take it.
    NotKept(DocumentId, Failure),
    /// What is in the library.
    Library(Vec<KeptDocument>),
    /// Answers were saved under this name.
    Saved(String),
    /// Whether the library is served.
    Serving(Serving),
    /// Something that is worth a short message.
    Said(String),
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
    /// Bytes of what was read.
    pub bytes: u64,
    /// The model that read it last, by its name for people.
    pub model: Option<String>,
    /// When it was used last, in seconds since 1970.
    pub used_unix_s: u64,
    /// Whether all of it was read.
    pub is_complete: bool,
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
        bytes: document.session_bytes(),
        model: document.latest().map(|session| strings::model_of_session(&session.model)),
        used_unix_s: document.used_unix_s,
        is_complete: document.sessions.iter().any(|session| session.is_complete()),
        tokens: document.sessions.iter().map(|s| s.n_tokens).max().unwrap_or(0),
        name: document.name,
    });
    Arrival::Library(kept.collect())
}

/// Puts a text into the library, if it is not there.
pub fn keep(
    library: &Documents,
    document: DocumentId,
    title: &str,
    sources: Vec<Source>,
    text: &str,
) -> Arrival {
    let known = || library.get(Id::of(text.as_bytes())).ok().flatten();
    // A file gives a name. Of several files the window says how many there are.
    let name = Some(title).filter(|_| sources.len() > 1 && known().is_none());
    let add = |name| library.add(NewDocument { text, name, sources: sources.clone() });
    let added = match add(name) {
        Err(DocumentsError::NameTaken { .. } | DocumentsError::BadName { .. }) => add(None),
        added => added,
    };
    match added {
        Ok(kept) => Arrival::Kept(document, kept.id, kept.name),
        // Where nothing can be written, what is there can still be opened.
        Err(error) => match known() {
            Some(kept) => Arrival::Kept(document, kept.id, kept.name),
            None => Arrival::NotKept(document, failure_of(&error)),
        },
    }
}

/// The source of a text that comes from no file.
pub fn source(title: &str, text: &str) -> Source {
    let kind = Path::new(title).extension().and_then(|kind| kind.to_str()).unwrap_or("txt");
    Source { name: title.to_owned(), kind: kind.to_owned(), bytes: text.len() as u64, pages: None }
}

/// Moves aside what is damaged in a library, as `longview kv check --repair` does.
pub fn repair(library: &Documents) -> Result<(), DocumentsError> {
    library.check(true, &mut longview_startup::keeper::verify).map(drop)
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

fn failure_of(error: &DocumentsError) -> Failure {
    let is_damaged = matches!(error, DocumentsError::Damaged { .. });
    let kind = if is_damaged { FailureKind::Damaged } else { FailureKind::NotKept };
    Failure { kind, message: refusals::documents(error) }
}

/// What went wrong with the library.
pub fn refused(error: &DocumentsError) -> Arrival {
    Arrival::Failed(failure_of(error))
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
    /// Hands something to the window now.
    pub fn send(&self, arrival: Arrival) {
        let _ = self.sender.send(arrival);
        (self.wake)();
    }

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

/// Reads files, and those of folders, each by itself; what cannot be read says why.
pub fn read_all(paths: &[PathBuf]) -> (Vec<Piece>, Vec<Failure>) {
    let (mut pieces, mut failures) = (Vec::new(), Vec::new());
    for path in paths {
        match files_at(path) {
            Ok(files) => files.iter().for_each(|file| match read(file) {
                Ok(piece) => pieces.push(piece),
                Err(failure) => failures.push(failure),
            }),
            Err(what) => failures.push(failed(path, &what)),
        }
    }
    (pieces, failures)
}

/// The file, or the texts of the folder, by name.
fn files_at(path: &Path) -> Result<Vec<PathBuf>, String> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).map_err(|error| error.to_string())?;
    let is_text = |file: &PathBuf| ENDINGS.iter().any(|ending| has_ending(file, ending));
    let files = entries.flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> = files.filter(|file| file.is_file() && is_text(file)).collect();
    if files.is_empty() {
        return Err(strings::EMPTY_FOLDER.to_owned());
    }
    if files.len() > MOST_FILES {
        return Err(strings::too_many_files(files.len(), MOST_FILES));
    }
    files.sort_by_cached_key(|file| {
        natural(&file.file_name().unwrap_or_default().to_string_lossy())
    });
    Ok(files)
}

/// A key by which `part 9` comes before `part 10`.
fn natural(name: &str) -> Vec<(u64, String)> {
    let mut key = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let text = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[text..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - text);
        let number = rest[text..text + digits].parse().unwrap_or(u64::MAX);
        key.push((0, rest[..text].to_lowercase()));
        key.push((number, String::new()));
        rest = &rest[text + digits..];
    }
    key
}

fn failed(path: &Path, what: &str) -> Failure {
    Failure { kind: FailureKind::File, message: format!("{}: {what}", path.display()) }
}

/// Reads a text.
///
/// # Errors
/// Why it is none.
pub fn read(path: &Path) -> Result<Piece, Failure> {
    let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
    let failed = |what: String| failed(path, &what);
    let bytes = match std::fs::metadata(path) {
        Err(error) => return Err(failed(error.to_string())),
        // A pipe or a device may never end.
        Ok(found) if !found.is_file() => return Err(failed("is no file".to_owned())),
        // Of a session little is read before the engine opens it.
        Ok(found) if found.len() > MOST_BYTES && !has_ending(path, SESSION) => {
            let most = crate::figures::bytes(MOST_BYTES);
            return Err(failed(format!("is larger than {most}")));
        }
        Ok(found) => found.len(),
    };
    let is_session = has_ending(path, SESSION);
    let is_more_than_text =
        ["pdf", "docx", "html", "htm"].iter().any(|kind| has_ending(path, kind));
    let found = if is_session {
        text_of_session(path).map(|text| (text, None))
    } else if is_more_than_text {
        extracted(path, &name)
    } else {
        plain(path, &name)
    };
    let (text, pages) = found.map_err(failed)?;
    if text.trim().is_empty() {
        return Err(failed(strings::EMPTY_FILE.to_owned()));
    }
    let text: Arc<str> = text.into();
    let source = Source { bytes, pages, ..source(&name, &text) };
    Ok(Piece {
        title: name_of_file(&name),
        text,
        source,
        session: is_session.then(|| path.to_owned()),
    })
}

/// The text that a session file was made of. What it has of a model is proved by whoever opens it.
fn text_of_session(path: &Path) -> Result<String, String> {
    let source = FileSource::open(path).map_err(|error| error.to_string())?;
    let note = SessionFile::open(&source)
        .and_then(SessionFile::read)
        .and_then(|mut file| file.content())
        .map_err(|error| refusals::session(&error))?
        .note;
    let note: serde_json::Value = serde_json::from_slice(&note).unwrap_or_default();
    match note.get("document").and_then(|text| text.as_str()) {
        Some(text) if !text.trim().is_empty() => Ok(text.to_owned()),
        _ => Err(strings::SESSION_WITHOUT_TEXT.to_owned()),
    }
}

/// A text, and its pages where its file has pages.
type Extracted = (String, Option<u64>);

/// A text in UTF-8, or in another encoding, which is looked for in a process with limits.
fn plain(path: &Path, name: &str) -> Result<Extracted, String> {
    let bytes = std::fs::read(path).map_err(|error| error.to_string())?;
    match String::from_utf8(bytes) {
        Ok(text) => {
            let text = text.strip_prefix('\u{feff}').map_or(text.clone(), str::to_owned);
            Ok((text, None))
        }
        Err(_) => extracted(path, name).map_err(|why| format!("{} ({why})", strings::NOT_TEXT)),
    }
}

fn has_ending(path: &Path, ending: &str) -> bool {
    path.extension().is_some_and(|found| found.eq_ignore_ascii_case(ending))
}

/// The text of a file that is more than text, and its pages, read by a process with limits.
fn extracted(path: &Path, name: &str) -> Result<Extracted, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let text = longview_library::text::extract(file, name, MOST_BYTES);
    let found = text.map_err(|error| error.to_string())?;
    Ok((found.text, found.n_pages))
}

/// Writes answers, in a file that is complete or not there.
pub fn write(path: &Path, text: &str) -> Arrival {
    match store::write_shared(path, text.as_bytes()) {
        Ok(()) => Arrival::Saved(path.display().to_string()),
        Err(error) => Arrival::Failed(failed(path, &error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_names_are_compared_as_numbers() {
        let mut names =
            ["part 10.txt", "Part 9.txt", "part 9b.txt", "appendix.txt", "part 009a.txt"];
        names.sort_by_cached_key(|name| natural(name));
        assert_eq!(
            names,
            ["appendix.txt", "Part 9.txt", "part 009a.txt", "part 9b.txt", "part 10.txt"]
        );
    }

    #[test]
    fn a_folder_is_its_texts_and_bad_files_say_why() {
        let folder = std::env::temp_dir().join(format!("longview-folder-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("inner")).unwrap();
        let empty = files_at(&folder);
        assert_eq!(empty, Err(strings::EMPTY_FOLDER.to_owned()));
        for (name, text) in [("b10.txt", "ten"), ("b2.md", "two"), ("c.png", "no"), ("x.exe", "no")]
        {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let missing = folder.join("missing.txt");
        let (pieces, failures) = read_all(&[folder.clone(), missing.clone()]);
        let titles: Vec<&str> = pieces.iter().map(|piece| &*piece.title).collect();
        assert_eq!(titles, ["b2", "b10"]);
        assert_eq!((&*pieces[0].text, &*pieces[0].source.kind), ("two", "md"));
        assert!(failures[0].message.starts_with(&*missing.to_string_lossy()), "{failures:?}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
