//! The committed PTX: `kernels/ptx/compute_NN.gz` for each target, and what is in them as text.
//!
//! An archive is a sequence of gzip members, one for each file of kernels, by name, without times:
//! the same PTX gives the same bytes. Every member is compressed alone, and one whose text has not
//! changed is copied, so that a change of one kernel changes one member and git stores little of
//! it. The header's extra field holds the member's length, by which `crates/cuda/src/ptx.rs` finds
//! a file without inflating those before it.
//!
//! `kernels/ptx/contents.txt` lists hash and size of every file: that is what a diff shows.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use flate2::bufread::GzDecoder;
use flate2::{Compression, GzBuilder};

use crate::process::root;

const FOLDER: &str = "kernels/ptx";
const CONTENTS: &str = "kernels/ptx/contents.txt";

/// Tag of the extra subfield with the member's length; the reader in `crates/cuda` has it too.
const LENGTH_TAG: &[u8] = b"LV\x04\x00";

/// "Unknown" of RFC 1952, so that the machine that packs does not show.
const ANY_SYSTEM: u8 = 255;

/// Digits of a hash that are listed: enough to tell versions of a kernel apart.
const HASH_DIGITS: usize = 16;

/// PTX by the name of its file.
pub(super) type Texts = BTreeMap<String, String>;

/// PTX by target (`compute_75`), then by file.
pub(super) type ByTarget = BTreeMap<String, Texts>;

/// A file of an archive.
struct Member {
    bytes: Vec<u8>,
    text: String,
}

/// Brings the archives and the list to `made`. Files that `made` does not name go if it `is_all`,
/// else they stay.
pub(super) fn write(made: &ByTarget, is_all: bool) -> Result<()> {
    if made.is_empty() {
        // A file of the tests alone was compiled.
        return Ok(());
    }
    let mut contents = String::new();
    for (target, texts) in made {
        let path = path(target);
        let old = if path.exists() { read(&path)? } else { BTreeMap::new() };
        let mut wanted = texts.clone();
        if !is_all {
            let others = old.iter().filter(|(name, _)| !texts.contains_key(*name));
            wanted.extend(others.map(|(name, member)| (name.clone(), member.text.clone())));
        }
        fs::create_dir_all(root().join(FOLDER))?;
        fs::write(&path, packed(&wanted, &old)?).with_context(|| path.display().to_string())?;
        contents += &listed(target, &wanted);
    }
    fs::write(root().join(CONTENTS), contents).context(CONTENTS)
}

/// What is committed, by target.
pub(super) fn committed(targets: impl Iterator<Item = String>) -> Result<ByTarget> {
    let texts = |target: String| {
        let members = read(&path(&target))?.into_iter();
        Ok((target, members.map(|(name, member)| (name, member.text)).collect()))
    };
    targets.map(texts).collect()
}

/// How the committed archives differ from `made`, in words. Without `is_all` only the files that
/// `made` names are compared.
pub(super) fn differences(made: &ByTarget, is_all: bool) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (target, texts) in made {
        let committed = read(&path(target))?;
        let is_same = |name: &String, text: &String| {
            committed.get(name).is_some_and(|member| member.text == *text)
        };
        let changed = texts.iter().filter(|(name, text)| !is_same(name, text));
        found.extend(changed.map(|(n, _)| format!("{target}/{n} is not what its source gives")));
        if is_all {
            let stale = committed.keys().filter(|name| !texts.contains_key(*name));
            found.extend(stale.map(|name| format!("{target}/{name} has no source")));
        }
    }
    Ok(found)
}

fn path(target: &str) -> PathBuf {
    root().join(FOLDER).join(format!("{target}.gz"))
}

/// The archive of `texts`; members of `old` with the same text are copied.
fn packed(texts: &Texts, old: &BTreeMap<String, Member>) -> Result<Vec<u8>> {
    let mut archive = Vec::new();
    for (name, text) in texts {
        match old.get(name).filter(|member| member.text == *text) {
            Some(member) => archive.extend(&member.bytes),
            None => archive.extend(member(name, text)?),
        }
    }
    Ok(archive)
}

/// A member, written twice: its length is part of its header.
fn member(name: &str, text: &str) -> Result<Vec<u8>> {
    let write = |len: usize| -> Result<Vec<u8>> {
        let len = u32::try_from(len)?.to_le_bytes();
        let header = GzBuilder::new().mtime(0).operating_system(ANY_SYSTEM);
        let header = header.filename(name).extra([LENGTH_TAG, &len].concat());
        let mut out = header.write(Vec::new(), Compression::best());
        out.write_all(text.as_bytes())?;
        Ok(out.finish()?)
    };
    write(write(0)?.len())
}

