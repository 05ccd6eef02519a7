//! Where to compute: the choice of a backend, made once, before anything is loaded.

use std::sync::Arc;

use anyhow::Result;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_wgpu::{WgpuBackend, WgpuOptions};
use pollster::block_on;

use crate::out::note;

/// What `--device` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU if there is one, else the CPU.
    Auto,
    /// The CPU backend.
    Cpu,
    /// The WGSL backend.
    Wgpu,
}

/// An open device.
pub enum Device {
    /// The CPU backend.
    Cpu(Arc<CpuBackend>),
    /// The WGSL backend.
    Wgpu(Arc<WgpuBackend>),
}

impl Device {
    /// Opens what was asked for. `auto` takes a GPU that is one: a software adapter is slower than
    /// the CPU backend.
    pub fn open(choice: DeviceChoice, cpu: CpuOptions, wgpu: &WgpuOptions) -> Result<Self> {
        match choice {
            DeviceChoice::Cpu => Self::cpu(cpu),
            DeviceChoice::Wgpu => Ok(Device::Wgpu(Arc::new(block_on(WgpuBackend::new(wgpu))?))),
            DeviceChoice::Auto => match block_on(WgpuBackend::hardware(wgpu)) {
                Ok(Some(backend)) => {
                    let name = &longview_ops::Backend::capabilities(&backend).device;
                    note(format_args!("device: {name} (--device cpu for the CPU)"));
                    Ok(Device::Wgpu(Arc::new(backend)))
                }
                Ok(None) => Self::cpu(cpu),
                Err(error) => {
                    note(format_args!("warning: {error}; computing on the CPU"));
                    Self::cpu(cpu)
                }
            },
        }
    }

    fn cpu(options: CpuOptions) -> Result<Self> {
        Ok(Device::Cpu(Arc::new(CpuBackend::new(options)?)))
    }
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

/// Runs a block with the backend behind a [`Device`], whichever it is.
macro_rules! with_device {
    ($device:expr, $backend:ident => $body:expr) => {
        match $device {
            $crate::device::Device::Cpu($backend) => $body,
            $crate::device::Device::Wgpu($backend) => $body,
        }
    };
}

pub(crate) use with_device;
