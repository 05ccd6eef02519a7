//! Why a device could not be opened.

/// No device, and what to do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// No libcuda.
    #[error(
        "no NVIDIA driver was found (libcuda does not load); install NVIDIA's driver, 530 or \
         newer (a container must be given its GPUs), or use --device wgpu or --device cpu"
    )]
    NoDriver,
    /// A driver from before the PTX that is embedded.
    #[error(
        "the NVIDIA driver speaks CUDA {found}, the kernels need {needed}; update it to 530 or \
         newer, or use another --device"
    )]
    DriverTooOld {
        /// What the driver says.
        found: String,
        /// What the kernels need.
        needed: String,
    },
    /// The driver sees no device.
    #[error(
        "the NVIDIA driver sees no device ({reason}); look at nvidia-smi and CUDA_VISIBLE_DEVICES, \
         or use another --device"
    )]
    NoDevice {
        /// What the driver said.
        reason: String,
    },
    /// The device that was asked for is not there.
    #[error(
        "there is no CUDA device {wanted}: the driver shows {n_devices}, counted from 0; choose \
         another --cuda-device (`longview doctor` lists them)"
    )]
    NoSuchDevice {
        /// What was asked for.
        wanted: usize,
        /// How many there are.
        n_devices: usize,
    },
    /// A device from before the lowest target.
    #[error(
        "{name} has compute capability {found}, the kernels need {needed}; use another \
         --cuda-device or --device"
    )]
    DeviceTooOld {
        /// The device's name.
        name: String,
        /// What it has.
        found: String,
        /// What the kernels need.
        needed: String,
    },
    /// The driver refused.
    #[error(
        "the CUDA device gave no context: {reason}; see whether nvidia-smi works and whether \
         another program holds the device, or use another --device"
    )]
    Device {
        /// What the driver said.
        reason: String,
    },
    /// A kernel faulted before in this process, which gets no context any more.
    #[error(
        "a kernel failed on the CUDA device ({reason}), and NVIDIA's driver lets this process use \
         the device no more; start the program again (what was saved is kept), or use another \
         --device"
    )]
    AfterFault {
        /// What the driver said.
        reason: String,
    },
    /// The device computes wrong numbers.
    #[error("{name} computes wrong numbers ({reason}); update its driver, or use another --device")]
    SelfTest {
        /// The device's name.
        name: String,
        /// Which test failed.
        reason: String,
    },
}
