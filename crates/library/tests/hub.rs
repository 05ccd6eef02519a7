//! Downloads from a hub on this machine. Nothing here reaches another.

mod access;
mod contents;
mod faults;
mod pulls;
mod support;
