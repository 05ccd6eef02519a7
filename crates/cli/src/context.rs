//! How long a context is where nobody says.
//!
//! It is the session's own, or long enough for the text and an answer, or the model's. It is cut
//! to what memory holds, and one line on stderr says what it took and why. A context that is given
//! is used as it is.

use anyhow::{Context, Result, anyhow, bail};
use longview_engine::{Engine, EngineError, EngineOptions, Fit, Memory};
use longview_model::config::{ModelConfig, RopeScaling};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::PolicyOptions;

use crate::args::{EngineArgs, RopeArgs};
use crate::out::note;
use crate::units;

/// Room for an answer where nobody says how long it may be.
const ANSWER: usize = 2048;
/// Room for a few questions and answers.
const TURNS: usize = 8192;
/// The least that a short text gets, where nobody says how long its answer may be.
const SHORT: usize = 4096;
/// Contexts of texts are multiples of it.
const STEP: usize = 1024;

/// What a context has to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Nobody knows yet: a chat.
    Unknown,
    /// A text and an answer.
    Text {
        /// What to call it: document or prompt.
        name: &'static str,
        /// Tokens of the text.
        tokens: usize,
        /// Most tokens of the answer, if that was said.
        answer: Option<usize>,
        /// Whether questions follow.
        is_chat: bool,
    },
    /// A session that was saved.
    Session {
        /// Its tokens.
        tokens: usize,
        /// The context that it was saved with.
        saved: usize,
        /// Tokens of what is asked, about.
        question: usize,
        /// Most tokens of the answer, if that was said.
        answer: Option<usize>,
    },
}

/// How long the model's context may be, and where its positions change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limit {
    /// What the model, with its scaling, was made for.
    tokens: usize,
    /// Up to here positions are those of the first training, where longer contexts have others.
    changes_at: Option<usize>,
    /// How to go beyond.
    stretch: Stretch,
}

/// What makes a context longer than the limit possible.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stretch {
    /// Nothing: a window ends it.
    No,
    /// The model's positions stretch with the context.
    Context,
    /// A larger factor than the one that was given.
    Factor(f64),
    /// A method and a factor.
    Yarn,
}

/// A context to try.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Wanted {
    /// Less is of no use.
    least: usize,
    /// More is not needed.
    most: usize,
    /// Why so much.
    why: String,
}

impl Limit {
    /// The limit of a model under the scaling that was asked for.
    pub fn new(config: &ModelConfig, rope: &RopeArgs) -> Self {
        let trained = config.max_position_embeddings;
        let (tokens, changes_at, stretch) = match (rope.factor(), &config.rope.scaling) {
            (Some(factor), _) if factor > 1.0 => {
                let original = rope.original_context().unwrap_or(trained);
                ((original as f64 * factor) as usize, None, Stretch::Factor(factor))
            }
            (Some(_), _) => (trained, None, Stretch::Yarn),
            (None, RopeScaling::Dynamic { .. }) => (trained, Some(trained), Stretch::Context),
            (None, RopeScaling::LongRope { original_max_positions, .. }) => {
                (trained, Some(*original_max_positions), Stretch::No)
            }
            (None, RopeScaling::Yarn { factor, original_max_positions, .. }) => {
                let stretched = (*original_max_positions as f64 * factor) as usize;
                (trained.max(stretched), None, Stretch::Yarn)
            }
            _ => (trained, None, Stretch::Yarn),
        };
        match config.max_exact_context() {
            Some(window) if window <= tokens => {
                Self { tokens: window, changes_at, stretch: Stretch::No }
            }
            _ => Self { tokens: tokens.max(1), changes_at, stretch },
        }
    }

