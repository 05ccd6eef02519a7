//! Puts into the library what a model reads, while it reads: a program that is killed loses little.
//!
//! While a prompt is read, rows alone are written behind those of the time before, without an index
//! ([`Engine::save_unfinished`]), so that each row is written once. The last save writes a new file
//! with the index, which takes the place of the one before.

use std::io::{self, Write};
use std::num::NonZero;
use std::path::Path;
use std::time::{Duration, Instant};

use longview_core::FileSource;
use longview_engine::{Engine, EngineError, Session, fingerprint_digest};
use longview_library::documents::{
    Building, Documents, DocumentsError, Facts, Reading, Saved, SessionEntry, SessionKey,
};
use longview_ops::Backend;
use longview_scheduler::SessionFile;
use pollster::block_on;
use serde_json::json;

/// The usual time between two saves of what is being read.
pub const KEEP_EVERY: Duration = Duration::from_secs(10);
/// Reading may take this many times as long as keeping, at least: three percent are for keeping.
const SHARE: u32 = 32;

/// What could not be kept.
#[derive(Debug, thiserror::Error)]
pub enum KeepError {
    /// The library.
    #[error(transparent)]
    Documents(#[from] DocumentsError),
    /// The engine, or the file that it goes on with.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A file of the library.
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl KeepError {
    /// Whether there is no room on the disk.
    pub fn is_no_space(&self) -> bool {
        matches!(self, Self::Documents(DocumentsError::NoSpace { .. }))
    }
}

/// What the library lists sessions of a model and a policy by.
///
/// # Errors
/// If the model's weights cannot be read to tell which they are.
pub fn session_key<B: Backend>(
    engine: &Engine<B>,
    reading: Reading,
    policy: String,
) -> Result<SessionKey, EngineError> {
    Ok(SessionKey {
        fingerprint: fingerprint_digest(engine.fingerprint()?).into(),
        kv_type: engine.options().kv_dtype.to_string(),
        reading,
        policy,
        sparse: engine.options().prefill.inexact(),
    })
}

/// Compares a session file of the library with its digests, on all threads.
///
/// # Errors
/// What is wrong with it.
pub fn verify(path: &Path) -> Result<(), String> {
    let source = FileSource::open(path).map_err(|error| format!("cannot be read ({error})"))?;
    let file = SessionFile::open(&source).map_err(|error| error.to_string())?;
    let n_threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    file.verify(n_threads).map_err(|error| error.to_string())
}

/// The document that is read.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// Its text.
    pub text: &'a str,
    /// Its tokens.
    pub n_tokens: usize,
    /// The model that reads it, in words that open it again.
    pub model: &'a str,
}

/// Keeps one session of a document.
pub struct Keeper<'a> {
    documents: &'a Documents,
    building: Building<'a>,
    text: Text<'a>,
    /// What is there of it that this keeper has written.
    kept: Option<SessionEntry>,
}

impl<'a> Keeper<'a> {
    /// A keeper of the session that `building` is for.
    pub fn new(documents: &'a Documents, building: Building<'a>, text: Text<'a>) -> Self {
        Self { documents, building, text, kept: None }
    }

