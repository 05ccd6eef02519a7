//! `cargo xtask cluster`: Dynamo's frontend, two workers and their servers, on this machine.
//!
//! Dynamo comes from Python's registry, pinned in `integrations/dynamo/requirements.txt`, into an
//! environment under `target/`: some 700 MB, which is why CI does not do it.

use std::process::Command;

use anyhow::Result;

use crate::args::Parsed;
use crate::process::{dev_binary, root, run as run_child};
use crate::wheel::environment;

pub(crate) const ABOUT: &str = "NVIDIA Dynamo in front of two servers of the embedded model, on \
                                this machine's own address: says what went where; not in CI";

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    Parsed::parse(args, &[], &[])?;
    let folder = root().join("integrations/dynamo");
    let python = environment("dynamo", &folder.join("requirements.txt"))?;
    let program = dev_binary("longview")?;
    let mut cluster = Command::new(python);
    run_child(cluster.arg(folder.join("cluster.py")).arg(program).arg(root().join("models/needle")))
}
