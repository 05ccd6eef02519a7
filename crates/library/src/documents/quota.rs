//! What goes when the library is full: the sessions that were used longest ago.
//!
//! Only sessions go. A text is small and cannot be made again here; a session can, from the text.

use super::id::Id;
use super::manifest::Manifest;

/// A session that goes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Evicted {
    /// The document.
    pub name: String,
    /// The file.
    pub file: Id,
    /// Its bytes.
    pub bytes: u64,
}

/// Takes sessions out of `manifest` until it holds no more than its quota, those used longest ago
/// first. Pinned documents keep theirs, and so does `keep`.
pub(super) fn evict(manifest: &mut Manifest, keep: Id) -> Vec<Evicted> {
    let Some(quota) = manifest.quota_bytes else { return Vec::new() };
    let mut order: Vec<(u64, Evicted)> = Vec::new();
    for document in manifest.documents.iter().filter(|d| !d.pinned && d.id != keep) {
        for session in &document.sessions {
            let (file, bytes) = (session.file, session.bytes);
            order.push((session.turn, Evicted { name: document.name.clone(), file, bytes }));
        }
    }
    order.sort_by_key(|(turn, _)| *turn);
    let mut total = manifest.session_bytes();
    let mut gone = Vec::new();
    for (_, evicted) in order {
        if total <= quota {
            break;
        }
        total -= evicted.bytes;
        gone.push(evicted);
    }
    for document in &mut manifest.documents {
        document.sessions.retain(|session| gone.iter().all(|gone| gone.file != session.file));
    }
    gone
}

/// Bytes of sessions that may not go for one of `document`.
pub(super) fn pinned_bytes(manifest: &Manifest, document: Id) -> u64 {
    let pinned = manifest.documents.iter().filter(|d| d.pinned && d.id != document);
    pinned.map(super::entry::Document::session_bytes).sum()
}
