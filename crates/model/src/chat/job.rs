//! One rendering: what it needs, so that it can be done in another process, and how it is done.

use std::io;

use minijinja::value::Value;
use minijinja::{Environment, Error as JinjaError, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::environment::{NOW, describe, environment, refusal};
use super::error::ChatError;
use super::message::RenderOptions;
use super::{date, limits, source};
use crate::tokenizer::{NamedTemplate, SpecialTokens};

/// The template of a conversation, where there are several.
pub(super) const DEFAULT: &str = "default";
/// The template of a conversation with tools.
const TOOL_USE: &str = "tool_use";
/// What a template may write beyond a multiple of the conversation, in bytes.
const OUTPUT_BYTES: usize = 64 << 20;
/// What a template may write for each byte of the conversation.
const OUTPUT_FACTOR: usize = 4;

/// A template and a conversation.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TemplateJob {
    /// The file, for messages.
    pub(super) origin: String,
    pub(super) sources: Vec<NamedTemplate>,
    pub(super) special: SpecialTokens,
    /// `None` if the template is only to be compiled.
    pub(super) messages: Option<Vec<Json>>,
    pub(super) options: RenderOptions,
}

impl TemplateJob {
    /// Does it here, in this thread.
    pub fn run(self) -> Result<String, ChatError> {
        let compiled = Compiled::new(&self.sources, &self.origin, &self.special)?;
        match self.messages {
            Some(messages) => compiled.render(messages, &self.options),
            None => Ok(String::new()),
        }
    }

    /// The file that the template is from.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    /// Bytes of the conversation, about.
    pub fn input_bytes(&self) -> usize {
        self.messages.iter().flatten().map(text_bytes).sum()
    }

    /// The most bytes that the template may write.
    pub fn max_output_bytes(&self) -> usize {
        max_output_bytes(self.input_bytes())
    }
}

fn max_output_bytes(input: usize) -> usize {
    input.saturating_mul(OUTPUT_FACTOR).saturating_add(OUTPUT_BYTES)
}

/// Bytes of all texts in `value`, and one for everything else.
fn text_bytes(value: &Json) -> usize {
    match value {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(text_bytes).sum(),
        Json::Object(map) => map.iter().map(|(key, value)| key.len() + text_bytes(value)).sum(),
        _ => 1,
    }
}

/// Templates that minijinja has compiled.
pub(super) struct Compiled {
    environment: Environment<'static>,
    origin: String,
    special: SpecialTokens,
}

impl Compiled {
    pub(super) fn new(
        sources: &[NamedTemplate],
        origin: &str,
        special: &SpecialTokens,
    ) -> Result<Self, ChatError> {
        let mut environment = environment();
        for NamedTemplate { name, template } in sources {
            let source = source::rewrite_generation_tags(template);
            let origin = origin.to_owned();
            if let Err((line, reason)) = limits::check(&source) {
                return Err(ChatError::TooComplex { origin, line, reason });
            }
            if let Err(error) = environment.add_template_owned(name.clone(), source) {
                let (line, reason) = describe(&error);
                return Err(ChatError::Syntax { origin, line, reason });
            }
        }
        Ok(Self { environment, origin: origin.to_owned(), special: special.clone() })
    }

    /// The text of a conversation, which holds what was said last.
    pub(super) fn render(
        &self,
        messages: Vec<Json>,
        options: &RenderOptions,
    ) -> Result<String, ChatError> {
        let text = self.text(&messages, options)?;
        if options.may_drop {
            return Ok(text);
        }
        for role in ["user", "system"] {
            if self.drops(role, &messages, &text, options)? {
                let (origin, role) = (self.origin.clone(), role.to_owned());
                return Err(ChatError::Dropped { origin, role });
            }
        }
        Ok(text)
    }

    /// Whether the last message of `role` leaves no trace in `text`. Most templates write a message
    /// as it is or trimmed. Of any other the text is another one if the message is.
    fn drops(
        &self,
        role: &str,
        messages: &[Json],
        text: &str,
        options: &RenderOptions,
    ) -> Result<bool, ChatError> {
        let Some(at) = messages.iter().rposition(|message| message["role"] == role) else {
            return Ok(false);
        };
        let content = messages[at]["content"].as_str().unwrap_or_default().trim();
        if content.is_empty() || text.contains(content) {
            return Ok(false);
        }
        let mut other = messages.to_vec();
        other[at]["content"] = Json::from(format!("{content} longview {content}"));
        Ok(self.text(&other, options).is_ok_and(|other| other == text))
    }

    fn text(&self, messages: &[Json], options: &RenderOptions) -> Result<String, ChatError> {
        let has_tools = options.tools.as_ref().is_some_and(|tools| !tools.is_null());
        let tool_use = self.environment.get_template(TOOL_USE).ok().filter(|_| has_tools);
        let template = match tool_use {
            Some(template) => template,
            None => self.environment.get_template(DEFAULT).map_err(|error| self.explain(&error))?,
        };
        let input = messages.iter().map(text_bytes).sum();
        let limit = max_output_bytes(input);
        let mut out = Limited { bytes: Vec::new(), limit, is_full: false };
        let rendered =
            template.render_captured_to(self.context(messages, options), &mut out).map(drop);
        if out.is_full {
            return Err(ChatError::TooMuch { origin: self.origin.clone(), limit, input });
        }
        rendered.map_err(|error| self.explain(&error))?;
        let lossy = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok(String::from_utf8(out.bytes).unwrap_or_else(|error| lossy(error.into_bytes())))
    }

