//! What the sources of this crate must look like: the targets that they are for, the ops.

use std::fs;
use std::path::{Path, PathBuf};

use longview_ops::Op;

/// The one line that names WebAssembly: it refuses the target.
const REFUSAL: &str = "#[cfg(target_family = \"wasm\")]";

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

/// No build compiles this crate for a browser, so a branch for it would rot unseen: one had slid
/// onto the wrong method, and the target no longer compiled.
#[test]
fn nothing_branches_on_a_target_that_no_build_compiles() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut files);
    assert!(files.len() > 50, "{} files", files.len());
    let mut refusals = 0;
    for file in files {
        for (i, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            if line == REFUSAL {
                refusals += 1;
                continue;
            }
            let is_branch = line.contains("cfg") && line.contains("wasm");
            assert!(!is_branch, "{}:{}: {line}", file.display(), i + 1);
        }
    }
    assert_eq!(refusals, 1, "lib.rs refuses the target");
}

#[test]
fn the_folder_of_ops_has_one_file_an_op() {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src/ops"), &mut files);
    let stem = |path: &PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut found: Vec<String> = files.iter().map(stem).collect();
    found.sort();
    let mut expected: Vec<&str> = Op::ALL.iter().map(|op| op.stem()).chain(["mod"]).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
}
