//! NVRTC through its C interface, loaded from wherever the wheel was unpacked.

use std::ffi::{CStr, CString, c_char, c_int};
use std::path::Path;
use std::{iter, ptr};

use anyhow::{Context, Result, bail};
use libloading::{Library, Symbol};

/// What the compiler is told beside the architecture.
pub(super) const OPTIONS: [&CStr; 1] = [c"--std=c++17"];

/// A program that is compiled.
type Program = *mut std::ffi::c_void;
type Create = unsafe extern "C" fn(
    *mut Program,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;
type Compile = unsafe extern "C" fn(Program, c_int, *const *const c_char) -> c_int;
type GetSize = unsafe extern "C" fn(Program, *mut usize) -> c_int;
type GetText = unsafe extern "C" fn(Program, *mut c_char) -> c_int;
type Destroy = unsafe extern "C" fn(*mut Program) -> c_int;

/// The compiler of CUDA C++ to PTX.
pub(crate) struct Nvrtc {
    library: Library,
    options: &'static [&'static CStr],
    /// What kernels may include: names and texts.
    headers: Vec<(CString, CString)>,
}

/// A program that is destroyed when it goes.
struct Guard<'l> {
    program: Program,
    destroy: Symbol<'l, Destroy>,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created and is destroyed once.
        unsafe { (self.destroy)(&mut self.program) };
    }
}

impl Nvrtc {
    pub(crate) fn load(
        path: &Path,
        options: &'static [&'static CStr],
        headers: &[(String, String)],
    ) -> Result<Self> {
        // SAFETY: a library that was pinned by its hash; loading it runs nothing but its own
        // initialisers.
        let library = unsafe { Library::new(path) };
        let library = library.with_context(|| path.display().to_string())?;
        let pair = |(name, text): &(String, String)| {
            anyhow::Ok((CString::new(name.as_str())?, CString::new(text.as_str())?))
        };
        let headers = headers.iter().map(pair).collect::<Result<_>>()?;
        Ok(Self { library, options, headers })
    }

    /// PTX of `text`. A warning is an error.
    pub(crate) fn compile(&self, stem: &str, text: &str, arch: &str) -> Result<String> {
        let text = CString::new(text)?;
        let name = CString::new(format!("{stem}.cu"))?;
        let headers: Vec<_> = self.headers.iter().map(|(_, text)| text.as_ptr()).collect();
        let includes: Vec<_> = self.headers.iter().map(|(name, _)| name.as_ptr()).collect();
        let arch = CString::new(format!("--gpu-architecture=compute_{arch}"))?;
        let options: Vec<_> = iter::once(&arch.as_c_str())
            .chain(self.options)
            .map(|option| option.as_ptr())
            .collect();
        // SAFETY: the signatures are those of nvrtc.h, which has not changed them since its first
        // version; all strings end with a zero and live until the last call.
        unsafe {
            let create: Symbol<'_, Create> = self.library.get(b"nvrtcCreateProgram")?;
            let compile: Symbol<'_, Compile> = self.library.get(b"nvrtcCompileProgram")?;
            let destroy: Symbol<'_, Destroy> = self.library.get(b"nvrtcDestroyProgram")?;
            let mut program = ptr::null_mut();
            let (text, name) = (text.as_ptr(), name.as_ptr());
            let n = headers.len() as c_int;
            let code = create(&mut program, text, name, n, headers.as_ptr(), includes.as_ptr());
            if code != 0 {
                bail!("NVRTC takes no program: error {code}");
            }
            let guard = Guard { program, destroy };
            let code = compile(guard.program, options.len() as c_int, options.as_ptr());
            let log = self.text(guard.program, b"nvrtcGetProgramLogSize", b"nvrtcGetProgramLog")?;
            if code != 0 || !log.trim().is_empty() {
                bail!("\n{}", log.trim());
            }
            self.text(guard.program, b"nvrtcGetPTXSize", b"nvrtcGetPTX")
        }
    }

    /// A text that NVRTC measures first.
    ///
    /// # Safety
    /// The program must exist, and the names be those of a pair of calls that tell a text.
    unsafe fn text(&self, program: Program, size: &[u8], text: &[u8]) -> Result<String> {
        // SAFETY: the signatures are those of nvrtc.h; the buffer has the size that it asks for.
        unsafe {
            let get_size: Symbol<'_, GetSize> = self.library.get(size)?;
            let get_text: Symbol<'_, GetText> = self.library.get(text)?;
            let mut n = 0;
            let mut bytes = match get_size(program, &mut n) {
                0 => vec![0u8; n.max(1)],
                code => bail!("NVRTC tells no size: error {code}"),
            };
            match get_text(program, bytes.as_mut_ptr().cast()) {
                0 => Ok(CStr::from_bytes_until_nul(&bytes)?.to_str()?.to_owned()),
                code => bail!("NVRTC tells no text: error {code}"),
            }
        }
    }
}
