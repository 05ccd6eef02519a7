//! The committed corpora: the inputs that reach most for their size.
//!
//! libFuzzer says which features (branches, and how often they were taken) each input reaches, in
//! the file by which its merge survives crashes. From these the inputs are chosen one by one, each
//! the one that adds most for its bytes, until the room is used up.

use std::collections::{BinaryHeap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::target::{Target, folder};
use crate::process::run_logged;

/// Bytes of one target's corpus. What does not fit is found again by a run.
const MAX_BYTES: u64 = 48 << 10;

/// What a file costs beside its bytes.
const FILE_BYTES: u64 = 64;

/// An input, what it takes and what it reaches.
#[derive(Clone, Debug, Default, PartialEq)]
struct Input {
    path: PathBuf,
    bytes: u64,
    features: Vec<u32>,
}

/// Makes the committed corpus of a target from it and from what runs found.
pub(super) fn keep(program: &Path, target: &'static Target) -> Result<()> {
    let merged = folder()?.join("merged").join(target.name);
    let _ = fs::remove_dir_all(&merged);
    fs::create_dir_all(&merged).with_context(|| merged.display().to_string())?;
    let control = folder()?.join(format!("{}-control.txt", target.name));
    let _ = fs::remove_file(&control);
    let mut command = target.command(program)?;
    command.args(["-set_cover_merge=1", &format!("-merge_control_file={}", control.display())]);
    command.arg(&merged).args(target.seeds()).arg(target.found()?);
    let log = folder()?.join(format!("{}-keep.log", target.name));
    ensure!(run_logged(&mut command, &log)?, "failed: see {}", log.display());
    let text = fs::read_to_string(&control).with_context(|| control.display().to_string())?;
    let mut inputs = inputs(&text)?;
    // Fixtures of other tests are there anyway.
    inputs.retain(|input| !input.path.to_string_lossy().contains("/fixtures/"));
    let (n_all, kept) = (inputs.len(), chosen(inputs, MAX_BYTES));
    write(&target.corpus(), &kept)?;
    let bytes: u64 = kept.iter().map(|input| input.bytes).sum();
    println!("{}: {} of {n_all} inputs, {bytes} bytes", target.name, kept.len());
    Ok(())
}

/// Puts the inputs in place of what is in `corpus`.
fn write(corpus: &Path, kept: &[Input]) -> Result<()> {
    let read = |input: &Input| -> Result<_> {
        let name = input.path.file_name().context("a file without a name")?.to_owned();
        Ok((name, fs::read(&input.path).with_context(|| input.path.display().to_string())?))
    };
    // Some of them lie in the folder that goes.
    let files = kept.iter().map(read).collect::<Result<Vec<_>>>()?;
    let _ = fs::remove_dir_all(corpus);
    fs::create_dir_all(corpus).with_context(|| corpus.display().to_string())?;
    for (name, bytes) in files {
        fs::write(corpus.join(name), bytes).with_context(|| corpus.display().to_string())?;
    }
    Ok(())
}

/// Reads libFuzzer's control file: two numbers, the paths, and for each of them `STARTED i bytes`
/// and `FT i feature..`.
fn inputs(control: &str) -> Result<Vec<Input>> {
    let mut lines = control.lines();
    let n: usize = lines.next().context("an empty control file")?.parse()?;
    let paths = lines.by_ref().skip(1).take(n);
    let mut inputs: Vec<Input> =
        paths.map(|path| Input { path: path.into(), ..Input::default() }).collect();
    for line in lines {
        let mut words = line.split(' ');
        let kind = words.next().unwrap_or_default();
        let numbers: Vec<u32> = words.filter_map(|word| word.parse().ok()).collect();
        let Some((index, rest)) = numbers.split_first() else { continue };
        let Some(input) = inputs.get_mut(*index as usize) else { continue };
        match kind {
            "STARTED" => input.bytes = rest.first().copied().unwrap_or(0).into(),
            "FT" => input.features = rest.to_vec(),
            _ => {}
        }
    }
    Ok(inputs)
}

/// Inputs of `room` bytes together that reach much: each next one adds the most for its bytes. What
/// an input adds only becomes less, so one whose gain is still the best after a new count is it.
fn chosen(inputs: Vec<Input>, room: u64) -> Vec<Input> {
    let (mut reached, mut left, mut kept) = (HashSet::new(), room, Vec::new());
    let gain = |input: &Input, reached: &HashSet<u32>| {
        let new = input.features.iter().filter(|feature| !reached.contains(*feature)).count();
        new as u64 * 1_000_000 / (input.bytes + FILE_BYTES)
    };
    let mut heap: BinaryHeap<(u64, usize)> =
        inputs.iter().enumerate().map(|(i, input)| (gain(input, &reached), i)).collect();
    while let Some((before, i)) = heap.pop() {
        let input = &inputs[i];
        let now = gain(input, &reached);
        if now == 0 || input.bytes > left {
            continue;
        }
        if now < before {
            heap.push((now, i));
            continue;
        }
        reached.extend(input.features.iter().copied());
        left -= input.bytes;
        kept.push(input.clone());
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn input(path: &str, bytes: u64, features: &[u32]) -> Input {
        Input { path: path.into(), bytes, features: features.to_vec() }
    }

    fn names(kept: &[Input]) -> String {
        kept.iter().map(|input| input.path.display().to_string()).collect()
    }

    #[test]
    fn what_adds_most_for_its_bytes_is_kept() {
        let all = [
            input("a", 100, &[1, 2, 3]),
            input("b", 10, &[1, 2]),
            input("c", 1000, &[1, 2, 3, 4, 5, 6]),
            input("d", 10, &[2]),
        ];
        assert_eq!(names(&chosen(all.to_vec(), 10_000)), "bac");
        assert_eq!(names(&chosen(all.to_vec(), 500)), "ba");
        assert_eq!(names(&chosen(all.to_vec(), 5)), "");
    }

    #[test]
    fn the_control_file_says_what_each_input_reaches() {
        let control = "2\n0\n/x/a\n/x/b\nSTARTED 0 12\nFT 0 7 9\nCOV 0 5\nSTARTED 1 3\nFT 1\n";
        let found = inputs(control).unwrap();
        assert_eq!(found, [input("/x/a", 12, &[7, 9]), input("/x/b", 3, &[])]);
        assert!(inputs("").is_err());
    }
}
