//! Texts and tokens: what a model reads of a prompt or a conversation.

use std::sync::Arc;

use longview_engine::{Draft, EngineError, PrefillMode};
use longview_library::documents::Reading;
use longview_model::chat::{ChatTemplate, RenderOptions};
pub(crate) use longview_model::document::common_prefix;
use longview_model::document::{self, shared_prefix};
use longview_model::generation::GenerationDefaults;
use longview_model::tokenizer::{Specials, Tokenizer, Within};
use longview_scheduler::PolicyOptions;
use serde_json::{Map, Value, json};

use crate::call_texts::as_texts;
use crate::error::ApiError;

/// What is known of a model before it is loaded, and how its texts become tokens.
pub struct ModelFacts {
    /// Names under which clients ask for it, the one to show first.
    pub names: Vec<String>,
    /// Whether it is the program's own model, which reads facts and does not converse.
    pub is_embedded: bool,
    /// The model as it was named to the program, for the library's list.
    pub words: String,
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template. Without one the texts of a conversation are joined as they are.
    pub chat: Option<ChatTemplate>,
    /// How its authors would sample.
    pub generation: GenerationDefaults,
    /// Its layers.
    pub n_layers: usize,
    /// KV heads of a layer.
    pub n_kv_heads: usize,
    /// Its vocabulary.
    pub vocab_size: usize,
    /// Most tokens of a prompt and its answer.
    pub ctx_size: usize,
    /// Tokens that end a text or a turn.
    pub eos_ids: Vec<u32>,
    /// What a request attends that does not say.
    pub policy: PolicyOptions,
    /// Whether tokens are drafted for a request that does not say. The engine needs room for them:
    /// [`EngineOptions::max_drafted`](longview_engine::EngineOptions::max_drafted).
    pub draft: Draft,
    /// How the prompt of a request is read that does not say.
    pub prefill: PrefillMode,
}

/// A conversation and what the chat template is told beside it.
#[derive(Debug, Default)]
pub(crate) struct Conversation {
    pub(crate) messages: Vec<Value>,
    /// Tools in OpenAI's form.
    pub(crate) tools: Option<Value>,
    /// Further variables.
    pub(crate) extra: Map<String, Value>,
    /// What the assistant has begun to say, and goes on with.
    pub(crate) begun: String,
}

impl Conversation {
    /// Where the last message is the assistant's, and calls no tool, the answer goes on with it.
    pub(crate) fn go_on(mut self) -> Self {
        let is_begun =
            |last: &mut Value| last["role"] == "assistant" && last["tool_calls"].is_null();
        if let Some(last) = self.messages.pop_if(is_begun) {
            self.begun = last["content"].as_str().unwrap_or_default().trim_end().to_owned();
        }
        self
    }
}

/// Shared by all threads.
pub(crate) type Facts = Arc<ModelFacts>;

impl ModelFacts {
    /// How the library calls the way in which a text is read.
    pub(crate) fn reading(&self) -> Reading {
        self.chat.as_ref().map_or(Reading::Plain, |_| Reading::Chat)
    }

    /// Messages in the words that the chat template knows. OpenAI's role `developer` is what others
    /// call `system`, and most templates refuse it or leave the message out.
    pub(crate) fn as_known(&self, mut messages: Vec<Value>) -> Vec<Value> {
        if !self.knows("developer") {
            for message in messages.iter_mut().filter(|message| message["role"] == "developer") {
                message["role"] = json!("system");
            }
        }
        // Templates that know calls write them in the form of their models.
        if !self.knows("tools") && !self.knows("tool_calls") {
            messages = as_texts(messages);
        }
        messages
    }

    /// Whether there is a chat template that has `word` in it.
    fn knows(&self, word: &str) -> bool {
        self.chat.as_ref().is_some_and(|chat| chat.mentions(word))
    }

