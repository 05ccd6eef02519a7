//! `cargo xtask platforms`: Longview on machines that are not this one.
//!
//! Programs for 64-bit ARM run under qemu and programs for Windows under Wine, so that what they
//! compute is tested and not only that they link. For macOS, and for browsers without a page,
//! crates are checked: nothing here runs them. `cargo xtask web --test` runs the browser's module.
//!
//! A check that cannot be made on this machine is no check: it is listed with its reason and
//! counted apart.

mod aarch64;
mod checked;
mod ctrl_c;
mod place;
mod report;
mod windows;

use anyhow::{Result, bail};

use crate::args::{Parsed, UsageError};
use report::Report;

pub(crate) const OPTIONS: &str = "[--only aarch64,windows,macos,wasm]";
pub(crate) const ABOUT: &str = "other machines, on a Debian of x86-64: tests and the demo for 64-bit ARM under \
                                qemu and for Windows under Wine; cargo check of all crates for macOS and of \
                                those of the browser for wasm32. Says which packages it needs; as root it \
                                installs them";

/// A machine that Longview is for.
struct Platform {
    name: &'static str,
    /// Makes its checks, and stops early where no later one could pass.
    run: fn(&mut Report) -> Result<()>,
}

const PLATFORMS: &[Platform] = &[
    Platform { name: "aarch64", run: aarch64::run },
    Platform { name: "windows", run: windows::run },
    Platform { name: "macos", run: checked::macos },
    Platform { name: "wasm", run: checked::wasm },
];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &[], &["--only"])?;
    let chosen = chosen(parsed.value("--only"))?;
    let mut report = Report::default();
    for platform in chosen {
        report.begin(platform.name);
        if let Err(error) = (platform.run)(&mut report) {
            report.stopped(&error);
        }
    }
    print!("\n{}", report.text());
    let failed = report.failed_platforms();
    if failed.is_empty() {
        return Ok(());
    }
    bail!("failed; again with `cargo xtask platforms --only {}`", failed.join(","))
}

fn chosen(only: Option<&str>) -> Result<Vec<&'static Platform>> {
    let Some(only) = only else { return Ok(PLATFORMS.iter().collect()) };
    let find = |name: &str| {
        let known: Vec<_> = PLATFORMS.iter().map(|platform| platform.name).collect();
        let message = || format!("unknown platform '{name}': one of {}", known.join(", "));
        let found = PLATFORMS.iter().find(|platform| platform.name == name);
        found.ok_or_else(|| UsageError(message()).into())
    };
    only.split(',').map(find).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn platforms_are_chosen_by_name() {
        let names = |only| -> Vec<_> {
            chosen(only).unwrap().into_iter().map(|platform: &Platform| platform.name).collect()
        };
        assert_eq!(names(Some("wasm,aarch64")), ["wasm", "aarch64"]);
        assert_eq!(names(None).len(), PLATFORMS.len());
        assert!(PLATFORMS.iter().all(|platform| OPTIONS.contains(platform.name)), "{OPTIONS}");
    }
}
