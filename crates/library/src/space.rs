//! How much room a file system has.

use std::io;
use std::path::Path;

/// Bytes that this user may still write below `folder`, where the system says it.
#[cfg(unix)]
pub(crate) fn free_bytes(folder: &Path) -> Option<u64> {
    let data = rustix::fs::statvfs(folder).ok()?;
    data.f_bavail.checked_mul(data.f_frsize)
}

/// Nothing is known here before the disk is full.
#[cfg(not(unix))]
pub(crate) fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// Whether an error means that there is no room left.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn a_folder_has_room() {
        assert!(free_bytes(&std::env::temp_dir()).is_some_and(|bytes| bytes > 0));
        assert_eq!(free_bytes("/nowhere/at/all".as_ref()), None);
    }

    #[test]
    fn a_full_disk_is_told_from_other_errors() {
        assert!(is_full(&io::ErrorKind::StorageFull.into()));
        assert!(!is_full(&io::ErrorKind::PermissionDenied.into()));
    }
}
