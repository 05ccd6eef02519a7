//! The embedded PTX: one compressed archive for each target, made by `cargo xtask kernels`.
//!
//! An archive is a sequence of gzip members, one for each file of kernels, so `zcat` prints all of
//! it. A member's header holds the file's name and, in its extra field, the member's length: a file
//! is found without inflating those before it. As text the PTX would be five times as large, and
//! nearly all of the binary's read-only data. A file is inflated when the first of its kernels is
//! loaded, which takes about a millisecond; the driver then compiles it, which takes far longer.

use std::io::Read;

use flate2::bufread::GzDecoder;

use crate::target::Target;

/// Tag of the extra subfield with the member's length, a little-endian `u32`.
const LENGTH_TAG: &[u8] = b"LV\x04\x00";

macro_rules! archive {
    ($target:literal) => {
        include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../kernels/ptx/", $target, ".gz"))
    };
}

/// In the order of [`Target::ALL`].
static ARCHIVES: [&[u8]; Target::ALL.len()] =
    [archive!("compute_75"), archive!("compute_80"), archive!("compute_90")];

/// The PTX of `stem`.cu for `target`.
///
/// # Panics
/// If the archive has no such file or is damaged. The tests read every file of every archive, so
/// this does not happen in a build of sources that passed them.
pub(crate) fn unpack(target: Target, stem: &str) -> String {
    let name = format!("{stem}.ptx");
    let text = find(ARCHIVES[target as usize], &name).and_then(inflate);
    text.unwrap_or_else(|| panic!("kernels/ptx/{}.gz holds no intact {name}", target.name()))
}

/// The member that holds the file `name`.
fn find<'a>(archive: &'a [u8], name: &str) -> Option<&'a [u8]> {
    let mut rest = archive;
    while !rest.is_empty() {
        let (found, len) = header(rest)?;
        let (member, next) = rest.split_at_checked(len)?;
        if found == name.as_bytes() {
            return Some(member);
        }
        rest = next;
    }
    None
}

/// Name and length of the first member.
fn header(archive: &[u8]) -> Option<(Vec<u8>, usize)> {
    // Only the header is read here: the decoder inflates when it is asked for bytes.
    let decoder = GzDecoder::new(archive);
    let header = decoder.header()?;
    let len = header.extra()?.strip_prefix(LENGTH_TAG)?.try_into().ok()?;
    Some((header.filename()?.to_vec(), u32::from_le_bytes(len) as usize))
}

/// The text of a member, checked against the sum at its end.
fn inflate(member: &[u8]) -> Option<String> {
    let mut text = String::new();
    GzDecoder::new(member).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::SOURCES;

    #[test]
    fn an_archive_holds_the_files_of_the_table_and_no_others() {
        for target in Target::ALL {
            let mut rest = ARCHIVES[target as usize];
            let mut names = Vec::new();
            while !rest.is_empty() {
                let (name, len) = header(rest).expect("a header");
                names.push(String::from_utf8(name).expect("an ASCII name"));
                rest = &rest[len..];
            }
            let expected: Vec<_> = SOURCES.iter().map(|s| format!("{}.ptx", s.stem)).collect();
            assert_eq!(names, expected, "{}", target.name());
        }
    }

    #[test]
    fn what_is_absent_or_damaged_is_not_found() {
        let archive = ARCHIVES[0];
        assert!(find(archive, "absent.ptx").is_none());
        let last = format!("{}.ptx", SOURCES.last().expect("a file").stem);
        assert!(find(archive, &last).is_some());
        assert!(find(&archive[..archive.len() - 1], &last).is_none(), "cut off");
        let mut member = find(archive, "argmax.ptx").expect("it is there").to_vec();
        assert!(inflate(&member).is_some());
        let middle = member.len() / 2;
        member[middle] ^= 0x10;
        assert!(inflate(&member).is_none(), "a flipped bit");
    }
}
