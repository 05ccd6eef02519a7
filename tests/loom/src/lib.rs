//! Models of what synchronises threads: loom runs each with every interleaving of its threads and
//! every value that a relaxed load may return, up to a number of preemptions.
//!
//! The files are those of the crates, taken in by path, and their models stand at their ends.
//! Compiled with `--cfg loom` they use loom's locks, atomics and threads instead of the standard
//! library's. A package of its own compiles them with loom alone, in seconds: the crates that they
//! belong to, built a second time with that flag, would cost minutes. `cargo xtask sanitize` runs
//! the models; without the flag nothing is here.

#![cfg_attr(loom, expect(dead_code, reason = "a model uses a part of each file"))]

#[cfg(loom)]
#[path = "../../../crates/cpu/src/pool.rs"]
mod pool;

#[cfg(loom)]
#[path = "../../../crates/cpu/src/sync.rs"]
mod sync;

#[cfg(loom)]
#[path = "../../../crates/cpu/src/team.rs"]
mod team;

#[cfg(loom)]
#[path = "../../../crates/scheduler/src/index/job_queue.rs"]
mod job_queue;

/// What a team keeps and hands on without looking at it.
#[cfg(loom)]
mod supported_isa {
    #[derive(Clone, Copy)]
    pub(crate) struct SupportedIsa;
}

/// Scratch of no size: what kernels write there is not what a model is about.
#[cfg(loom)]
mod scratch {
    #[derive(Default)]
    pub(crate) struct Scratch;

    impl Scratch {
        pub(crate) fn size(&self) -> usize {
            0
        }

        pub(crate) fn reserve(&mut self, _bytes: usize) {}
    }
}
