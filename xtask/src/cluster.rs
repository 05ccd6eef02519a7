//! `cargo xtask cluster`: Dynamo's frontend, two workers and their servers, on this machine.
//!
//! Dynamo comes from Python's registry, pinned in `integrations/dynamo/requirements.txt`, into an
//! environment under `target/`: some 700 MB, which is why CI does not do it. The worker in Rust is
//! a workspace of its own, because of what it depends on, and is built here alone.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, bail};

use crate::args::{Parsed, UsageError};
use crate::process::{cargo, dev_binary, root, run as run_child, succeeds};
use crate::wheel::{environment, target_folder};

pub(crate) const OPTIONS: &str = "[--worker python|rust]";
pub(crate) const ABOUT: &str = "NVIDIA Dynamo in front of two servers of the embedded model, on \
                                this machine's own address: says what went where. --worker rust \
                                builds the worker in Rust, has Dynamo's conformance kit try it, \
                                and then does the same; not in CI";

const WORKER: &str = "longview-dynamo-worker";
/// What the build of Dynamo's crates calls, and the packages of Debian that have it.
const TOOLS: [&str; 3] = ["protoc", "cmake", "g++"];
const PACKAGES: &str = "protobuf-compiler libprotobuf-dev libclang-dev cmake g++";

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &[], &["--worker"])?;
    let is_rust = match parsed.value("--worker") {
        None | Some("python") => false,
        Some("rust") => true,
        Some(other) => {
            return Err(UsageError(format!("--worker: '{other}' is not python or rust")).into());
        }
    };
    let folder = root().join("integrations/dynamo");
    let python = environment("dynamo", &folder.join("requirements.txt"))?;
    let mut tests = Command::new(&python);
    run_child(tests.args(["-m", "unittest", "test_ready", "test_worker"]).current_dir(&folder))?;
    let program = dev_binary("longview")?;
    let mut cluster = Command::new(python);
    cluster.arg(folder.join("cluster.py")).arg(&program).arg(root().join("models/needle"));
    if is_rust {
        cluster.arg(rust_worker(&folder.join("worker"), &program)?);
    }
    run_child(&mut cluster)
}

/// The worker in Rust, built, after its tests against servers of `program`.
fn rust_worker(folder: &Path, program: &Path) -> Result<PathBuf> {
    if let Some(tool) = TOOLS.iter().find(|tool| !succeeds(Command::new(tool).arg("--version"))) {
        bail!("{tool}: not found; on Debian: apt-get install {PACKAGES}");
    }
    let target = target_folder()?.join("dynamo-worker");
    let here = |line| {
        let mut command = cargo(line);
        command.current_dir(folder).env("CARGO_TARGET_DIR", &target);
        command
    };
    run_child(&mut here("build --locked"))?;
    run_child(here("test --locked").env("LONGVIEW_PROGRAM", program))?;
    Ok(target.join("debug").join(WORKER))
}
