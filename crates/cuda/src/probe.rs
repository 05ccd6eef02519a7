//! What CUDA finds on a machine: driver, devices, libraries. For `longview doctor`; opening a
//! device needs none of it.

use std::ffi::c_int;
use std::mem::ManuallyDrop;

use cudarc::driver::sys::{self, CUdevice_attribute};
use cudarc::driver::{DriverError as CudaError, result};
use longview_ops::Backend;

use crate::backend::CudaBackend;
use crate::error::StartError;
use crate::names::{self, Names};
use crate::nvidia::NvidiaDriver;
use crate::options::CudaOptions;
use crate::target::Target;

/// Everything that was found.
#[derive(Clone, Debug)]
pub struct CudaReport {
    /// The driver; `None` where there is none.
    pub driver: Option<DriverReport>,
    /// The devices, in the order of their numbers.
    pub devices: Vec<DeviceReport>,
    /// Why there are none; `None` where there are.
    pub problem: Option<String>,
    /// Libraries of NVIDIA, needed or not.
    pub libraries: Vec<LibraryReport>,
}

/// The driver that is installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriverReport {
    /// The CUDA it speaks, as 12.4.
    pub cuda: String,
    /// Its own version, as 550.54.15; `None` where the system does not tell.
    pub release: Option<String>,
}

/// A device; its number is what `--cuda-device` takes.
#[derive(Clone, Debug)]
pub struct DeviceReport {
    /// Its number, from 0 in the driver's order.
    pub index: usize,
    /// The product's name.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// Multiprocessors.
    pub n_multiprocessors: u32,
    /// Bytes of device memory in all; `None` where the driver does not tell.
    pub memory_bytes: Option<u64>,
    /// Those that nobody uses; `None` where the device could not be opened.
    pub free_bytes: Option<u64>,
    /// The embedded kernels that it takes; `None` for a device that is too old for any.
    pub target: Option<Target>,
    /// Whether it computes right numbers, or what is wrong.
    pub self_test: Result<(), String>,
    /// Whether cuBLASLt makes large products on it, or why our own kernels make them.
    pub library: Result<(), String>,
}

/// A library that is there or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LibraryReport {
    /// Its name without version and ending.
    pub name: &'static str,
    /// Whether it loads.
    pub is_found: bool,
    /// Whether nothing works without it.
    pub is_needed: bool,
    /// What it is for, and what its absence costs.
    pub cost: &'static str,
}

/// A library that may be there.
struct Optional {
    names: Names,
    cost: &'static str,
}

const OPTIONAL: [Optional; 2] = [
    Optional {
        names: names::NVRTC,
        cost: "compiles kernels at run time; this version does not: its kernels are embedded, and \
               nothing is lost without it",
    },
    Optional {
        names: names::CUBLASLT,
        cost: "multiplies the matrices of long prompts; without it kernels of our own do, and \
               prompts are read more slowly",
    },
];

/// Looks. Opens every device for a moment; never panics where there is no driver.
pub async fn probe() -> CudaReport {
    // SAFETY: loads libcuda by its name, as every CUDA program does.
    let is_found = unsafe { sys::is_culib_present() };
    let cost = "NVIDIA's driver; without it there is no --device cuda";
    let mut libraries = vec![LibraryReport { name: "libcuda", is_found, is_needed: true, cost }];
    libraries.extend(OPTIONAL.iter().map(Optional::report));
    let mut report = CudaReport { driver: None, devices: Vec::new(), problem: None, libraries };
    if !is_found {
        report.problem = Some(StartError::NoDriver.to_string());
        return report;
    }
    report.driver = cuda_version().map(|cuda| DriverReport { cuda, release: release() });
    for index in 0..n_devices().unwrap_or(0) {
        // One that vanishes meanwhile is none.
        if let Ok(device) = look_at(index) {
            report.devices.push(test(device).await);
        }
    }
    if report.devices.is_empty() {
        let problem = NvidiaDriver::open(&CudaOptions::default()).err();
        report.problem = problem.map(|error| error.to_string());
    }
    report
}