    /// The variables, as transformers passes them.
    fn context(&self, messages: &[Json], options: &RenderOptions) -> Value {
        let mut variables: Vec<(&str, Value)> = vec![
            ("messages", Value::from_serialize(messages)),
            ("tools", Value::from_serialize(&options.tools)),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
            (NOW, Value::from(options.now_unix_s.unwrap_or_else(date::now_unix_s))),
        ];
        let special = &self.special;
        let tokens = [
            ("bos_token", &special.bos),
            ("eos_token", &special.eos),
            ("unk_token", &special.unk),
            ("pad_token", &special.pad),
        ];
        let named = tokens.into_iter().filter_map(|(name, token)| {
            token.as_ref().map(|token| (name, Value::from(token.as_str())))
        });
        variables.extend(named);
        let extra = options.extra.iter();
        variables.extend(extra.map(|(name, value)| (name.as_str(), Value::from_serialize(value))));
        variables.into_iter().collect()
    }

    fn explain(&self, error: &JinjaError) -> ChatError {
        let origin = self.origin.clone();
        if let Some(message) = refusal(error) {
            return ChatError::Refused { origin, message };
        }
        if error.kind() == ErrorKind::OutOfFuel {
            return ChatError::Endless { origin };
        }
        let (line, reason) = describe(error);
        ChatError::Render { origin, line, reason }
    }
}

/// Keeps what is written up to a limit.
struct Limited {
    bytes: Vec<u8>,
    limit: usize,
    is_full: bool,
}

impl io::Write for Limited {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > self.limit - self.bytes.len() {
            self.is_full = true;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use serde_json::json;

    use super::*;

    fn job(template: &str, messages: Option<Vec<Json>>) -> TemplateJob {
        let sources =
            vec![NamedTemplate { name: DEFAULT.to_owned(), template: template.to_owned() }];
        TemplateJob {
            origin: "t.jinja".to_owned(),
            sources,
            special: SpecialTokens::default(),
            messages,
            options: RenderOptions::default(),
        }
    }

    #[test]
    fn a_job_says_what_it_may_write() {
        let message = json!({"role": "user", "content": "four", "n": [1, null, "ab"]});
        let job = job("{{ messages[0].content }}", Some(vec![message]));
        // Keys and texts by their length, and one for a number or nothing.
        assert_eq!(job.input_bytes(), (4 + 4) + (7 + 4) + (1 + 1 + 1 + 2));
        assert_eq!(job.max_output_bytes(), 24 * OUTPUT_FACTOR + OUTPUT_BYTES);
        assert_eq!(max_output_bytes(usize::MAX), usize::MAX);
        assert_eq!(job.origin(), "t.jinja");
        assert_eq!(job.run().unwrap(), "four");
    }

    #[test]
    fn a_job_without_messages_compiles_and_no_more() {
        assert_eq!(job("{{ messages[0].content }}", None).run().unwrap(), "");
        assert_eq!(job("{{ raise_exception('no') }}", None).run().unwrap(), "");
        let deep = format!("{{{{ {}1{} }}}}", "(".repeat(60), ")".repeat(60));
        let refused = job(&format!("a\n{deep}"), None).run().unwrap_err();
        let ChatError::TooComplex { origin, line: 2, reason } = refused else {
            panic!("{refused:?}")
        };
        assert_eq!(origin, "t.jinja");
        assert!(reason.contains("brackets within brackets"), "{reason}");
    }

    #[test]
    fn without_a_template_of_its_own_a_conversation_with_tools_has_the_other_one() {
        let said = vec![json!({"role": "user", "content": "x"})];
        let mut with_tools = job("plain {{ messages[0].content }}", Some(said));
        with_tools.options.tools = Some(json!([{"name": "clock"}]));
        assert_eq!(with_tools.clone().run().unwrap(), "plain x");
        let template = "{{ tools[0].name }} {{ messages[0].content }}".to_owned();
        with_tools.sources.push(NamedTemplate { name: TOOL_USE.to_owned(), template });
        assert_eq!(with_tools.clone().run().unwrap(), "clock x");
        with_tools.options.tools = Some(Json::Null);
        assert_eq!(with_tools.run().unwrap(), "plain x");
    }

    #[test]
    fn what_is_written_ends_at_the_limit() {
        let mut out = Limited { bytes: Vec::new(), limit: 5, is_full: false };
        assert_eq!(out.write(b"abc").unwrap(), 3);
        out.flush().unwrap();
        assert_eq!(out.write(b"def").unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert!(out.is_full);
        assert_eq!(out.bytes, b"abc");
    }
}
