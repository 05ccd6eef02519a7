//! Chat templates: a conversation as the one text that a model was trained to continue.
//!
//! Templates are Jinja programs that come with the model, written for Python's jinja2 and run
//! here by minijinja. What differs between the two and occurs in published templates is made up
//! for: Python's string methods, printing, `tojson`, `{% generation %}`. A template comes from a
//! stranger: its source, its steps and what it writes are bounded. What a program in the same
//! process cannot bound is memory (`~`, `+` and `*` double a text in one step), so a
//! [`TemplateRunner`] may run templates elsewhere, as the command line does.

mod bounds;
mod date;
mod environment;
mod error;
mod job;
mod limits;
mod message;
mod python;
mod source;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde::Serialize;

pub use self::bounds::MAX_TEMPLATE_BYTES;
pub use self::error::ChatError;
pub use self::job::TemplateJob;
use self::job::{Compiled, DEFAULT};
pub use self::message::{ChatMessage, RenderOptions};
use crate::source::read_text;
use crate::text::clip;
use crate::tokenizer::{NamedTemplate, RawTemplates, SpecialTokens, TokenizerConfig};

/// Runs templates in a place where they can do no harm, such as a process with little memory.
pub trait TemplateRunner: Send + Sync {
    /// What [`TemplateJob::run`] would return.
    fn run(&self, job: &TemplateJob) -> Result<String, ChatError>;
}

/// The chat template of a model.
///
/// A template that is broken is found when it is used or checked, not when its folder is opened:
/// the model runs without it.
pub struct ChatTemplate {
    /// The file, for messages.
    origin: String,
    sources: Result<Vec<NamedTemplate>, ChatError>,
    special: SpecialTokens,
    compiled: OnceLock<Result<Compiled, ChatError>>,
    runner: Option<Arc<dyn TemplateRunner>>,
}

impl ChatTemplate {
    /// The template of the folder `dir`: `chat_template.jinja`, else the one in its
    /// `tokenizer_config.json`, parsed as `config`. `None` if there is neither.
    pub fn open(dir: &Path, config: &TokenizerConfig) -> Option<Self> {
        let path = dir.join("chat_template.jinja");
        if path.symlink_metadata().is_err() {
            return Self::of_folder(dir, None, config);
        }
        let origin = path.display().to_string();
        let source = read_text(&path, MAX_TEMPLATE_BYTES as u64);
        let reason = |error: std::io::Error| error.to_string();
        let sources = source
            .map(|source| vec![NamedTemplate { name: DEFAULT.to_owned(), template: source }])
            .map_err(|e| ChatError::Read { origin: origin.clone(), reason: reason(e) });
        Some(Self::new(sources, origin, config.special.clone()))
    }

    /// As [`ChatTemplate::open`], given the text of `chat_template.jinja` if there is such a file.
    pub(crate) fn of_folder(
        dir: &Path,
        source: Option<&str>,
        config: &TokenizerConfig,
    ) -> Option<Self> {
        let one = |source: &str| {
            vec![NamedTemplate { name: DEFAULT.to_owned(), template: source.to_owned() }]
        };
        let (file, sources) = match (source, &config.templates) {
            (Some(source), _) => ("chat_template.jinja", one(source)),
            (None, Some(RawTemplates::One(source))) => ("tokenizer_config.json", one(source)),
            (None, Some(RawTemplates::Named(list))) => ("tokenizer_config.json", list.clone()),
            (None, None) => return None,
        };
        let origin = dir.join(file).display().to_string();
        Some(Self::new(Ok(sources), origin, config.special.clone()))
    }

    /// The one template `source`, which is not looked at before it is used. `origin` names where it
    /// stands.
    pub(crate) fn of_text(source: &str, origin: String, special: SpecialTokens) -> Self {
        let source = NamedTemplate { name: DEFAULT.to_owned(), template: source.to_owned() };
        Self::new(Ok(vec![source]), origin, special)
    }