/// As 12.4.
fn cuda_version() -> Option<String> {
    let mut version = 0;
    // SAFETY: writes one integer; the call is as old as the driver interface.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().ok()?;
    Some(format!("{}.{}", version / 1000, version % 1000 / 10))
}

/// The driver's own version, where Linux tells.
fn release() -> Option<String> {
    release_in(&std::fs::read_to_string("/proc/driver/nvidia/version").ok()?)
}

/// The first word of numbers and points.
fn release_in(text: &str) -> Option<String> {
    let is_version =
        |word: &&str| word.contains('.') && word.split('.').all(|part| part.parse::<u32>().is_ok());
    text.split_whitespace().find(is_version).map(String::from)
}

fn n_devices() -> Result<usize, CudaError> {
    result::init()?;
    Ok(result::device::get_count()?.max(0) as usize)
}

/// What a device says without being opened.
fn look_at(index: usize) -> Result<DeviceReport, CudaError> {
    use CUdevice_attribute::{
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as MAJOR,
        CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as MINOR,
        CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT as MULTIPROCESSORS,
    };
    let device = result::device::get(index as c_int)?;
    // SAFETY: the device is valid and the attributes are of devices.
    let get = |attribute| unsafe { result::device::get_attribute(device, attribute) };
    let get = |attribute| get(attribute).map(|n| n.max(0) as u32);
    let compute_capability = (get(MAJOR)?, get(MINOR)?);
    // SAFETY: the device is valid.
    let memory = unsafe { result::device::total_mem(device) };
    Ok(DeviceReport {
        index,
        name: result::device::get_name(device)?,
        compute_capability,
        n_multiprocessors: get(MULTIPROCESSORS)?,
        memory_bytes: memory.ok().map(|bytes| bytes as u64),
        free_bytes: None,
        target: Target::of(compute_capability),
        self_test: Ok(()),
        library: Err("the device was not opened".into()),
    })
}

/// Opens the device as `--device cuda` would.
async fn test(device: DeviceReport) -> DeviceReport {
    let options = CudaOptions { device: Some(device.index), ..CudaOptions::default() };
    match CudaBackend::new(&options).await {
        Ok(backend) => {
            let (free_bytes, library) = (backend.capabilities().memory_bytes, backend.library());
            DeviceReport { free_bytes, library, ..device }
        }
        Err(error) => DeviceReport { self_test: Err(error.to_string()), ..device },
    }
}

impl Optional {
    fn report(&self) -> LibraryReport {
        let Self { names, cost } = *self;
        let is_found = names.files().iter().any(|file| loads(file));
        LibraryReport { name: names.name, is_found, is_needed: false, cost }
    }
}

/// Whether a library loads. It stays: NVIDIA's are not made to be unloaded.
fn loads(file: &str) -> bool {
    // SAFETY: libraries of NVIDIA, found by the loader's own rules; what they do at their start is
    // harmless, and nothing of them is called.
    unsafe { libloading::Library::new(file) }.map(ManuallyDrop::new).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_is_found_among_the_words_of_the_kernel_module() {
        let closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n\
                      GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)";
        assert_eq!(release_in(closed).as_deref(), Some("535.104.05"));
        let open = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.15  Release";
        assert_eq!(release_in(open).as_deref(), Some("550.54.15"));
        assert_eq!(release_in("nothing of the kind. v1.x"), None);
    }

    /// Whatever this machine has: a report that agrees with itself, and no panic.
    #[test]
    fn a_report_explains_every_absence() {
        let report = pollster::block_on(probe());
        let libcuda = &report.libraries[0];
        assert_eq!((libcuda.name, libcuda.is_needed), ("libcuda", true));
        assert!(libcuda.is_found || report.driver.is_none());
        assert_eq!(report.devices.is_empty(), report.problem.is_some());
        let untested = report.devices.iter().filter_map(|device| device.self_test.as_ref().err());
        for reason in untested.chain(&report.problem) {
            assert!(reason.contains("--device"), "{reason}");
        }
    }
}
