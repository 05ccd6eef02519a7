//! From files and options to the tokens of a prompt.

use anyhow::{Result, bail};
use longview_engine::{Engine, EngineError, Session};
use longview_model::chat::{ChatMessage, ChatTemplate, RenderOptions};
pub use longview_model::document::common_prefix;
use longview_model::document::{first_turn, shared_prefix};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::{Specials, Tokenizer, Within};
use longview_ops::Backend;

use super::args::RunArgs;
use super::talk::Talk;
use crate::files::input;
use crate::{template, units};

/// What was given with `-f` and `-p`, and what was said before.
pub struct PromptText {
    document: String,
    prompt: String,
    talk: Talk,
    /// Its tokens, and whether the chat template made them, once they were counted.
    encoded: Option<(Vec<u32>, bool)>,
}

/// Tokens at the end of a document that may become others when a question follows.
const LOOSE_END: usize = 8;

impl PromptText {
    /// A document and what is asked about it after `talk`.
    pub fn new(document: String, prompt: String, talk: Talk) -> Self {
        Self { document, prompt, talk, encoded: None }
    }

    /// The text that comes before the question.
    pub fn document(&self) -> &str {
        &self.document
    }

    /// What was said about it.
    pub fn talk(&self) -> &Talk {
        &self.talk
    }
}

/// Reads `-f` and `-p`; `None` if there is neither.
///
/// # Errors
/// If there is nothing to read in them: a model would invent a text of its own.
pub fn read(args: &RunArgs) -> Result<Option<PromptText>> {
    if args.file.is_none() && args.prompt.is_none() {
        return Ok(None);
    }
    let read = |path| input::read_text("-f", path);
    let document = args.file.as_deref().map(read).transpose()?.unwrap_or_default();
    let prompt = args.prompt.clone().unwrap_or_default();
    if document.is_empty() && prompt.is_empty() && args.session.is_none() {
        bail!("-p: the prompt is empty; give a text to answer or to go on from");
    }
    Ok(Some(PromptText::new(document, prompt, talk(args))))
}

/// The tokens to compute, and whether the chat template made them.
pub fn encode<B: Backend>(
    args: &RunArgs,
    engine: &Engine<B>,
    text: &PromptText,
) -> Result<(Vec<u32>, bool)> {
    match &text.encoded {
        Some(known) => Ok(known.clone()),
        None => {
            let tokenizer = engine.tokenizer().expect("checked before loading");
            encode_with(args, tokenizer, engine.chat(), text, engine.options().ctx_size)
        }
    }
}

/// How many tokens `text` has, before the model is loaded; it remembers them.
///
/// # Errors
/// [`EngineError::PromptFarTooLong`] for a text that is far longer than `most` tokens, without
/// counting all of it.
pub fn count(
    args: &RunArgs,
    folder: &ModelFolder,
    text: &mut PromptText,
    most: usize,
) -> Result<usize> {
    let encoded = encode_with(args, folder.tokenizer()?, folder.chat.as_ref(), text, most)?;
    let n_tokens = encoded.0.len();
    text.encoded = Some(encoded);
    Ok(n_tokens)
}

fn encode_with(
    args: &RunArgs,
    tokenizer: &Tokenizer,
    chat: Option<&ChatTemplate>,
    text: &PromptText,
    context: usize,
) -> Result<(Vec<u32>, bool)> {
    let chat = chat.filter(|_| !args.no_chat_template);
    if chat.is_none() && args.system.is_some() {
        bail!("--system: {} has no chat template to put it in", args.model.name());
    }
    Ok((encode_text(tokenizer, chat, text, context)?, chat.is_some()))
}

/// The tokens of a text, as one message of a chat where there is a template.
fn encode_text(
    tokenizer: &Tokenizer,
    chat: Option<&ChatTemplate>,
    text: &PromptText,
    context: usize,
) -> Result<Vec<u32>> {
    match chat {
        Some(chat) => {
            let messages = text.talk.messages(&text.document, Some(&text.prompt));
            encode_chat(chat, tokenizer, &messages, &Encoding::asked(context))
        }
        None => {
            let joined = first_turn(&text.document, &text.prompt, false);
            within(tokenizer.encode_within(&joined, Specials::Add, context)?, context)
        }
    }
}

