//! The context of a device, current on a thread only while one of our calls lasts.
//!
//! Whoever calls may be a program that uses CUDA itself: after each call its own context is current
//! again, or none, also after an error. A push and a pop cost some tens of nanoseconds, and a
//! decode step makes few calls.

use std::mem::MaybeUninit;
use std::ptr;

use cudarc::driver::sys::{self, CUcontext};
use cudarc::driver::{DriverError as CudaError, result};

use super::refusal::told;
use crate::driver::DriverResult;

/// A context, destroyed with all that is in it when the last handle is dropped.
pub(super) struct Context(CUcontext);

// SAFETY: a context may be current on several threads at once; the driver locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// A context is the current one of this thread as long as this lives.
#[must_use = "the context is current until this is dropped"]
pub(super) struct Entered {
    /// A context is left on the thread that entered it.
    _on_this_thread: std::marker::PhantomData<*const ()>,
}

impl Context {
    /// A new one on a device; the thread's current context stays what it was.
    pub fn create(device: sys::CUdevice) -> Result<Self, CudaError> {
        let mut context = MaybeUninit::uninit();
        // SAFETY: the driver is initialised and the device is one of its own; on success the
        // context is written.
        let context = unsafe {
            sys::cuCtxCreate_v2(context.as_mut_ptr(), 0, device).result()?;
            Self(context.assume_init())
        };
        // A new context is pushed where it is made.
        drop(Entered::already());
        Ok(context)
    }

    /// Makes it the current one of this thread until the guard goes.
    pub fn enter(&self) -> DriverResult<Entered> {
        // SAFETY: the context exists as long as this value.
        told(unsafe { sys::cuCtxPushCurrent_v2(self.0) }.result())?;
        Ok(Entered::already())
    }

    /// Enters it and waits for all work of all streams.
    pub fn synchronize(&self) -> DriverResult<Entered> {
        let entered = self.enter()?;
        told(result::ctx::synchronize())?;
        Ok(entered)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context was made by `create` and nothing of it is used any more. An error
        // says that it was broken before.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.0) };
    }
}

impl Entered {
    /// Of a context that was pushed just now.
    fn already() -> Self {
        Self { _on_this_thread: std::marker::PhantomData }
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut left = ptr::null_mut();
        // SAFETY: our context is the last that was pushed on this thread, because guards are
        // dropped in reverse order and calls of ours push and pop in pairs.
        let _ = unsafe { sys::cuCtxPopCurrent_v2(&mut left) };
    }
}
