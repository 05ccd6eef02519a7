//! What was typed in earlier chats: a file in the user's state folder, readable by nobody else.
//!
//! Every entry is a JSON string on a line of its own, so that a text of several lines is one entry.
//! Entries are appended as they come: two chats at once lose nothing of each other. A file that
//! cannot be used costs the history, never the chat.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};

use longview_library::replace;

/// Entries that are kept.
pub const MAX_ENTRIES: usize = 1000;

/// A longer text is not kept: a document that was pasted is no question.
const MAX_ENTRY_BYTES: usize = 64 << 10;

/// What of a file is read.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Names the file, or turns the history off.
pub const VARIABLE: &str = "LONGVIEW_HISTORY";

/// The file, as long as it can be used.
pub struct HistoryFile {
    path: Option<PathBuf>,
    n_entries: usize,
    last: String,
}

impl HistoryFile {
    /// The file of this user with its entries, oldest first, and what is wrong with it.
    pub fn open() -> (Self, Vec<String>, Option<String>) {
        Self::open_at(path_from(|name| env::var_os(name).map(PathBuf::from)))
    }

    fn open_at(path: Option<PathBuf>) -> (Self, Vec<String>, Option<String>) {
        let Some(path) = path else { return (Self::none(), Vec::new(), None) };
        match read(&path) {
            Ok(entries) => {
                let last = entries.last().cloned().unwrap_or_default();
                let n_entries = entries.len();
                (Self { path: Some(path), n_entries, last }, entries, None)
            }
            Err(error) => (Self::none(), Vec::new(), Some(warning(&path, &error))),
        }
    }

    fn none() -> Self {
        Self { path: None, n_entries: 0, last: String::new() }
    }

    /// Adds an entry; what is wrong, the first time that something is.
    pub fn add(&mut self, entry: &str) -> Option<String> {
        let path = self.path.as_deref()?;
        if entry.len() > MAX_ENTRY_BYTES || entry == self.last {
            return None;
        }
        self.last = entry.to_owned();
        self.n_entries += 1;
        let added = append(path, entry).and_then(|()| {
            if self.n_entries > MAX_ENTRIES {
                self.n_entries = shorten(path)?;
            }
            Ok(())
        });
        let error = added.err()?;
        let warning = warning(path, &error);
        self.path = None;
        Some(warning)
    }
}

fn warning(path: &Path, error: &io::Error) -> String {
    format!(
        "warning: {}: the history cannot be kept ({error}); {VARIABLE}=off turns it off",
        path.display()
    )
}

/// Where the history is, by the variables of the environment; `None` if there is to be none.
fn path_from(variable: impl Fn(&str) -> Option<PathBuf>) -> Option<PathBuf> {
    if let Some(path) = variable(VARIABLE) {
        let is_off = ["", "0", "off"].iter().any(|off| path == Path::new(off));
        return (!is_off).then_some(path);
    }
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let state = variable("XDG_STATE_HOME")
        .and_then(absolute)
        .or_else(|| variable("HOME").and_then(absolute).map(|home| home.join(".local/state")))
        .or_else(|| variable("LOCALAPPDATA").and_then(absolute))?;
    Some(state.join("longview").join("history"))
}

/// The last entries of a file, which need not be there.
fn read(path: &Path) -> io::Result<Vec<String>> {
    let metadata = match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        metadata => metadata?,
    };
    if !metadata.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if metadata.len() > MAX_FILE_BYTES {
        return Err(io::Error::other("it is too long to be a history"));
    }
    let lines = BufReader::new(File::open(path)?.take(MAX_FILE_BYTES)).split(b'\n');
    let mut entries = Vec::new();
    for line in lines {
        // What another program wrote there is left out.
        entries.extend(serde_json::from_slice::<String>(&line?));
    }
    entries.drain(..entries.len().saturating_sub(MAX_ENTRIES));
    Ok(entries)
}

fn append(path: &Path, entry: &str) -> io::Result<()> {
    if let Some(folder) = path.parent() {
        private_folder(folder)?;
    }
    let mut file = private(OpenOptions::new().append(true).create(true)).open(path)?;
    file.write_all(line(entry)?.as_bytes())
}

