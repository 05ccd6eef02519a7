//! `cargo xtask web`: the browser demo, built from nothing, and served to look at it.
//!
//! The Rust side becomes WebAssembly with the toolchain that is there (see [`toolchain`]), then a
//! module that JavaScript loads, then the page is built around it. What lies in `web/dist` at the
//! end is the whole demo with its model: any static server may show it, below any path.

mod serve;
mod toolchain;

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::args::{Parsed, UsageError};
use crate::process::{Background, cargo, dev_binary, root, run as run_child, target_directory};
use crate::setup;

pub(crate) const OPTIONS: &str = "[--serve [--port N]]";
pub(crate) const ABOUT: &str = "builds the browser demo into web/dist; --serve shows it on this \
                                machine, on port 8080 unless told otherwise";

/// What a visitor may have to download before anything happens, compressed.
const MOST_BYTES: usize = 4 << 20;

const MODULE: &str = "longview_web";

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &["--serve"], &["--port"])?;
    let port = match parsed.value("--port") {
        Some(_) if !parsed.has("--serve") => {
            return Err(UsageError("--port is for --serve".into()).into());
        }
        Some(text) => text.parse().map_err(|_| UsageError(format!("--port {text}: not a port")))?,
        None => 8080,
    };
    let dist = build()?;
    if parsed.has("--serve") { serve::run(&dist, port) } else { Ok(()) }
}

/// Builds everything and returns the folder to serve.
pub(crate) fn build() -> Result<PathBuf> {
    let web = root().join("web");
    package(&web.join("pkg"))?;
    toolchain::require_node()?;
    npm(&web, &["ci", "--no-audit", "--no-fund"])?;
    npm(&web, &["run", "build"])?;
    let dist = web.join("dist");
    println!("built {}", dist.display());
    Ok(dist)
}

/// What building and testing the demo needs of the system.
pub(crate) fn set_up() -> Result<()> {
    setup::require(toolchain::tools().chain(toolchain::BROWSER))?;
    Ok(())
}

/// The call of cargo that compiles the module, which CI starts early.
pub(crate) fn module_command() -> Result<Command> {
    toolchain::build_command()
}

/// The stage of CI: the demo is built, checked, and used in a real browser.
pub(crate) fn stage() -> Result<()> {
    set_up()?;
    build()?;
    let web = root().join("web");
    npm(&web, &["run", "check"])?;
    write_gguf()?;
    // The real engine's shaders run on two threads that wait for each other: beside it there is
    // time for the page with its script.
    let real = Background::start(npm_command(&web, &["run", "test:real"]))?;
    let page = npm(&web, &["run", "test:page"]);
    real.finish().and(page)
}

/// Writes the embedded model as a GGUF file for the test that picks one.
fn write_gguf() -> Result<()> {
    let folder = target_directory()?.join("page");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let mut command = Command::new(dev_binary("longview")?);
    command.args(["quantize", "--force", "--model"]).arg(root().join("models/needle"));
    run_child(command.arg("--output").arg(folder.join("needle-Q8_0.gguf")))
}

/// Compiles the crate and writes the module that JavaScript loads.
fn package(folder: &Path) -> Result<()> {
    run_child(&mut toolchain::build_command()?)?;
    let compiled = target_directory()?.join(toolchain::TARGET).join(toolchain::PROFILE);
    let compiled = compiled.join(MODULE).with_extension("wasm");
    let mut bindgen = cargo("run --quiet --package xtask-bindgen --");
    run_child(bindgen.arg(&compiled).arg(folder))?;
    check_size(&folder.join(format!("{MODULE}_bg.wasm")))
}

/// Says what the module takes, and refuses one that grew beyond its limit.
fn check_size(module: &Path) -> Result<()> {
    let bytes = fs::read(module).with_context(|| format!("{}: missing", module.display()))?;
    let compressed = compressed(&bytes)?;
    println!("wasm: {} bytes, {compressed} compressed (of {MOST_BYTES})", bytes.len());
    if compressed > MOST_BYTES {
        bail!("the module has {compressed} bytes compressed, more than {MOST_BYTES}");
    }
    Ok(())
}

/// Bytes of `bytes` as servers send them: gzip at its usual level.
fn compressed(bytes: &[u8]) -> Result<usize> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes)?;
    Ok(encoder.finish()?.len())
}

fn npm(web: &Path, args: &[&str]) -> Result<()> {
    run_child(&mut npm_command(web, args))
}

fn npm_command(web: &Path, args: &[&str]) -> Command {
    let mut command = Command::new("npm");
    command.args(args).current_dir(web);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_small_once_compressed() {
        assert!(compressed(&[7; 1 << 16]).unwrap() < 1000);
        assert!(compressed(&[]).unwrap() > 0);
    }
}
