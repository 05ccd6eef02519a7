//! Files with what can be made again: whole, or as good as missing.
//!
//! They have a checksum, lie in a folder of this user alone, and take the place of the last one in
//! one step.

use std::fs;
use std::io::{self, Read, Write};
use std::path::Path;

/// Begins every file; behind it come the checksum and the content.
const MAGIC: &[u8; 16] = b"longview-cache-1";
/// Larger files are neither read nor written: all of our kernels take far less.
const MOST_BYTES: u64 = 256 << 20;

/// FNV-1a: for damage, not against whoever may write to the folder.
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The content, if all of it is there.
pub(crate) fn read(path: &Path) -> Option<Vec<u8>> {
    let file = fs::File::open(path).ok()?;
    // Links, devices and pipes were not written here.
    let is_file = path.symlink_metadata().is_ok_and(|meta| meta.is_file());
    let mut bytes = Vec::new();
    file.take(if is_file { MOST_BYTES } else { 0 }).read_to_end(&mut bytes).ok()?;
    let (magic, rest) = bytes.split_at_checked(MAGIC.len())?;
    let (sum, data) = rest.split_first_chunk::<8>()?;
    let is_whole = magic == MAGIC && u64::from_le_bytes(*sum) == checksum(data);
    is_whole.then(|| data.to_vec())
}

/// Replaces the file in one step.
pub(crate) fn write(path: &Path, data: &[u8]) -> io::Result<()> {
    if (data.len() + MAGIC.len() + 8) as u64 > MOST_BYTES {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let folder = path.parent().ok_or(io::ErrorKind::NotFound)?;
    private_folder().recursive(true).create(folder)?;
    let fresh = path.with_extension(format!("{}.new", std::process::id()));
    let written = private_file().open(&fresh).and_then(|mut file| {
        file.write_all(MAGIC)?;
        file.write_all(&checksum(data).to_le_bytes())?;
        file.write_all(data)?;
        drop(file);
        fs::rename(&fresh, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&fresh);
    }
    written
}

/// What this user alone may enter.
fn private_folder() -> fs::DirBuilder {
    #[cfg_attr(not(unix), expect(unused_mut, reason = "folders of a user are private there"))]
    let mut builder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder
}

/// A new file that this user alone may read.
fn private_file() -> fs::OpenOptions {
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    #[test]
    fn what_was_written_is_read_and_what_was_damaged_is_not() {
        let folder = Folder::new("damaged");
        let path = folder.0.join("file");
        assert_eq!(read(&path), None);
        let data = b"what a driver made".to_vec();
        write(&path, &data).unwrap();
        assert_eq!(read(&path), Some(data.clone()));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
            assert_eq!((mode(&path), mode(&folder.0)), (0o600, 0o700));
        }
        let whole = fs::read(&path).unwrap();
        for n in 0..whole.len() {
            fs::write(&path, &whole[..n]).unwrap();
            assert_eq!(read(&path), None, "{n} bytes of it");
            let mut changed = whole.clone();
            changed[n] ^= 1;
            fs::write(&path, &changed).unwrap();
            assert_eq!(read(&path), None, "byte {n}");
        }
        // A folder in its place is left alone.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(read(&path), None);
        write(&path, &data).unwrap_err();
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1, "nothing else is left there");
    }
}
