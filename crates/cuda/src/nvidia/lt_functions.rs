//! The functions of cuBLASLt that we call, of whichever version is installed.
//!
//! cudarc's own table stops at the names of version 12. Types and numbers are cudarc's: those of
//! the calls below are the same in its bindings of 11.4 to 13.4. What the library returns stays a
//! number, because a newer version may return one that has no name there.

use std::ffi::{c_int, c_void};
use std::mem::{ManuallyDrop, MaybeUninit};

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cudaDataType, cudaStream_t,
};
use libloading::Library;

use crate::names::CUBLASLT;

/// CUBLAS_STATUS_NOT_SUPPORTED.
const NOT_SUPPORTED: u32 = 15;

/// A call that the library refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("status {0}")]
pub(super) struct Status(pub u32);

/// `Ok` for CUBLAS_STATUS_SUCCESS.
pub(super) fn told(status: u32) -> Result<(), Status> {
    if status == 0 { Ok(()) } else { Err(Status(status)) }
}

/// A kernel that the library would take: its `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
pub(super) struct Choice {
    pub algorithm: cublasLtMatmulAlgo_t,
    pub workspace_bytes: usize,
    state: u32,
    _waves: f32,
    _reserved: [c_int; 4],
}

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($arg:ty),+ $(,)?);)+) => {
        /// Their addresses. The library is never unloaded: NVIDIA's are not made for it.
        pub(super) struct Functions {
            $(pub $name: unsafe extern "C" fn($($arg),+) -> u32,)+
        }

        impl Functions {
            /// # Safety
            /// The library must be cuBLASLt.
            unsafe fn of(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the signatures are those of its header.
                unsafe { Ok(Self { $($name: *library.get($symbol.as_bytes())?,)+ }) }
            }
        }
    };
}

functions! {
    create = "cublasLtCreate": fn(*mut cublasLtHandle_t);
    destroy = "cublasLtDestroy": fn(cublasLtHandle_t);
    new_layout = "cublasLtMatrixLayoutCreate":
        fn(*mut cublasLtMatrixLayout_t, cudaDataType, u64, u64, i64);
    free_layout = "cublasLtMatrixLayoutDestroy": fn(cublasLtMatrixLayout_t);
    new_desc = "cublasLtMatmulDescCreate":
        fn(*mut cublasLtMatmulDesc_t, cublasComputeType_t, cudaDataType);
    set_desc = "cublasLtMatmulDescSetAttribute":
        fn(cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t, *const c_void, usize);
    free_desc = "cublasLtMatmulDescDestroy": fn(cublasLtMatmulDesc_t);
    new_preference = "cublasLtMatmulPreferenceCreate": fn(*mut cublasLtMatmulPreference_t);
    set_preference = "cublasLtMatmulPreferenceSetAttribute":
        fn(cublasLtMatmulPreference_t, cublasLtMatmulPreferenceAttributes_t, *const c_void, usize);
    free_preference = "cublasLtMatmulPreferenceDestroy": fn(cublasLtMatmulPreference_t);
    choose = "cublasLtMatmulAlgoGetHeuristic":
        fn(
            cublasLtHandle_t,
            cublasLtMatmulDesc_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatrixLayout_t,
            cublasLtMatmulPreference_t,
            c_int,
            *mut Choice,
            *mut c_int,
        );
    multiply = "cublasLtMatmul":
        fn(
            cublasLtHandle_t,
            cublasLtMatmulDesc_t,
            *const c_void,
            *const c_void,
            cublasLtMatrixLayout_t,
            *const c_void,
            cublasLtMatrixLayout_t,
            *const c_void,
            *const c_void,
            cublasLtMatrixLayout_t,
            *mut c_void,
            cublasLtMatrixLayout_t,
            *const cublasLtMatmulAlgo_t,
            *mut c_void,
            usize,
            cudaStream_t,
        );
}

impl Functions {
    /// Those of the library in a file, found by the loader's own rules; an error where it does not
    /// load, and where it lacks one of them.
    pub fn load(file: &str) -> Result<Self, String> {
        // SAFETY: the names are NVIDIA's; what the library does at its start is harmless.
        let library = unsafe { Library::new(file) }.map(ManuallyDrop::new);
        // SAFETY: it is cuBLASLt by its name.
        let functions = library.and_then(|library| unsafe { Self::of(&library) });
        functions.map_err(|error| error.to_string())
    }

    /// What a call wrote to the place that it was given, unless it says that it did not.
    pub fn made<T>(&self, make: impl FnOnce(*mut T) -> u32) -> Result<T, Status> {
        let mut raw = MaybeUninit::uninit();
        told(make(raw.as_mut_ptr()))?;
        // SAFETY: the library says that it wrote it.
        Ok(unsafe { raw.assume_init() })
    }
}

/// The newest version whose file loads and of which `make` makes something. A library of a version
/// that the driver is too old for loads as well, but gives no handle.
pub(super) fn newest<T>(
    mut make: impl FnMut(&'static Functions) -> Result<T, Status>,
) -> Result<T, String> {
    let mut refused = None;
    for file in CUBLASLT.files() {
        let Ok(functions) = Functions::load(&file) else { continue };
        // One small table for each device that is opened.
        match make(Box::leak(Box::new(functions))) {
            Ok(made) => return Ok(made),
            Err(status) => {
                refused.get_or_insert_with(|| format!("cublasLtCreate of {file}: {status}"));
            }
        }
    }
    Err(refused.unwrap_or_else(|| format!("{} does not load", CUBLASLT.name)))
}

impl Choice {
    /// The choice, if the library found at least one.
    pub fn check(self, n: c_int) -> Result<Self, Status> {
        if n == 0 {
            return Err(Status(NOT_SUPPORTED));
        }
        told(self.state)?;
        Ok(self)
    }
}
