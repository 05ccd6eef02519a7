//! The file in which a prefilled session is kept, so that it is opened without prefill and without
//! clustering.
//!
//! A header says what the file was made with. Records hold tokens, KV rows, index and what was
//! recorded, each with a digest in a directory, and a trailer proves header and directory. Records
//! never change: whoever appends writes new ones, and a directory that lists old and new ones.
//! `docs/session-format.md` has every byte. Rows go piece by piece to the host store, so that there
//! is never a second copy in memory; no sequence is given out before all that it needs was proved.
//! Layers are independent of each other, so several threads read, prove and place them
//! ([`mod@side_by_side`]).
//! Everything is little-endian and fixed by that document, never by how Rust lays out a type.
//!
//! [`record_file`] is the outermost layer (header, records, directory, trailer), [`header`] what
//! the file was made with, [`records`] how the state of one layer is written, [`mod@save`] and
//! [`mod@open`] tie it to a [`crate::Sequence`], and [`v1`] reads files of the version before. The
//! caller's parts (tokens, logits, a note) are a [`SessionContent`].

mod block;
mod content;
mod digest;
mod directory;
mod fields;
mod file;
mod header;
mod open;
mod record_file;
mod record_reader;
mod records;
mod save;
mod side_by_side;
#[cfg(test)]
mod tests;
mod token_rows;
mod v1;

pub use content::SessionContent;
pub use digest::Digest;
pub use file::{SessionFile, SessionReader};
pub use header::{FORMAT_VERSION, Fingerprint, FingerprintPart, SESSION_MAGIC, SessionHeader};
pub use open::{ComingSequence, restore_sequence, restore_sequence_beside};
pub use save::{SaveOptions, append_sequence, save_sequence};
