//! The device of the tests, the same for all of them.
//!
//! A test that needs an adapter (a software one will do) fails without one. `LONGVIEW_NO_GPU` says
//! that there is none; then the test says that it was not run.

#![expect(clippy::print_stderr, reason = "a test that did not run says so")]

use longview_wgpu::{ShaderLevel, StartError, WgpuBackend, WgpuOptions};
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

/// The device at the level that it chooses; `None` where there is said to be no device.
pub fn device() -> Option<WgpuBackend> {
    if none_is_promised() {
        return None;
    }
    Some(open(&WgpuOptions::default()))
}

/// The device, with bindings of at most so many bytes.
pub fn device_of_bindings(max_binding_bytes: u64) -> Option<WgpuBackend> {
    if none_is_promised() {
        return None;
    }
    let max_binding_bytes = Some(max_binding_bytes);
    Some(open(&WgpuOptions { max_binding_bytes, ..WgpuOptions::default() }))
}

/// A device that notes what is launched and runs nothing.
pub fn listing() -> Option<WgpuBackend> {
    if none_is_promised() {
        return None;
    }
    Some(open(&WgpuOptions { lists_only: true, ..WgpuOptions::default() }))
}

fn open(options: &WgpuOptions) -> WgpuBackend {
    block_on(WgpuBackend::new(options)).unwrap_or_else(|e| no_device(&e))
}

/// The device at each level that it has; none where there is said to be no device.
pub fn levels() -> Vec<WgpuBackend> {
    if none_is_promised() {
        return Vec::new();
    }
    let open = |level: ShaderLevel| {
        let options = WgpuOptions { shader_level: Some(level), ..WgpuOptions::default() };
        match block_on(WgpuBackend::new(&options)) {
            Ok(backend) => Some(backend),
            Err(StartError::ShaderLevel { reason, .. }) => {
                eprintln!("NOT RUN: shader level {level}: {reason}");
                None
            }
            Err(e) => no_device(&e),
        }
    };
    ShaderLevel::ALL.into_iter().filter_map(open).collect()
}
