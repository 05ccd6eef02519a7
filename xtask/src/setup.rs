//! `cargo xtask setup`: what must be on the machine, installed where that is possible.
//!
//! Building needs Rust with rustfmt and clippy, and a C compiler. Testing needs a Vulkan device for
//! the WGSL kernels; without a GPU, Mesa's lavapipe computes on the CPU. The CUDA kernels are
//! tested on the CPU, as C++, and compiled by wheels that pip fetches.

use std::process::Command;

use anyhow::{Result, bail};

use crate::args::Parsed;
use crate::process::{run as run_child, succeeds};

pub(crate) const ABOUT: &str = "checks for cargo, rustfmt, clippy, a C compiler, a C++ compiler, tmux, pip, a \
                                Vulkan device and Xvfb; installs what is missing where it may";

/// Something the build calls.
pub(crate) struct Tool {
    pub(crate) name: &'static str,
    /// A call that succeeds where the tool is there.
    pub(crate) probe: &'static [&'static str],
    pub(crate) source: Source,
}

/// Where a missing tool comes from.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    /// <https://rustup.rs>; not for us to install.
    Rustup,
    /// A component of the toolchain.
    Component(&'static str),
    /// Debian packages, separated by spaces.
    Packages(&'static str),
}

/// What building needs.
const COMPILERS: &[Tool] = &[
    Tool { name: "cargo", probe: &["cargo", "--version"], source: Source::Rustup },
    Tool {
        name: "rustfmt",
        probe: &["cargo", "fmt", "--version"],
        source: Source::Component("rustfmt"),
    },
    Tool {
        name: "clippy",
        probe: &["cargo", "clippy", "--version"],
        source: Source::Component("clippy"),
    },
    #[cfg(unix)]
    Tool {
        name: "C compiler",
        probe: &["cc", "--version"],
        source: Source::Packages("gcc libc6-dev"),
    },
    #[cfg(unix)]
    Tool { name: "C++ compiler", probe: &["c++", "--version"], source: Source::Packages("g++") },
];

/// What testing needs beside it.
const TOOLS: &[Tool] = &[
    // Tests type into the chat as a person does.
    #[cfg(unix)]
    Tool { name: "tmux", probe: &["tmux", "-V"], source: Source::Packages("tmux") },
    // Two servers stand behind it in a test.
    #[cfg(target_os = "linux")]
    Tool {
        name: "nginx",
        probe: &["sh", "-c", "PATH=$PATH:/usr/sbin; command -v nginx"],
        source: Source::Packages("nginx-light"),
    },
    #[cfg(target_os = "linux")]
    Tool {
        name: "pip",
        probe: &["python3", "-m", "pip", "--version"],
        source: Source::Packages("python3 python3-pip"),
    },
    #[cfg(target_os = "linux")]
    Tool {
        name: "Vulkan loader",
        probe: &["sh", "-c", "PATH=$PATH:/sbin ldconfig -p | grep -q libvulkan.so.1"],
        source: Source::Packages("libvulkan1"),
    },
    #[cfg(target_os = "linux")]
    Tool {
        name: "Vulkan device",
        probe: &[
            "sh",
            "-c",
            "ls /usr/share/vulkan/icd.d/*.json /etc/vulkan/icd.d/*.json | grep -q .",
        ],
        source: Source::Packages("mesa-vulkan-drivers"),
    },
    // WGSL kernels as Vulkan gets them are looked at by Khronos' validator too.
    #[cfg(target_os = "linux")]
    Tool {
        name: "SPIR-V validator",
        probe: &["spirv-val", "--version"],
        source: Source::Packages("spirv-tools"),
    },
    // The desktop app is started once, on a screen that nobody sees.
    #[cfg(target_os = "linux")]
    Tool {
        name: "Xvfb",
        probe: &[
            "sh",
            "-c",
            "PATH=$PATH:/sbin; command -v Xvfb && ldconfig -p | grep -q libxkbcommon-x11",
        ],
        source: Source::Packages("xvfb libxkbcommon-x11-0 libxcursor1 libxi6"),
    },
    // Its pages of Chinese, Japanese and Korean need a font; this one is small.
    #[cfg(target_os = "linux")]
    Tool {
        name: "CJK font",
        probe: &[
            "sh",
            "-c",
            "find /usr/share/fonts ~/.fonts ~/.local/share/fonts -type f 2>/dev/null | \
             grep -qiE 'cjk|wqy-microhei|sourcehan'",
        ],
        source: Source::Packages("fonts-wqy-microhei"),
    },
];

/// The first stage of CI: what building needs.
pub(crate) fn compilers() -> Result<()> {
    require(COMPILERS).map(drop)
}

/// The verb, and the second stage of CI.
pub(crate) fn run(args: &[String]) -> Result<()> {
    Parsed::parse(args, &[], &[])?;
    let all = || COMPILERS.iter().chain(TOOLS);
    let missing = require(all())?;
    for tool in all() {
        let result = if missing.contains(&tool.name) { "installed" } else { "found" };
        println!("{}: {result}", tool.name);
    }
    println!("nothing else is needed; tests of WGSL kernels run on the CPU where there is no GPU");
    Ok(())
}

/// Installs those of `tools` that are missing, where that is possible, and returns their names.
/// Packages are installed together: each call of their manager reads all its lists.
pub(crate) fn require<'t>(tools: impl IntoIterator<Item = &'t Tool>) -> Result<Vec<&'static str>> {
    let missing: Vec<_> = tools.into_iter().filter(|tool| !is_there(tool)).collect();
    let mut packages = Vec::new();
    for tool in &missing {
        match tool.source {
            Source::Rustup => bail!("no cargo on the PATH: install Rust from https://rustup.rs"),
            Source::Component(name) => {
                println!("{} is missing: asking rustup for it", tool.name);
                run_child(Command::new("rustup").args(["component", "add", name]))?;
            }
            Source::Packages(names) => packages.extend(names.split(' ')),
        }
    }
    let names: Vec<_> = missing.iter().map(|tool| tool.name).collect();
    if !packages.is_empty() {
        install(&names, &packages)?;
    }
    if let Some(tool) = missing.into_iter().find(|tool| !is_there(tool)) {
        bail!("{} is still missing after its installation", tool.name);
    }
    Ok(names)
}

fn is_there(tool: &Tool) -> bool {
    succeeds(Command::new(tool.probe[0]).args(&tool.probe[1..]))
}

/// Installs Debian packages, which these tools are.
fn install(tools: &[&str], packages: &[&str]) -> Result<()> {
    let (tools, list) = (tools.join(", "), packages.join(" "));
    if !may_install_packages() {
        bail!("missing: {tools}; install them (Debian: apt-get install {list})");
    }
    println!("missing: {tools}; installing {list} as root");
    run_child(Command::new("apt-get").arg("update"))?;
    let mut apt = Command::new("apt-get");
    apt.args(["install", "-y", "--no-install-recommends"]).args(packages);
    run_child(apt.env("DEBIAN_FRONTEND", "noninteractive"))
}

/// Root on a machine with apt-get, as CI is.
fn may_install_packages() -> bool {
    let id = Command::new("id").arg("-u").output();
    let is_root = id.is_ok_and(|id| id.stdout.trim_ascii() == b"0");
    is_root && succeeds(Command::new("apt-get").arg("--version"))
}
