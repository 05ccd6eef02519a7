//! Which kernels a device ran last time, so that a thread can compile them at the next start while
//! the model is still being read.
//!
//! A file for each adapter and shader level has them, as far as they are of the same shader files.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use crate::cache_file::{checksum, read, write};
use crate::gpu::Gpu;
use crate::shader::{Define, FILES, Listed, Variant};

/// More kernels than any model runs.
const MOST: usize = 2000;

/// Where the list of a device lies.
fn path_of(folder: &Path, gpu: &Gpu) -> PathBuf {
    let (info, level) = (&gpu.info, gpu.level);
    folder.join(format!("kernels_{}_{}_{}_{level}", info.backend, info.vendor, info.device))
}

/// The shader files that a list is of.
fn shaders() -> String {
    let all = FILES.iter().flat_map(|(name, text)| [*name, "\n", *text, "\n"]);
    format!("{:016x}", checksum(all.collect::<String>().as_bytes()))
}

/// A line for each kernel: shader, entry point, written bindings, constants.
fn to_text(list: &[Listed]) -> String {
    let mut text = shaders();
    for (Variant { stem, entry, defines }, writes) in list {
        let writes: String = writes.iter().map(|w| if *w { 'w' } else { 'r' }).collect();
        let _ = write!(text, "\n{stem} {entry} {writes}");
        for (name, value) in defines {
            let _ = write!(text, " {name}={value}");
        }
    }
    text
}

/// `None` where it is of other shader files, or has a name that none of them has.
fn from_text(text: &str, names: &BTreeSet<&'static str>) -> Option<Vec<Listed>> {
    let mut lines = text.lines();
    if lines.next()? != shaders() {
        return None;
    }
    let name = |word: &str| names.get(word).copied();
    let line = |line: &str| -> Option<Listed> {
        let mut words = line.split(' ');
        let (stem, entry, writes) = (words.next()?, name(words.next()?)?, words.next()?);
        let (stem, _) = FILES.iter().find(|(file, _)| *file == stem)?;
        let define = |word: &str| -> Option<Define> {
            let (word, value) = word.split_once('=')?;
            Some((name(word)?, value.parse().ok()?))
        };
        let defines = words.map(define).collect::<Option<_>>()?;
        Some((Variant { stem, entry, defines }, writes.chars().map(|c| c == 'w').collect()))
    };
    lines.take(MOST).map(line).collect()
}

/// A thread that compiles what ran last time, beside whatever else is done. It ends with this: a
/// driver that is unloaded with the program must not be compiling.
pub(crate) struct KernelList {
    gpu: Arc<Gpu>,
    path: PathBuf,
    /// Kernels that the self-test ran.
    n_tested: usize,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl KernelList {
    /// For a device that has run its self-test, with its list in `folder`; `names` are those of
    /// entry points and constants.
    pub fn start(gpu: &Arc<Gpu>, folder: &Path, names: &BTreeSet<&'static str>) -> Self {
        let path = path_of(folder, gpu);
        let text = read(&path).and_then(|bytes| String::from_utf8(bytes).ok());
        let list = text.and_then(|text| from_text(&text, names)).unwrap_or_default();
        let is_over = Arc::new(AtomicBool::new(false));
        let (device, ends) = (Arc::clone(gpu), Arc::clone(&is_over));
        let compile = move || {
            let left = list.iter().take_while(|_| !ends.load(Ordering::Relaxed));
            left.for_each(|(variant, writes)| device.prepare(variant, writes));
        };
        let n_tested = gpu.used().len();
        // Without a thread each is compiled when it is first used.
        let thread = std::thread::Builder::new().name("kernels".into()).spawn(compile).ok();
        Self { gpu: Arc::clone(gpu), path, n_tested, is_over, thread }
    }
}

impl Drop for KernelList {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let used = self.gpu.used();
        // A program that only opened the device says nothing of what will run.
        if used.len() > self.n_tested {
            save(&self.path, used);
        }
    }
}

