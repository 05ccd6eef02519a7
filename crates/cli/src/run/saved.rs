//! Sessions in files: `--save-session` and `--session`.
//!
//! The note of a file is a JSON object; its `document` is the text that was read, so that a
//! question can be put behind it as if it stood there.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, anyhow, bail};
use longview_core::{DType, FileSource};
use longview_engine::{CancelToken, Engine, EngineError, Session};
use longview_library::free_bytes;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset, SessionFile};
use pollster::block_on;
use serde::{Deserialize, Serialize};

use super::args::RunArgs;
use super::prompt::{self, PromptText};
use super::talk::Talk;
use crate::failure::{Interrupted, command_line};
use crate::files::{FileKind, Output, OutputFile, input, model_files};
use crate::interrupt::Interrupt;
use crate::out::note;
use crate::progress::PrefillBar;
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
    n_tokens: usize,
    context: usize,
    kv_type: DType,
    lacks_index: bool,
}

impl SavedSession {
    /// Reads what the session was made with; `asked_by` names the option or command that asks.
    pub fn open(asked_by: &str, path: &Path) -> Result<Self> {
        let shown = path.display();
        input::check(asked_by, path, "give the file that --save-session wrote")?;
        let source =
            FileSource::open(path).map_err(|error| anyhow!("{shown}: cannot be read ({error})"))?;
        let file = SessionFile::open(&source).map_err(|error| anyhow!("{shown}: {error}"))?;
        let header = file.header();
        if file.n_torn_bytes() > 0 {
            note(format_args!(
                "{shown}: the last save to it did not end; it has the {} tokens of the one before",
                units::count(header.n_tokens)
            ));
        }
        let (n_tokens, context, kv_type) = (header.n_tokens, header.context, header.kv_type());
        let policy = header.policy_options();
        let policy = policy.with_context(|| format!("{shown}: was saved by another release"))?;
        let lacks_index = file.lacks_index();
        Ok(Self { path: path.to_owned(), source, policy, n_tokens, context, kv_type, lacks_index })
    }

    /// Its tokens.
    pub fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// The context that it was saved with.
    pub fn context(&self) -> usize {
        self.context
    }

    /// How its keys and values were stored.
    pub fn kv_type(&self) -> DType {
        self.kv_type
    }

    /// The policy that it was saved under.
    pub fn policy(&self) -> &PolicyOptions {
        &self.policy
    }

    /// Says that opening takes longer than it need, if the file has no index. `keep` is how it gets
    /// one.
    pub fn tell_lack(&self, keep: &str) {
        if self.lacks_index {
            let shown = self.path.display();
            note(format_args!("{shown}: its index is not complete; it is made now, and {keep}"));
        }
    }

