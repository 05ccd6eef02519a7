//! What native programs start with: the device that computes, chosen once, the model that is part
//! of the binary, and the process in which chat templates run. The command line and the desktop app
//! both do, so that they choose alike.

pub mod device;
pub mod embedded;
pub mod template;

pub use device::{Device, DeviceChoice, DeviceError, DeviceOptions};