/// Notes what ran, for the next start.
fn save(path: &Path, mut list: Vec<Listed>) {
    list.truncate(MOST);
    list.sort_by_key(|(variant, _)| (variant.stem, variant.entry, variant.defines.clone()));
    let text = to_text(&list);
    if read(path).is_none_or(|found| found != text.as_bytes()) {
        // Whoever cannot write compiles when a kernel is first used.
        let _ = write(path, text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use longview_core::DType;
    use longview_ops::{Backend, SiluMul, SiluMulParams, View, ViewMut};
    use pollster::block_on;
    use smallvec::smallvec;

    use super::*;
    use crate::testing::{self, Folder};
    use crate::{WgpuBackend, WgpuOptions};

    fn from_text(text: &str) -> Option<Vec<Listed>> {
        super::from_text(text, &crate::variants::names())
    }

    #[test]
    fn a_list_is_read_as_it_was_written_and_other_shaders_have_none() {
        let defines = smallvec![("HEAD_DIM", 72), ("KEYS", 2)];
        let attend = Variant { stem: "attend_list", entry: "attend_list", defines };
        let norm = Variant { stem: "rms_norm", entry: "rms_norm", defines: smallvec![] };
        let list = vec![(attend, vec![false, true]), (norm, vec![])];
        let text = to_text(&list);
        assert!(from_text(&text).as_ref() == Some(&list), "{text}");
        for (from, to) in [("attend_list ", "attended "), ("KEYS", "KEYES"), ("=72", "=x")] {
            assert!(from_text(&text.replace(from, to)).is_none(), "{to}");
        }
        assert!(from_text(&text.replacen(['0', '1', '2', '3'], "f", 1)).is_none());
        assert!(from_text("").is_none());
    }

    fn silu(backend: &WgpuBackend) {
        let [gate, up, mut out] =
            [(); 3].map(|()| backend.alloc(DType::F32, 4, "test").expect("memory"));
        let (p, gate, up) = (SiluMulParams { n: 4 }, View::all(&gate), View::all(&up));
        backend.silu_mul(SiluMul { p, gate, up, out: ViewMut::all(&mut out) }).expect("it runs");
        backend.submit().expect("it runs");
    }

    /// Needs an adapter, as `tests/backend.rs` does.
    #[test]
    fn what_ran_is_compiled_at_the_next_start_before_it_is_used() {
        if testing::none_is_promised() {
            return;
        }
        let folder = Folder::new("kernels");
        let options =
            WgpuOptions { pipeline_folder: Some(folder.0.clone()), ..WgpuOptions::default() };
        let open = || block_on(WgpuBackend::new(&options)).expect("an adapter");
        let has_silu = |b: &WgpuBackend| b.gpu.entries().any(|entry| entry == "silu_mul");
        let first = open();
        assert!(!has_silu(&first));
        silu(&first);
        drop(first);
        for _ in 0..2 {
            // The second time of a program that ran nothing: it changes no list.
            let next = open();
            let end = Instant::now() + Duration::from_secs(60);
            while !has_silu(&next) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(5));
            }
            assert!(has_silu(&next), "not compiled");
            let compiled = next.counters().pipelines;
            drop(next);
            assert!(compiled > 0);
        }
        let again = open();
        while !has_silu(&again) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let compiled = again.counters().pipelines;
        silu(&again);
        assert_eq!(again.counters().pipelines, compiled, "compiled once");
    }

    #[test]
    fn a_list_that_is_wrong_leaves_the_device_as_it_is() {
        if testing::none_is_promised() {
            return;
        }
        let folder = Folder::new("wrong");
        let options =
            WgpuOptions { pipeline_folder: Some(folder.0.clone()), ..WgpuOptions::default() };
        let backend = block_on(WgpuBackend::new(&options)).expect("an adapter");
        // Bindings that the shader does not have.
        let silu_mul = Variant { stem: "silu_mul", entry: "silu_mul", defines: smallvec![] };
        backend.gpu.prepare(&silu_mul, &[]);
        assert!(!backend.is_lost());
        silu(&backend);
        assert!(!backend.is_lost());
    }
}