    /// The session, and its document with what is asked about it. `given` are `-f` and `-p`;
    /// `cancel` ends it.
    ///
    /// # Errors
    /// [`EngineError::Cancelled`]; what is wrong with the file.
    pub fn restore<B: Backend>(
        &self,
        args: &RunArgs,
        engine: &mut Engine<B>,
        policy: Option<&PolicyOptions>,
        given: Option<PromptText>,
        cancel: &CancelToken,
    ) -> Result<(Session<B>, PromptText)> {
        let (shown, start) = (self.path.display(), Instant::now());
        let restored = block_on(engine.restore_until(&self.source, policy, cancel));
        let restored = restored.map_err(|error| match error {
            EngineError::Cancelled => error.into(),
            error => anyhow!("{shown}: {error}"),
        })?;
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

/// The file of `--save-session`, checked and begun.
pub fn prepare(args: &RunArgs, path: &Path) -> Result<OutputFile> {
    prepare_as("--save-session", args, path, args.force)
}

/// The file that `asked_by` names, checked and begun. `force`: an older session is replaced
/// without a question.
pub fn prepare_as(
    asked_by: &'static str,
    args: &RunArgs,
    path: &Path,
    force: bool,
) -> Result<OutputFile> {
    let mut inputs: Vec<(String, PathBuf)> = Vec::new();
    inputs.extend(args.file.iter().map(|path| ("the document of -f".to_owned(), path.clone())));
    inputs.extend(args.policy.file().map(|path| ("the --policy-file".to_owned(), path.to_owned())));
    inputs.extend(args.model.place().iter().flat_map(|place| model_files(place)));
    Output { option: asked_by, path, kind: FileKind::Session, force, inputs: &inputs }.prepare()
}

/// Computes what the session lacks of a document that is to be saved in `file`. After Ctrl-C what
/// was read is worth saving too, without an index, and the words for it come back; a second Ctrl-C
/// ends the program.
///
/// # Errors
/// [`Interrupted`] if nothing was read yet; a session of another document.
pub fn read<B: Backend>(
    args: &RunArgs,
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    ids: &[u32],
    (interrupt, file): (&Interrupt, &OutputFile),
) -> Result<Option<Interrupted>> {
    let known = prompt::known(session, ids, false)?;
    if known < session.n_tokens() {
        block_on(session.cut(known))?;
    }
    let rest = &ids[known..];
    check_room(engine, rest.len(), file.name())?;
    let guard = interrupt.cancel_with(session.cancel_token());
    let mut bar = PrefillBar::new(rest.len());
    let mut update = |progress| bar.update(progress, &guard);
    if block_on(engine.prefill_part(session, rest, &mut update))? {
        return Ok(None);
    }
    let (name, total) = (file.name().display(), units::count(ids.len()));
    let command = go_on(args, file.name());
    let n_read = match session.n_tokens() {
        0 => {
            let text = format!("0 of {total} document tokens were read; {name} was not written");
            return Err(Interrupted(text).into());
        }
        n if n == ids.len() => {
            return Ok(Some(Interrupted(format!(
                "all {total} document tokens were read and are kept; their index is not complete, \
                 and --session {name} makes it:\n  {command}"
            ))));
        }
        n => units::count(n),
    };
    Ok(Some(Interrupted(format!(
        "{n_read} of {total} document tokens were read and are kept; --session {name} goes on with \
         the rest:\n  {command}"
    ))))
}

/// Fails where there is no room for the rows of `n_tokens` tokens beside `file`: what was read is
/// lost if it cannot be written.
fn check_room<B: Backend>(engine: &Engine<B>, n_tokens: usize, file: &Path) -> Result<()> {
    // A token has the same rows under every policy.
    let rows = engine.kv_plan(&PolicyOptions::new(Preset::Full))?.host_kv_bytes as f64;
    let needed = (rows * n_tokens as f64 / engine.options().ctx_size.max(1) as f64) as u64;
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
    let free = free_bytes(folder.unwrap_or(Path::new(".")));
    if let Some(free) = free.filter(|free| *free < needed) {
        bail!(
            "--save-session {}: no room: {} are needed and {} are free; free some, or name a file \
             on another disk",
            file.display(),
            units::bytes(needed),
            units::bytes(free),
        );
    }
    Ok(())
}

/// The command that goes on with a document of which a part was saved as `name`: this one, from
/// that session.
fn go_on(args: &RunArgs, name: &Path) -> String {
    let mut more = vec!["--session".to_owned(), name.display().to_string()];
    if !args.force {
        more.push("--force".to_owned());
    }
    command_line(Some("--session"), &more)
}

/// Writes the session, all of it or nothing: to the file that it came from what that lacks, where
/// it has most of it; else a new file, in the place of one that is there.
pub fn write<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    came_from: Option<&Path>,
    file: OutputFile,
    content: &Note,
    (interrupt, is_unfinished): (&Interrupt, bool),
) -> Result<()> {
    let start = Instant::now();
    let bytes = serde_json::to_vec(content)?;
    let shown = file.name().display().to_string();
    let said = shown.clone();
    let guard = interrupt.end_with(move || note(Interrupted(format!("{said} was not written"))));
    let before = came_from.and_then(|path| file.before(path));
    let appended = match before {
        Some(before) => append(engine, session, (before, &file), &bytes, is_unfinished)?,
        None => None,
    };
    let n_bytes = match appended {
        Some(n_bytes) => n_bytes,
        None if is_unfinished => file.write(|out| {
            block_on(engine.save_unfinished(session, &bytes, None, out))?;
            Ok(())
        })?,
        None => file.write(|out| Ok(block_on(engine.save(session, &bytes, out))?))?,
    };
    drop(guard);
    let how = if appended.is_some() { "added" } else { "written" };
    note(format_args!(
        "session  {} tokens, {} {how} to {shown} in {:.2} s",
        units::count(session.n_tokens()),
        units::bytes(n_bytes),
        start.elapsed().as_secs_f64()
    ));
    Ok(())
}

/// Adds to the session that is there what it lacks, and says how many bytes that took; `None` where
/// it has to be written as a whole.
fn append<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    (before, file): (&Path, &OutputFile),
    content: &[u8],
    is_unfinished: bool,
) -> Result<Option<u64>> {
    // What cannot be opened is replaced: that was asked before.
    let Ok(source) = FileSource::open(before) else { return Ok(None) };
    let Ok(before) = SessionFile::open(&source) else { return Ok(None) };
    let Some(at) = before.append_at() else { return Ok(None) };
    let end = file.append(at, |out| {
        Ok(if is_unfinished {
            block_on(engine.save_unfinished(session, content, Some(&before), out))?
        } else {
            block_on(engine.append(session, content, &before, out))?
        })
    })?;
    Ok(end.map(|end| end - at))
}