    /// The right to write the session, and what was there of it before.
    pub fn building(&self) -> &Building<'a> {
        &self.building
    }

    /// Tokens that this keeper has kept.
    pub fn n_kept(&self) -> usize {
        self.kept.as_ref().map_or(0, |kept| kept.n_tokens)
    }

    /// Keeps what was read so far, while reading goes on ([`Engine::prefill_part`]).
    ///
    /// # Errors
    /// What was kept before is there still.
    pub fn keep_part<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
    ) -> Result<Saved, KeepError> {
        let saved = match self.append(engine, session, true)? {
            Some(saved) => saved,
            None => self.write(engine, session, true)?,
        };
        self.kept = Some(saved.session.clone());
        Ok(saved)
    }

    /// Keeps all that was read, with its index: the prompt, or this part of one, was ended.
    ///
    /// # Errors
    /// What was kept before is there still.
    pub fn keep<B: Backend>(
        &mut self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
    ) -> Result<Saved, KeepError> {
        let saved = match self.write(engine, session, false) {
            // Without room for a second file, what is lacking may have room behind the first.
            Err(error) if error.is_no_space() => match self.append(engine, session, false) {
                Ok(Some(saved)) => saved,
                _ => return Err(error),
            },
            written => written?,
        };
        self.kept = Some(saved.session.clone());
        Ok(saved)
    }

    /// A new file, which takes the place of the one before.
    fn write<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        is_unfinished: bool,
    ) -> Result<Saved, KeepError> {
        let mut writer = self.building.writer()?;
        let note = self.note();
        let written = if is_unfinished {
            block_on(engine.save_unfinished(session, &note, None, &mut writer)).map(drop)
        } else {
            block_on(engine.save(session, &note, &mut writer))
        };
        if let Err(error) = written {
            return Err(writer.space_error().map_or_else(|| error.into(), Into::into));
        }
        writer.flush()?;
        self.commit(engine, session, |facts| self.building.commit(writer, facts))
    }

    /// What the file of this keeper lacks; `None` if there is none, or it is better written anew.
    fn append<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        is_unfinished: bool,
    ) -> Result<Option<Saved>, KeepError> {
        let Some(kept) = &self.kept else { return Ok(None) };
        // Another process may have removed it.
        let path = self.documents.session_path(kept);
        let Ok(source) = FileSource::open(&path) else { return Ok(None) };
        let file = SessionFile::open(&source).map_err(EngineError::from)?;
        let Some(at) = file.append_at() else { return Ok(None) };
        let mut appending = self.building.append_to(kept, at)?;
        let note = self.note();
        let appended = if is_unfinished {
            block_on(engine.save_unfinished(session, &note, Some(&file), &mut appending))?
        } else {
            block_on(engine.append(session, &note, &file, &mut appending))?
        };
        if !appended {
            return Ok(None);
        }
        let commit = |facts: &Facts<'_>| self.building.commit_appended(appending, kept, facts);
        self.commit(engine, session, commit).map(Some)
    }

    /// With the text in it a file can be asked by itself (`longview run --session`).
    fn note(&self) -> Vec<u8> {
        json!({ "document": self.text.text }).to_string().into_bytes()
    }

    fn commit<B: Backend>(
        &self,
        engine: &Engine<B>,
        session: &Session<B>,
        commit: impl FnOnce(&Facts<'_>) -> Result<Saved, DocumentsError>,
    ) -> Result<Saved, KeepError> {
        let about = engine.fingerprint()?.config.about.clone();
        Ok(commit(&Facts {
            tokens: session.tokens(),
            n_document: self.text.n_tokens,
            context: engine.options().ctx_size,
            model: self.text.model,
            about: &about,
            preset: session.policy().preset.name(),
        })?)
    }
}

/// The time between two saves of what is being read: what was asked for, or longer where a save
/// takes long.
pub struct KeepPace {
    /// None: nothing is kept before the end.
    every: Option<Duration>,
    due: Instant,
}

impl KeepPace {
    /// Every so often from `now` on; zero is never.
    pub fn new(every: Duration, now: Instant) -> Self {
        Self { every: (!every.is_zero()).then_some(every), due: now + every }
    }

    /// Whether it is time.
    pub fn is_due(&self, now: Instant) -> bool {
        self.every.is_some() && now >= self.due
    }

    /// It was kept: that took `cost` and ended `now`.
    pub fn kept(&mut self, cost: Duration, now: Instant) {
        self.due = now + self.every.unwrap_or_default().max(SHARE * cost);
    }

    /// No more: it cannot be kept.
    pub fn stop(&mut self) {
        self.every = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeping_takes_a_small_share_of_the_time() {
        let start = Instant::now();
        let after = |seconds: f32| start + Duration::from_secs_f32(seconds);
        let mut pace = KeepPace::new(KEEP_EVERY, start);
        assert!(!pace.is_due(after(9.0)) && pace.is_due(after(10.0)));
        pace.kept(Duration::from_millis(100), after(10.0));
        assert!(!pace.is_due(after(19.0)) && pace.is_due(after(20.0)));
        pace.kept(Duration::from_secs(2), after(22.0));
        assert!(!pace.is_due(after(85.0)) && pace.is_due(after(86.0)));
        pace.stop();
        assert!(!pace.is_due(after(1000.0)));
        assert!(!KeepPace::new(Duration::ZERO, start).is_due(after(1000.0)));
    }
}
