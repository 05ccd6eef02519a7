//! The contract between Longview and its compute backends.
//!
//! One trait, [`Backend`], with one method and one descriptor struct per [`Op`]. A descriptor holds
//! a plain parameter block (`#[repr(C)]`, the same field names in Rust, WGSL and CUDA) and views of
//! buffers; its `check` method is the one place where shapes are validated, and every backend calls
//! it on entry.
//!
//! What a backend may rely on and must obey, for every op:
//!
//! - **Order.** Ops on one backend value happen in the order of the calls. [`Backend::background`]
//!   gives a second queue of the same device with an order of its own; whoever uses both orders
//!   them with [`Backend::read`].
//! - **Aliasing.** Outputs are `&mut`: no op reads and writes one buffer through two views. Ops
//!   that update in place (`accumulate`) say so.
//! - **Errors and panics.** A descriptor that fails its `check` is an [`OpError::Shape`] and
//!   nothing was written. A missing feature is [`OpError::Unsupported`]. A lost device is
//!   [`OpError::DeviceLost`], for ever after. Indices inside buffers (row ids, token ids) are the
//!   caller's promise: a backend returns [`OpError::Index`] where it can see them and must not
//!   touch memory outside the buffer where it cannot.
//!   A weight is opaque to `check`: the backend compares its shape with the parameters itself and
//!   answers [`OpError::Shape`].
//! - **Threads.** Two threads may call one backend value; their ops take turns.
//! - **Masked rows.** A row that the mask hides may be read and multiplied by 0: rows inside a run
//!   hold numbers, never not-a-number or infinity.
//! - **Arithmetic.** Sums are made in `f32` or better, storage is what the buffer says.
//!   Not-a-number in gives not-a-number out, never a hang. Ties go to the lowest index.
//! - **Sequences.** Where an op serves several sequences in one step it takes a list of spans; an
//!   empty list is allowed and does nothing.
//!
//! Letters in shapes: T query tokens, S kv tokens, D model width, Hq / Hkv heads, G = Hq / Hkv, Dh
//! head width, F ffn, V vocabulary, C clusters, N points, B budget. `[T, Hq, Dh]` is row-major, the
//! last index fastest.
//!
//! A **KV row** is one token of one KV head: Dh elements of the key, then Dh elements of the value.
//! Every place that stores KV (host store, device cache, prefill tile) is an array of rows `[Hkv,
//! rows, 2, Dh]`; with a head stride of 0 all heads share one numbering of rows (a pool, in which
//! heads may have unequal numbers of rows).

mod backend;
pub mod buffer;
pub mod capability;
pub mod compare;
pub mod corpus;
pub mod desc;
pub mod error;
pub mod fused_case;
mod op;
pub mod parity;
pub mod reference;
pub mod tolerance;
mod unfused;
mod weight;

pub use backend::{Backend, ForkSpans, copy_host};
pub use buffer::{DeviceBuffer, KvView, Storage, View, ViewMut};
pub use capability::{Capabilities, DeviceCounters};
pub use desc::*;
pub use error::{OpError, OpResult};
pub use op::Op;
pub use reference::ReferenceBackend;
pub use weight::{Activations, QuantSource, ReadBytes, WeightSource, WeightStream};
