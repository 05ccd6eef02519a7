//! The CUDA backend without a GPU: the sources of `kernels/`, compiled as C++, behind the backend's
//! [`Driver`](longview_cuda::Driver).
//!
//! What runs is the launch code of `longview-cuda`, down to the bytes of the arguments, and every
//! line of every kernel but the few wrappers of hardware in `common.cuh`. The device is as unkind
//! as a real one may be: work on a stream happens as late as it can, when somebody waits, so
//! whoever forgets to wait reads old data; memory has no room to spare; shared memory holds
//! garbage; threads may run backward. See `emulation/machine.hpp` for the threads.

mod device;
mod driver;
mod graph;
mod library;
mod primitives;

pub use driver::{
    EmulatedDriver, EmulatedEvent, EmulatedLibrary, EmulatedMemory, EmulatedOptions,
    EmulatedStream, FailingGraphs, Given, GraphCall, LEAST_OUT,
};
pub use graph::EmulatedGraph;
pub use library::{
    ArgsFacts, EmulatedKernel, Library, SANITIZE, Sanitizer, sanitizer, stand_in_of_the_driver,
};
pub use primitives::{Inputs, Primitives, THREADS, Written};
