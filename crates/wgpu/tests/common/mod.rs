//! The device of the tests, the same for all of them.
//!
//! A test that needs an adapter (a software one will do) fails without one. `LONGVIEW_NO_GPU` says
//! that there is none; then the test says that it was not run.

#![expect(clippy::print_stderr, reason = "a test that did not run says so")]

use longview_wgpu::{StartError, Tier, WgpuBackend, WgpuOptions};
use pollster::block_on;

fn none_is_promised() -> bool {
    let promised = std::env::var_os("LONGVIEW_NO_GPU").is_some();
    if promised {
        eprintln!("NOT RUN: LONGVIEW_NO_GPU is set");
    }
    promised
}

fn no_device(error: &StartError) -> ! {
    panic!("{error} (LONGVIEW_NO_GPU=1 leaves these tests out)")
}

/// The device at the tier that it chooses; `None` where there is said to be no device.
pub fn device() -> Option<WgpuBackend> {
    if none_is_promised() {
        return None;
    }
    Some(block_on(WgpuBackend::new(&WgpuOptions::default())).unwrap_or_else(|e| no_device(&e)))
}

/// The device at each tier that it has; none where there is said to be no device.
pub fn tiers() -> Vec<WgpuBackend> {
    if none_is_promised() {
        return Vec::new();
    }
    let open = |tier: Tier| {
        let options = WgpuOptions { tier: Some(tier), ..WgpuOptions::default() };
        match block_on(WgpuBackend::new(&options)) {
            Ok(backend) => Some(backend),
            Err(StartError::Tier { reason, .. }) => {
                eprintln!("NOT RUN: tier {tier}: {reason}");
                None
            }
            Err(e) => no_device(&e),
        }
    };
    Tier::ALL.into_iter().filter_map(open).collect()
}
