//! The server over HTTP, on this machine's own address, with the embedded model.

mod answers;
mod batches;
mod contexts;
mod drafts;
mod faults;
mod forms;
mod gauges;
mod grammars;
mod guards;
#[cfg(feature = "kv-events")]
mod kv_events;
mod look;
mod memory;
mod native;
mod page;
mod pages;
mod ported;
mod prefill;
mod prompts;
mod refusals;
mod repeat;
mod scopes;
#[cfg(feature = "shared")]
mod share;
mod slots;
mod streams;
mod support;
mod thoughts;
mod turns;
