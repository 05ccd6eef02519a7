//! A worker of NVIDIA Dynamo for a Longview server on the same machine.
//!
//! Dynamo's frontend turns requests into tokens and chooses a worker by what it holds. The worker
//! passes the tokens to `/v1/completions` of one server, and the tokens of the answer back. What
//! the server keeps goes to the router by the server's own KV events, which Dynamo subscribes to.

mod args;
mod engine;
mod error;
mod ready;
mod request;
mod server;
#[cfg(test)]
mod tests;

pub use args::Args;
pub use engine::LongviewEngine;
