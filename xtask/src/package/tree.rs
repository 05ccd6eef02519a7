//! The files of a package, as they lie below `usr`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::Result;

use super::files::{self, ENTRIES, METAINFO, PROGRAMS, TYPES, copy, make_folder_of, write};
use crate::process::{capture, root, run as run_child};

/// Widths and heights of icons, in pixels; the drawing is there for all others.
const SIZES: [u32; 8] = [16, 22, 24, 32, 48, 64, 128, 256];

/// Shells that complete words, and where each looks.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/longview"),
    ("zsh", "zsh/vendor-completions/_longview"),
    ("fish", "fish/vendor_completions.d/longview.fish"),
];

/// Lays all files into `tree`. Programs come from the folder `built`, without what debuggers read.
pub(super) fn fill(tree: &Path, built: &Path, licences: &str) -> Result<()> {
    let bin = tree.join("usr/bin");
    let share = tree.join("usr/share");
    fs::create_dir_all(&bin)?;
    for program in PROGRAMS {
        let mut strip = Command::new("strip");
        strip.arg("--strip-all").arg("-o").arg(bin.join(program)).arg(built.join(program));
        run_child(&mut strip)?;
    }
    let from = files::folder();
    for entry in ENTRIES {
        copy(&from.join(entry), &share.join("applications").join(entry))?;
    }
    copy(&from.join(METAINFO), &share.join("metainfo").join(METAINFO))?;
    copy(&from.join(TYPES), &share.join("mime/packages/longview.xml"))?;
    icons(&from.join("longview.svg"), &share.join("icons/hicolor"))?;
    let completions =
        |shell| capture(Command::new(bin.join("longview")).args(["completions", shell]));
    for (shell, path) in SHELLS {
        write(&share.join(path), &completions(shell)?)?;
    }
    let documents = share.join("doc/longview");
    write(&documents.join("licences.txt"), licences)?;
    copy(&from.join("copyright"), &documents.join("copyright"))?;
    copy(&root().join("CHANGELOG.md"), &documents.join("changelog"))?;
    for program in PROGRAMS {
        let page = format!("{program}.1");
        copy(&from.join(&page), &share.join("man/man1").join(&page))?;
    }
    let big = ["doc/longview/licences.txt", "doc/longview/changelog"];
    let pages = PROGRAMS.map(|program| format!("man/man1/{program}.1"));
    for file in big.into_iter().chain(pages.iter().map(String::as_str)) {
        // Without a name and a time in it: the same text is the same file.
        run_child(Command::new("gzip").args(["-9", "--no-name"]).arg(share.join(file)))?;
    }
    // Whatever the umask was where the repository lies.
    run_child(Command::new("chmod").args(["-R", "u=rwX,go=rX"]).arg(tree))
}

fn icons(drawing: &Path, theme: &Path) -> Result<()> {
    copy(drawing, &theme.join("scalable/apps/longview.svg"))?;
    for size in SIZES {
        let icon = theme.join(format!("{size}x{size}/apps/longview.png"));
        make_folder_of(&icon)?;
        let size = size.to_string();
        let mut render = Command::new("rsvg-convert");
        render.args(["--width", &size, "--height", &size]).arg("--output").arg(&icon);
        run_child(render.arg(drawing))?;
    }
    Ok(())
}