/// The files of the archive at `path`.
fn read(path: &PathBuf) -> Result<BTreeMap<String, Member>> {
    let archive = fs::read(path).with_context(|| path.display().to_string())?;
    unpacked(&archive).with_context(|| path.display().to_string())
}

fn unpacked(archive: &[u8]) -> Result<BTreeMap<String, Member>> {
    let mut members = BTreeMap::new();
    let mut rest = archive;
    while !rest.is_empty() {
        let mut decoder = GzDecoder::new(rest);
        let name = decoder.header().and_then(|header| header.filename());
        let name = String::from_utf8(name.context("a member without a name")?.to_vec())?;
        let mut text = String::new();
        decoder.read_to_string(&mut text).with_context(|| name.clone())?;
        let next = decoder.into_inner();
        let bytes = rest[..rest.len() - next.len()].to_vec();
        rest = next;
        if members.insert(name.clone(), Member { bytes, text }).is_some() {
            bail!("{name} is there twice");
        }
    }
    Ok(members)
}

/// A line for each file: hash, bytes, name.
fn listed(target: &str, texts: &Texts) -> String {
    let line = |(name, text): (&String, &String)| {
        format!("{}  {:>8}  {target}/{name}\n", hash(text), text.len())
    };
    texts.iter().map(line).collect()
}

/// What is listed of a text.
pub(super) fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..HASH_DIGITS].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(pairs: &[(&str, &str)]) -> Texts {
        pairs.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect()
    }

    #[test]
    fn what_is_packed_is_read_back_and_the_bytes_depend_on_the_texts_alone() {
        let long = "ld.global.f32 %f1, [%rd1];\n".repeat(3000);
        let texts = texts(&[("a.ptx", "add\n"), ("b.ptx", long.as_str()), ("empty.ptx", "")]);
        let archive = packed(&texts, &BTreeMap::new()).unwrap();
        assert!(archive.len() < long.len() / 20, "{} bytes", archive.len());
        let members = unpacked(&archive).unwrap();
        let read: Texts = members.iter().map(|(n, m)| (n.clone(), m.text.clone())).collect();
        assert_eq!(read, texts);
        for member in members.values() {
            // Fixed header of 10 bytes, then the length of the extra field, then the field.
            let len = member.bytes[12..20].strip_prefix(LENGTH_TAG).unwrap();
            assert_eq!(len, u32::try_from(member.bytes.len()).unwrap().to_le_bytes());
            assert_eq!(member.bytes[4..10], [0, 0, 0, 0, 2, ANY_SYSTEM], "no time, no system");
        }
        assert_eq!(packed(&texts, &members).unwrap(), archive);
    }

    #[test]
    fn a_changed_file_changes_its_member_alone() {
        let before = texts(&[("a.ptx", "one"), ("b.ptx", "two"), ("c.ptx", "three")]);
        let old = unpacked(&packed(&before, &BTreeMap::new()).unwrap()).unwrap();
        let mut after = before.clone();
        after.insert("b.ptx".into(), "changed".into());
        let new = unpacked(&packed(&after, &old).unwrap()).unwrap();
        let is_same = |name: &str| old[name].bytes == new[name].bytes;
        assert_eq!((is_same("a.ptx"), is_same("b.ptx"), is_same("c.ptx")), (true, false, true));
        assert_eq!(new["b.ptx"].text, "changed");
    }

    #[test]
    fn a_damaged_archive_is_an_error() {
        let archive = packed(&texts(&[("a.ptx", "one")]), &BTreeMap::new()).unwrap();
        assert!(unpacked(&archive[..archive.len() - 1]).is_err());
        assert!(unpacked(&[&archive[..], &archive[..]].concat()).is_err(), "twice the same name");
        assert!(unpacked(b"no archive").is_err());
    }

    #[test]
    fn the_list_is_of_what_is_committed() {
        let mut contents = String::new();
        for target in super::super::shipped() {
            let members = read(&path(&target)).unwrap();
            let texts = members.into_iter().map(|(name, member)| (name, member.text)).collect();
            contents += &listed(&target, &texts);
        }
        assert_eq!(fs::read_to_string(root().join(CONTENTS)).unwrap(), contents);
    }
}
