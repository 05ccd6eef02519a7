//! A folder that machines share: who may read what is written there.
//!
//! Texts and what models have read of them are their owner's alone (0700 and 0600), as in a
//! library. Machines may share a folder under several users, and no mode of single files could say
//! which; so the folder itself does, as elsewhere on Unix: one whose group may write, and which
//! hands its group on (`chmod 2770`), is for that group.
//!
//! The store writes with the modes that the process has by default. Folders are made before it, so
//! a file is out of reach of others also before it has its own mode. Windows has no such modes.

use std::path::{Path, PathBuf};

use crate::documents::DocumentsError;

/// The root of a share.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    root: PathBuf,
    #[cfg(unix)]
    modes: modes::Modes,
}

impl Folder {
    pub(super) fn new(root: &Path) -> Result<Self, DocumentsError> {
        Ok(Self {
            root: root.to_owned(),
            #[cfg(unix)]
            modes: modes::Modes::of(root)?,
        })
    }

    /// Makes the folders that lead to an object, and closes those that are open to others.
    pub(super) fn open_way(&self, name: &str) -> Result<(), DocumentsError> {
        #[cfg(unix)]
        {
            let mut at = self.root.clone();
            let folders = name.rsplit_once('/').map_or("", |(folders, _)| folders);
            for folder in folders.split('/').filter(|folder| !folder.is_empty()) {
                at.push(folder);
                self.modes.make(&at)?;
            }
        }
        #[cfg(not(unix))]
        let _ = (name, &self.root);
        Ok(())
    }

    /// Gives an object that was written its mode.
    pub(super) fn close(&self, name: &str) -> Result<(), DocumentsError> {
        #[cfg(unix)]
        self.modes.close(&self.root.join(name))?;
        #[cfg(not(unix))]
        let _ = (name, &self.root);
        Ok(())
    }
}

#[cfg(unix)]
mod modes {
    use std::fs::{self, DirBuilder, Permissions};
    use std::io::ErrorKind;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    use std::path::Path;

    use crate::documents::{DocumentsError, sync_folder};

    /// The bits of a folder that hands its group on and lets it write.
    const OF_GROUP: u32 = 0o2020;
    /// All bits of a mode.
    const ALL: u32 = 0o7777;

    /// What folders and files get.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct Modes {
        folders: u32,
        files: u32,
        is_of_group: bool,
    }

    impl Modes {
        pub(super) fn of(root: &Path) -> Result<Self, DocumentsError> {
            let found = root.metadata().map_err(DocumentsError::io("looked at", root))?;
            let is_of_group = found.permissions().mode() & OF_GROUP == OF_GROUP;
            let (folders, files) = if is_of_group { (0o2770, 0o660) } else { (0o700, 0o600) };
            Ok(Self { folders, files, is_of_group })
        }

        pub(super) fn make(self, path: &Path) -> Result<(), DocumentsError> {
            match DirBuilder::new().mode(self.folders).create(path) {
                Ok(()) => sync_folder(path)?,
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) => return Err(DocumentsError::io("made", path)(error)),
            }
            self.set(path, self.folders)
        }

        pub(super) fn close(self, path: &Path) -> Result<(), DocumentsError> {
            self.set(path, self.files)
        }

        fn set(self, path: &Path, mode: u32) -> Result<(), DocumentsError> {
            let set = || {
                if path.metadata()?.permissions().mode() & ALL == mode {
                    return Ok(());
                }
                fs::set_permissions(path, Permissions::from_mode(mode))
            };
            match set() {
                // Another process removed it.
                Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
                // Another user of the group made it a moment ago, and gives it its mode.
                Err(error) if self.is_of_group && error.kind() == ErrorKind::PermissionDenied => {
                    Ok(())
                }
                other => other.map_err(DocumentsError::io("closed to other users", path)),
            }
        }
    }
}
