//! After warm-up no op allocates: counted by the allocator itself, over all threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use longview_cpu::{CpuBackend, CpuOptions};
use longview_ops::Backend;

mod common;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is passed on unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The only test of this file, so that nothing else allocates meanwhile.
#[test]
fn no_op_allocates_after_warm_up() {
    for threads in [1, 3] {
        let foreground = CpuBackend::new(CpuOptions { threads, isa: None }).unwrap();
        for backend in [foreground.background(), foreground] {
            let mut rig = common::Rig::new(&backend);
            // Enough rounds that every worker has had every kind of item.
            for _ in 0..30 {
                rig.step(&backend);
            }
            let (heap, device) = (ALLOCATIONS.load(Ordering::Relaxed), backend.allocations());
            for _ in 0..30 {
                rig.step(&backend);
            }
            let heap = ALLOCATIONS.load(Ordering::Relaxed) - heap;
            assert_eq!((heap, backend.allocations() - device), (0, 0), "{threads} threads");
        }
    }
}
