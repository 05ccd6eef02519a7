//! `cargo xtask parity`: every case of the corpus on every backend, by the program `parity` of the
//! `tests` crate.

use anyhow::Result;

use crate::args::Parsed;
use crate::process::{cargo, dev_binary, run as run_child};

pub(crate) const OPTIONS: &str = "[--backends cpu,wgpu,cuda,cuda-emulated] [--op NAME]";
pub(crate) const ABOUT: &str = "every case of every op on every backend against the f64 reference; \
                                REQUIRE_BACKENDS=a,b makes their absence fail";

const TAKES_VALUE: &[&str] = &["--backends", "--op"];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &[], TAKES_VALUE)?;
    let mut command = cargo("run --quiet --package longview-tests --bin parity --");
    for option in TAKES_VALUE {
        if let Some(value) = parsed.value(option) {
            command.args([option, value]);
        }
    }
    run_child(&mut command)
}

/// The stage of CI: the CPU, a Vulkan device and the emulation of CUDA must be there; the binary is
/// the one that the tests built.
pub(crate) fn stage() -> Result<()> {
    let mut command = std::process::Command::new(dev_binary("parity")?);
    run_child(command.env("REQUIRE_BACKENDS", "cpu,wgpu,cuda-emulated"))
}
