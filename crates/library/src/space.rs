//! How much room a file system has.

use std::io;
use std::path::Path;

/// Bytes that this user may still write below `folder`, where the system says it.
pub fn free_bytes(folder: &Path) -> Option<u64> {
    fs4::available_space(folder).ok()
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
    fn a_folder_has_room() {
        assert!(free_bytes(&std::env::temp_dir()).is_some_and(|bytes| bytes > 0));
        // Windows says how much the drive has.
        let nowhere = free_bytes("/nowhere/at/all".as_ref());
        assert_eq!(nowhere.is_some(), cfg!(windows), "{nowhere:?}");
    }

    #[test]
    fn a_full_disk_is_told_from_other_errors() {
        assert!(is_full(&io::ErrorKind::StorageFull.into()));
        assert!(!is_full(&io::ErrorKind::PermissionDenied.into()));
    }
}
