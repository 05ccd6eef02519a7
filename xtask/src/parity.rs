//! `cargo xtask parity`: every case of the corpus on every backend, by the program `parity` of the
//! `tests` crate.

use anyhow::Result;

use crate::args::Parsed;
use crate::process::{cargo, dev_binary, run as run_child};

pub(crate) const OPTIONS: &str = "[--backends cpu,wgpu,cuda,cuda-emulated] [--op NAME] [--every N]";
pub(crate) const ABOUT: &str = "every case of every op on every backend against the f64 reference; \
                                REQUIRE_BACKENDS=a,b makes their absence fail; --every \
                                13 takes that share of the cases";

const TAKES_VALUE: &[&str] = &["--backends", "--op", "--every"];

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

/// The stage of CI, by the binary that the tests built: the CPU, a Vulkan device and the emulation
/// of CUDA must be there. The tests run all cases on each of them, at every instruction set, shader
/// level and order of threads, so here is a sample; a prime number does not fall in step with the
/// loops that the corpus is made of.
pub(crate) fn stage() -> Result<()> {
    let mut command = std::process::Command::new(dev_binary("parity")?);
    command.args(["--every", "13"]);
    // Mesa's software device compiles longer than these kernels run: it need not optimise.
    command.env("GALLIVM_PERF", "nopt");
    run_child(command.env("REQUIRE_BACKENDS", "cpu,wgpu,cuda-emulated"))
}
