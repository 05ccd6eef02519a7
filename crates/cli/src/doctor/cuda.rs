//! What `longview doctor` says of CUDA: driver, devices, libraries.

use std::io::{self, Write};

use longview_cuda::probe::{CudaReport, DeviceReport, LibraryReport};
use serde::Serialize;

use crate::units;

/// CUDA in the JSON object.
#[derive(Serialize)]
pub struct Cuda {
    /// `null` where there is no driver.
    driver: Option<Driver>,
    /// Why there are no devices; `null` where there are.
    problem: Option<String>,
    devices: Vec<Device>,
    libraries: Vec<Library>,
}

#[derive(Serialize)]
struct Driver {
    /// The CUDA it speaks.
    cuda_version: String,
    /// Its own version; `null` where the system does not tell.
    release: Option<String>,
}

/// A GPU; `index` is what `--cuda-device` takes.
#[derive(Serialize)]
struct Device {
    index: usize,
    name: String,
    compute_capability: String,
    multiprocessors: u32,
    memory_bytes: Option<u64>,
    memory_free_bytes: Option<u64>,
    /// The embedded kernels it takes; `null` for one that is too old.
    kernels: Option<&'static str>,
    /// `null` where it computes right numbers, else what is wrong.
    self_test_error: Option<String>,
    /// `null` where cuBLASLt makes large products, else why it does not.
    cublaslt_problem: Option<String>,
}

#[derive(Serialize)]
struct Library {
    name: &'static str,
    found: bool,
    needed: bool,
    /// What it is for, and what its absence costs.
    cost: &'static str,
}

impl From<&CudaReport> for Cuda {
    fn from(report: &CudaReport) -> Self {
        let driver = report.driver.clone();
        Self {
            driver: driver.map(|d| Driver { cuda_version: d.cuda, release: d.release }),
            problem: report.problem.clone(),
            devices: report.devices.iter().map(Device::from).collect(),
            libraries: report.libraries.iter().map(Library::from).collect(),
        }
    }
}

impl From<&DeviceReport> for Device {
    fn from(device: &DeviceReport) -> Self {
        let (major, minor) = device.compute_capability;
        Self {
            index: device.index,
            name: device.name.clone(),
            compute_capability: format!("{major}.{minor}"),
            multiprocessors: device.n_multiprocessors,
            memory_bytes: device.memory_bytes,
            memory_free_bytes: device.free_bytes,
            kernels: device.target.map(longview_cuda::Target::name),
            self_test_error: device.self_test.clone().err(),
            cublaslt_problem: device.library.clone().err(),
        }
    }
}

impl From<&LibraryReport> for Library {
    fn from(library: &LibraryReport) -> Self {
        let LibraryReport { name, is_found, is_needed, cost } = *library;
        Self { name, found: is_found, needed: is_needed, cost }
    }
}

impl Cuda {
    /// The device that `--device cuda` would take, or why there is none, for the list of backends.
    pub fn first_device(&self) -> Result<String, String> {
        let Some(device) = self.devices.first() else {
            return Err(self.problem.clone().unwrap_or_else(|| "the driver lists none".into()));
        };
        match &device.self_test_error {
            Some(reason) => Err(reason.clone()),
            None => Ok(format!("{} ({})", device.name, device.facts())),
        }
    }

    /// Lines of the report for people.
    pub fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        if let Some(Driver { cuda_version, release }) = &self.driver {
            let release = release.as_deref().unwrap_or("of unknown version");
            writeln!(out, "cuda       driver {release}, speaks CUDA {cuda_version}")?;
        }
        self.devices.iter().try_for_each(|device| device.print(out))?;
        for Library { name, found, needed, cost } in &self.libraries {
            let state = if *found { "found" } else { "missing" };
            let role = if *needed { "needed" } else { "optional" };
            writeln!(out, "library    {name:<11} {state:<7} {role}: {cost}")?;
        }
        Ok(())
    }
}

impl Device {
    fn facts(&self) -> String {
        let Self { compute_capability, multiprocessors, kernels, .. } = self;
        let kernels = kernels.map_or("no kernels for it".into(), |name| format!("kernels {name}"));
        format!(
            "compute capability {compute_capability}, {multiprocessors} multiprocessors, {kernels}"
        )
    }

