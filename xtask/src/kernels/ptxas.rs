//! What ptxas says of compiled kernels.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// What a kernel takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resources {
    /// Of a thread.
    pub(crate) registers: u32,
    /// Static shared memory of a block, in bytes.
    pub(crate) shared: u32,
    /// Locals in memory, in bytes.
    pub(crate) stack: u32,
    /// Bytes stored and loaded by spills.
    pub(crate) spilled: u32,
}

impl Resources {
    /// Whether locals went to memory: by spills, or as an array with an index that varies.
    pub(crate) fn spills(&self) -> bool {
        self.stack > 0 || self.spilled > 0
    }
}

/// Assembles PTX; the kernels in it by name.
pub(crate) fn measure(ptxas: &Path, ptx: &str, arch: &str) -> Result<Vec<(String, Resources)>> {
    let arch = format!("-arch=sm_{arch}");
    let mut child = Command::new(ptxas)
        .args(["-v", &arch, "-", "-o", "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", ptxas.display()))?;
    if let Some(mut input) = child.stdin.take() {
        // An assembler that gives up does not read on; its message says why.
        let _ = input.write_all(ptx.as_bytes());
    }
    let output = child.wait_with_output()?;
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    if !output.status.success() || text.contains("warning") {
        bail!("\n{}", text.trim());
    }
    Ok(parse(&text))
}

/// Reads the lines of `-v`: a kernel, its memory, its registers.
fn parse(text: &str) -> Vec<(String, Resources)> {
    let mut kernels: Vec<(String, Resources)> = Vec::new();
    for line in text.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let name = rest.split('\'').next().unwrap_or_default();
            kernels.push((name.to_owned(), Resources::default()));
        }
        let Some((_, last)) = kernels.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            last.stack = before(line, " bytes stack frame");
            last.spilled = before(line, " bytes spill stores") + before(line, " bytes spill loads");
        } else if line.contains("Used ") {
            last.registers = before(line, " registers");
            last.shared = before(line, " bytes smem");
        }
    }
    kernels.sort_by(|(a, _), (b, _)| a.cmp(b));
    kernels
}

/// The number that ends where `unit` begins; 0 where there is none.
fn before(line: &str, unit: &str) -> u32 {
    let number = line.split_once(unit).and_then(|(left, _)| left.rsplit([' ', ',']).next());
    number.and_then(|text| text.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ptxas_says_is_read() {
        let text = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'b' for 'sm_75'
ptxas info    : Function properties for b
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 21 registers, used 1 barriers, 64 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function 'a' for 'sm_75'
ptxas info    : Function properties for a
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 30 registers
";
        let a = Resources { registers: 30, ..Default::default() };
        let b = Resources { registers: 21, shared: 64, stack: 16, spilled: 12 };
        assert_eq!(parse(text), [("a".into(), a), ("b".into(), b)]);
        assert!(b.spills() && !a.spills());
    }
}
