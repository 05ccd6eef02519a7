//! The server over HTTP, on this machine's own address, with the embedded model.

mod answers;
mod contexts;
mod faults;
mod guards;
mod refusals;
mod repeat;
mod streams;
mod support;
