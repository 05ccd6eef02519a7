//! Ctrl-C for a program in an emulation, pressed from outside: Wine makes the key of a Windows
//! console from the signal, and tests inside of it have no console to press it in.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::place::folder;
use crate::process::{capture, root, run as run_child};

/// What a program that Ctrl-C ended returns.
const INTERRUPTED: i32 = 130;

/// Loading takes longer in an emulation on a busy machine.
const LOADING: Duration = Duration::from_secs(5);

/// A prefill of minutes says how far it came, and ends at once.
pub(super) fn ends_a_prefill(longview: &dyn Fn() -> Command) -> Result<String> {
    let mut command = longview();
    command.args(["demo", "--context", "131072"]);
    let mut child = start(&mut command)?;
    let mut out = BufReader::new(child.stdout.take().context("stdout")?);
    let mut line = String::new();
    // The introduction is printed before the model is loaded.
    while !line.starts_with("Clusters") {
        line.clear();
        if out.read_line(&mut line)? == 0 {
            bail!("the demo ended early: {}", said(child)?.1);
        }
    }
    thread::sleep(LOADING);
    press(&child)?;
    let (code, said) = said(child)?;
    let Some((_, counts)) = said.split_once("interrupted: ") else {
        bail!("it ended with {code:?} and says nothing of the interruption: {said}");
    };
    expect(code)?;
    Ok(counts.lines().next().unwrap_or_default().to_owned())
}

/// A document that is read and saved: what was read is in the file, which can be asked, and no part
/// of a file is left.
pub(super) fn keeps_what_was_read(longview: &dyn Fn() -> Command) -> Result<String> {
    let folder = folder()?.join("ctrl-c");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    let (document, session) = (folder.join("long.txt"), folder.join("doc.lvs"));
    fs::write(&document, "The wind rose over the hills. ".repeat(1800))?;
    let model = root().join("models/needle");
    let with = |command: &mut Command| {
        command.args(["run", "--device", "cpu", "-m"]).arg(&model);
    };
    let mut command = longview();
    with(&mut command);
    command.args(["--budget", "256", "-c", "16384", "--chunk-size", "64", "-f"]).arg(&document);
    let child = start(command.arg("--save-session").arg(&session))?;
    wait_for(&folder.join("doc.lvs.part"))?;
    thread::sleep(LOADING);
    press(&child)?;
    let (code, said) = said(child)?;
    expect(code).with_context(|| said.clone())?;
    let kept = said.split_once("interrupted: ").and_then(|(_, rest)| rest.split(';').next());
    let kept = kept.filter(|kept| kept.contains("are kept")).context("it kept nothing")?.to_owned();
    let names: Vec<_> = fs::read_dir(&folder)?.flatten().map(|entry| entry.file_name()).collect();
    if names.len() != 2 || !session.exists() {
        bail!("there is something else than the document and its session: {names:?}");
    }
    let mut ask = longview();
    with(&mut ask);
    capture(ask.arg("--session").arg(&session).args(["-p", "x", "-n", "1"]))?;
    fs::remove_dir_all(&folder)?;
    Ok(kept)
}

fn start(command: &mut Command) -> Result<Child> {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().context("cannot start it")
}

/// Presses the key for a program that runs.
fn press(child: &Child) -> Result<()> {
    run_child(Command::new("kill").args(["-INT", &child.id().to_string()]))
}

/// Waits for the end: the exit code, and all of stderr.
fn said(mut child: Child) -> Result<(Option<i32>, String)> {
    let mut said = String::new();
    let mut stderr = child.stderr.take().context("stderr")?;
    stderr.read_to_string(&mut said)?;
    Ok((child.wait()?.code(), said))
}

fn expect(code: Option<i32>) -> Result<()> {
    if code == Some(INTERRUPTED) { Ok(()) } else { bail!("it ended with {code:?}") }
}

fn wait_for(path: &Path) -> Result<()> {
    let start = Instant::now();
    while !path.exists() {
        if start.elapsed() > Duration::from_secs(120) {
            bail!("{} does not come", path.display());
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
