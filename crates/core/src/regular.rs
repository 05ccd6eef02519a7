//! Files that may be read: regular ones. A named pipe would wait for a writer that may never come,
//! and a device may have no end.

use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::path::Path;

/// What a name stands for that is no regular file; `None` for a regular file.
pub fn special_kind(file_type: FileType) -> Option<&'static str> {
    if file_type.is_file() {
        return None;
    }
    if file_type.is_dir() {
        return Some("a folder");
    }
    Some(special_of_system(file_type))
}

#[cfg(unix)]
fn special_of_system(file_type: FileType) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    if file_type.is_fifo() {
        "a named pipe"
    } else if file_type.is_socket() {
        "a socket"
    } else if file_type.is_char_device() || file_type.is_block_device() {
        "a device"
    } else {
        "a special file"
    }
}

#[cfg(not(unix))]
fn special_of_system(_: FileType) -> &'static str {
    "a special file"
}

/// Opens a regular file for reading. Symbolic links are followed.
///
/// # Errors
/// What the system says, and [`io::ErrorKind::InvalidInput`] for anything but a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    // Before it is opened: to open a named pipe is to wait.
    check(&path.metadata()?)?;
    let file = File::open(path)?;
    // Another file may have this name by now.
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(metadata: &Metadata) -> io::Result<()> {
    match special_kind(metadata.file_type()) {
        None => Ok(()),
        Some(kind) => {
            let text = format!("it is {kind}, not a regular file");
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As [`open_regular`], and [`io::ErrorKind::FileTooLarge`] for a longer file, of which no more
/// than that is read.
pub fn read_regular(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open_regular(path)?;
    let size = file.metadata()?.len();
    let too_large = || {
        let text = format!("it has more than the {limit} bytes that are read of such a file");
        io::Error::new(io::ErrorKind::FileTooLarge, text)
    };
    if size > limit {
        return Err(too_large());
    }
    let mut bytes = Vec::with_capacity(size as usize);
    // A file may grow, and files of the system say that they are empty.
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit { Err(too_large()) } else { Ok(bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_the_limit_and_a_folder_is_refused() {
        let path = std::env::temp_dir().join(format!("longview-regular-{}", std::process::id()));
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read_regular(&path, 5).unwrap(), b"12345");
        let error = read_regular(&path, 4).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
        std::fs::remove_file(&path).unwrap();
        let error = read_regular(&std::env::temp_dir(), 5).unwrap_err();
        assert_eq!(error.to_string(), "it is a folder, not a regular file");
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_device_is_refused_and_a_file_of_the_system_has_a_limit_too() {
        let error = read_regular(Path::new("/dev/zero"), 5).unwrap_err();
        assert_eq!(error.to_string(), "it is a device, not a regular file");
        let error = read_regular(Path::new("/proc/self/status"), 5).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    }
}
