//! `longview kv build`: a model reads files, and what it read is kept.
//!
//! Whatever begins with the same tokens is read once: a build goes on from the session with most of
//! them, be it of the same document or of another one. Ctrl-C keeps what was read.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use clap::Args;
use longview_core::FileSource;
use longview_engine::{Engine, EngineOptions, Session};
use longview_library::documents::{
    Building, Document, Documents, Facts, NewDocument, Reading, Saved, SessionEntry, SessionKey,
};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::PolicyOptions;
use pollster::block_on;

use super::{place, sources};
use crate::args::{EngineArgs, PolicyArgs, RopeArgs};
use crate::context::{self, Chooser, Content, Limit};
use crate::device::with_device;
use crate::failure::Interrupted;
use crate::interrupt::Interrupt;
use crate::load::{self, ModelArgs};
use crate::out::{self, note};
use crate::progress::PrefillBar;
use crate::{run, template, units};

/// Options of `longview kv build`.
#[derive(Args)]
#[command(
    mut_arg("model", |arg| arg.required_unless_present_any(["files", "from"])),
    after_help = "\
Several files become one document, in this order. Whatever a session of the library begins with is \
not read again: with one more file at the end only that is read. Ctrl-C keeps what was read; the \
same command goes on. Without -m: the model that was used last."
)]
pub struct BuildArgs {
    /// Files to read; - is stdin.
    #[arg(value_name = "FILE", required_unless_present = "from")]
    files: Vec<PathBuf>,

    /// Read the kept text of a document, for example with another model [default: none].
    #[arg(long, value_name = "NAME", conflicts_with = "files")]
    from: Option<String>,

    /// What to call the document [default: as the first file].
    #[arg(long, value_name = "NAME")]
    name: Option<String>,

    /// Keep it however full the library is [default: off].
    #[arg(long)]
    pin: bool,

    #[command(flatten)]
    model: ModelArgs,

    /// Read the plain text even if the model has a chat template [default: off].
    #[arg(long)]
    no_chat_template: bool,

    #[command(flatten)]
    policy: PolicyArgs,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    rope: RopeArgs,
}

/// Reads and keeps.
pub fn build(library: Option<&Path>, args: &BuildArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let documents = place::open(library)?;
    let model = model(&documents, args)?;
    let (document, text, replaced) = document(&documents, args)?;
    let folder = model.open(&interrupt)?;
    folder.tokenizer()?;
    let is_chat = folder.chat.is_some() && !args.no_chat_template;
    if let Some(chat) = folder.chat.as_ref().filter(|_| is_chat) {
        template::check(chat)?;
    }
    let limit = Limit::new(&folder.config, &args.rope);
    let most = if model.ctx_size == 0 { limit.tokens() } else { model.ctx_size };
    let ids = run::document_tokens(&folder, is_chat, &text, most).map_err(|error| {
        if model.ctx_size == 0 { limit.explained("document", error) } else { error }
    })?;
    let policy = args.policy.options()?;
    let work = Work {
        documents: &documents,
        document: &document,
        model: place::model_words(&model),
        text: &text,
        ids: &ids,
        policy: &policy,
        reading: if is_chat { Reading::Chat } else { Reading::Plain },
        interrupt: &interrupt,
    };
    let done = work.run(args, &model, folder, &limit)?;
    if let Some(old) = replaced.filter(|_| done.interrupted.is_none()) {
        documents.succeed(old.id, document.id)?;
        note(format_args!("{}: is the longer document now", old.name));
    }
    if args.pin {
        documents.set_pinned(document.id, true)?;
    }
    if let Some(interrupted) = done.interrupted {
        return Err(interrupted.into());
    }
    let name = documents.get(document.id)?.map_or(document.name, |document| document.name);
    out::bytes(format!("{name}  {}\n", document.id.short()).as_bytes())
}

/// The model that was named, or the one that was used last.
fn model(documents: &Documents, args: &BuildArgs) -> Result<ModelArgs> {
    let given = args.model.clone();
    if !given.is_absent() {
        return Ok(given);
    }
    let list = documents.list()?;
    let Some(session) = list.iter().find_map(Document::latest) else {
        bail!("no document was read yet, so no model is known: give one with -m MODEL");
    };
    note(format_args!("model: {}, which was used last", session.model));
    Ok(given.or(Path::new(&session.model)))
}

