//! What the tests inside of the crate share.

use std::path::PathBuf;
use std::sync::Once;

use crate::{WgpuBackend, WgpuOptions};

/// Whether there is to be no device (`LONGVIEW_NO_GPU`): a test then says that it was not run. To
/// be asked before a device is opened.
#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
pub(crate) fn none_is_promised() -> bool {
    static ONCE: Once = Once::new();
    // Mesa's software device is not to optimise kernels that run for a moment; it reads this once.
    // SAFETY: nothing in this program reads the environment but the standard library, which locks
    // it, and the drivers of devices, all of which are opened behind this.
    ONCE.call_once(|| unsafe { std::env::set_var("GALLIVM_PERF", "nopt") });
    let promised = std::env::var_os("LONGVIEW_NO_GPU").is_some();
    if promised {
        eprintln!("NOT RUN: LONGVIEW_NO_GPU is set");
    }
    promised
}

/// Says that a test did not run, and why.
#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
pub(crate) fn not_run(reason: &str) {
    eprintln!("NOT RUN: {reason}");
}

/// The device; `None` where there is said to be none. It fails where there is none all the same.
pub(crate) fn device() -> Option<WgpuBackend> {
    let open = || pollster::block_on(WgpuBackend::new(&WgpuOptions::default()));
    (!none_is_promised()).then(|| open().expect("an adapter"))
}

/// A folder that goes when the test ends.
pub(crate) struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let name = format!("longview-pipelines-{name}-{}", std::process::id());
        Self(std::env::temp_dir().join(name).join("below"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0.parent().unwrap_or(&self.0));
    }
}
