//! From files and options to the tokens of a prompt.

use anyhow::{Result, bail};
use longview_engine::{Engine, EngineError, MAX_CONTEXT, Session};
use longview_model::chat::{ChatMessage, ChatTemplate, RenderOptions};
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::{Specials, Tokenizer, Within};
use longview_ops::Backend;

use super::args::RunArgs;
use crate::files::input;
pub use crate::files::input::utf8;
use crate::template;

/// What was given with `-f` and `-p`.
pub struct PromptText {
    document: String,
    prompt: String,
    /// Its tokens, and whether the chat template made them, once they were counted.
    encoded: Option<(Vec<u32>, bool)>,
}

/// Tokens at the end of a document that may become others when a question follows.
const LOOSE_END: usize = 8;

impl PromptText {
    /// A document and what is asked about it.
    pub fn new(document: String, prompt: String) -> Self {
        Self { document, prompt, encoded: None }
    }

    /// The text that comes before the question.
    pub fn document(&self) -> &str {
        &self.document
    }

    /// What a user says first: the document, and a question.
    pub fn first_turn(&self, question: &str) -> String {
        let parts = [self.document.as_str(), question];
        let parts: Vec<&str> = parts.into_iter().filter(|part| !part.is_empty()).collect();
        parts.join("\n\n")
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
    Ok(Some(PromptText::new(document, prompt)))
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

/// How many tokens `text` has, before the model is loaded; it remembers them. A text that is far
/// too long for the context that was asked for is refused without counting all of it.
pub fn count(args: &RunArgs, folder: &ModelFolder, text: &mut PromptText) -> Result<usize> {
    let most = match args.model.ctx_size {
        0 => MAX_CONTEXT,
        given => given,
    };
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
    match chat.filter(|_| !args.no_chat_template) {
        Some(chat) => {
            let mut messages = system(args);
            messages.push(ChatMessage::new("user", text.first_turn(&text.prompt)));
            Ok((encode_chat(chat, tokenizer, &messages, context)?, true))
        }
        None if args.system.is_some() => {
            bail!("--system: {} has no chat template to put it in", args.model.model.display())
        }
        None => {
            let joined = format!("{}{}", text.document, text.prompt);
            let ids = tokenizer.encode_within(&joined, Specials::Add, context)?;
            Ok((within(ids, context)?, false))
        }
    }
}

/// The tokens of the document alone, as they begin every prompt about it: what the prompts of
/// unlike questions have in common.
pub fn encode_document<B: Backend>(
    args: &RunArgs,
    engine: &Engine<B>,
    text: &PromptText,
) -> Result<Vec<u32>> {
    let mut all: Option<Vec<u32>> = None;
    for question in ["A", " a", "1", "?", "\n"] {
        let asked = PromptText::new(text.document.clone(), question.into());
        let (ids, _) = encode(args, engine, &asked)?;
        all = Some(match all {
            Some(mut all) => {
                all.truncate(common_prefix(&all, &ids));
                all
            }
            None => ids,
        });
    }
    let ids = all.unwrap_or_default();
    if ids.is_empty() || text.document.is_empty() {
        bail!("--save-session: the document is empty, so nothing of it can be saved");
    }
    Ok(ids)
}

/// How many tokens of a prompt the session has computed already. At least one is computed anew: its
/// logits are wanted.
///
/// # Errors
/// If the session's document is not that of the prompt.
pub fn known<B: Backend>(session: &Session<B>, ids: &[u32]) -> Result<usize> {
    let (n, known) = (session.tokens().len(), common_prefix(session.tokens(), ids));
    if known + LOOSE_END < n {
        bail!(
            "only {known} of the session's {n} tokens begin this prompt: it was saved with another \
             document, --system or --no-chat-template; give the same, or save it again"
        );
    }
    Ok(known.min(ids.len().saturating_sub(1)))
}

/// Tokens that two lists begin with alike.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// The messages that come before the first turn.
pub fn system(args: &RunArgs) -> Vec<ChatMessage> {
    args.system.iter().map(|text| ChatMessage::new("system", text.as_str())).collect()
}

/// A conversation up to where the assistant speaks, unless it is far longer than `context`.
pub fn encode_chat(
    chat: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[ChatMessage],
    context: usize,
) -> Result<Vec<u32>> {
    // Before a template copies it: a text that is far too long is not worth its memory.
    for message in messages {
        within(tokenizer.check_length(&message.content, context)?, context)?;
    }
    let options = RenderOptions { add_generation_prompt: true, ..RenderOptions::default() };
    let text = template::render(chat, messages, &options)?;
    within(tokenizer.encode_within(&text, Specials::AsWritten, context)?, context)
}

/// What a text that fits came to.
fn within<T>(found: Within<T>, context: usize) -> Result<T> {
    match found {
        Within::Fits(found) => Ok(found),
        Within::TooLong { at_least } => {
            Err(EngineError::PromptFarTooLong { at_least, context }.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_tokens_differ() {
        assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 4]), 2);
        assert_eq!(common_prefix(&[], &[1]), 0);
        assert_eq!(common_prefix(&[1, 2], &[1, 2, 3]), 2);
    }
}
