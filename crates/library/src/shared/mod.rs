//! Documents that several machines share: on S3 and what speaks its protocol, on Google's and
//! Microsoft's storage, or in a folder that all of them see.
//!
//! A library stays what it is: a folder on a disk of its own machine, with locks, and files that
//! are renamed when they are whole. Storage that is shared has neither, so this is beside it: what
//! was read to its end is copied there in parts ([`Share::publish`]), and comes from there into the
//! library of another machine ([`Share::fetch`]), which is a cache then, with its own quota.
//!
//! **What counts is the manifest of a session**, one object that is written last, under a condition
//! that lets one of several writers win. Parts that no manifest lists are seen by nobody.
//!
//! **The storage is not trusted.** Manifests carry a tag: a BLAKE3 hash under a key that all
//! machines have and the storage has not, over the name of the object and what is in it. A manifest
//! has the hash of each part. What is not right is a miss, as if it were not there, and the
//! document is read. The key of a scope (an API key of a server) is derived from the one key, and
//! names are made with it, so a document of one scope does not even have a name in another. Nothing
//! is encrypted: who may read the storage can read the documents.
//!
//! Nothing here is asynchronous to a caller: requests run on threads, which wait.

mod address;
mod error;
mod find;
mod folder;
mod http;
mod incoming;
mod publish;
mod record;
mod seal;
mod share;
mod storage;

pub use self::address::Patience;
pub use self::error::ShareError;
pub use self::find::{SharedDocument, SharedSession};
pub use self::incoming::Incoming;
pub use self::publish::Published;
pub use self::record::PART_BYTES as MAX_PART_BYTES;
pub use self::seal::ShareKey;
pub use self::share::Share;
