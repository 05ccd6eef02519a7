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
/// of a file is left. Where nothing was read yet, on a busy machine, the key is pressed later.
pub(super) fn keeps_what_was_read(longview: &dyn Fn() -> Command) -> Result<String> {
    let folder = folder()?.join("ctrl-c");
    let mut last = String::new();
    for times in [1, 4, 16] {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        last = said_after(longview, &folder, times * LOADING)?;
        let kept = last.split_once("interrupted: ").and_then(|(_, rest)| rest.split(';').next());
        if let Some(kept) = kept.filter(|kept| kept.contains("are kept")) {
            ask_what_was_kept(longview, &folder)?;
            fs::remove_dir_all(&folder)?;
            return Ok(kept.to_owned());
        }
    }
    bail!("it kept nothing: {last}")
}

/// What is said by a program that reads a document into a session and is interrupted after `wait`.
fn said_after(longview: &dyn Fn() -> Command, folder: &Path, wait: Duration) -> Result<String> {
    let document = folder.join("long.txt");
    fs::write(&document, "The wind rose over the hills. ".repeat(1800))?;
    let mut command = with_model(longview);
    command.args(["--budget", "256", "-c", "16384", "--chunk-size", "64", "-f"]).arg(&document);
    let child = start(command.arg("--save-session").arg(folder.join("doc.lvs")))?;
    wait_for(&folder.join("doc.lvs.part"))?;
    thread::sleep(wait);
    press(&child)?;
    let (code, said) = said(child)?;
    expect(code).with_context(|| said.clone())?;
    Ok(said)
}

/// Asks the session, the only file beside the document.
fn ask_what_was_kept(longview: &dyn Fn() -> Command, folder: &Path) -> Result<()> {
    let session = folder.join("doc.lvs");
    let names: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.file_name()).collect();
    if names.len() != 2 || !session.exists() {
        bail!("there is something else than the document and its session: {names:?}");
    }
    let mut ask = with_model(longview);
    capture(ask.arg("--session").arg(&session).args(["-p", "x", "-n", "1"]))?;
    Ok(())
}

fn with_model(longview: &dyn Fn() -> Command) -> Command {
    let mut command = longview();
    command.args(["run", "--device", "cpu", "-m"]).arg(root().join("models/needle"));
    command
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
