//! Documents that models have read: texts, session files, and the manifest that lists both.
//!
//! A document is its text; its name is the text's hash. Beside it lie session files, one for each
//! model, way of reading and policy, in which the model's keys and values are. Sessions are large
//! and can be made again, so they go when a quota says so; the text stays.
//!
//! This module keeps files. It knows no model: a caller writes a session through [`SessionWriter`]
//! and says what it holds ([`Facts`]). No lock is held while a model reads; the one of the whole
//! library is held for the milliseconds of a change, and one of the session that is written keeps
//! two processes from the same work ([`Documents::begin`]).
//!
//! No byte of a session file is ever changed: each save makes a new file, and the manifest says
//! which counts. While a document is read, more may be written behind what its file has
//! ([`Building::append_to`]). So who has one open reads on, whatever is saved or removed.

mod build;
mod check;
mod entry;
mod error;
mod folder;
mod id;
mod lock;
mod manifest;
mod name;
mod part;
mod prefix;
mod prompts;
mod quota;
#[cfg(feature = "shared")]
mod receive;
mod store;
#[cfg(test)]
mod testing;

pub use self::build::{Appending, Building, Facts, Saved, SessionWriter};
pub use self::check::{Checked, Finding, Verify};
pub use self::entry::{Document, Reading, SessionEntry, SessionKey, Source};
pub use self::error::DocumentsError;
pub use self::folder::default_folder;
pub use self::id::{Id, NoId};
pub use self::manifest::VERSION as MANIFEST_VERSION;
pub use self::name::{check_name, name_of_file};
#[cfg(all(feature = "shared", unix))]
pub(crate) use self::part::sync_folder;
pub use self::prefix::{BLOCK, Chain};
pub use self::quota::Evicted;
pub use self::store::{Documents, Freed, Nearest, NewDocument, Usage};
#[cfg(feature = "shared")]
pub(crate) use self::{part::Part, receive::Received, store::now_unix_s};
