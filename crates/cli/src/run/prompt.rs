//! From files and options to the tokens of a prompt.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use longview_engine::{Engine, Session};
use longview_model::chat::{ChatMessage, ChatTemplate, RenderOptions};
use longview_model::tokenizer::{Specials, Tokenizer};
use longview_ops::Backend;

use super::args::RunArgs;
use super::talk::Talk;

/// What was given with `-f` and `-p`, and what was said before.
pub struct PromptText {
    document: String,
    prompt: String,
    talk: Talk,
}

/// Tokens at the end of a document that may become others when a question follows.
const LOOSE_END: usize = 8;

impl PromptText {
    /// A document and what is asked about it after `talk`.
    pub fn new(document: String, prompt: String, talk: Talk) -> Self {
        Self { document, prompt, talk }
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
pub fn read(args: &RunArgs) -> Result<Option<PromptText>> {
    if args.file.is_none() && args.prompt.is_none() {
        return Ok(None);
    }
    let document = args.file.as_deref().map(read_text).transpose()?.unwrap_or_default();
    let prompt = args.prompt.clone().unwrap_or_default();
    Ok(Some(PromptText::new(document, prompt, talk(args))))
}

fn read_text(path: &Path) -> Result<String> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        io::stdin().lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    let bytes = bytes.with_context(|| format!("{}: cannot be read", path.display()))?;
    utf8(bytes, &path.display().to_string())
}

/// `bytes` as text, or an error that says where they are none.
pub fn utf8(bytes: Vec<u8>, origin: &str) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let byte = error.as_bytes()[at];
        anyhow!(
            "{origin}: not UTF-8: byte 0x{byte:02x} at offset {at}; convert the text first, for \
             example with iconv -t utf-8"
        )
    })
}

/// The tokens to compute, and whether the chat template made them.
pub fn encode<B: Backend>(
    args: &RunArgs,
    engine: &Engine<B>,
    text: &PromptText,
) -> Result<(Vec<u32>, bool)> {
    let tokenizer = engine.tokenizer().expect("checked before loading");
    match engine.chat().filter(|_| !args.no_chat_template) {
        Some(chat) => {
            let messages = text.talk.messages(&text.document, Some(&text.prompt));
            Ok((encode_chat(chat, tokenizer, &messages, true)?, true))
        }
        None if args.system.is_some() => {
            bail!("--system: {} has no chat template to put it in", args.model.model.display())
        }
        None => {
            let joined = format!("{}{}", text.document, text.prompt);
            Ok((tokenizer.encode(&joined, Specials::Add)?, false))
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
        let (document, system) = (text.document.clone(), text.talk.system.clone());
        let talk = Talk { system, turns: vec![] };
        let asked = PromptText::new(document, question.into(), talk);
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
        bail!("the document is empty: there is nothing to read; name a file with text in it");
    }
    Ok(ids)
}

/// How many tokens of a prompt the session has computed already. At least one is computed anew: its
/// logits are wanted. `has_answers` if the session holds answers too: their tokens may become others
/// when their text is read.
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
            "only {known} of the session's {n} tokens begin this prompt: it was saved with another \
             document, --system or --no-chat-template; give the same, or save it again"
        );
    }
    Ok(())
}

/// Tokens that two lists begin with alike.
pub fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

/// A conversation in which nothing was said yet.
pub fn talk(args: &RunArgs) -> Talk {
    Talk { system: args.system.clone(), turns: vec![] }
}

/// A conversation, up to where the assistant speaks if `add_generation_prompt`.
pub fn encode_chat(
    chat: &ChatTemplate,
    tokenizer: &Tokenizer,
    messages: &[ChatMessage],
    add_generation_prompt: bool,
) -> Result<Vec<u32>> {
    let options = RenderOptions { add_generation_prompt, ..RenderOptions::default() };
    let text = chat.render(messages, &options)?;
    Ok(tokenizer.encode(&text, Specials::AsWritten)?)
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

    #[test]
    fn bytes_that_are_no_text_are_named_with_their_place() {
        let message = utf8(b"caf\xe9 au lait".to_vec(), "menu.txt").unwrap_err().to_string();
        assert!(message.starts_with("menu.txt: not UTF-8: byte 0xe9 at offset 3;"), "{message}");
        let cut = utf8("é".as_bytes()[..1].to_vec(), "x").unwrap_err().to_string();
        assert!(cut.contains("offset 0"), "{cut}");
    }
}
