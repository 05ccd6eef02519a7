//! `longview kv build`: a model reads files, and what it read is kept.
//!
//! Whatever begins with the same tokens is read once: a build goes on from the session with most of
//! them, be it of the same document or of another one. Ctrl-C keeps what was read, and from time to
//! time what was read so far is kept as well, for a program that is killed.

use std::cell::OnceCell;
use std::cmp::Reverse;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::Resettable;
use longview_core::FileSource;
use longview_engine::{Engine, EngineOptions, Progress, Session};
use longview_library::documents::{
    Building, Chain, Document, Documents, NewDocument, Reading, Saved, SessionEntry, SessionKey,
    Source,
};
use longview_library::shared::Share;
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::PolicyOptions;
use longview_startup::keeper::{KeepPace, Keeper, Text, session_key};
use pollster::block_on;

use super::{place, shared, sources};
use crate::args::numbers::number;
use crate::args::{EngineArgs, PolicyArgs, RopeArgs};
use crate::context::{self, Chooser, Content, Limit};
use crate::device::with_device;
use crate::failure::{Interrupted, command_line};
use crate::interrupt::Interrupt;
use crate::load::{self, ModelArgs};
use crate::out::{self, note};
use crate::progress::PrefillBar;
use crate::share::ShareArgs;
use crate::{run, template, units};

/// Options of `longview kv build`.
#[derive(Args)]
#[command(
    // Where a model has read before, that one reads again.
    mut_arg("model", |arg| arg.required_unless_present(Resettable::Reset)),
    after_help = "\
Several files become one document, in this order. Whatever a session of the library begins with is \
not read again: with one more file at the end only that is read. Ctrl-C keeps what was read, and a \
program that is killed loses little; the same command goes on. Without -m: the model that was used last."
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

    /// Seconds of reading between two times that what was read so far is kept; longer where that
    /// would take more than 3 % of the time; 0: at the end alone.
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "10",
        value_parser = number("from 0 to 86,400", |s| (0.0..=86_400.0).contains(&s))
    )]
    keep_every: f32,

    #[command(flatten)]
    share: ShareArgs,

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
    let (documents, share) = (place::open(library)?, args.share.open()?);
    let model = model(&documents, args)?;
    let (text, origin) = text(&documents, args)?;
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
        share: share.as_ref(),
        document: OnceCell::new(),
        model: place::model_words(&model),
        text: &text,
        ids: &ids,
        policy: &policy,
        reading: if is_chat { Reading::Chat } else { Reading::Plain },
        interrupt: &interrupt,
        keep_every: args.keep_every,
    };
    let mut replaced = None;
    let keep = || {
        let (document, shorter) = document(&documents, args, &text, origin)?;
        replaced = shorter;
        Ok(document)
    };
    let done = work.run(args, &model, folder, &limit, keep)?;
    let document = work.document();
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
    let kept = documents.get(document.id)?;
    let name = &kept.as_ref().unwrap_or(document).name;
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

/// Where a text comes from: files, or a document that is kept.
enum Origin {
    Files(Vec<Source>),
    Kept(Document),
}

fn text(documents: &Documents, args: &BuildArgs) -> Result<(String, Origin)> {
    let Some(from) = &args.from else {
        let (text, sources) = sources::read("kv build", &args.files)?;
        return Ok((text, Origin::Files(sources)));
    };
    let document = documents.find(from)?;
    Ok((documents.text(document.id)?, Origin::Kept(document)))
}

/// The document of a text, and the one of which it is a longer version under the same name.
fn document(
    documents: &Documents,
    args: &BuildArgs,
    text: &str,
    origin: Origin,
) -> Result<(Document, Option<Document>)> {
    let sources = match origin {
        Origin::Files(sources) => sources,
        Origin::Kept(document) => {
            if let Some(name) = &args.name {
                documents.rename(document.id, name)?;
            }
            return Ok((document, None));
        }
    };
    let named = args
        .name
        .as_deref()
        .and_then(|name| documents.list().ok()?.into_iter().find(|d| d.name == name));
    let shorter = named.filter(|old| {
        let begins = documents.text(old.id).is_ok_and(|old| text.starts_with(&*old));
        begins && old.text_bytes < text.len() as u64
    });
    let name = args.name.as_deref().filter(|_| shorter.is_none());
    let document = documents.add(NewDocument { text, name, sources })?;
    Ok((document, shorter))
}

