//! What native programs share: the device that computes, chosen once, the model that is part of the
//! binary, the process in which chat templates run, and what keeps a document in the library while
//! it is read. The command line and the desktop app both use it, so that they do alike.

pub mod device;
pub mod embedded;
pub mod keeper;
pub mod template;

pub use device::{Device, DeviceChoice, DeviceError, DeviceOptions};
