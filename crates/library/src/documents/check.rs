//! Whether everything is as it was written, and what to do where it is not.
//!
//! Files are read without a lock: they never change. What is found is judged again under the lock,
//! because a document may be saved or removed meanwhile.

use std::fs;
use std::path::{Path, PathBuf};

use super::entry::{Document, Source};
use super::error::DocumentsError;
use super::folder::id_of;
use super::id::Id;
use super::lock::Lock;
use super::manifest::Manifest;
use super::store::{Documents, now_unix_s};
use crate::replace::replace;

/// Says what is wrong with a session file, if anything is: this crate does not know what is in it.
pub type Verify<'a> = &'a mut dyn FnMut(&Path) -> Result<(), String>;

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checked {
    /// Texts and sessions that are as they were written.
    pub n_right: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Everything else.
    pub findings: Vec<Finding>,
    /// Whether what was found was set right.
    pub repaired: bool,
}

/// A thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// The manifest cannot be read. Repaired: from the one before, or from the texts.
    Manifest {
        /// What is wrong.
        what: String,
    },
    /// A text is damaged or lost, and with it the document. Repaired: moved away, with its entry.
    Text {
        /// The document.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A session is damaged or lost. Repaired: moved away; the text can be read anew.
    Session {
        /// The document.
        name: String,
        /// Its file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A text that nothing names. Repaired: it is a document again.
    UnlistedText {
        /// The file.
        path: PathBuf,
    },
    /// A session that nothing names, of a process that died. Repaired: moved away.
    UnlistedSession {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
    },
    /// What a process that died has begun to write. Repaired: removed.
    Leftover {
        /// The file.
        path: PathBuf,
        /// Its bytes.
        bytes: u64,
    },
}

impl Documents {
    /// Compares every text with its hash and every session by `verify`, and looks for what nothing
    /// names. With `repair` what is found is set right: damaged files are moved to the folder
    /// `damaged`, never deleted.
    ///
    /// # Errors
    /// What the system says, and a library of a newer program where something is to be repaired.
    pub fn check(&self, repair: bool, verify: Verify<'_>) -> Result<Checked, DocumentsError> {
        let mut checked = Checked::default();
        if !self.folder.is_library() {
            // Nobody has made one here: there is nothing to lock, and nothing to be wrong.
            return Ok(checked);
        }
        let manifest = match self.manifest() {
            Err(DocumentsError::Damaged { what, .. }) => {
                checked.findings.push(Finding::Manifest { what: what.to_owned() });
                if !repair {
                    return Ok(checked);
                }
                self.restore_manifest()?
            }
            other => other?,
        };
        manifest.documents.iter().for_each(|document| {
            self.check_document(document, verify, &mut checked);
        });
        self.find_unlisted(&mut checked)?;
        if repair {
            self.repair(&checked.findings)?;
            checked.repaired = true;
        }
        Ok(checked)
    }

    fn check_document(&self, document: &Document, verify: Verify<'_>, checked: &mut Checked) {
        let name = &document.name;
        match self.text(document.id) {
            Ok(text) => checked.add(text.len() as u64),
            Err(error) => {
                let (name, what) = (name.clone(), error.to_string());
                checked.findings.push(Finding::Text { name, what });
            }
        }
        for session in &document.sessions {
            let path = self.session_path(session);
            let bytes = match fs::metadata(&path) {
                Ok(found) => found.len(),
                // It may have gone or been saved anew since the manifest was read.
                Err(_) if self.is_listed(session.file) => {
                    let (name, what) = (name.clone(), "the file is gone".to_owned());
                    checked.findings.push(Finding::Session { name, path, what });
                    continue;
                }
                Err(_) => continue,
            };
            match verify(&path) {
                Ok(()) => checked.add(bytes),
                Err(_) if !self.is_listed(session.file) => {}
                Err(what) => {
                    checked.findings.push(Finding::Session { name: name.clone(), path, what });
                }
            }
        }
    }

    fn is_listed(&self, file: Id) -> bool {
        let manifest = self.manifest().unwrap_or_default();
        manifest.documents.iter().any(|d| d.has_file(file))
    }

    fn find_unlisted(&self, checked: &mut Checked) -> Result<(), DocumentsError> {
        let _lock = Lock::wait(&self.folder.lock())?;
        let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
        for path in self.unlisted(&self.manifest()?) {
            let bytes = size(&path);
            let is_text = path.starts_with(self.folder.texts());
            checked.findings.push(if is_text {
                Finding::UnlistedText { path }
            } else {
                Finding::UnlistedSession { path, bytes }
            });
        }
        let parts = self.dead_parts().into_iter();
        let leftovers = parts.map(|part| Finding::Leftover { path: part.path, bytes: part.bytes });
        checked.findings.extend(leftovers);
        Ok(())
    }

    /// Puts the manifest before in the place of a damaged one, or begins an empty one: texts are
    /// found as unlisted then.
    fn restore_manifest(&self) -> Result<Manifest, DocumentsError> {
        let _lock = Lock::wait(&self.folder.lock())?;
        let path = self.folder.manifest();
        let old = Manifest::read_file(&self.folder.old_manifest(), &self.folder);
        let manifest = old.ok().flatten().unwrap_or_default();
        manifest.check_writable(&self.folder)?;
        self.set_aside(&path)?;
        manifest.write(&self.folder)?;
        Ok(manifest)
    }

    /// Moves a file to where damaged ones are, under a name that nothing has.
    fn set_aside(&self, path: &Path) -> Result<(), DocumentsError> {
        let end = path.extension().and_then(|end| end.to_str()).unwrap_or("bin");
        let target = self.folder.damaged()?.join(format!("{}.{end}", Id::fresh()));
        match replace(path, &target) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            moved => moved.map_err(DocumentsError::io("moved away", path)),
        }
    }

    fn repair(&self, findings: &[Finding]) -> Result<(), DocumentsError> {
        let mut away: Vec<PathBuf> = Vec::new();
        self.change(|manifest| {
            for finding in findings {
                match finding {
                    Finding::Session { path, .. } => {
                        let file = id_of(path);
                        for document in &mut manifest.documents {
                            document.sessions.retain(|session| Some(session.file) != file);
                        }
                        away.push(path.clone());
                    }
                    Finding::Text { name, .. } => {
                        let at = manifest.documents.iter().position(|d| d.name == *name);
                        let Some(document) = at.map(|at| manifest.documents.remove(at)) else {
                            continue;
                        };
                        away.push(self.folder.text(document.id));
                        away.extend(document.sessions.iter().map(|s| self.session_path(s)));
                    }
                    Finding::UnlistedText { path } => adopt(manifest, path, &mut away),
                    Finding::UnlistedSession { path, .. } => away.push(path.clone()),
                    Finding::Manifest { .. } | Finding::Leftover { .. } => {}
                }
            }
            Ok(())
        })?;
        away.iter().try_for_each(|path| self.set_aside(path))?;
        for finding in findings {
            if let Finding::UnlistedSession { path, .. } | Finding::Leftover { path, .. } = finding
            {
                let _ = fs::remove_file(path);
            }
        }
        Ok(())
    }
}

impl Checked {
    fn add(&mut self, bytes: u64) {
        (self.n_right, self.bytes) = (self.n_right + 1, self.bytes + bytes);
    }

    /// Whether nothing was found.
    pub fn is_right(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Makes a document of a text that lost its entry, if it is what its name says.
fn adopt(manifest: &mut Manifest, path: &Path, away: &mut Vec<PathBuf>) {
    let (Some(id), Ok(text)) = (id_of(path), fs::read(path)) else { return };
    if Id::of(&text) != id || std::str::from_utf8(&text).is_err() {
        away.push(path.to_owned());
        return;
    }
    if manifest.document(id).is_some() {
        return;
    }
    let (turn, now) = (manifest.next_turn(), now_unix_s());
    let text_bytes = text.len() as u64;
    manifest.documents.push(Document {
        id,
        name: format!("recovered-{}", id.short()),
        sources: vec![Source {
            name: "text of this library".to_owned(),
            kind: "txt".to_owned(),
            bytes: text_bytes,
            pages: None,
        }],
        text_bytes,
        pinned: false,
        added_unix_s: now,
        used_unix_s: now,
        turn,
        ttl_s: None,
        sessions: Vec::new(),
    });
}
