//! The file in which a prefilled session is kept, so that it is opened without prefill and without
//! clustering.
//!
//! A header says what the file was made with, a stream of fields holds tokens, KV rows, index and
//! records, and a trailer proves that all of it is there: every block of the stream has a digest in
//! a table, and the trailer's digest covers header and table. `docs/session-format.md` has every
//! byte. Nothing is used before the whole file was verified; then rows go block by block to the
//! host tier, so that there is never a second copy in memory. Everything is little-endian and fixed
//! by that document, never by how Rust lays out a type.
//!
//! [`frame`] is the outermost layer (header, blocks, table, trailer), [`header`] what the file was
//! made with, [`record`] the state of one layer as plain data, and [`sequence`] ties it to a
//! [`crate::Sequence`]. The caller's parts (tokens, logits, a note) are a [`SessionContent`].

mod content;
mod error;
mod frame;
mod header;
mod record;
mod sequence;

pub use content::SessionContent;
pub use error::{DamagedPart, Difference, SessionFileError};
pub use frame::{BLOCK_BYTES, SessionFile, SessionReader};
pub use header::{Fingerprint, FingerprintPart, SessionHeader};
pub(crate) use record::{
    AdaptiveRecord, ClustersRecord, IndexRecord, KeepRecord, ProjectionRecord, QueriesRecord,
};
pub use sequence::SaveOptions;

/// The format that this release writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 1;

/// A digest of some bytes: BLAKE3, 32 bytes.
pub type Digest = [u8; 32];

/// The digest of `bytes`.
pub(crate) fn digest(bytes: &[u8]) -> Digest {
    *blake3::hash(bytes).as_bytes()
}
