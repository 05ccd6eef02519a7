//! `longview kv open`: a question about a document that was read, or a chat.

use std::cmp::Reverse;
use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::Resettable;
use longview_library::documents::{Document, Documents, Reading, SessionEntry};

use super::{place, shared};
use crate::out::note;
use crate::run::{self, AskArgs};
use crate::share::ShareArgs;
use crate::units;

/// Options of `longview kv open`.
#[derive(Args)]
#[command(
    mut_arg("model", |arg| arg.required_unless_present(Resettable::Reset)),
    after_help = "\
Without a question a chat about the document begins, as with `longview run --session`. The model is \
the one that read the document, unless another one is given; then the document must have been read \
with that one too."
)]
pub struct OpenArgs {
    /// Name or id of the document.
    #[arg(value_name = "NAME")]
    name: String,

    /// What to ask [default: begin a chat].
    #[arg(value_name = "QUESTION")]
    question: Option<String>,

    /// The same as QUESTION, as `longview run` takes it [default: none].
    #[arg(
        short,
        long,
        value_name = "TEXT",
        allow_hyphen_values = true,
        conflicts_with = "question"
    )]
    prompt: Option<String>,

    #[command(flatten)]
    share: ShareArgs,

    #[command(flatten)]
    ask: AskArgs,
}

/// Asks.
pub fn open(library: Option<&Path>, args: OpenArgs) -> Result<()> {
    let share = args.share.open()?;
    let documents = place::look_beside(library, share.as_ref())?;
    let mut document = shared::find(&documents, share.as_ref(), &args.name)?;
    if let Some(share) = &share
        && session(&documents, &document, &args).is_err()
        && shared::fetch_session(&documents, share, document.id, args.ask.model())?
        && let Some(with_session) = documents.get(document.id)?
    {
        document = with_session;
    }
    let session = session(&documents, &document, &args)?;
    let keep = format!("not kept: `longview kv build --from {}` keeps it", document.id.short());
    if !session.is_complete() {
        note(format_args!(
            "{}: {} of {} tokens were read; the rest is read now, and {keep}",
            document.name,
            units::count(session.n_tokens),
            units::count(session.n_document),
        ));
    }
    documents.touch(document.id, Some(session.file))?;
    let path = documents.session_path(session);
    let is_chat = session.key.reading == Reading::Chat;
    let model = Path::new(&session.model);
    let question = args.question.or(args.prompt);
    let named = (document.name.clone(), path);
    run::run(&run::about_kept(args.ask, named, model, is_chat, (question, keep)))
}

/// The session to ask: of the model that was given, or the one that was used last; before others
/// those that were read as it is asked for.
fn session<'a>(
    documents: &Documents,
    document: &'a Document,
    args: &OpenArgs,
) -> Result<&'a SessionEntry> {
    let (name, model) = (&document.name, args.ask.model());
    let is_exact = args.ask.prefill().is_exact();
    let mut sessions: Vec<_> = document.sessions.iter().collect();
    sessions
        .sort_by_key(|session| Reverse((session.key.sparse.is_none() == is_exact, session.turn)));
    let found = if model.is_absent() {
        sessions.first().copied()
    } else {
        let words = place::model_words(model);
        match sessions.iter().find(|session| session.model == words) {
            Some(session) => Some(*session),
            // The same model may lie elsewhere now.
            None => by_fingerprint(&sessions, args)?,
        }
    };
    let id = document.id.short();
    match found {
        Some(session) if documents.session_path(session).exists() => Ok(session),
        Some(_) => {
            bail!("{name}: its session is gone; `longview kv check --repair`, then build it")
        }
        None if document.sessions.is_empty() => bail!(
            "{name}: only its text is here; `longview kv build --from {id} -m MODEL` reads it"
        ),
        None => bail!(
            "{name}: was not read with {0}; `longview kv build --from {id} -m {0}` reads it",
            model.name()
        ),
    }
}

fn by_fingerprint<'a>(
    sessions: &[&'a SessionEntry],
    args: &OpenArgs,
) -> Result<Option<&'a SessionEntry>> {
    let Some(folder) = args.ask.model().open_here()? else { return Ok(None) };
    let (config, tensors) = (&folder.config, &folder.tensors);
    let tokenizer = folder.tokenizer.as_ref();
    for session in sessions {
        let made = longview_engine::fingerprint(config, tensors, tokenizer, session.context)?;
        if place::fingerprint_id(&made) == session.key.fingerprint {
            return Ok(Some(*session));
        }
    }
    Ok(None)
}
