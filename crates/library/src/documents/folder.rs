//! Where everything of a library lies, and who may read it.
//!
//! Folders are open to their owner alone (0700), files too (0600): what a model has read of a text
//! says as much as the text. Windows has no such modes; there the user's own folder is as private.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use super::error::DocumentsError;
use super::id::Id;

/// The environment variable that names another place.
const VARIABLE: &str = "LONGVIEW_LIBRARY";
/// Folders of a library.
const TEXTS: &str = "texts";
const SESSIONS: &str = "sessions";
const LOCKS: &str = "locks";
const DAMAGED: &str = "damaged";
/// What a text and a session end with.
const TEXT_END: &str = "txt";
const SESSION_END: &str = "lvs";
/// What is written before it has its name.
pub(super) const PART_END: &str = "part";

/// What `LONGVIEW_LIBRARY` names, else a folder among the user's data of programs.
///
/// # Errors
/// [`DocumentsError::NoPlace`] where the system knows no such folder.
pub fn default_folder() -> Result<PathBuf, DocumentsError> {
    if let Some(given) = std::env::var_os(VARIABLE).filter(|given| !given.is_empty()) {
        return Ok(PathBuf::from(given));
    }
    let places = directories::ProjectDirs::from("", "", "longview");
    let places = places.ok_or(DocumentsError::NoPlace)?;
    // Not the one that wanders between machines of a Windows domain: sessions are large.
    Ok(places.data_local_dir().join("library"))
}

/// The places of one library.
#[derive(Clone, Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes what is missing.
    ///
    /// # Errors
    /// [`DocumentsError::Foreign`] for a folder with other things in it.
    pub(super) fn open(path: &Path) -> Result<Self, DocumentsError> {
        let folder = Self(std::path::absolute(path).map_err(DocumentsError::io("found", path))?);
        folder.check_own()?;
        make_private(&folder.0)?;
        for name in [TEXTS, SESSIONS, LOCKS] {
            make_private(&folder.0.join(name))?;
        }
        Ok(folder)
    }

    /// As [`Folder::open`] for who only looks: where there is no library yet, none is made.
    pub(super) fn look(path: &Path) -> Result<Self, DocumentsError> {
        let folder = Self(std::path::absolute(path).map_err(DocumentsError::io("found", path))?);
        folder.check_own()?;
        if folder.is_library() { Self::open(path) } else { Ok(folder) }
    }

    /// Whether a library was made here.
    pub(super) fn is_library(&self) -> bool {
        // `locks` is made before the first manifest: a program may end between the two.
        let own = [self.manifest(), self.old_manifest(), self.locks()];
        own.iter().any(|path| path.symlink_metadata().is_ok())
    }

    /// A folder that somebody else filled is not touched, whatever named it.
    fn check_own(&self) -> Result<(), DocumentsError> {
        let mut entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(DocumentsError::io("listed", &self.0)(error)),
        };
        if self.is_library() || entries.next().is_none() {
            return Ok(());
        }
        Err(DocumentsError::Foreign { folder: self.0.clone() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn manifest(&self) -> PathBuf {
        self.0.join("manifest.json")
    }

    /// The manifest before the last change.
    pub(super) fn old_manifest(&self) -> PathBuf {
        self.0.join("manifest.old.json")
    }

    pub(super) fn lock(&self) -> PathBuf {
        self.locks().join("library.lock")
    }

    /// Who holds it may write the session of this name.
    pub(super) fn build_lock(&self, id: Id) -> PathBuf {
        self.locks().join(format!("{id}.lock"))
    }

    fn locks(&self) -> PathBuf {
        self.0.join(LOCKS)
    }

    pub(super) fn text(&self, id: Id) -> PathBuf {
        self.texts().join(format!("{id}.{TEXT_END}"))
    }

    pub(super) fn session(&self, file: Id) -> PathBuf {
        self.sessions().join(format!("{file}.{SESSION_END}"))
    }

    pub(super) fn texts(&self) -> PathBuf {
        self.0.join(TEXTS)
    }

    pub(super) fn sessions(&self) -> PathBuf {
        self.0.join(SESSIONS)
    }

    /// Where damaged files are moved; made when there is one.
    pub(super) fn damaged(&self) -> Result<PathBuf, DocumentsError> {
        let path = self.0.join(DAMAGED);
        make_private(&path)?;
        Ok(path)
    }
}

/// The id in the name of a text or a session.
pub(super) fn id_of(path: &Path) -> Option<Id> {
    let end = path.extension()?.to_str()?;
    let is_known = end == TEXT_END || end == SESSION_END;
    is_known.then(|| path.file_stem()?.to_str()?.parse().ok()).flatten()
}

fn make_private(path: &Path) -> Result<(), DocumentsError> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path).map_err(DocumentsError::io("made", path))?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // An older one may be open to others. What is another user's cannot be closed.
        let found = path.metadata().map_err(DocumentsError::io("looked at", path))?;
        if found.permissions().mode() & 0o077 != 0 {
            let closed = fs::set_permissions(path, fs::Permissions::from_mode(0o700));
            closed.map_err(DocumentsError::io("closed to other users", path))?;
        }
    }
    Ok(())
}

/// Opens a file that its owner alone may read, and makes it if it is not there.
pub(super) fn open_private(path: &Path, is_new: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).create_new(is_new).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

#[cfg(test)]
mod tests {
    use super::super::testing::TempFolder;
    use super::*;

    #[test]
    fn a_foreign_folder_is_left_alone() {
        let temp = TempFolder::new();
        fs::write(temp.path().join("letter.txt"), "Dear").unwrap();
        let error = Folder::open(temp.path()).unwrap_err();
        assert!(matches!(error, DocumentsError::Foreign { .. }), "{error}");
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 1);
    }

    #[test]
    fn who_only_looks_makes_nothing() {
        let temp = TempFolder::new();
        let absent = temp.path().join("absent");
        assert!(!Folder::look(&absent).unwrap().is_library());
        assert!(!absent.exists());
        Folder::look(temp.path()).unwrap();
        assert_eq!(fs::read_dir(temp.path()).unwrap().count(), 0, "an empty folder stays empty");
        let made = Folder::open(&absent).unwrap();
        fs::remove_dir(made.texts()).unwrap();
        assert!(Folder::look(&absent).unwrap().texts().is_dir(), "a library is opened as ever");
        fs::write(temp.path().join("letter.txt"), "Dear").unwrap();
        assert!(matches!(Folder::look(temp.path()), Err(DocumentsError::Foreign { .. })));
    }

    #[test]
    #[cfg(unix)]
    fn folders_are_private() {
        use std::os::unix::fs::PermissionsExt;
        let temp = TempFolder::new();
        let folder = Folder::open(&temp.path().join("library")).unwrap();
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        for path in [folder.path(), &folder.texts(), &folder.sessions(), &folder.locks()] {
            assert_eq!(mode(path), 0o700, "{}", path.display());
        }
        drop(open_private(&folder.lock(), false).unwrap());
        assert_eq!(mode(&folder.lock()), 0o600);
    }

    #[test]
    fn names_of_files_hold_ids() {
        let id = Id::of(b"x");
        let folder = Folder(PathBuf::from("l"));
        assert_eq!(id_of(&folder.text(id)), Some(id));
        assert_eq!(id_of(&folder.session(id)), Some(id));
        assert_eq!(id_of(&folder.build_lock(id)), None);
        assert_eq!(id_of(&folder.session(id).with_extension("lvs.part")), None);
    }
}
