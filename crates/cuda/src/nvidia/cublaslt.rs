//! cuBLASLt, which is loaded at run time like libcuda, and only where it is installed.
//!
//! No call here runs where there is no GPU, so no test of this repository sees them without one:
//! what they compute is compared with our own kernels whenever a device is opened, and by the GPU
//! suite. cudarc panics where the library is missing, so it is asked for first. All calls used are
//! as old as cuBLASLt 11.
//!
//! The library stores matrices by columns: our rows are its columns. So `out = x W^T` is for it
//! `out^T = W x^T`, with W transposed once more, the form that its fastest kernels have.

use std::collections::HashMap;
use std::ffi::c_void;
use std::ptr;
use std::sync::Mutex;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys::{
    self, cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t, cublasLtMatmulPreference_t,
    cublasLtMatmulPreferenceAttributes_t, cublasLtMatrixLayout_t, cudaDataType,
};
use longview_core::DType;

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
    ($(#[$doc:meta])* $name:ident($raw:ty), $destroy:path) => {
        $(#[$doc])*
        struct $name($raw);

        // SAFETY: the library binds such a handle to no thread.
        unsafe impl Send for $name {}
        // SAFETY: the library only reads what it points to, once it is made.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: made by the call that goes with this one, and used no more.
                let _ = unsafe { $destroy(self.0) };
            }
        }
    };
}

owned!(
    /// The library's own state.
    Handle(cublasLtHandle_t),
    result::destroy_handle
);
owned!(
    /// What is multiplied how.
    MatmulDesc(cublasLtMatmulDesc_t),
    result::destroy_matmul_desc
);
owned!(
    /// Type and size of an operand.
    MatrixLayout(cublasLtMatrixLayout_t),
    result::destroy_matrix_layout
);
owned!(
    /// What kernels may be chosen.
    Preference(cublasLtMatmulPreference_t),
    result::destroy_matmul_pref
);

impl MatrixLayout {
    /// `n` rows of ours, of `width` elements.
    fn rows(dtype: cudaDataType, width: u32, n: u32) -> Result<Self, CublasError> {
        let (width, n) = (u64::from(width), u64::from(n));
        result::create_matrix_layout(dtype, width, n, width as i64).map(Self)
    }
}

impl CublasLt {
    /// Loads it; the context must be current. An error says what is missing.
    pub fn open() -> Result<Self, String> {
        // SAFETY: loads the library by its name; what it does at its start is harmless.
        if !unsafe { sys::is_culib_present() } {
            return Err("libcublasLt does not load".into());
        }
        let handle = result::create_handle().map_err(|e| format!("cublasLtCreate: {e}"))?;
        Ok(Self { handle: Handle(handle), plans: Mutex::default() })
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
        stream: sys::cudaStream_t,
        call: &ProductCall,
    ) -> Option<Result<(), String>> {
        let (one, added) = (1.0_f32, if call.accumulate { 1.0_f32 } else { 0.0 });
        let address = |at: u64| at as *const c_void;
        let out = call.out as *mut c_void;
        self.with_plan(call, |plan| {
            // SAFETY: descriptors are those of the shape, numbers and the algorithm are read before
            // the call returns; the operands are the caller's word.
            let result = unsafe {
                result::matmul(
                    self.handle.0,
                    plan.desc.0,
                    ptr::from_ref(&one).cast(),
                    ptr::from_ref(&added).cast(),
                    address(call.weight),
                    plan.weight.0,
                    address(call.x),
                    plan.x.0,
                    out,
                    plan.out.0,
                    out,
                    plan.out.0,
                    &plan.algorithm,
                    call.workspace as *mut c_void,
                    plan.workspace_bytes,
                    stream,
                )
            };
            result.map_err(|e| format!("cublasLtMatmul: {e}"))
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
    fn plan(&self, shape: &Shape) -> Result<Option<Plan>, CublasError> {
        let Shape { n_rows, n_out, width, dtype, workspace_bytes } = *shape;
        let halves = match dtype {
            DType::F16 => cudaDataType::CUDA_R_16F,
            DType::BF16 => cudaDataType::CUDA_R_16BF,
            DType::F32 | DType::U32 | DType::Q8 | DType::I8 => return Ok(None),
        };
        let floats = cudaDataType::CUDA_R_32F;
        let sums = cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let desc = MatmulDesc(result::create_matmul_desc(sums, floats)?);
        let transposed = TRANSPOSED;
        // SAFETY: the descriptor exists, and the value is of the attribute's type.
        unsafe {
            result::set_matmul_desc_attribute(
                desc.0,
                cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA,
                ptr::from_ref(&transposed).cast(),
                size_of_val(&transposed),
            )?;
        }
        let weight = MatrixLayout::rows(halves, width, n_out)?;
        let x = MatrixLayout::rows(halves, width, n_rows)?;
        let out = MatrixLayout::rows(floats, n_out, n_rows)?;
        let preference = preference(workspace_bytes as usize)?;
        // SAFETY: all of these exist, and are of one product.
        let found = unsafe {
            result::get_matmul_algo_heuristic(
                self.handle.0,
                desc.0,
                weight.0,
                x.0,
                out.0,
                out.0,
                preference.0,
            )?
        };
        let (algorithm, workspace_bytes) = (found.algo, found.workspaceSize);
        Ok(Some(Plan { desc, weight, x, out, algorithm, workspace_bytes }))
    }
}

/// Kernels that need so much memory at most, and take `out` as it is aligned.
fn preference(workspace_bytes: usize) -> Result<Preference, CublasError> {
    use cublasLtMatmulPreferenceAttributes_t::{
        CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES as WORKSPACE,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES as BEFORE,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES as AFTER,
    };
    let preference = Preference(result::create_matmul_pref()?);
    let set = |attribute, value: *const c_void, n_bytes| {
        // SAFETY: the preference exists, and the value is of the attribute's type and size.
        unsafe { result::set_matmul_pref_attribute(preference.0, attribute, value, n_bytes) }
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

    /// Whatever this machine has: an answer, and no panic.
    #[test]
    fn a_machine_without_the_library_is_told_so() {
        // Where there is one, opening it needs a context.
        // SAFETY: loads the library by its name.
        if !unsafe { sys::is_culib_present() } {
            let reason = CublasLt::open().err();
            assert_eq!(reason.as_deref(), Some("libcublasLt does not load"));
        }
    }
}