    /// Compiles one template. `origin` names the file in messages.
    pub fn compile(
        source: &str,
        origin: impl Into<String>,
        special: SpecialTokens,
    ) -> Result<Self, ChatError> {
        let source = NamedTemplate { name: DEFAULT.to_owned(), template: source.to_owned() };
        let template = Self::new(Ok(vec![source]), origin.into(), special);
        template.check().map(|()| template)
    }

    fn new(
        sources: Result<Vec<NamedTemplate>, ChatError>,
        origin: String,
        special: SpecialTokens,
    ) -> Self {
        let sources = sources.and_then(|sources| {
            check_sources(&sources, &origin)?;
            Ok(sources)
        });
        Self { origin, sources, special, compiled: OnceLock::new(), runner: None }
    }

    /// The same template, run by `runner`.
    pub fn with_runner(mut self, runner: Arc<dyn TemplateRunner>) -> Self {
        self.runner = Some(runner);
        self
    }

    /// Finds what is wrong with the template before it is needed.
    pub fn check(&self) -> Result<(), ChatError> {
        match &self.runner {
            Some(runner) => runner.run(&self.job(None, &RenderOptions::default())?).map(drop),
            None => self.compiled().map(drop),
        }
    }

    /// The template of a conversation as it was written; `None` if it could not be read.
    pub fn source(&self) -> Option<&str> {
        let mut sources = self.sources.iter().flatten();
        sources.find(|source| source.name == DEFAULT).map(|source| source.template.as_str())
    }

    /// Whether one of the templates holds `text`: which form of answers they were written for.
    pub fn mentions(&self, text: &str) -> bool {
        let mut sources = self.sources.iter().flatten();
        sources.any(|source| source.template.contains(text))
    }

    /// The templates as they were written, by name; the one that is used is called `default`.
    pub(crate) fn sources(&self) -> Result<impl Iterator<Item = (&str, &str)>, ChatError> {
        let sources = self.sources.as_ref().map_err(Clone::clone)?;
        Ok(sources.iter().map(|source| (source.name.as_str(), source.template.as_str())))
    }

    /// The text of a conversation. Messages are whatever serialises to an object with `role` and
    /// `content`, such as [`ChatMessage`] or JSON with tool calls.
    ///
    /// The text holds the special tokens: encode it with
    /// [`Specials::AsWritten`](crate::tokenizer::Specials).
    pub fn render<M: Serialize>(
        &self,
        messages: &[M],
        options: &RenderOptions,
    ) -> Result<String, ChatError> {
        let json: Result<Vec<_>, _> = messages.iter().map(serde_json::to_value).collect();
        let messages = json.map_err(|error| ChatError::Render {
            origin: self.origin.clone(),
            line: 1,
            reason: clip(&error.to_string()),
        })?;
        match &self.runner {
            Some(runner) => runner.run(&self.job(Some(messages), options)?),
            None => self.compiled()?.render(messages, options),
        }
    }

    /// What a runner is told.
    fn job(
        &self,
        messages: Option<Vec<serde_json::Value>>,
        options: &RenderOptions,
    ) -> Result<TemplateJob, ChatError> {
        Ok(TemplateJob {
            origin: self.origin.clone(),
            sources: self.sources.clone()?,
            special: self.special.clone(),
            messages,
            options: options.clone(),
        })
    }

    fn compiled(&self) -> Result<&Compiled, ChatError> {
        let compile = || {
            let sources = self.sources.as_ref().map_err(Clone::clone)?;
            Compiled::new(sources, &self.origin, &self.special)
        };
        self.compiled.get_or_init(compile).as_ref().map_err(Clone::clone)
    }
}

/// What needs no parser: the names and the lengths.
fn check_sources(sources: &[NamedTemplate], origin: &str) -> Result<(), ChatError> {
    let origin = || origin.to_owned();
    if !sources.iter().any(|source| source.name == DEFAULT) {
        let names = sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>();
        return Err(ChatError::NoDefault { origin: origin(), names: clip(&names.join(", ")) });
    }
    let bytes = sources.iter().map(|source| source.template.len()).sum();
    if bytes > MAX_TEMPLATE_BYTES {
        return Err(ChatError::TooLong { origin: origin(), bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
