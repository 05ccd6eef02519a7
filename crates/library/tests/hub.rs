//! Libraries: of documents, and of models from a hub on this machine. Nothing reaches another.

mod access;
#[cfg(feature = "shared")]
mod clouds;
mod contents;
mod documents;
mod faults;
mod pulls;
#[cfg(feature = "shared")]
mod shared;
#[cfg(feature = "shared")]
mod shared_alike;
#[cfg(feature = "shared")]
mod shared_repair;
#[cfg(feature = "shared")]
mod shared_slow;
#[cfg(feature = "shared")]
mod shared_trust;
mod support;
