//! The server over HTTP, on this machine's own address, with the embedded model.

mod support;

#[path = "http/answers.rs"]
mod answers;
#[path = "http/contexts.rs"]
mod contexts;
#[path = "http/guards.rs"]
mod guards;
#[path = "http/refusals.rs"]
mod refusals;
#[path = "http/streams.rs"]
mod streams;