    /// The model's whole context.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    fn wanted(&self, content: Content) -> Result<Wanted> {
        match content {
            Content::Unknown => {
                let why = "the model's limit".to_owned();
                Ok(Wanted { least: self.tokens.min(STEP), most: self.tokens, why })
            }
            Content::Text { name, tokens, answer, is_chat } => {
                self.for_text(name, tokens, answer, is_chat)
            }
            Content::Session { tokens, saved, question, answer } => {
                Ok(self.for_session(tokens, saved, question, answer))
            }
        }
    }

    fn for_text(
        &self,
        name: &'static str,
        tokens: usize,
        answer: Option<usize>,
        is_chat: bool,
    ) -> Result<Wanted> {
        if tokens >= self.tokens {
            bail!(self.too_long(name, &units::count(tokens), tokens + ANSWER));
        }
        let room = if is_chat { TURNS } else { answer.unwrap_or(ANSWER) }.min(self.tokens);
        let needed = (tokens + room).next_multiple_of(STEP);
        let needed = if answer.is_none() { needed.max(SHORT) } else { needed };
        // Positions that depend on the length are those of a trained length.
        let most = match self.changes_at {
            Some(first) if tokens + room <= first => first.min(self.tokens),
            Some(_) => self.tokens,
            None => needed.min(self.tokens),
        };
        let limit = units::count(self.tokens);
        let why = format!("the {name} has {}; the model's limit is {limit}", units::count(tokens));
        Ok(Wanted { least: tokens + 1, most, why })
    }

    /// A text of `n_tokens` tokens is longer than the model's context; `needed` would hold it.
    fn too_long(&self, name: &str, n_tokens: &str, needed: usize) -> String {
        let limit = units::count(self.tokens);
        let help = self.beyond(needed);
        format!("the {name} has {n_tokens} tokens and the model was made for {limit}; {help}")
    }

    /// What is wrong with a text that was not counted to its end, in words for `-c 0`.
    pub fn explained(&self, name: &str, error: anyhow::Error) -> anyhow::Error {
        match error.downcast_ref::<EngineError>() {
            Some(EngineError::PromptFarTooLong { about, .. }) => {
                // Its end may be denser than its beginning.
                let needed = about + about / 8 + ANSWER;
                anyhow!(self.too_long(name, &format!("about {}", units::count(*about)), needed))
            }
            _ => error,
        }
    }

    /// The session's own, or longer where that holds no question and answer any more.
    fn for_session(
        &self,
        tokens: usize,
        saved: usize,
        question: usize,
        answer: Option<usize>,
    ) -> Wanted {
        let least = tokens + question + 1;
        let room = answer.unwrap_or(STEP).min(self.tokens);
        let needed = tokens + question + room;
        // Beyond, its positions would be others than those of its keys.
        let longest = match self.changes_at {
            Some(first) if saved <= first => first,
            Some(_) if self.stretch == Stretch::Context => saved,
            _ => self.tokens,
        };
        if needed <= saved || longest <= saved {
            let why = "as the session was saved".to_owned();
            return Wanted { least: least.min(saved), most: saved, why };
        }
        let why = format!(
            "the session has {} of {} and gets room for a question and its answer",
            units::count(tokens),
            units::count(saved)
        );
        let most = needed.next_multiple_of(STEP).min(longest);
        Wanted { least: least.min(most), most, why }
    }

    /// What to do for a context of `needed` tokens.
    fn beyond(&self, needed: usize) -> String {
        let context = needed.next_multiple_of(STEP);
        let times = |base: f64| (context as f64 / base).ceil();
        match self.stretch {
            Stretch::No => "shorten it, or use a model with a longer context".to_owned(),
            Stretch::Context => format!("shorten it, or use -c {context}"),
            Stretch::Factor(factor) => {
                let factor = times(self.tokens as f64 / factor);
                format!("shorten it, or use --rope-scale {factor}")
            }
            Stretch::Yarn => {
                let factor = times(self.tokens as f64);
                format!("shorten it, or use -c {context} --rope-scaling yarn --rope-scale {factor}")
            }
        }
    }
}

/// The memory that a run may use.
pub fn memory<B: Backend>(args: &EngineArgs, backend: &B) -> Memory {
    let capabilities = backend.capabilities();
    let host = if capabilities.unified_memory { None } else { longview_cpu::available_memory() };
    Memory { device: args.device_memory.or(capabilities.memory_bytes), host }
}

/// A model and a policy on a device, for which a context is wanted.
pub struct Chooser<'a, B: Backend> {
    /// The device.
    pub backend: &'a B,
    /// The model.
    pub folder: &'a ModelFolder,
    /// How the engine is to be set up, but for the context.
    pub options: &'a EngineOptions,
    /// What a session attends.
    pub policy: &'a PolicyOptions,
    /// What there is.
    pub memory: Memory,
}