    fn print(&self, out: &mut dyn Write) -> io::Result<()> {
        let Self { index, name, memory_bytes, memory_free_bytes, .. } = self;
        writeln!(out, "cuda gpu   {index} {name}, {}", self.facts())?;
        let bytes = |n: &Option<u64>| n.map_or("unknown".to_owned(), units::bytes);
        let (all, free) = (bytes(memory_bytes), bytes(memory_free_bytes));
        writeln!(out, "           memory {all}, of which free {free}")?;
        let tested = self.self_test_error.as_deref().unwrap_or("computes right numbers");
        writeln!(out, "           self-test: {tested}")?;
        match &self.cublaslt_problem {
            None => writeln!(out, "           cuBLASLt: multiplies for prompts"),
            Some(reason) => writeln!(out, "           cuBLASLt: not used: {reason}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longview_cuda::Target;
    use longview_cuda::probe::DriverReport;

    fn library(name: &'static str, is_found: bool, is_needed: bool) -> LibraryReport {
        LibraryReport { name, is_found, is_needed, cost: "what it is for" }
    }

    fn device(index: usize, capability: (u32, u32)) -> DeviceReport {
        DeviceReport {
            index,
            name: format!("GPU {index}"),
            compute_capability: capability,
            n_multiprocessors: 132,
            memory_bytes: Some(80 << 30),
            free_bytes: Some(79 << 30),
            target: Target::of(capability),
            self_test: Ok(()),
            library: Ok(()),
        }
    }

    fn machine(devices: Vec<DeviceReport>) -> CudaReport {
        let release = Some("550.54.15".to_owned());
        CudaReport {
            driver: Some(DriverReport { cuda: "12.4".into(), release }),
            devices,
            problem: None,
            libraries: vec![library("libcuda", true, true), library("libnvrtc", false, false)],
        }
    }

    fn text(cuda: &Cuda) -> String {
        let mut out = Vec::new();
        cuda.print(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_good_machine() {
        let cuda = Cuda::from(&machine(vec![device(0, (9, 0))]));
        let expected = "\
cuda       driver 550.54.15, speaks CUDA 12.4
cuda gpu   0 GPU 0, compute capability 9.0, 132 multiprocessors, kernels compute_90
           memory 80.0 GiB, of which free 79.0 GiB
           self-test: computes right numbers
           cuBLASLt: multiplies for prompts
library    libcuda     found   needed: what it is for
library    libnvrtc    missing optional: what it is for
";
        assert_eq!(text(&cuda), expected);
        let first = "GPU 0 (compute capability 9.0, 132 multiprocessors, kernels compute_90)";
        assert_eq!(cuda.first_device(), Ok(first.into()));
        let json = serde_json::to_value(&cuda).unwrap();
        assert_eq!(json["driver"]["cuda_version"], "12.4");
        assert_eq!(json["devices"][0]["memory_free_bytes"], 79u64 << 30);
        assert!(json["devices"][0]["self_test_error"].is_null() && json["problem"].is_null());
        assert_eq!(
            (&json["libraries"][1]["found"], &json["libraries"][1]["needed"]),
            (&false.into(), &false.into())
        );
    }

    #[test]
    fn a_device_that_is_too_old_and_one_that_computes_wrong_numbers() {
        let reason = |text: &str| Err(text.to_owned());
        let old =
            DeviceReport { free_bytes: None, self_test: reason("too old"), ..device(0, (6, 1)) };
        let library = reason("libcublasLt does not load");
        let wrong =
            DeviceReport { self_test: reason("matvec is off"), library, ..device(1, (8, 9)) };
        let cuda = Cuda::from(&machine(vec![old, wrong]));
        let text = text(&cuda);
        for part in [
            "0 GPU 0, compute capability 6.1, 132 multiprocessors, no kernels for it",
            "memory 80.0 GiB, of which free unknown",
            "self-test: too old",
            "1 GPU 1, compute capability 8.9, 132 multiprocessors, kernels compute_80",
            "self-test: matvec is off",
            "cuBLASLt: not used: libcublasLt does not load",
        ] {
            assert!(text.contains(part), "{part} is not in:\n{text}");
        }
        assert_eq!(cuda.first_device(), Err("too old".into()), "what --device cuda would say");
        let json = serde_json::to_value(&cuda).unwrap();
        assert!(json["devices"][0]["kernels"].is_null());
        assert_eq!(json["devices"][1]["self_test_error"], "matvec is off");
    }

    #[test]
    fn a_machine_without_a_driver() {
        let problem = Some("no driver".to_owned());
        let libraries = vec![library("libcuda", false, true)];
        let report = CudaReport { driver: None, devices: Vec::new(), problem, libraries };
        let cuda = Cuda::from(&report);
        assert_eq!(text(&cuda), "library    libcuda     missing needed: what it is for\n");
        assert_eq!(cuda.first_device(), Err("no driver".into()));
        let json = serde_json::to_value(&cuda).unwrap();
        assert!(json["driver"].is_null() && json["devices"].as_array().unwrap().is_empty());
        assert_eq!(json["problem"], "no driver");
    }
}