/// The document with its text, and the one of which it is a longer version under the same name.
fn document(
    documents: &Documents,
    args: &BuildArgs,
) -> Result<(Document, String, Option<Document>)> {
    if let Some(from) = &args.from {
        let document = documents.find(from)?;
        let text = documents.text(document.id)?;
        if let Some(name) = &args.name {
            documents.rename(document.id, name)?;
        }
        return Ok((document, text, None));
    }
    let (text, sources) = sources::read(&args.files)?;
    let named = args
        .name
        .as_deref()
        .and_then(|name| documents.list().ok()?.into_iter().find(|d| d.name == name));
    let shorter = named.filter(|old| {
        let begins = documents.text(old.id).is_ok_and(|old| text.starts_with(&*old));
        begins && old.text_bytes < text.len() as u64
    });
    let name = args.name.as_deref().filter(|_| shorter.is_none());
    let document = documents.add(NewDocument { text: &text, name, sources })?;
    Ok((document, text, shorter))
}

/// What is to be read, and with what.
struct Work<'a> {
    documents: &'a Documents,
    document: &'a Document,
    model: String,
    text: &'a str,
    ids: &'a [u32],
    policy: &'a PolicyOptions,
    reading: Reading,
    interrupt: &'a Interrupt,
}

struct Done {
    interrupted: Option<Interrupted>,
}

