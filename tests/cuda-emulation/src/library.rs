//! The shared library of kernels that the build script makes.

use std::collections::BTreeSet;
use std::ffi::{CStr, c_char, c_void};
use std::mem::ManuallyDrop;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::OnceLock;

use longview_cuda::Grid;

/// The environment variable that makes [`Library::get`] load the sanitized library. The program
/// must have been started as [`sanitizer`] says.
pub const SANITIZE: &str = "LONGVIEW_EMULATION_SANITIZE";

const FAST: &str = env!("LONGVIEW_EMULATION");
const SANITIZED: &str = env!("LONGVIEW_EMULATION_SANITIZED");
const RUNTIME: &str = env!("LONGVIEW_EMULATION_SANITIZER");

/// The compute capability, times ten, from which on all kernels are the same.
const NEW: u32 = 80;

/// How to start a program so that every access of a kernel is looked at.
#[derive(Clone, Debug)]
pub struct Sanitizer {
    /// Environment variables.
    pub env: Vec<(&'static str, String)>,
}

/// The sanitizer, where the C++ compiler has one.
pub fn sanitizer() -> Option<Sanitizer> {
    if RUNTIME.is_empty() {
        return None;
    }
    let env = vec![
        ("LD_PRELOAD", RUNTIME.to_owned()),
        // What lives as long as the program is no leak.
        ("ASAN_OPTIONS", "detect_leaks=0".to_owned()),
        (SANITIZE, "1".to_owned()),
    ];
    Some(Sanitizer { env })
}

/// The folder with a stand-in of NVIDIA's driver library for the loader to find first; `None` where
/// none was made.
pub fn stand_in_of_the_driver() -> Option<&'static Path> {
    let folder = env!("LONGVIEW_STAND_IN");
    (!folder.is_empty()).then(|| Path::new(folder))
}

/// As `machine.hpp` has it.
#[repr(C)]
struct RawKernel {
    name: *const c_char,
    args_name: *const c_char,
    args_size: u32,
    threads: u32,
    run: *const c_void,
    next: *const RawKernel,
}

/// As `machine.hpp` has it.
#[repr(C)]
struct RawField {
    name: *const c_char,
    offset: u32,
    size: u32,
}

/// As `machine.hpp` has it.
#[repr(C)]
struct RawArgs {
    name: *const c_char,
    size: u32,
    n_fields: u32,
    fields: *const RawField,
}

/// As `machine.hpp` has it.
#[repr(C)]
struct RawFile {
    stem: *const c_char,
    last_kernel: *const *const RawKernel,
    args: *const RawArgs,
    n_args: u32,
    capability: u32,
    is_by_capability: bool,
}

type Run = unsafe extern "C" fn(
    *mut c_void,
    *const c_void,
    *const u32,
    u32,
    *const c_void,
    *mut u64,
    bool,
) -> *const c_char;

/// A kernel as its source declares it.
#[derive(Clone, Debug)]
pub struct EmulatedKernel {
    /// Its name.
    pub name: String,
    /// The stem of its file.
    pub file: String,
    /// Threads of a block.
    pub threads: u32,
    /// The struct it takes.
    pub args: ArgsFacts,
    /// The compute capability that it was compiled for, times ten.
    capability: u32,
    /// Whether its file reads otherwise for other ones.
    is_by_capability: bool,
    raw: *const RawKernel,
}

// SAFETY: the declaration is constant data of a library that is never unloaded.
unsafe impl Send for EmulatedKernel {}
// SAFETY: as above.
unsafe impl Sync for EmulatedKernel {}

/// A struct of arguments as the C++ compiler placed it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgsFacts {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u32,
    /// Name, offset and size of each field.
    pub fields: Vec<(String, u32, u32)>,
}

/// The loaded library.
#[derive(Debug)]
pub struct Library {
    kernels: Vec<EmulatedKernel>,
    /// Those of files that read otherwise before compute capability 8.0, as they read there.
    old: Vec<EmulatedKernel>,
    machine_new: unsafe extern "C" fn() -> *mut c_void,
    machine_free: unsafe extern "C" fn(*mut c_void),
    run: Run,
}

impl EmulatedKernel {
    /// Whether its file reads otherwise before compute capability 8.0.
    pub(crate) fn is_by_capability(&self) -> bool {
        self.is_by_capability
    }
}

