//! Contexts on disk: sessions of the library, which outlive the server.

use std::io::Write;

use longview_core::FileSource;
use longview_engine::{Engine, Session, fingerprint_digest};
use longview_library::documents::Facts as SessionFacts;
use longview_library::documents::{Documents, DocumentsError, Id, SessionEntry, SessionKey};
use longview_ops::Backend;
use longview_scheduler::PolicyOptions;
use pollster::block_on;
use serde_json::json;

use crate::error::ApiError;
use crate::job::KeptText;
use crate::texts::{ModelFacts, common_prefix};

/// The library with what the loaded model is called in it.
pub(super) struct Disk {
    documents: Documents,
    key: SessionKey,
    words: String,
    about: String,
}

impl Disk {
    pub(super) fn new<B: Backend>(
        documents: Documents,
        engine: &Engine<B>,
        model: &ModelFacts,
    ) -> Result<Self, ApiError> {
        let fingerprint = engine.fingerprint()?;
        let key = SessionKey {
            fingerprint: fingerprint_digest(fingerprint).into(),
            kv_type: engine.options().kv_dtype.to_string(),
            reading: model.reading(),
            policy: model.policy.text(),
        };
        let about = fingerprint.config.about.clone();
        Ok(Self { documents, key, words: model.words.clone(), about })
    }

    /// A session of the library with more tokens in common with `ids` than `n_known`, and its
    /// document. One that cannot be opened is as good as none, and `log` is told.
    pub(super) fn open<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        policy: &PolicyOptions,
        ids: &[u32],
        n_known: usize,
        log: &dyn Fn(&str),
    ) -> Option<(Session<B>, Id)> {
        let nearest = self.documents.nearest(&self.key, ids, engine.options().ctx_size).ok()??;
        if nearest.n_common <= n_known {
            return None;
        }
        match self.restore(engine, policy, &nearest.session) {
            Ok(session) if common_prefix(session.tokens(), ids) > n_known => {
                // A library that cannot be written to is one that can be read.
                let _ = self.documents.touch(nearest.document.id, Some(nearest.session.file));
                Some((session, nearest.document.id))
            }
            Ok(_) => None,
            Err(error) => {
                log(&format!("context {}: is not opened: {error}", nearest.document.id.short()));
                None
            }
        }
    }

    fn restore<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        policy: &PolicyOptions,
        entry: &SessionEntry,
    ) -> Result<Session<B>, Box<dyn std::error::Error>> {
        let source = FileSource::open(&self.documents.session_path(entry))?;
        Ok(block_on(engine.restore(&source, Some(policy)))?.session)
    }

    /// Writes what was read of a document. A session that is there with as much stays.
    pub(super) fn save<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        document: &KeptText,
        n_document: usize,
    ) -> Result<(), ApiError> {
        let building = match self.documents.begin(document.id, &self.key) {
            // Another program writes the same: it will be there.
            Err(DocumentsError::InUse { .. }) => return Ok(()),
            begun => begun?,
        };
        let before = building.before().map_or(0, |before| before.n_tokens);
        if before >= session.tokens().len() {
            return Ok(());
        }
        let mut writer = building.writer()?;
        let note = json!({ "document": document.text }).to_string();
        if let Err(error) = block_on(engine.save(session, note.as_bytes(), &mut writer)) {
            return Err(writer.space_error().map_or_else(|| error.into(), Into::into));
        }
        writer.flush().map_err(|error| ApiError::internal(error.to_string()))?;
        let facts = SessionFacts {
            tokens: session.tokens(),
            n_document,
            context: engine.options().ctx_size,
            model: &self.words,
            about: &self.about,
            preset: session.policy().preset.name(),
        };
        building.commit(writer, &facts)?;
        Ok(())
    }
}
