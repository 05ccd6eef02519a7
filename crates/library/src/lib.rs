//! What lies on the disk: models by name, and [`documents`] that models have read.
//!
//! Models are `USER/REPO` at the Hugging Face hub, and lie in a cache here.
//!
//! The cache is that of `huggingface_hub`, file by file, so what Python has downloaded is found and
//! what is downloaded here is found by Python. A download is one blob after the other: each is
//! written beside its final name, checked against the hash that the hub says, and only then named.
//! So a process may end at any moment, and the next one goes on where it stopped.
//!
//! What comes from the hub is a stranger's: names of files are checked part by part before they
//! become paths, blobs are named by their hash, and the token goes to the hub's own host alone.
//!
//! There is no terminal here: [`Library::pull`] tells a [`Watch`] what happens, and asks it whether
//! to go on.

pub mod asked;
mod cache;
pub mod child;
pub mod date;
mod digest;
pub mod documents;
mod error;
mod find;
mod gguf;
mod http;
mod hub;
mod list;
mod look;
mod name;
mod origin;
mod pull;
mod remote_path;
mod remove;
mod replace;
mod retry;
mod select;
mod settings;
#[cfg(feature = "shared")]
pub mod shared;
#[cfg(not(feature = "shared"))]
#[path = "shared_absent.rs"]
pub mod shared;
mod size;
mod space;
pub mod text;
mod transfer;
mod variant;
mod watch;

pub use self::error::LibraryError;
pub use self::find::Found;
pub use self::list::Entry;
pub use self::look::Remote;
pub use self::name::{ModelName, NameError};
pub use self::pull::Library;
pub use self::remove::Removed;
pub use self::replace::replace;
pub use self::select::{Prefer, Wanted};
pub use self::settings::{Patience, Settings, Token};
pub use self::size::Size;
pub use self::space::free_bytes;
pub use self::variant::Format;
pub use self::watch::{Event, Watch};
