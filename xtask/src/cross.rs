//! Compilers for other machines than this one: rustup's target where it is installed, else Debian's
//! compiler, which builds the standard library from source.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, bail};

use crate::debian;
use crate::lints;
use crate::process::cargo as own_cargo;
use crate::setup::Tool;

/// A machine that is compiled for.
pub(crate) struct Target {
    /// The compiler's name of it.
    pub(crate) triple: &'static str,
    /// The program that links for it; none where the compiler's choice is right, or where nothing
    /// is linked.
    pub(crate) linker: Option<&'static str>,
    /// Parts of the standard library that are built, as `-Zbuild-std` takes them; all that tests
    /// need where it is empty.
    pub(crate) std_parts: &'static str,
}

impl Target {
    /// Cargo with `args` (separated by spaces) for this machine. Debian's compiler is installed
    /// where it is needed and missing.
    pub(crate) fn cargo(&self, args: &str) -> Result<Command> {
        let triple = self.triple;
        if self.is_of_rustup() {
            let mut command = own_cargo(args);
            command.args(["--target", triple]).envs(self.linker_variable());
            command.env_remove(lints::VARIABLE);
            return Ok(command);
        }
        let instead = format!("run `rustup target add {triple}`");
        if !debian::is_here() {
            bail!("no toolchain for {triple}: {instead}");
        }
        let mut command = debian::cargo(&instead)?;
        command.args(args.split_whitespace()).args(["--target", triple]);
        command.arg(match self.std_parts {
            "" => "-Zbuild-std".to_owned(),
            parts => format!("-Zbuild-std={parts}"),
        });
        command.envs(self.linker_variable());
        Ok(command)
    }

    /// What Debian's way needs of the system, where it is the one that is taken.
    pub(crate) fn compiler_tools(&self) -> &'static [Tool] {
        if !self.is_of_rustup() && debian::is_here() { debian::TOOLS } else { &[] }
    }

    /// Whether the toolchain in use has the target's standard library.
    pub(crate) fn is_of_rustup(&self) -> bool {
        let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
        let mut command = Command::new(rustc);
        let output = command.args(["--print", "target-libdir", "--target", self.triple]).output();
        output.is_ok_and(|output| {
            let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
            output.status.success() && Path::new(&folder).is_dir()
        })
    }

    /// The variable by which cargo learns what `name` is for this target, such as `RUNNER`.
    pub(crate) fn variable(&self, name: &str) -> String {
        let triple = self.triple.to_uppercase().replace('-', "_");
        format!("CARGO_TARGET_{triple}_{name}")
    }

    fn linker_variable(&self) -> Option<(String, &'static str)> {
        self.linker.map(|linker| (self.variable("LINKER"), linker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_told_of_a_target_by_variables() {
        let linker = "x86_64-w64-mingw32-gcc";
        let triple = "x86_64-pc-windows-gnu";
        let target = Target { triple, linker: Some(linker), std_parts: "" };
        assert_eq!(target.variable("RUNNER"), "CARGO_TARGET_X86_64_PC_WINDOWS_GNU_RUNNER");
        let told = target.linker_variable().unwrap();
        assert_eq!(told, ("CARGO_TARGET_X86_64_PC_WINDOWS_GNU_LINKER".into(), linker));
        let nowhere = Target { triple: "no-such-machine", linker: None, std_parts: "" };
        assert!(!nowhere.is_of_rustup());
    }
}