/// The tokens of the document alone, as they begin every prompt about it.
pub fn encode_document<B: Backend>(
    args: &RunArgs,
    engine: &Engine<B>,
    text: &PromptText,
) -> Result<Vec<u32>> {
    let encode = |asked: &PromptText| Ok(encode(args, engine, asked)?.0);
    common_tokens(&text.document, text.talk.system.as_deref(), &encode)
}

/// The same of a document without a system message, before a model is loaded.
///
/// # Errors
/// [`EngineError::PromptFarTooLong`] for a text that is far longer than `most` tokens.
pub fn encode_kept(
    folder: &ModelFolder,
    is_chat: bool,
    text: &str,
    most: usize,
) -> Result<Vec<u32>> {
    let (tokenizer, chat) = (folder.tokenizer()?, folder.chat.as_ref().filter(|_| is_chat));
    common_tokens(text, None, &|asked| encode_text(tokenizer, chat, asked, most))
}

/// What the prompts of unlike questions about a document have in common.
fn common_tokens(
    document: &str,
    system: Option<&str>,
    encode: &dyn Fn(&PromptText) -> Result<Vec<u32>>,
) -> Result<Vec<u32>> {
    let ids = shared_prefix(|question| {
        let talk = Talk { system: system.map(str::to_owned), turns: vec![] };
        encode(&PromptText::new(document.to_owned(), question.into(), talk))
    })?;
    if ids.is_empty() || document.is_empty() {
        bail!("the document is empty: there is nothing to read; name a file with text in it");
    }
    Ok(ids)
}

/// How many tokens of a prompt the session has computed already. At least one is computed anew: its
/// logits are wanted. `has_answers` if the session holds answers too: their tokens may become
/// others when their text is read.
///
/// # Errors
/// If the session's document is not that of the prompt.
pub fn known<B: Backend>(session: &Session<B>, ids: &[u32], has_answers: bool) -> Result<usize> {
    let known = common_prefix(session.tokens(), ids);
    if !has_answers {
        check_known(known, session.tokens().len())?;
    }
    Ok(known.min(ids.len().saturating_sub(1)))
}

/// Fails if no more than `known` of a session's `n` tokens are what was expected.
pub fn check_known(known: usize, n: usize) -> Result<()> {
    if known + LOOSE_END < n {
        bail!(
            "only {} of the session's {} tokens begin this prompt: it was saved with another \
             document, --system or --no-chat-template; give the same, or save it again",
            units::count(known),
            units::count(n)
        );
    }
    Ok(())
}

/// A conversation in which nothing was said yet.
pub fn talk(args: &RunArgs) -> Talk {
    Talk { system: args.system.clone(), turns: vec![] }
}

/// How a conversation becomes tokens.
pub struct Encoding {
    /// Tokens that it may have.
    pub context: usize,
    /// Whether it ends where the assistant speaks.
    pub add_generation_prompt: bool,
}

impl Encoding {
    /// Up to where the assistant speaks.
    fn asked(context: usize) -> Self {
        Self { context, add_generation_prompt: true }
    }
}

/// A conversation, unless it is far longer than the context.
pub fn encode_chat(
    chat: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[ChatMessage],
    how: &Encoding,
) -> Result<Vec<u32>> {
    let context = how.context;
    // Before a template copies it: a text that is far too long is not worth its memory.
    for message in messages {
        within(tokenizer.check_length(&message.content, context)?, context)?;
    }
    let add_generation_prompt = how.add_generation_prompt;
    let options = RenderOptions { add_generation_prompt, ..RenderOptions::default() };
    let text = template::render(chat, messages, &options)?;
    within(tokenizer.encode_within(&text, Specials::AsWritten, context)?, context)
}

/// What a text that fits came to.
fn within<T>(found: Within<T>, context: usize) -> Result<T> {
    match found {
        Within::Fits(found) => Ok(found),
        Within::TooLong { at_least, about } => {
            Err(EngineError::PromptFarTooLong { at_least, about, context }.into())
        }
    }
}