/// Writes the file anew with the entries that are kept, and says how many.
fn shorten(path: &Path) -> io::Result<usize> {
    let entries = read(path)?;
    let lines: String = entries.iter().map(|entry| line(entry)).collect::<io::Result<_>>()?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let mut file =
        private(OpenOptions::new().write(true).create(true).truncate(true)).open(&part)?;
    let written = file.write_all(lines.as_bytes()).and_then(|()| replace(&part, path));
    if written.is_err() {
        // The history as it was is still there.
        let _ = fs::remove_file(&part);
    }
    written.map(|()| entries.len())
}

fn line(entry: &str) -> io::Result<String> {
    let mut line = serde_json::to_string(entry)?;
    line.push('\n');
    Ok(line)
}

/// Files that are made are for this user alone.
fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options
}

fn private_folder(folder: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that is removed at the end of a test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("longview-history-{}-{name}", std::process::id());
            let path = env::temp_dir().join(name);
            fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn open(&self) -> (HistoryFile, Vec<String>, Option<String>) {
            HistoryFile::open_at(Some(self.0.join("state/history")))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_state_folder_has_it_unless_the_variable_says_else() {
        let path = |variables: &[(&str, &str)]| {
            path_from(|name| {
                let found = variables.iter().find(|(other, _)| *other == name);
                found.map(|(_, value)| PathBuf::from(value))
            })
        };
        // What is absolute is the system's choice.
        let root = if cfg!(windows) { "C:/" } else { "/" };
        let below = |names: &str| format!("{root}{names}");
        let (anna, others, own) = (below("home/anna"), below("state"), below("x"));
        let home = ("HOME", anna.as_str());
        let kept = below("home/anna/.local/state/longview/history");
        assert_eq!(path(&[home]), Some(kept.into()));
        let state = ("XDG_STATE_HOME", others.as_str());
        assert_eq!(path(&[home, state]), Some(below("state/longview/history").into()));
        let relative = ("XDG_STATE_HOME", "state");
        assert_eq!(path(&[home, relative]), path(&[home]), "the standard wants absolute paths");
        let local = ("LOCALAPPDATA", others.as_str());
        assert_eq!(path(&[local]), Some(below("state/longview/history").into()));
        assert_eq!(path(&[home, (VARIABLE, &own)]), Some(own.as_str().into()));
        for off in ["", "0", "off"] {
            assert_eq!(path(&[home, (VARIABLE, off)]), None);
        }
        assert_eq!(path(&[]), None);
    }

    #[test]
    fn entries_of_several_lines_come_back() {
        let folder = Folder::new("lines");
        let (mut file, entries, warning) = folder.open();
        assert_eq!((entries.len(), warning), (0, None));
        for entry in ["one", "two\nlines \"quoted\"", "two\nlines \"quoted\"", "Grüße"] {
            assert_eq!(file.add(entry), None);
        }
        assert_eq!(folder.open().1, ["one", "two\nlines \"quoted\"", "Grüße"]);
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &str| {
                fs::metadata(folder.0.join(path)).unwrap().permissions().mode() & 0o777
            };
            assert_eq!((mode("state/history"), mode("state")), (0o600, 0o700));
        }
    }

    #[test]
    fn the_oldest_entries_go() {
        let folder = Folder::new("oldest");
        let (mut file, _, _) = folder.open();
        for i in 0..MAX_ENTRIES + 3 {
            assert_eq!(file.add(&i.to_string()), None);
        }
        let (_, entries, _) = folder.open();
        assert_eq!((entries.len(), entries[0].as_str()), (MAX_ENTRIES, "3"));
        let text = fs::read_to_string(folder.0.join("state/history")).unwrap();
        assert_eq!(text.lines().count(), MAX_ENTRIES, "the file too");
        assert_eq!(file.add(&"x".repeat(MAX_ENTRY_BYTES + 1)), None);
        assert_eq!(folder.open().1.last().map(String::as_str), Some("1002"));
    }

    #[test]
    fn what_cannot_be_a_history_is_a_warning_and_stays() {
        let folder = Folder::new("foreign");
        fs::create_dir_all(folder.0.join("state/history")).unwrap();
        let (mut file, entries, warning) = folder.open();
        assert!(warning.is_some_and(|text| text.contains("not a regular file")));
        assert!(entries.is_empty());
        assert_eq!(file.add("x"), None, "it is said once");
        let inside = HistoryFile::open_at(Some(folder.0.join("state/history/a/b")));
        let mut file = inside.0;
        fs::write(folder.0.join("state/history/a"), "a file where a folder is wanted").unwrap();
        assert!(file.add("x").is_some_and(|text| text.contains("cannot be kept")));
        assert_eq!(file.add("y"), None);
    }
}