impl Work<'_> {
    fn run(
        &self,
        args: &BuildArgs,
        model: &ModelArgs,
        folder: ModelFolder,
        limit: &Limit,
    ) -> Result<Done> {
        let options = EngineOptions {
            rope: args.rope.scaling(&folder.config),
            ..args.engine.options(model.ctx_size.max(1))
        };
        let tokens = self.ids.len();
        let content = Content::Text { name: "document", tokens, answer: None, is_chat: true };
        with_device!(args.engine.device()?, backend => {
            let chooser = Chooser {
                backend: &*backend,
                folder: &folder,
                options: &options,
                policy: self.policy,
                memory: context::memory(&args.engine, &*backend),
            };
            let ctx_size = match model.ctx_size {
                0 => chooser.choose(limit, content)?,
                given => chooser.check(given, content)?,
            };
            let options = EngineOptions { ctx_size, ..options };
            let (mut engine, _) = load::engine(backend, folder, options, self.policy)?;
            self.read(&mut engine)
        })
    }

    fn read<B: Backend>(&self, engine: &mut Engine<B>) -> Result<Done> {
        let key = SessionKey {
            fingerprint: place::fingerprint_id(engine.fingerprint()?),
            kv_type: engine.options().kv_dtype.to_string(),
            reading: self.reading,
            policy: self.policy.text(),
        };
        let building = self.documents.begin(self.document.id, &key)?;
        if let Some(before) = building.before().filter(|before| before.is_complete())
            && before.n_tokens == self.ids.len()
            && self.documents.session_path(before).exists()
        {
            self.documents.touch(self.document.id, Some(before.file))?;
            note(format_args!("{}: was read before, nothing is to do", self.document.name));
            return Ok(Done { interrupted: None });
        }
        let host = engine.kv_plan(self.policy)?.host_kv_bytes;
        let share = self.ids.len() as f64 / engine.options().ctx_size.max(1) as f64;
        self.documents.check_room(self.document, (host as f64 * share) as u64)?;
        let mut session = self.begin(engine, &building, &key)?;
        let interrupted = self.prefill(engine, &mut session)?;
        self.save(engine, &mut session, &building)?;
        Ok(Done { interrupted })
    }

    /// A session with as many of the tokens as the library has.
    fn begin<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        building: &Building<'_>,
        key: &SessionKey,
    ) -> Result<Session<B>> {
        let nearest = self.documents.nearest(key, self.ids, engine.options().ctx_size)?;
        let near = nearest.as_ref().map(|near| (&near.session, &*near.document.name));
        let before = building.before().map(|session| (session, &*self.document.name));
        // The same document first, where both have as much: its hashes end with a whole block.
        let has_most = |(session, _): &(&SessionEntry, &str)| {
            let other = nearest.as_ref().map_or(0, |near| near.n_common);
            session.n_tokens >= other
        };
        for (session, name) in before.filter(has_most).into_iter().chain(near) {
            match self.restore(engine, session) {
                Ok((session, known)) if known > 0 => {
                    note(format_args!(
                        "{} of {} tokens are known from {name}",
                        units::count(known),
                        units::count(self.ids.len())
                    ));
                    return Ok(session);
                }
                Ok(_) => {}
                Err(error) => note(format_args!("{name}: is not gone on from: {error}")),
            }
        }
        Ok(engine.session(self.policy)?)
    }

    /// A session that was saved, cut to what it has in common with the document.
    fn restore<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        session: &SessionEntry,
    ) -> Result<(Session<B>, usize)> {
        let source = FileSource::open(&self.documents.session_path(session))?;
        let mut session = block_on(engine.restore(&source, Some(self.policy)))?.session;
        let common = run::common_prefix(session.tokens(), self.ids);
        // Its last token is computed anew: a session ends with what the model says behind it.
        let known = common.min(self.ids.len() - 1);
        if known < session.n_tokens() {
            block_on(session.truncate(known))?;
        }
        Ok((session, known))
    }

    /// Reads the rest. After Ctrl-C what was read is worth keeping, and the words for it come back.
    fn prefill<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
    ) -> Result<Option<Interrupted>> {
        let rest = &self.ids[session.n_tokens()..];
        let guard = self.interrupt.cancel_with(session.cancel_token());
        let mut bar = PrefillBar::new(rest.len());
        let mut update = |progress| bar.update(progress, &guard);
        if block_on(engine.prefill(session, rest, &mut update))? {
            return Ok(None);
        }
        let (name, total) = (&self.document.name, units::count(self.ids.len()));
        if session.n_tokens() == 0 {
            let text = format!("0 of {total} tokens were read; {name} has its text alone");
            return Err(Interrupted(text).into());
        }
        Ok(Some(Interrupted(format!(
            "{} of {total} tokens were read and are kept; this goes on:\n  {}",
            units::count(session.n_tokens()),
            command_line()
        ))))
    }

    fn save<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        building: &Building<'_>,
    ) -> Result<Saved> {
        let start = Instant::now();
        let said = self.document.name.clone();
        let guard = self.interrupt.end_with(move || {
            note(Interrupted(format!("{said}: what was read is not kept")));
        });
        let mut writer = building.writer()?;
        let note_bytes = run::note_of(self.text)?;
        if let Err(error) = block_on(engine.save(session, &note_bytes, &mut writer)) {
            return Err(writer.space_error().map_or_else(|| error.into(), Into::into));
        }
        writer.flush()?;
        let about = engine.fingerprint()?.config.about.clone();
        let facts = Facts {
            tokens: session.tokens(),
            n_document: self.ids.len(),
            context: engine.options().ctx_size,
            model: &self.model,
            about: &about,
            preset: session.policy().preset.name(),
        };
        let saved = building.commit(writer, &facts)?;
        drop(guard);
        note(format_args!(
            "{}: {} tokens, {} kept in {:.2} s",
            self.document.name,
            units::count(saved.session.n_tokens),
            units::bytes(saved.session.bytes),
            start.elapsed().as_secs_f64()
        ));
        for evicted in &saved.evicted {
            let freed = units::bytes(evicted.bytes);
            note(format_args!("{}: a session went for it, {freed}; its text stays", evicted.name));
        }
        if saved.over_quota_bytes > 0 {
            let over = units::bytes(saved.over_quota_bytes);
            note(format_args!(
                "warning: the library is {over} over its quota, by pinned documents"
            ));
        }
        Ok(saved)
    }
}

/// The words of this process, for a shell.
fn command_line() -> String {
    let is_plain = |word: &str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@+".contains(c);
        !word.is_empty() && word.chars().all(plain)
    };
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let quoted = words.enumerate().map(|(i, word)| match word {
        _ if i == 0 => "longview".to_owned(),
        word if is_plain(&word) => word,
        word => format!("'{}'", word.replace('\'', "'\\''")),
    });
    quoted.collect::<Vec<_>>().join(" ")
}
