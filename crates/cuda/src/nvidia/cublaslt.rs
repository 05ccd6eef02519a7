//! cuBLASLt, which is loaded at run time like libcuda, and only where it is installed.
//!
//! No call here runs where there is no GPU, so no test of this repository sees them without one:
//! what they compute is compared with our own kernels whenever a device is opened, and by the GPU
//! suite. All calls used are as old as cuBLASLt 11, and the same in 12 and 13; the newest version
//! that the driver takes is used.
//!
//! The library stores matrices by columns: our rows are its columns. So `out = x W^T` is for it
//! `out^T = W x^T`, with W transposed once more, the form that its fastest kernels have.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

use cudarc::cublaslt::sys::{
    cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cudaDataType, cudaStream_t,
};
use longview_core::DType;

use super::lt_functions::{self, Choice, Functions, Status, told};
use crate::driver::ProductCall;
use crate::lock::lock;

/// Shapes that are remembered; beyond them all are forgotten. A prompt has one for each matrix of a
/// layer, twice: of its whole chunks and of the last one.
const N_SHAPES: usize = 256;
/// CUBLAS_OP_T, which the bindings lack.
const TRANSPOSED: i32 = 1;
/// What `out` is aligned to; the other operands begin at 256 bytes, which is the library's default.
const OUT_ALIGNMENT: u32 = 16;

/// The library, on one context.
pub(super) struct CublasLt {
    handle: Handle,
    plans: Mutex<HashMap<Shape, Option<Plan>>>,
}

/// What the choice of a kernel depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    n_rows: u32,
    n_out: u32,
    width: u32,
    dtype: DType,
    workspace_bytes: u64,
}

/// How a product of a shape is made.
struct Plan {
    desc: MatmulDesc,
    weight: MatrixLayout,
    x: MatrixLayout,
    out: MatrixLayout,
    algorithm: cublasLtMatmulAlgo_t,
    workspace_bytes: usize,
}

