//! Locks between processes, and between threads of one.
//!
//! A lock is held by an open file, so the system frees it when its process ends, however that ends.
//! Locked files hold nothing: on Windows a locked file cannot be read by others.

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use super::error::DocumentsError;
use super::folder::open_private;

/// A lock that is held.
#[derive(Debug)]
pub(super) struct Lock {
    _file: File,
    /// A name to remove in the end, for locks that are many.
    remove: Option<PathBuf>,
}

impl Lock {
    /// Waits for the lock. For changes that take milliseconds.
    pub(super) fn wait(path: &Path) -> Result<Self, DocumentsError> {
        let file = open(path)?;
        file.lock().map_err(no_locks(path))?;
        Ok(Self { _file: file, remove: None })
    }

    /// The lock, or `None` if somebody holds it. Its name goes when it is freed.
    pub(super) fn attempt(path: &Path) -> Result<Option<Self>, DocumentsError> {
        // Again where the one before removed the name between our opening and our locking.
        for _ in 0..64 {
            let file = open(path)?;
            match file.try_lock() {
                Ok(()) if is_named(&file, path) => {
                    return Ok(Some(Self { _file: file, remove: Some(path.to_owned()) }));
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(no_locks(path)(error)),
            }
        }
        Ok(None)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // While it is still held: who opens the name afterwards makes a new file.
        if let Some(path) = &self.remove {
            let _ = std::fs::remove_file(path);
        }
    }
}

fn open(path: &Path) -> Result<File, DocumentsError> {
    open_private(path, false).map_err(DocumentsError::io("opened", path))
}

fn no_locks(path: &Path) -> impl FnOnce(std::io::Error) -> DocumentsError {
    let path = path.to_owned();
    move |source| DocumentsError::NoLocks { path, source }
}

/// Whether the open file is the one that has the name now.
#[cfg(unix)]
pub(super) fn is_named(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    match (file.metadata(), path.symlink_metadata()) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(not(unix))]
pub(super) fn is_named(file: &File, path: &Path) -> bool {
    use same_file::Handle;
    match (file.try_clone().and_then(Handle::from_file), Handle::from_path(path)) {
        (Ok(open), Ok(named)) => open == named,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::TempFolder;
    use super::*;

    #[test]
    fn one_holds_it_and_its_name_goes() {
        let temp = TempFolder::new();
        let path = temp.path().join("a.lock");
        let lock = Lock::attempt(&path).unwrap().expect("free");
        assert!(Lock::attempt(&path).unwrap().is_none());
        drop(lock);
        assert!(!path.exists());
        assert!(Lock::attempt(&path).unwrap().is_some());
    }

    #[test]
    fn threads_wait_for_each_other() {
        let temp = TempFolder::new();
        let (path, counter) = (temp.path().join("l"), temp.path().join("n"));
        std::fs::write(&counter, "0").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..25 {
                        let _lock = Lock::wait(&path).unwrap();
                        let n: u32 = std::fs::read_to_string(&counter).unwrap().parse().unwrap();
                        std::fs::write(&counter, (n + 1).to_string()).unwrap();
                    }
                });
            }
        });
        assert_eq!(std::fs::read_to_string(&counter).unwrap(), "100");
    }
}
