//! Where to compute: the choice of a backend, made once, before anything is loaded.

use anyhow::Result;
pub use longview_startup::{Device, DeviceChoice, DeviceOptions, with_device};

use crate::out::note;

/// Opens what was asked for, and says which device it is where that was left open.
pub fn open(choice: DeviceChoice, options: &DeviceOptions) -> Result<Device> {
    let device = Device::open(choice, options, &mut |reason| {
        note(format_args!("warning: {reason}"));
    })?;
    if choice == DeviceChoice::Auto {
        let names_gpu = options.wgpu.adapter.is_some() || options.wgpu.shader_level.is_some();
        let is_gpu = !matches!(device, Device::Cpu(_));
        let hint = if is_gpu && !names_gpu { " (--device cpu for the CPU)" } else { "" };
        note(format_args!("device: {}{hint}", device.title()));
    }
    Ok(device)
}

/// Mesa's layer that orders GPUs asks the display server first, and where there is none it
/// complains on stderr whenever GPUs are listed. Without a display there is nothing to order by.
///
/// Call it before the first thread starts.
pub fn silence_mesa() {
    let unset = |name| std::env::var_os(name).is_none();
    if cfg!(target_os = "linux") && unset("XDG_RUNTIME_DIR") && unset("NODEVICE_SELECT") {
        // SAFETY: no other thread exists yet that could read the environment meanwhile.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
}