    /// The text of a conversation.
    pub(crate) fn render(
        &self,
        conversation: Conversation,
        add_generation_prompt: bool,
    ) -> Result<String, ApiError> {
        let Conversation { messages, tools, extra, begun } = conversation;
        let Some(chat) = &self.chat else {
            let texts = messages.iter().filter_map(|message| message["content"].as_str());
            return Ok(texts.chain([begun.as_str()]).collect());
        };
        let options =
            RenderOptions { add_generation_prompt, tools, extra, ..RenderOptions::default() };
        let text = chat.render(&messages, &options).map_err(EngineError::from)?;
        Ok(text + &begun)
    }

    /// The tokens of a text that has its special tokens already, or not.
    pub(crate) fn encode(&self, text: &str, specials: Specials) -> Result<Vec<u32>, ApiError> {
        let found = self.tokenizer.encode_within(text, specials, self.ctx_size);
        match found.map_err(EngineError::from)? {
            Within::Fits(ids) => Ok(ids),
            Within::TooLong { at_least, .. } => {
                Err(ApiError::too_long(at_least, self.ctx_size, false))
            }
        }
    }

    /// The tokens of a conversation in which the assistant speaks next.
    pub(crate) fn encode_chat(&self, conversation: Conversation) -> Result<Vec<u32>, ApiError> {
        let (text, specials) = self.render_chat(conversation)?;
        self.encode(&text, specials)
    }

    /// The text of such a conversation, and how it becomes tokens.
    pub(crate) fn render_chat(
        &self,
        conversation: Conversation,
    ) -> Result<(String, Specials), ApiError> {
        // Before a template copies it: a text that is far too long is not worth its memory.
        let messages = conversation.messages.iter();
        for text in messages.filter_map(|message| message["content"].as_str()) {
            let found = self.tokenizer.check_length(text, self.ctx_size);
            if let Within::TooLong { at_least, .. } = found.map_err(EngineError::from)? {
                return Err(ApiError::too_long(at_least, self.ctx_size, false));
            }
        }
        let text = self.render(conversation, true)?;
        let specials = self.chat.as_ref().map_or(Specials::Add, |_| Specials::AsWritten);
        Ok((text, specials))
    }

    /// What all prompts about a document begin with, as `longview kv build` reads it.
    pub(crate) fn encode_document(&self, text: &str) -> Result<Vec<u32>, ApiError> {
        shared_prefix(|question| self.encode_chat(self.about(text, question)))
    }

    /// The text of [`Self::encode_document`], and how what begins with it becomes tokens.
    pub(crate) fn begin_document(&self, text: &str) -> Result<(String, Specials), ApiError> {
        let mut specials = Specials::Add;
        let shared = shared_prefix(|question| {
            let (prompt, as_said) = self.render_chat(self.about(text, question))?;
            specials = as_said;
            Ok::<_, ApiError>(prompt.chars().collect())
        })?;
        Ok((shared.into_iter().collect(), specials))
    }

    /// A conversation that begins with a question about a document.
    fn about(&self, document: &str, question: &str) -> Conversation {
        let text = self.first_turn(document, question);
        let messages = vec![json!({ "role": "user", "content": text })];
        Conversation { messages, ..Conversation::default() }
    }

    /// What all conversations that go on from these messages begin with.
    pub(crate) fn encode_conversation(&self, messages: &[Value]) -> Result<Vec<u32>, ApiError> {
        let messages = self.as_known(messages.to_vec());
        // Who speaks next: templates refuse two messages of one in a row.
        let is_user = messages.last().is_some_and(|last| last["role"] == "user");
        let role = if is_user { "assistant" } else { "user" };
        shared_prefix(|said| {
            let next = json!({ "role": role, "content": said });
            let messages = messages.iter().cloned().chain([next]).collect();
            self.encode_chat(Conversation { messages, ..Conversation::default() })
        })
    }

    /// Whether texts of answers leave `mark` out where special tokens are.
    pub(crate) fn hides(&self, mark: &str) -> bool {
        let ids = self.tokenizer.encode(mark, Specials::AsWritten);
        let text = ids.and_then(|ids| self.tokenizer.decode(&ids, true));
        text.is_ok_and(|text| !text.contains(mark))
    }

    /// What a user says first about a document.
    pub(crate) fn first_turn(&self, document: &str, question: &str) -> String {
        document::first_turn(document, question, self.chat.is_some())
    }
}