/// A handle of the library that is destroyed with its owner.
macro_rules! owned {
    ($(#[$doc:meta])* $name:ident($raw:ty), $destroy:ident) => {
        $(#[$doc])*
        struct $name {
            raw: $raw,
            functions: &'static Functions,
        }

        // SAFETY: the library binds such a handle to no thread.
        unsafe impl Send for $name {}
        // SAFETY: the library only reads what it points to, once it is made.
        unsafe impl Sync for $name {}

        impl $name {
            /// Owns what `make` writes.
            fn make(
                functions: &'static Functions,
                make: impl FnOnce(*mut $raw) -> u32,
            ) -> Result<Self, Status> {
                functions.made(make).map(|raw| Self { raw, functions })
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by the call that goes with this one, and used no more.
                let _ = unsafe { (self.functions.$destroy)(self.raw) };
            }
        }
    };
}

owned!(
    /// The library's own state.
    Handle(cublasLtHandle_t),
    destroy
);
owned!(
    /// What is multiplied how.
    MatmulDesc(cublasLtMatmulDesc_t),
    free_desc
);
owned!(
    /// Type and size of an operand.
    MatrixLayout(cublasLtMatrixLayout_t),
    free_layout
);
owned!(
    /// What kernels may be chosen.
    Preference(cublasLtMatmulPreference_t),
    free_preference
);

impl MatrixLayout {
    /// `n` rows of ours, of `width` elements.
    fn rows(
        functions: &'static Functions,
        dtype: cudaDataType,
        width: u32,
        n: u32,
    ) -> Result<Self, Status> {
        let (width, n) = (u64::from(width), u64::from(n));
        // SAFETY: the handle is written to the place that it is given.
        Self::make(functions, |raw| unsafe {
            (functions.new_layout)(raw, dtype, width, n, width as i64)
        })
    }
}

impl CublasLt {
    /// Loads it; the context must be current. An error says what is missing.
    pub fn open() -> Result<Self, String> {
        let handle = lt_functions::newest(|functions| {
            // SAFETY: the handle is written to the place that it is given.
            Handle::make(functions, |raw| unsafe { (functions.create)(raw) })
        })?;
        Ok(Self { handle, plans: Mutex::default() })
    }

    /// Whether there is a kernel for such a product.
    pub fn takes(&self, call: &ProductCall) -> bool {
        let is_aligned = call.out.is_multiple_of(u64::from(OUT_ALIGNMENT));
        is_aligned && self.with_plan(call, |_| ()).is_some()
    }

    /// Gives the product to a stream; the context must be current. `None` where no kernel does it.
    ///
    /// # Safety
    /// As for [`Driver::run`](crate::Driver::run).
    pub unsafe fn multiply(
        &self,
        stream: cudaStream_t,
        call: &ProductCall,
    ) -> Option<Result<(), String>> {
        let (one, added) = (1.0_f32, if call.accumulate { 1.0_f32 } else { 0.0 });
        let address = |at: u64| at as *const c_void;
        let out = call.out as *mut c_void;
        self.with_plan(call, |plan| {
            // SAFETY: descriptors are those of the shape, numbers and the algorithm are read before
            // the call returns; the operands are the caller's word.
            let status = unsafe {
                (self.handle.functions.multiply)(
                    self.handle.raw,
                    plan.desc.raw,
                    ptr::from_ref(&one).cast(),
                    address(call.weight),
                    plan.weight.raw,
                    address(call.x),
                    plan.x.raw,
                    ptr::from_ref(&added).cast(),
                    out,
                    plan.out.raw,
                    out,
                    plan.out.raw,
                    &plan.algorithm,
                    call.workspace as *mut c_void,
                    plan.workspace_bytes,
                    stream,
                )
            };
            told(status).map_err(|e| format!("cublasLtMatmul: {e}"))
        })
    }

    /// Calls `f` with the plan of the call's shape, if there is one: made once.
    fn with_plan<T>(&self, call: &ProductCall, f: impl FnOnce(&Plan) -> T) -> Option<T> {
        let ProductCall { n_rows, n_out, width, dtype, workspace_bytes, .. } = *call;
        let shape = Shape { n_rows, n_out, width, dtype, workspace_bytes };
        let mut plans = lock(&self.plans);
        if plans.len() >= N_SHAPES && !plans.contains_key(&shape) {
            plans.clear();
        }
        // Where the library knows no kernel, ours does it.
        let plan = plans.entry(shape).or_insert_with(|| self.plan(&shape).ok().flatten());
        plan.as_ref().map(f)
    }

    /// Asks the library how; `None` for a type that it is not asked for.
    fn plan(&self, shape: &Shape) -> Result<Option<Plan>, Status> {
        let Shape { n_rows, n_out, width, dtype, workspace_bytes } = *shape;
        let halves = match dtype {
            DType::F16 => cudaDataType::CUDA_R_16F,
            DType::BF16 => cudaDataType::CUDA_R_16BF,
            DType::F32 | DType::U32 | DType::Q8 | DType::I8 => return Ok(None),
        };
        let floats = cudaDataType::CUDA_R_32F;
        let sums = cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let functions = self.handle.functions;
        // SAFETY: the descriptor is written to the place that it is given.
        let desc =
            MatmulDesc::make(functions, |raw| unsafe { (functions.new_desc)(raw, sums, floats) })?;
        let transposed = TRANSPOSED;
        // SAFETY: the descriptor exists, and the value is of the attribute's type.
        told(unsafe {
            (functions.set_desc)(
                desc.raw,
                cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                ptr::from_ref(&transposed).cast(),
                size_of_val(&transposed),
            )
        })?;
        let weight = MatrixLayout::rows(functions, halves, width, n_out)?;
        let x = MatrixLayout::rows(functions, halves, width, n_rows)?;
        let out = MatrixLayout::rows(functions, floats, n_out, n_rows)?;
        let preference = preference(functions, workspace_bytes as usize)?;
        let mut n_found = 0;
        // SAFETY: all of these exist, and are of one product; one choice fits where it is written.
        let found = functions.made(|choice| unsafe {
            (functions.choose)(
                self.handle.raw,
                desc.raw,
                weight.raw,
                x.raw,
                out.raw,
                out.raw,
                preference.raw,
                1,
                choice,
                &mut n_found,
            )
        })?;
        let Choice { algorithm, workspace_bytes, .. } = found.check(n_found)?;
        Ok(Some(Plan { desc, weight, x, out, algorithm, workspace_bytes }))
    }
}

/// Kernels that need so much memory at most, and take `out` as it is aligned.
fn preference(functions: &'static Functions, workspace_bytes: usize) -> Result<Preference, Status> {
    use cublasLtMatmulPreferenceAttributes_t::{
        CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as WORKSPACE,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES as BEFORE,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES as AFTER,
    };
    // SAFETY: the preference is written to the place that it is given.
    let preference = Preference::make(functions, |raw| unsafe { (functions.new_preference)(raw) })?;
    let set = |attribute, value: *const c_void, n_bytes| {
        // SAFETY: the preference exists, and the value is of the attribute's type and size.
        told(unsafe { (functions.set_preference)(preference.raw, attribute, value, n_bytes) })
    };
    set(WORKSPACE, ptr::from_ref(&workspace_bytes).cast(), size_of::<usize>())?;
    for attribute in [BEFORE, AFTER] {
        set(attribute, ptr::from_ref(&OUT_ALIGNMENT).cast(), size_of::<u32>())?;
    }
    Ok(preference)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::CUBLASLT;

    /// Whatever this machine has: an answer, and no panic. Without a context there is no handle.
    #[test]
    fn a_machine_without_the_library_is_told_so() {
        let found = CUBLASLT.files().into_iter().find(|file| Functions::load(file).is_ok());
        let reason = CublasLt::open().err();
        match found {
            None => assert_eq!(reason.as_deref(), Some("libcublasLt does not load")),
            Some(file) => {
                let refused = format!("cublasLtCreate of {file}: status ");
                assert!(reason.is_none_or(|reason| reason.starts_with(&refused)), "{file}");
            }
        }
    }
}
