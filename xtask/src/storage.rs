//! `cargo xtask storage`: what machines share, over the protocol of Microsoft's storage.
//!
//! Its server for tests, Azurite, is 186 MB in 374 packages, which CI does not install. It listens
//! on this machine's own address and keeps nothing. For Google's storage no registry has one that
//! speaks the interface that the client uses (XML).

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::args::Parsed;
use crate::process::{cargo, root, run as run_child};
use crate::wheel::target_folder;

pub(crate) const ABOUT: &str = "documents that machines share over the protocol of Microsoft's \
                                storage, against Azurite (npm); not in CI";

const AZURITE: &str = "azurite@3.35.0";
/// The container.
const NAME: &str = "documents";
const STARTS: Duration = Duration::from_secs(60);

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    Parsed::parse(args, &[], &[])?;
    let files = root().join("tests/object-server/azure");
    let home = target_folder()?.join("azurite");
    let azurite = azurite(&home)?;

    let port = free_port()?;
    let mut command = Command::new(azurite);
    command.args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]);
    command.args(["--inMemoryPersistence", "--disableTelemetry", "--silent"]);
    let azure = Emulator::start(command, port, &home.join("log"))?;
    let mut container = Command::new("node");
    run_child(container.arg(files.join("container.mjs")).args([&azure.address, NAME]))?;

    let mut tests = cargo("test --workspace --all-features --test hub -- clouds::");
    // The first name is that of Microsoft's own programs.
    tests.env("AZURITE_BLOB_STORAGE_URL", &azure.address);
    tests.env("LONGVIEW_TEST_AZURE", format!("az://{NAME}/some/prefix"));
    run_child(tests.env("REQUIRE_CLOUDS", "1"))
}

/// Azurite's program, installed once.
fn azurite(home: &Path) -> Result<PathBuf> {
    let program = home.join("node_modules/.bin/azurite-blob");
    if !program.is_file() {
        let mut npm = Command::new("npm");
        npm.args(["install", "--no-audit", "--no-fund", "--prefix"]).arg(home).arg(AZURITE);
        run_child(&mut npm)?;
    }
    Ok(program)
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A server that ends with this.
struct Emulator {
    child: Child,
    address: String,
}

impl Emulator {
    fn start(mut command: Command, port: u16, log: &Path) -> Result<Self> {
        let out = File::create(log)?;
        command.stdin(Stdio::null()).stdout(out.try_clone()?).stderr(out);
        let child = command.spawn().with_context(|| format!("{command:?}"))?;
        let mut emulator = Self { child, address: format!("http://127.0.0.1:{port}") };
        let end = Instant::now() + STARTS;
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if emulator.child.try_wait()?.is_some() || Instant::now() > end {
                bail!("{command:?}: does not listen; {} has what it said", log.display());
            }
            sleep(Duration::from_millis(50));
        }
        Ok(emulator)
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
