//! Where to compute: the choice of a backend, made once, before anything is loaded.

use std::sync::Arc;

use longview_cpu::{CpuBackend, CpuError, CpuOptions};
use longview_cuda::{CudaBackend, CudaOptions, NvidiaDriver};
use longview_ops::Backend;
use longview_wgpu::{WgpuBackend, WgpuOptions};
use pollster::block_on;

use crate::embedded::cache_dir;

/// A device that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The CPU backend.
    #[error(transparent)]
    Cpu(#[from] CpuError),
    /// The WGSL backend.
    #[error(transparent)]
    Wgpu(#[from] longview_wgpu::StartError),
    /// The CUDA backend.
    #[error(transparent)]
    Cuda(#[from] longview_cuda::StartError),
}

/// What `--device` may say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first of the others that is there: CUDA, a GPU through WGSL, the CPU.
    Auto,
    /// The CPU backend.
    Cpu,
    /// The WGSL backend.
    Wgpu,
    /// The CUDA backend.
    Cuda,
}

/// How each device would be opened.
#[derive(Clone, Debug, Default)]
pub struct DeviceOptions {
    /// The CPU backend.
    pub cpu: CpuOptions,
    /// The WGSL backend.
    pub wgpu: WgpuOptions,
    /// The CUDA backend.
    pub cuda: CudaOptions,
}

/// An open device.
pub enum Device {
    /// The CPU backend.
    Cpu(Arc<CpuBackend>),
    /// The WGSL backend.
    Wgpu(Arc<WgpuBackend>),
    /// The CUDA backend.
    Cuda(Arc<CudaBackend<NvidiaDriver>>),
}

/// Runs a block with the backend behind a [`Device`], whichever it is.
#[macro_export]
macro_rules! with_device {
    ($device:expr, $backend:ident => $body:expr) => {
        match $device {
            $crate::device::Device::Cpu($backend) => $body,
            $crate::device::Device::Wgpu($backend) => $body,
            $crate::device::Device::Cuda($backend) => $body,
        }
    };
}

/// The options of a device for WGSL, which keeps its compiled pipelines where programs of this user
/// keep what can be made again.
fn wgpu_options(options: &DeviceOptions) -> WgpuOptions {
    let in_cache = || Some(cache_dir()?.join("longview").join("pipelines"));
    let pipeline_folder = options.wgpu.pipeline_folder.clone().or_else(in_cache);
    WgpuOptions { pipeline_folder, ..options.wgpu.clone() }
}

/// What came of trying one device for `auto`.
enum Attempt<D> {
    Open(D),
    /// The machine has none: no reason to say so.
    Absent,
    /// There is one, and it cannot be used.
    Unusable(String),
}

impl Device {
    /// Opens what was asked for, and nothing else. `warn` hears of devices that are there and
    /// cannot be used, where the choice is free.
    ///
    /// # Errors
    /// Why it cannot be opened.
    pub fn open(
        choice: DeviceChoice,
        options: &DeviceOptions,
        warn: &mut dyn FnMut(&str),
    ) -> Result<Self, DeviceError> {
        match choice {
            DeviceChoice::Auto => Self::automatic(options, warn),
            DeviceChoice::Cpu => Self::cpu(options),
            DeviceChoice::Wgpu => {
                Ok(Device::Wgpu(Arc::new(block_on(WgpuBackend::new(&wgpu_options(options)))?)))
            }
            DeviceChoice::Cuda => {
                Ok(Device::Cuda(Arc::new(block_on(CudaBackend::new(&options.cuda))?)))
            }
        }
    }

    /// CUDA before WGSL before the CPU. Whoever names a GPU of WGSL gets that one, or hears why
    /// not.
    fn automatic(options: &DeviceOptions, warn: &mut dyn FnMut(&str)) -> Result<Self, DeviceError> {
        if options.wgpu.adapter.is_some() || options.wgpu.shader_level.is_some() {
            return Self::open(DeviceChoice::Wgpu, options, warn);
        }
        let tries: [&dyn Fn() -> Attempt<Self>; 2] =
            [&|| Self::try_cuda(options), &|| Self::try_wgpu(options)];
        match first_open(tries.into_iter().map(|open| open()), warn) {
            Some(device) => Ok(device),
            None => Self::cpu(options),
        }
    }

    fn try_cuda(options: &DeviceOptions) -> Attempt<Self> {
        match block_on(CudaBackend::new(&options.cuda)) {
            Ok(backend) => Attempt::Open(Device::Cuda(Arc::new(backend))),
            Err(longview_cuda::StartError::NoDriver) => Attempt::Absent,
            Err(error) => Attempt::Unusable(error.to_string()),
        }
    }

    /// A software adapter is slower than the CPU backend: it counts as none.
    fn try_wgpu(options: &DeviceOptions) -> Attempt<Self> {
        match block_on(WgpuBackend::hardware(&wgpu_options(options))) {
            Ok(Some(backend)) => Attempt::Open(Device::Wgpu(Arc::new(backend))),
            Ok(None) => Attempt::Absent,
            Err(error) => Attempt::Unusable(error.to_string()),
        }
    }

    fn cpu(options: &DeviceOptions) -> Result<Self, DeviceError> {
        Ok(Device::Cpu(Arc::new(CpuBackend::new(options.cpu)?)))
    }

    /// The backend and its device.
    pub fn title(&self) -> String {
        let title = |name: &str, device: &str| format!("{name}, {device}");
        with_device!(self, backend => title(backend.name(), &backend.capabilities().device))
    }
}

/// The first device that opens; those after it are not tried. `warn` is told of devices that are
/// there and cannot be used.
fn first_open<D>(
    attempts: impl IntoIterator<Item = Attempt<D>>,
    warn: &mut dyn FnMut(&str),
) -> Option<D> {
    attempts.into_iter().find_map(|attempt| match attempt {
        Attempt::Open(device) => Some(device),
        Attempt::Absent => None,
        Attempt::Unusable(reason) => {
            warn(&reason);
            None
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The device that opens, what is warned of, and how many were tried.
    fn choose(attempts: Vec<Attempt<&'static str>>) -> (Option<&'static str>, Vec<String>, usize) {
        let (mut warnings, mut n_tried) = (Vec::new(), 0);
        let attempts = attempts.into_iter().inspect(|_| n_tried += 1);
        let device = first_open(attempts, &mut |reason| warnings.push(reason.to_owned()));
        (device, warnings, n_tried)
    }

    #[test]
    fn the_first_device_that_opens_is_taken_and_no_other_is_tried() {
        let (device, warnings, n_tried) =
            choose(vec![Attempt::Open("cuda"), Attempt::Open("wgpu")]);
        assert_eq!((device, n_tried), (Some("cuda"), 1));
        assert!(warnings.is_empty());
        let (device, warnings, _) = choose(vec![Attempt::Absent, Attempt::Open("wgpu")]);
        assert_eq!(device, Some("wgpu"));
        assert!(warnings.is_empty(), "what is absent is nothing to warn of: {warnings:?}");
    }

    #[test]
    fn a_device_that_cannot_be_used_is_told_and_the_next_one_tried() {
        let old = || Attempt::Unusable("the driver is too old".into());
        let (device, warnings, _) = choose(vec![old(), Attempt::Open("wgpu")]);
        assert_eq!(
            (device, warnings.as_slice()),
            (Some("wgpu"), &["the driver is too old".into()][..])
        );
        let (device, warnings, n_tried) = choose(vec![old(), Attempt::Absent]);
        assert_eq!((device, warnings.len(), n_tried), (None, 1, 2));
    }
}