impl<B: Backend> Chooser<'_, B> {
    /// The context for `content`, and a line that says why.
    ///
    /// # Errors
    /// If the model was not made for so much, or memory does not hold it, with what would help.
    pub fn choose(&self, limit: &Limit, content: Content) -> Result<usize> {
        let wanted = limit.wanted(content)?;
        let chosen = self.fit(&wanted)?;
        let cut = if chosen < wanted.most { "as much as memory holds; " } else { "" };
        note(format_args!("context: {} tokens ({cut}{})", units::count(chosen), wanted.why));
        Ok(chosen)
    }

    /// Whether memory holds a context of so many tokens.
    pub fn holds(&self, ctx_size: usize) -> bool {
        self.fit(&Wanted { least: ctx_size, most: ctx_size, why: String::new() }).is_ok()
    }

    fn fit(&self, wanted: &Wanted) -> Result<usize> {
        let Self { backend, folder, policy, .. } = *self;
        // What cannot work together is no question of memory.
        let options = EngineOptions { ctx_size: wanted.most, ..self.options.clone() };
        Engine::plan(backend, folder, &options, policy)?;
        let memory = self.memory.with_room();
        let unified = backend.capabilities().unified_memory;
        let fit = Fit { backend, folder, options: &options, policy, memory, unified };
        if let Some(tokens) = fit.longest_context(wanted.least, wanted.most) {
            return Ok(tokens);
        }
        let least = EngineOptions { ctx_size: wanted.least, ..self.options.clone() };
        let plan = Engine::plan(backend, folder, &least, policy)?;
        let fit = Fit { options: &least, ..fit };
        match plan.shortage(self.memory) {
            Some(shortage) => Err(plan.error(shortage, fit.advice(wanted.least)))
                .with_context(|| format!("--ctx-size {} is the least that holds it", wanted.least)),
            None => Ok(wanted.least),
        }
    }

    /// A context that was given, if the text fits into it and the host beside a device holds it.
    /// The device's part is checked when the model is loaded.
    ///
    /// # Errors
    /// With both numbers, before anything is loaded.
    pub fn check(&self, ctx_size: usize, content: Content) -> Result<usize> {
        let options = EngineOptions { ctx_size, ..self.options.clone() };
        let memory = Memory { device: None, host: self.memory.host };
        Engine::check_memory(self.backend, self.folder, &options, self.policy, memory)?;
        match content {
            Content::Text { tokens, .. } if tokens > ctx_size => {
                Err(EngineError::PromptTooLong { prompt: tokens, used: 0, context: ctx_size }
                    .into())
            }
            _ => Ok(ctx_size),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use longview_startup::embedded;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        rope: RopeArgs,
    }

    /// The limit of the embedded model with another trained length and scaling.
    fn limit(trained: usize, scaling: RopeScaling, line: &str) -> Limit {
        let mut config = embedded::open().unwrap().config;
        config.max_position_embeddings = trained;
        config.rope.scaling = scaling;
        let words = std::iter::once("x").chain(line.split_whitespace());
        Limit::new(&config, &Line::try_parse_from(words).unwrap().rope)
    }

    fn plain() -> Limit {
        limit(32_768, RopeScaling::Default, "")
    }

    fn text(tokens: usize, answer: Option<usize>, is_chat: bool) -> Content {
        Content::Text { name: "document", tokens, answer, is_chat }
    }

    fn most(limit: Limit, content: Content) -> usize {
        limit.wanted(content).unwrap().most
    }

    #[test]
    fn a_text_gets_room_for_its_answer() {
        let wanted = plain().wanted(text(10_011, None, false)).unwrap();
        assert_eq!((wanted.least, wanted.most), (10_012, 12_288));
        assert_eq!(wanted.why, "the document has 10,011; the model's limit is 32,768");
        assert_eq!(most(plain(), text(10_011, Some(16), false)), 10_240);
        assert_eq!(most(plain(), text(10_011, None, true)), 18_432);
        assert_eq!(most(plain(), text(3, None, false)), 4096);
        assert_eq!(most(plain(), text(32_700, None, false)), 32_768);
        assert_eq!(most(plain(), text(10, Some(usize::MAX), false)), 32_768);
        assert_eq!(most(plain(), Content::Unknown), 32_768);
    }

    #[test]
    fn a_text_that_is_too_long_hears_what_would_hold_it() {
        let message =
            |limit: Limit, tokens| limit.wanted(text(tokens, None, false)).unwrap_err().to_string();
        let yarn = message(plain(), 50_000);
        assert!(yarn.contains("has 50,000 tokens and the model was made for 32,768"), "{yarn}");
        assert!(yarn.ends_with("-c 52224 --rope-scaling yarn --rope-scale 2"), "{yarn}");
        let stretched = "--rope-scaling yarn --rope-scale 2";
        let larger = message(limit(32_768, RopeScaling::Default, stretched), 70_000);
        assert!(larger.ends_with("use --rope-scale 3"), "{larger}");
        let dynamic = RopeScaling::Dynamic { factor: 2.0, original_max_positions: 4096 };
        assert!(message(limit(4096, dynamic, ""), 5000).ends_with("use -c 7168"));
    }

    #[test]
    fn positions_that_depend_on_the_length_are_of_a_trained_length() {
        let dynamic = RopeScaling::Dynamic { factor: 2.0, original_max_positions: 8192 };
        assert_eq!(most(limit(8192, dynamic, ""), text(100, None, false)), 8192);
        let long = || RopeScaling::LongRope {
            short_factor: vec![],
            long_factor: vec![],
            attention_factor: 1.0,
            original_max_positions: 4096,
        };
        assert_eq!(most(limit(131_072, long(), ""), text(100, None, false)), 4096);
        assert_eq!(most(limit(131_072, long(), ""), text(4000, None, false)), 131_072);
        assert_eq!(most(limit(131_072, long(), ""), Content::Unknown), 131_072);
    }

    #[test]
    fn a_session_keeps_its_context_unless_nothing_fits_into_it_any_more() {
        let session =
            |tokens, saved, question| Content::Session { tokens, saved, question, answer: None };
        assert_eq!(most(plain(), session(5000, 8192, 20)), 8192);
        assert_eq!(most(plain(), session(5000, 40_000, 20)), 40_000, "it was saved so");
        let grown = plain().wanted(session(8190, 8192, 20)).unwrap();
        assert_eq!((grown.least, grown.most), (8211, 10_240));
        assert!(grown.why.contains("has 8,190 of 8,192"), "{}", grown.why);
        let dynamic = RopeScaling::Dynamic { factor: 2.0, original_max_positions: 4096 };
        let beyond = limit(4096, dynamic, "").wanted(session(8190, 8192, 20)).unwrap();
        assert_eq!(beyond.most, 8192, "other positions than those of its keys");
    }
}
