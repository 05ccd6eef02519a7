//! From a sample's text to tokens: the document by itself, so that it is read once, and what
//! follows it for each question.

use longview_model::chat::{ChatMessage, ChatTemplate, RenderOptions};
use longview_model::tokenizer::{Specials, Tokenizer};

use crate::error::EvalError;
use crate::sample::{Question, Sample};

/// The date that templates print, so that prompts are the same every day: 2026-01-01.
const DATE_UNIX_S: i64 = 1_767_225_600;

/// Makes prompts for one model.
#[derive(Clone, Copy)]
pub struct Prompter<'a> {
    tokenizer: &'a Tokenizer,
    chat: Option<&'a ChatTemplate>,
}

/// A sample as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What all questions share, from the first token on.
    pub document: Vec<u32>,
    /// What follows it, by question; never empty.
    pub questions: Vec<Vec<u32>>,
}

impl<'a> Prompter<'a> {
    /// Prompts through `chat` where a sample wants it, else of plain text.
    pub fn new(tokenizer: &'a Tokenizer, chat: Option<&'a ChatTemplate>) -> Self {
        Self { tokenizer, chat }
    }

    /// What counts and encodes texts.
    pub fn tokenizer(&self) -> &'a Tokenizer {
        self.tokenizer
    }

    /// The tokens of `sample`. Document and question are encoded separately: no token spans both.
    pub fn encode(&self, sample: &Sample) -> Result<Prompt, EvalError> {
        let mut document = None;
        let mut questions = Vec::with_capacity(sample.questions.len());
        for question in &sample.questions {
            let (head, tail, specials) = self.split(sample, question)?;
            questions.push(self.tokenizer.encode(&tail, Specials::AsWritten)?);
            if document.is_none() {
                document = Some(self.tokenizer.encode(&head, specials)?);
            }
        }
        Ok(Prompt { document: document.unwrap_or_default(), questions })
    }

    /// Tokens of the document, the longest question and its answer together.
    pub fn n_tokens(&self, sample: &Sample) -> Result<usize, EvalError> {
        let prompt = self.encode(sample)?;
        let both = prompt.questions.iter().zip(&sample.questions);
        let longest = both.map(|(ids, question)| ids.len() + question.max_new).max();
        Ok(prompt.document.len() + longest.unwrap_or(0))
    }

    /// Tokens of a text that stands in the middle of another.
    pub fn count(&self, text: &str) -> Result<usize, EvalError> {
        Ok(self.tokenizer.encode(text, Specials::AsWritten)?.len())
    }

    /// The text up to the end of the document, and what follows it.
    fn split(
        &self,
        sample: &Sample,
        question: &Question,
    ) -> Result<(String, String, Specials), EvalError> {
        let Some(chat) = self.chat.filter(|_| sample.chat) else {
            let tail = format!("{}{}", question.ask, question.lead);
            return Ok((sample.document.clone(), tail, Specials::Add));
        };
        let content = format!("{}{}", sample.document, question.ask);
        let options = RenderOptions {
            add_generation_prompt: true,
            now_unix_s: Some(DATE_UNIX_S),
            ..RenderOptions::default()
        };
        let text = chat.render(&[ChatMessage::new("user", content)], &options)?;
        // Some templates trim messages.
        let document = sample.document.trim_start();
        let at = text.find(document).ok_or(EvalError::Template)? + document.len();
        let tail = format!("{}{}", &text[at..], question.lead);
        Ok((text[..at].to_owned(), tail, Specials::AsWritten))
    }
}