/// What is to be read, and with what.
struct Work<'a> {
    documents: &'a Documents,
    share: Option<&'a Share>,
    /// Known once it is known that it can be read.
    document: OnceCell<Document>,
    model: String,
    text: &'a str,
    ids: &'a [u32],
    policy: &'a PolicyOptions,
    reading: Reading,
    interrupt: &'a Interrupt,
    keep_every: f32,
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
        keep: impl FnOnce() -> Result<Document>,
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
                0 => {
                    let chosen = chooser.choose(limit, content)?;
                    let holds = |n: usize| n <= limit.tokens() && chooser.holds(n);
                    self.context_to_go_on(&options, chosen, &holds)?
                }
                given => chooser.check(given, content)?,
            };
            let options = EngineOptions { ctx_size, ..options };
            // Not before: a text that cannot be read would be in the way of others of its name.
            let _ = self.document.set(keep()?);
            let (mut engine, _) = load::engine(backend, folder, options, self.policy)?;
            self.read(&mut engine)
        })
    }

    fn document(&self) -> &Document {
        self.document.get().expect("kept before it is read")
    }

    /// `chosen`, or so much more that a longer session which begins with more of the tokens than
    /// any other can be opened, if memory `holds` it: it is cut to what is wanted afterwards.
    fn context_to_go_on(
        &self,
        options: &EngineOptions,
        chosen: usize,
        holds: &dyn Fn(usize) -> bool,
    ) -> Result<usize> {
        let (wanted, kv_type) = (Chain::of(self.ids), options.kv_dtype.to_string());
        let list = self.documents.list()?;
        let sessions = list
            .iter()
            .flat_map(|document| document.sessions.iter().map(|session| (session, &document.name)));
        let ours = sessions.filter(|(s, _)| s.model == self.model && s.key.kv_type == kv_type);
        // Of those with as much in common the shortest.
        let nearest = ours
            .map(|(session, name)| (session.chain.common(&wanted), session, name))
            .filter(|(common, ..)| *common > 0)
            .max_by_key(|(common, session, _)| (*common, Reverse(session.n_tokens)));
        let Some((_, session, name)) = nearest else { return Ok(chosen) };
        let needed = session.n_tokens.next_multiple_of(1024);
        if session.n_tokens <= chosen || !holds(needed) {
            return Ok(chosen);
        }
        note(format_args!("context: {} tokens, as {name} needs", units::count(needed)));
        Ok(needed)
    }

    fn read<B: Backend>(&self, engine: &mut Engine<B>) -> Result<Done> {
        let key = session_key(engine, self.reading, self.policy.text())?;
        self.fetch(engine, &key)?;
        let building = self.documents.begin(self.document().id, &key)?;
        if let Some(before) = building.before().filter(|before| before.is_complete())
            && before.n_tokens == self.ids.len()
            && self.documents.session_path(before).exists()
            && !place::lacks_index(self.documents, before)
        {
            self.documents.touch(self.document().id, Some(before.file))?;
            note(format_args!("{}: was read before, nothing is to do", self.document().name));
            self.send(before);
            return Ok(Done { interrupted: None });
        }
        let host = engine.kv_plan(self.policy)?.host_kv_bytes;
        let share = self.ids.len() as f64 / engine.options().ctx_size.max(1) as f64;
        self.documents.check_room(self.document(), (host as f64 * share) as u64)?;
        let mut session = self.begin(engine, &building, &key)?;
        let (text, n_tokens, model) = (self.text, self.ids.len(), &*self.model);
        let text = Text { text, n_tokens, model };
        let mut keeper = Keeper::new(self.documents, building, text);
        let interrupted = self.prefill(engine, &mut session, &mut keeper)?;
        let saved = self.save(engine, &mut session, &mut keeper, interrupted.is_some())?;
        if interrupted.is_none() {
            self.send(&saved);
        }
        Ok(Done { interrupted })
    }

    /// Fetches what another machine has read of the document, where that is more than what is here.
    fn fetch<B: Backend>(&self, engine: &Engine<B>, key: &SessionKey) -> Result<()> {
        let Some(share) = self.share else { return Ok(()) };
        let context = engine.options().ctx_size;
        let nearest = self.documents.nearest(key, self.ids, context)?;
        let n_here = nearest.map_or(0, |nearest| nearest.n_common);
        let about = &engine.fingerprint()?.config.about;
        let wanted = (key, self.ids, context);
        shared::fetch_nearest(self.documents, share, wanted, n_here, (&*self.model, about));
        Ok(())
    }

    fn send(&self, session: &SessionEntry) {
        if let Some(share) = self.share {
            shared::send(self.documents, share, self.document(), session);
        }
    }

    /// Keeps all that was read, with its index; without it after Ctrl-C, which does not wait for
    /// that.
    fn save<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        keeper: &mut Keeper<'_>,
        is_unfinished: bool,
    ) -> Result<SessionEntry> {
        let start = Instant::now();
        let name = &self.document().name;
        let fate = match keeper.n_kept() {
            0 => "what was read is not kept".to_owned(),
            n => format!("its first {} tokens are kept", units::count(n)),
        };
        let said = format!("{name}: {fate}");
        let guard = self.interrupt.end_with(move || note(Interrupted(said.clone())));
        let saved = if is_unfinished {
            keeper.keep_part(engine, session)?
        } else {
            keeper.keep(engine, session)?
        };
        drop(guard);
        note(format_args!(
            "{name}: {} tokens, {} kept in {:.2} s",
            units::count(saved.session.n_tokens),
            units::bytes(saved.session.bytes),
            start.elapsed().as_secs_f64()
        ));
        tell_evicted(&saved);
        if saved.over_quota_bytes > 0 {
            let over = units::bytes(saved.over_quota_bytes);
            note(format_args!(
                "warning: the library is {over} over its quota, by pinned documents"
            ));
        }
        Ok(saved.session)
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
        let before = building.before().map(|session| (session, &*self.document().name));
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
            block_on(session.cut(known))?;
        }
        Ok((session, known))
    }

    /// Reads the rest. After Ctrl-C what was read is worth keeping, and the words for it come back.
    fn prefill<B: Backend>(
        &self,
        engine: &mut Engine<B>,
        session: &mut Session<B>,
        keeper: &mut Keeper<'_>,
    ) -> Result<Option<Interrupted>> {
        let (first, start) = (session.n_tokens(), Instant::now());
        let guard = self.interrupt.cancel_with(session.cancel_token());
        let total = self.ids.len() - first;
        let mut bar = PrefillBar::new(total);
        let mut pace = KeepPace::new(Duration::from_secs_f32(self.keep_every), start);
        loop {
            let at = session.n_tokens();
            let mut update = |part: Progress| {
                let done = at - first + part.done;
                let all = Progress { done, total, before: 0, elapsed: start.elapsed() };
                let flow = bar.update(all, &guard);
                if pace.is_due(Instant::now()) { ControlFlow::Break(()) } else { flow }
            };
            if block_on(engine.prefill_part(session, &self.ids[at..], &mut update))? {
                return Ok(None);
            }
            if guard.is_raised() {
                break;
            }
            let begin = Instant::now();
            match keeper.keep_part(engine, session) {
                Ok(saved) => tell_evicted(&saved),
                Err(error) => {
                    note(format_args!(
                        "warning: what is read is kept at the end alone, for now it cannot be: \
                         {error}"
                    ));
                    pace.stop();
                }
            }
            pace.kept(begin.elapsed(), Instant::now());
        }
        let (name, total) = (&self.document().name, units::count(self.ids.len()));
        let command = command_line(None, &[]);
        if session.n_tokens() == self.ids.len() {
            return Ok(Some(Interrupted(format!(
                "all {total} tokens were read and are kept; their index is not complete, and this \
                 makes it:\n  {command}"
            ))));
        }
        if session.n_tokens() == 0 {
            let text = format!("0 of {total} tokens were read; {name} has its text alone");
            return Err(Interrupted(text).into());
        }
        Ok(Some(Interrupted(format!(
            "{} of {total} tokens were read and are kept; this goes on:\n  {command}",
            units::count(session.n_tokens()),
        ))))
    }
}

fn tell_evicted(saved: &Saved) {
    for evicted in &saved.evicted {
        let freed = units::bytes(evicted.bytes);
        note(format_args!("{}: a session went for it, {freed}; its text stays", evicted.name));
    }
}
