//! The page of `longview serve`, which the program has in it: made of `web/` and committed,
//! compressed, in `crates/server/page`, because the program is built where there is no Node.
//!
//! What counts is the text: two versions of the compressor may write other bytes.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use flate2::read::GzDecoder;
use flate2::{Compression, GzBuilder};

use super::toolchain::npm;
use crate::process::root;

/// Committed files by what they are made of, from `web/`.
const FILES: [(&str, &str); 4] = [
    ("dist-server/index.html", "index.html"),
    ("dist-server/assets/page.js", "page.js"),
    ("dist-server/assets/page.css", "page.css"),
    ("public/icon.svg", "icon.svg"),
];

/// Bytes of all files as browsers get them: the program has them in it.
const MOST_BYTES: usize = 64 << 10;

fn folder() -> PathBuf {
    root().join("crates/server/page")
}

/// Builds the page and writes it.
pub(super) fn write(web: &Path) -> Result<()> {
    let mut total = 0;
    for (made, name) in build(web)? {
        let packed = packed(&made)?;
        total += packed.len();
        let path = folder().join(format!("{name}.gz"));
        // The same text keeps its bytes, so that git sees no change.
        if unpacked(&path).is_ok_and(|committed| committed == made) {
            continue;
        }
        fs::write(&path, packed).with_context(|| path.display().to_string())?;
        println!("written: {}", path.display());
    }
    println!("the server's page: {total} bytes compressed (of {MOST_BYTES})");
    if total > MOST_BYTES {
        bail!("the server's page has {total} bytes compressed, more than {MOST_BYTES}");
    }
    Ok(())
}

/// Builds the page and fails where it is not the committed one.
pub(super) fn check(web: &Path) -> Result<()> {
    for (made, name) in build(web)? {
        let path = folder().join(format!("{name}.gz"));
        if unpacked(&path)? != made {
            bail!("{}: is not what web/ makes; run `cargo xtask web --page`", path.display());
        }
    }
    println!("the server's page is up to date");
    Ok(())
}

/// Contents of the files, with their committed names.
fn build(web: &Path) -> Result<Vec<(Vec<u8>, &'static str)>> {
    npm(web, &["run", "build:server"])?;
    let read = |(made, name): (&str, &'static str)| {
        let path = web.join(made);
        Ok((fs::read(&path).with_context(|| path.display().to_string())?, name))
    };
    FILES.into_iter().map(read).collect()
}

fn packed(bytes: &[u8]) -> Result<Vec<u8>> {
    // Without a time or a system: the same text gives the same bytes.
    let builder = GzBuilder::new().mtime(0).operating_system(255);
    let mut encoder = builder.write(Vec::new(), Compression::best());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?)
}

fn unpacked(path: &Path) -> Result<Vec<u8>> {
    let packed = fs::read(path).with_context(|| path.display().to_string())?;
    let mut bytes = Vec::new();
    GzDecoder::new(&packed[..])
        .read_to_end(&mut bytes)
        .with_context(|| path.display().to_string())?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_comes_back_and_has_no_time() {
        let packed = packed(b"a page").unwrap();
        let mut text = String::new();
        GzDecoder::new(&packed[..]).read_to_string(&mut text).unwrap();
        assert_eq!(text, "a page");
        assert_eq!(packed[4..8], [0; 4]);
    }

    #[test]
    fn the_committed_files_are_those_that_the_server_has() {
        let mut names: Vec<_> = fs::read_dir(folder())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        let mut wanted = FILES.map(|(_, name)| format!("{name}.gz"));
        wanted.sort();
        assert_eq!(names, wanted);
    }
}
