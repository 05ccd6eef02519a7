//! `cargo xtask web`: the browser demo, built from nothing, and served to look at it.
//!
//! The Rust side becomes WebAssembly with the toolchain that is there (see [`toolchain`]), then a
//! module that JavaScript loads, then the page is built around it. What lies in `web/dist` at the
//! end is the whole demo with its model: any static server may show it, below any path.

mod page;
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
use crate::package::npm as licences;
use crate::process::{Background, cargo, dev_binary, root, run as run_child, target_directory};
use crate::setup;

use toolchain::{Profile, npm, npm_command};

pub(crate) const OPTIONS: &str =
    "[--fast] [--test [--part page|programs] | --serve [--port N] | --page]";
pub(crate) const ABOUT: &str = "builds the browser demo into web/dist; --test uses it in a real \
                                browser, --part programs with what programs write and \
                                serve alone, --part page without; --serve shows it on this machine, on port 8080 unless \
                                told otherwise; --fast compiles the module as CI does, for tests \
                                and not for visitors; --page makes the page of `longview serve` \
                                anew";

/// What a visitor may have to download before anything happens, compressed. What CI compiles keeps
/// to it too, though it is larger.
const MOST_BYTES: usize = 4 << 20;

const MODULE: &str = "longview_web";

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let flags = ["--fast", "--serve", "--test", "--page"];
    let parsed = Parsed::parse(args, &flags, &["--port", "--part"])?;
    let verbs = ["--test", "--serve", "--page"];
    if verbs.iter().filter(|verb| parsed.has(verb)).count() > 1 {
        return Err(UsageError("--test, --serve and --page are calls of their own".into()).into());
    }
    let port = match parsed.value("--port") {
        Some(_) if !parsed.has("--serve") => {
            return Err(UsageError("--port is for --serve".into()).into());
        }
        Some(text) => text.parse().map_err(|_| UsageError(format!("--port {text}: not a port")))?,
        None => 8080,
    };
    let parts = match parsed.value("--part") {
        None => &Part::ALL[..],
        Some(_) if !parsed.has("--test") => {
            return Err(UsageError("--part is for --test".into()).into());
        }
        Some("page") => &[Part::Page],
        Some("programs") => &[Part::Programs],
        Some(text) => {
            return Err(UsageError(format!("--part {text}: page or programs")).into());
        }
    };
    let profile = if parsed.has("--fast") { Profile::Fast } else { Profile::Shipped };
    if parsed.has("--test") {
        return test(profile, parts);
    }
    if parsed.has("--page") {
        let web = install()?;
        licences::write(&web)?;
        return page::write(&web);
    }
    let dist = build(profile)?;
    if parsed.has("--serve") { serve::run(&dist, port) } else { Ok(()) }
}

/// Builds everything and returns the folder to serve.
fn build(profile: Profile) -> Result<PathBuf> {
    package(profile, &root().join("web/pkg"))?;
    let web = install()?;
    npm(&web, &["run", "build"])?;
    let dist = web.join("dist");
    println!("built {}", dist.display());
    Ok(dist)
}

/// Installs what the pages are built with, and returns their folder.
fn install() -> Result<PathBuf> {
    let web = root().join("web");
    toolchain::require_node()?;
    npm(&web, &["ci", "--no-audit", "--no-fund"])?;
    Ok(web)
}

/// What building and testing the demo needs of the system.
pub(crate) fn set_up() -> Result<()> {
    setup::require(toolchain::tools().chain(toolchain::BROWSER))?;
    Ok(())
}

/// What is tested in one go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    /// The demo is built, checked, and used in a real browser.
    Page,
    /// It is used with a file that a program writes, and so is the server's page, from the program
    /// that serves it.
    Programs,
}

impl Part {
    const ALL: [Self; 2] = [Self::Page, Self::Programs];
}

/// The stage of CI that needs no program: CI compiles them beside it.
pub(crate) fn stage_command() -> Result<Command> {
    part_command("page")
}

/// The stage of CI behind that one and behind the programs.
pub(crate) fn programs_command() -> Result<Command> {
    part_command("programs")
}

/// This program once more, for a part of [`test()`].
fn part_command(part: &str) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["web", "--fast", "--test", "--part", part]).current_dir(root());
    Ok(command)
}

/// Tests the parts that are named.
fn test(profile: Profile, parts: &[Part]) -> Result<()> {
    set_up()?;
    let web = root().join("web");
    if parts.contains(&Part::Page) {
        build(profile)?;
        npm(&web, &["run", "check"])?;
        licences::compare(&web)?;
        page::check(&web)?;
        // The real engine's shaders run on two threads that wait for each other: beside it there is
        // time for the page with its script.
        let real = Background::start(npm_command(&web, &["run", "test:real"]))?;
        let page = npm(&web, &["run", "test:page"]);
        real.finish().and(page)?;
    }
    if parts.contains(&Part::Programs) {
        write_gguf()?;
        npm(&web, &["run", "test:file"])?;
        let mut server = npm_command(&web, &["run", "test:server"]);
        run_child(server.env("LONGVIEW", dev_binary("longview")?))?;
    }
    Ok(())
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
fn package(profile: Profile, folder: &Path) -> Result<()> {
    let target = target_directory()?;
    let module = Background::start(toolchain::build_command(profile)?)?;
    // In a folder of its own, which no other call of cargo waits for: CI compiles beside it.
    let tools = target.join("bindgen");
    let built = run_child(cargo("build --package xtask-bindgen --target-dir").arg(&tools));
    module.finish().and(built)?;
    let compiled = target.join(toolchain::TARGET).join(profile.name());
    let program = format!("xtask-bindgen{}", std::env::consts::EXE_SUFFIX);
    let mut bindgen = Command::new(tools.join("debug").join(program));
    run_child(bindgen.arg(compiled.join(MODULE).with_extension("wasm")).arg(folder))?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_repeats_is_small_once_compressed() {
        assert!(compressed(&[7; 1 << 16]).unwrap() < 1000);
        assert!(compressed(&[]).unwrap() > 0);
    }
}