impl Library {
    /// The library, loaded once: the fast one, or the one that [`SANITIZE`] asks for.
    pub fn get() -> Result<&'static Self, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        let path = if std::env::var_os(SANITIZE).is_some() { SANITIZED } else { FAST };
        LIBRARY.get_or_init(|| Self::load(Path::new(path))).as_ref().map_err(Clone::clone)
    }

    fn load(path: &Path) -> Result<Self, String> {
        if path.as_os_str().is_empty() {
            return Err("the kernels were not compiled as C++ on this system".into());
        }
        let failed = |e: libloading::Error| format!("{}: {e}", path.display());
        // SAFETY: the build script made the library; the signatures are those of machine.cpp and
        // files.cpp. It is never unloaded.
        unsafe {
            let library = ManuallyDrop::new(libloading::Library::new(path).map_err(failed)?);
            type NFiles = unsafe extern "C" fn() -> u32;
            type File = unsafe extern "C" fn(u32) -> *const RawFile;
            let n_files = library.get::<NFiles>(b"lv_n_files").map_err(failed)?;
            let file = library.get::<File>(b"lv_file").map_err(failed)?;
            let files = (0..n_files()).map(|i| &*file(i));
            let kernels = files.flat_map(|file| kernels_of(file));
            let (old, kernels) = kernels.partition(|kernel| kernel.capability < NEW);
            Ok(Self {
                kernels,
                old,
                machine_new: *library.get(b"lv_machine_new").map_err(failed)?,
                machine_free: *library.get(b"lv_machine_free").map_err(failed)?,
                run: *library.get(b"lv_run").map_err(failed)?,
            })
        }
    }

    /// Every kernel of every file, for compute capability 8.0 and later.
    pub fn kernels(&self) -> &[EmulatedKernel] {
        &self.kernels
    }

    /// The stems of files that read otherwise before compute capability 8.0.
    pub fn files_by_capability(&self) -> BTreeSet<&str> {
        let kernels = self.kernels.iter().filter(|kernel| kernel.is_by_capability);
        kernels.map(|kernel| kernel.file.as_str()).collect()
    }

    /// The kernel of that name as a device of that compute capability has it. `None` where there
    /// is no such kernel, and where its file was not compiled for so old a device: the sanitized
    /// library has for these only what uses memory in another way, and `quantised`.
    pub fn kernel(&self, name: &str, capability: (u32, u32)) -> Option<&EmulatedKernel> {
        let kernel = self.kernels.iter().find(|kernel| kernel.name == name)?;
        if kernel.is_by_capability && 10 * capability.0 + capability.1 < NEW {
            return self.old.iter().find(|kernel| kernel.name == name);
        }
        Some(kernel)
    }
}

/// # Safety
/// The file and all it points to must be as `machine.hpp` has it.
unsafe fn kernels_of(file: &RawFile) -> Vec<EmulatedKernel> {
    // SAFETY: lists end with null or have the length that stands beside them.
    unsafe {
        let args = std::slice::from_raw_parts(file.args, file.n_args as usize);
        let args: Vec<_> = args.iter().map(|args| args_of(args)).collect();
        let mut kernels = Vec::new();
        let mut next = *file.last_kernel;
        while let Some(raw) = next.as_ref() {
            let name = text(raw.args_name);
            let own = args.iter().find(|args| args.name == name);
            // A struct that the build script did not see has no fields: the tests say so.
            let bare = ArgsFacts { name, size: raw.args_size, fields: Vec::new() };
            kernels.push(EmulatedKernel {
                name: text(raw.name),
                file: text(file.stem),
                threads: raw.threads,
                args: own.cloned().unwrap_or(bare),
                capability: file.capability,
                is_by_capability: file.is_by_capability,
                raw,
            });
            next = raw.next;
        }
        kernels
    }
}

/// # Safety
/// As for [`kernels_of`].
unsafe fn args_of(args: &RawArgs) -> ArgsFacts {
    // SAFETY: the list has the length that stands beside it.
    unsafe {
        let fields = std::slice::from_raw_parts(args.fields, args.n_fields as usize);
        let field = |field: &RawField| (text(field.name), field.offset, field.size);
        ArgsFacts {
            name: text(args.name),
            size: args.size,
            fields: fields.iter().map(field).collect(),
        }
    }
}

/// # Safety
/// The text must end with a zero.
unsafe fn text(from: *const c_char) -> String {
    // SAFETY: the caller's word.
    unsafe { CStr::from_ptr(from) }.to_string_lossy().into_owned()
}

/// What runs blocks, on one thread of the system at a time.
#[derive(Debug)]
pub(crate) struct Machine {
    raw: NonNull<c_void>,
    library: &'static Library,
}

// SAFETY: a machine is used by whoever owns it, and knows no thread in between.
unsafe impl Send for Machine {}

impl Machine {
    pub fn new(library: &'static Library) -> Self {
        // SAFETY: takes nothing.
        let raw = NonNull::new(unsafe { (library.machine_new)() });
        Self { raw: raw.expect("memory for the emulated threads"), library }
    }

    /// Runs blocks of a launch until `next_block`, which several machines share, is past the last.
    ///
    /// # Safety
    /// As for a launch on a device: what the kernel reads and writes by its arguments must be
    /// there.
    pub unsafe fn run(
        &mut self,
        kernel: &EmulatedKernel,
        grid: Grid,
        args: &[u64],
        next_block: &std::sync::atomic::AtomicU64,
        backward: bool,
    ) -> Result<(), String> {
        assert!(size_of_val(args) >= kernel.args.size as usize, "{} takes more", kernel.name);
        // SAFETY: the machine is ours alone, the arguments have the size that the kernel declares;
        // the rest is the caller's word.
        let message = unsafe {
            (self.library.run)(
                self.raw.as_ptr(),
                kernel.raw.cast(),
                grid.blocks.as_ptr(),
                grid.dynamic_shared,
                args.as_ptr().cast(),
                next_block.as_ptr(),
                backward,
            )
        };
        if message.is_null() {
            return Ok(());
        }
        // SAFETY: a message ends with a zero and lives as long as the machine does nothing else.
        Err(unsafe { text(message) })
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // SAFETY: made by `machine_new`, freed once.
        unsafe { (self.library.machine_free)(self.raw.as_ptr()) };
    }
}
