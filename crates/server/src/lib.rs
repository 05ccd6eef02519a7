//! HTTP for Longview: the endpoints of OpenAI and llama.cpp over one engine.
//!
//! One thread owns the engine and every session; handlers send it requests and receive events, both
//! through bounded channels. Whatever a prompt begins with that was read before, under a key of the
//! same scope, is not read again. Handlers never wait for the device, and the engine never waits
//! for a client.

mod about;
mod answer;
mod app;
mod asked;
mod batch;
mod call_texts;
mod caller;
mod calls;
mod complete;
mod constraint;
mod contexts;
mod conversation;
mod cursor;
mod error;
mod events;
mod example;
mod fields;
mod gbnf;
mod guard;
mod held;
mod idle;
mod job;
mod keys;
mod known;
#[cfg(feature = "kv-events")]
mod kv_events;
#[cfg(not(feature = "kv-events"))]
#[path = "kv_events_absent.rs"]
mod kv_events;
mod listen;
mod log;
mod look;
mod messages;
mod metrics;
mod native;
mod offers;
mod openapi;
mod options;
mod origins;
mod page;
mod percent;
mod random;
mod request_id;
mod requests;
mod responses;
mod routes;
mod server;
mod slots;
mod stream;
mod tagged;
mod texts;
mod thoughts;
mod timings;
mod tools;
mod turns;
mod upload;
mod worker;

pub use error::ServeError;
pub use example::curl_line;
pub use keys::{ApiKey, BadKey, SharedKey};
pub use offers::Offers;
pub use options::{BadEndpoint, KvEventsOptions, Limits, ServerOptions};
pub use origins::{BadOrigin, Origin};
pub use requests::{FORMS, Requests};
pub use routes::{ROUTES, Route};
pub use server::{LoadError, Server};
pub use texts::ModelFacts;
pub use turns::{Turn, Turns};
