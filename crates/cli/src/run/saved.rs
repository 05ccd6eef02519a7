//! Sessions in files: `--save-session` and `--session`.
//!
//! The note of a file is a JSON object; its `document` is the text that was read, so that a
//! question can be put behind it as if it stood there. A file is written under another name and
//! renamed when it is complete, so there is never half a session under the name that was asked for.

use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use longview_core::FileSource;
use longview_engine::{Engine, Session};
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, SessionFile};
use pollster::block_on;
use serde::{Deserialize, Serialize};

use super::args::RunArgs;
use super::prompt::PromptText;
use super::talk::Talk;
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::out::note;
use crate::units;

/// What this program notes in a session.
#[derive(Default, Deserialize, Serialize)]
pub struct Note {
    /// The text that was read; others may keep it elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub document: Option<String>,
    /// What was said about it, where a chat was saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conversation: Option<Talk>,
}

/// A session file of which the header is read.
pub struct SavedSession {
    path: PathBuf,
    source: FileSource,
    policy: PolicyOptions,
}

impl SavedSession {
    /// Reads what the session was made with.
    pub fn open(path: &Path) -> Result<Self> {
        let shown = path.display();
        let source =
            FileSource::open(path).map_err(|error| anyhow!("{shown}: cannot be read ({error})"))?;
        let file = SessionFile::open(&source).map_err(|error| anyhow!("{shown}: {error}"))?;
        let policy = file.header().policy_options();
        let policy = policy.with_context(|| format!("{shown}: was saved by another release"))?;
        Ok(Self { path: path.to_owned(), source, policy })
    }

    /// The policy that it was saved under.
    pub fn policy(&self) -> &PolicyOptions {
        &self.policy
    }

    /// The session, and its document with what is asked about it. `given` are `-f` and `-p`.
    pub fn restore<B: Backend>(
        &self,
        args: &RunArgs,
        engine: &mut Engine<B>,
        policy: Option<&PolicyOptions>,
        given: Option<PromptText>,
    ) -> Result<(Session<B>, PromptText)> {
        let (shown, start) = (self.path.display(), Instant::now());
        let restored = block_on(engine.restore(&self.source, policy));
        let restored = restored.map_err(|error| anyhow!("{shown}: {error}"))?;
        if args.stats {
            note(format_args!(
                "session  {} tokens opened in {:.2} s",
                units::count(restored.session.n_tokens()),
                start.elapsed().as_secs_f64()
            ));
        }
        let Note { document, conversation } =
            serde_json::from_slice(&restored.note).unwrap_or_default();
        let given = given.map(|text| text.document().to_owned()).filter(|text| !text.is_empty());
        let is_chat = conversation.is_some();
        let mut talk = conversation.unwrap_or_default();
        if args.system.is_some() {
            talk.system = args.system.clone();
        }
        let document = match given.or(document) {
            Some(document) => document,
            None if is_chat => String::new(),
            None => bail!("{shown}: the session holds no text of its document; give it with -f"),
        };
        let text = PromptText::new(document, args.prompt.clone().unwrap_or_default(), talk);
        Ok((restored.session, text))
    }
}

/// Writes the session to `path`, all of it or nothing. `asked_by` is what the user called it with,
/// for messages.
pub fn write<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    path: &Path,
    content: &Note,
    asked_by: &str,
    interrupt: &Interrupt,
) -> Result<()> {
    let start = Instant::now();
    let bytes = serde_json::to_vec(content)?;
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(name);
    let (unfinished, shown) = (part.clone(), path.display().to_string());
    let guard = interrupt.end_with(move || {
        remove(&unfinished);
        note(Interrupted(format!("{shown} was not written")));
    });
    let written = write_part(engine, session, &part, &bytes)
        .and_then(|n_bytes| fs::rename(&part, path).map(|()| n_bytes).map_err(Into::into));
    drop(guard);
    let n_bytes = written.map_err(|error| {
        remove(&part);
        anyhow!("{asked_by} {}: {error}", path.display())
    })?;
    note(format_args!(
        "session  {} tokens, {} written to {} in {:.2} s",
        units::count(session.n_tokens()),
        units::bytes(n_bytes),
        path.display(),
        start.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Removes a file, if it is there.
fn remove(path: &Path) {
    let _ = fs::remove_file(path);
}

/// Writes a file that nobody has, down to the disk.
fn write_part<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    part: &Path,
    bytes: &[u8],
) -> Result<u64> {
    let mut file: File = OpenOptions::new().write(true).create_new(true).open(part)?;
    block_on(engine.save(session, bytes, &mut file))?;
    file.sync_all()?;
    Ok(file.metadata()?.len())
}
