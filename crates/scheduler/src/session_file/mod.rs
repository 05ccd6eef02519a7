//! The file in which a prefilled session is kept, so that it is opened without prefill and without
//! clustering.
//!
//! A header says what the file was made with, a stream of fields holds tokens, KV rows, index and
//! records, and a trailer proves that all of it is there: every block of the stream has a digest in
//! a table, and the trailer's digest covers header and table. `docs/session-format.md` has every
//! byte. Nothing is used before the whole file was verified; then rows go block by block to the
//! host store, so that there is never a second copy in memory. Everything is little-endian and
//! fixed by that document, never by how Rust lays out a type.
//!
//! [`frame`] is the outermost layer (header, blocks, table, trailer), [`header`] what the file was
//! made with, [`records`] how the state of one layer is written, and [`io`] ties it to a
//! [`crate::Sequence`]. The caller's parts (tokens, logits, a note) are a [`SessionContent`].

mod block;
mod content;
mod digest;
mod frame;
mod header;
mod io;
mod records;

pub use block::BLOCK_BYTES;
pub use content::SessionContent;
pub use digest::Digest;
pub use frame::{SessionFile, SessionReader};
pub use header::{FORMAT_VERSION, Fingerprint, FingerprintPart, SESSION_MAGIC, SessionHeader};
pub use io::{SaveOptions, restore_sequence, save_sequence};
