//! The tokens of sessions on disk that requests would go on from.

use std::collections::BTreeMap;
use std::sync::Arc;

use longview_core::FileSource;
use longview_library::documents::{Documents, Id, SessionEntry};
use longview_scheduler::SessionFile;
use tracing::warn;

use super::book::Chain;
use super::held::DiskSessions;

/// Sessions whose tokens are known. A named file is only ever appended to, so its name and length
/// say what is in it.
#[derive(Default)]
pub(super) struct OnDisk {
    /// `None`: a file that cannot be read, and that the log knows of.
    files: BTreeMap<(Id, usize), Option<Arc<Chain>>>,
}

impl OnDisk {
    /// What lies on disk now. Files that came are opened for their tokens alone.
    pub(super) fn chains(&mut self, sessions: &DiskSessions) -> Vec<Arc<Chain>> {
        let mut listed = Vec::new();
        for library in &sessions.libraries {
            match library.list() {
                Ok(list) => listed.push((library, list)),
                Err(error) => {
                    warn!("KV events: the library cannot be read: {error}");
                    return self.files.values().flatten().cloned().collect();
                }
            }
        }
        let is_asked = |session: &&SessionEntry| {
            session.key.has_rows_of(&sessions.key) && session.n_tokens <= sessions.ctx_size
        };
        let mut before = std::mem::take(&mut self.files);
        for (library, list) in &listed {
            let all = list.iter().flat_map(|document| &document.sessions);
            for session in all.filter(is_asked) {
                let name = (session.file, session.n_tokens);
                let chain = before.remove(&name).unwrap_or_else(|| open(library, session));
                self.files.insert(name, chain);
            }
        }
        self.files.values().flatten().cloned().collect()
    }
}

fn open(library: &Documents, session: &SessionEntry) -> Option<Arc<Chain>> {
    let path = library.session_path(session);
    let source = FileSource::open(&path).map_err(|error| error.to_string());
    let tokens = source.and_then(|source| {
        let file = SessionFile::open(&source).map_err(|error| error.to_string())?;
        file.tokens().map_err(|error| error.to_string())
    });
    match tokens {
        Ok(tokens) => Some(Arc::new(Chain::of(&tokens))),
        Err(error) => {
            let name = session.file.short();
            warn!("KV events: session {name} is not told of: {error}");
            None
        }
    }
}
