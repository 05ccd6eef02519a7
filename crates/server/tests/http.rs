//! The server over HTTP, on this machine's own address, with the embedded model.

mod answers;
mod contexts;
mod guards;
mod refusals;
mod streams;
mod support;
