//! What native programs start with: the device that computes, chosen once, and the model that is
//! part of the binary. The command line and the desktop app both do, so that they choose alike.

pub mod device;
pub mod embedded;

pub use device::{Device, DeviceChoice, DeviceError, DeviceOptions};
