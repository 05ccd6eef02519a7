//! What a request asks of the engine: fields of `/v1/completions` and `/v1/chat/completions` that
//! say how an answer is generated.

use longview_engine::{Draft, PrefillMode, SamplingParams, resolve_policy};
use longview_model::tokenizer::Specials;
use longview_scheduler::{PolicyError, PolicyOptions, Preset};
use serde_json::Value;

use crate::calls::Calls;
use crate::constraint::{Constraint, Grammars};
use crate::error::{ApiError, clip};
use crate::fields::{Fields, wrong};
use crate::look::Look;
use crate::random;
use crate::texts::ModelFacts;
use crate::tools::Tools;

/// Answers to one request.
const MAX_N: u64 = 8;
/// Stop texts of a request, and bytes of one.
const MAX_STOPS: usize = 16;
const MAX_STOP_BYTES: usize = 1024;
/// Tokens whose logits a request may change.
const MAX_BIASED: usize = 1024;
/// Tokens beside the chosen one whose probabilities a request may see.
const MAX_LOGPROBS: u64 = 20;
/// Tokens of an answer to `/v1/completions` that does not say, as in OpenAI's API.
const COMPLETION_TOKENS: usize = 16;

/// Fields of others that this server does not have.
const UNSUPPORTED: [&str; 19] = [
    "audio",
    "best_of",
    "continue_final_message",
    "dry_multiplier",
    "echo",
    "functions",
    "function_call",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "lora",
    "min_tokens",
    "mirostat",
    "stop_token_ids",
    "structured_outputs",
    "suffix",
    "web_search_options",
    "xtc_probability",
];

/// How answers are generated.
#[derive(Clone, Debug)]
pub(crate) struct How {
    pub(crate) n: usize,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) sampling: SamplingParams,
    pub(crate) presence: f32,
    pub(crate) frequency: f32,
    pub(crate) bias: Vec<(u32, f32)>,
    /// Alternatives to say the probabilities of, if any are wanted.
    pub(crate) logprobs: Option<usize>,
    pub(crate) stop: Vec<String>,
    pub(crate) ignore_eos: bool,
    pub(crate) return_progress: bool,
    /// Whether each part of a stream says what the request took so far.
    pub(crate) timings_per_token: bool,
    /// Whether probabilities are those after all cuts.
    pub(crate) is_after_sampling: bool,
    /// Whether the client wants the tokens of an answer beside its text.
    pub(crate) returns_tokens: bool,
    /// Whether what was read before is used. Its rows lie in the order of its clusters, in which
    /// attention adds, so who needs the last bits whatever was asked before reads all of it.
    pub(crate) uses_known: bool,
    pub(crate) policy: PolicyOptions,
    /// Where drafts come from; as the server was told if the request does not say.
    pub(crate) draft: Option<Draft>,
    /// How the prompt is read.
    pub(crate) prefill: PrefillMode,
    /// What the answer must be.
    pub(crate) constraint: Option<Constraint>,
    /// Whether special tokens of the answer are written out: marks of calls may be such.
    pub(crate) keeps_special: bool,
    /// What the client sees of the answer's steps, if it asked for that.
    pub(crate) look: Option<Look>,
    /// The slot in which it leaves what it read and said.
    pub(crate) slot: usize,
}

/// What a request came to: the forms of fields differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    /// `/v1/completions`.
    Completions,
    /// `/completion`, llama.cpp's own.
    Native,
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/responses`.
    Responses,
    /// `/v1/messages`.
    Messages,
}

/// How an answer is sent.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sending {
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
}

impl How {
    /// A document that is read, and nothing more.
    pub(crate) fn reading(policy: PolicyOptions, prefill: PrefillMode) -> Self {
        Self {
            n: 1,
            max_tokens: Some(0),
            sampling: SamplingParams::default(),
            presence: 0.0,
            frequency: 0.0,
            bias: Vec::new(),
            logprobs: None,
            stop: Vec::new(),
            ignore_eos: false,
            return_progress: true,
            timings_per_token: false,
            is_after_sampling: false,
            returns_tokens: false,
            uses_known: true,
            policy,
            draft: Some(Draft::Off),
            prefill,
            constraint: None,
            keeps_special: false,
            look: None,
            slot: 0,
        }
    }

    /// What the fields say.
    pub(crate) fn read(
        fields: &mut Fields<'_>,
        model: &ModelFacts,
        grammars: &Grammars,
        endpoint: Endpoint,
    ) -> Result<Self, ApiError> {
        fields.refuse(&UNSUPPORTED)?;
        let modalities = fields.any("modalities").and_then(Value::as_array);
        if modalities.is_some_and(|kinds| kinds.iter().any(|kind| kind == "audio")) {
            return Err(ApiError::unsupported("modalities"));
        }
        let sampling = sampling(fields, model)?;
        let mut max = fields.count("max_tokens")?;
        for other in ["max_completion_tokens", "max_output_tokens", "n_predict"] {
            max = fields.count(other)?.or(max);
        }
        let default = (endpoint == Endpoint::Completions).then_some(COMPLETION_TOKENS);
        // The other endpoints have one answer.
        let max_n = match endpoint {
            Endpoint::Completions | Endpoint::Chat => MAX_N,
            Endpoint::Native | Endpoint::Responses | Endpoint::Messages => 1,
        };
        let n = fields.whole("n", 1..=max_n)?.unwrap_or(1) as usize;
        let look = match endpoint {
            Endpoint::Completions | Endpoint::Chat => Look::read(fields, model, n)?,
            Endpoint::Native | Endpoint::Responses | Endpoint::Messages => None,
        };
        let returns_tokens = match endpoint {
            Endpoint::Completions => fields.flag("return_token_ids")?.unwrap_or(false),
            // Its events count them.
            Endpoint::Native => true,
            Endpoint::Chat | Endpoint::Responses | Endpoint::Messages => false,
        };
        let is_after_sampling = match endpoint {
            Endpoint::Native | Endpoint::Chat => {
                fields.flag("post_sampling_probs")?.unwrap_or(false)
            }
            Endpoint::Completions | Endpoint::Responses | Endpoint::Messages => false,
        };
        let policy = policy(fields, model)?;
        let prefill = prefill(fields, model, &policy)?;
        Ok(Self {
            n,
            max_tokens: max.or(default),
            sampling,
            presence: fields.number("presence_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            frequency: fields.number("frequency_penalty", -2.0..=2.0)?.unwrap_or(0.0),
            bias: bias(fields, model)?,
            logprobs: logprobs(fields, endpoint)?,
            stop: stop(fields, endpoint)?,
            ignore_eos: fields.flag("ignore_eos")?.unwrap_or(false),
            return_progress: fields.flag("return_progress")?.unwrap_or(false),
            timings_per_token: fields.flag("timings_per_token")?.unwrap_or(false),
            is_after_sampling,
            returns_tokens,
            uses_known: fields.flag("cache_prompt")?.unwrap_or(true),
            policy,
            draft: draft(fields)?,
            prefill,
            constraint: grammars.read(fields, model)?,
            keeps_special: false,
            look,
            slot: slot(fields)?,
        })
    }

    /// Has the answer call `tools`, where it must, and says how its calls are read.
    pub(crate) fn call_tools(
        &mut self,
        tools: &Tools,
        model: &ModelFacts,
        grammars: &Grammars,
    ) -> Result<Calls, ApiError> {
        if let Some(constraint) = tools.constraint(grammars, model)? {
            if self.constraint.is_some() {
                let message = "tool_choice: an answer that must call a tool has no other form";
                return Err(ApiError::field("tool_choice", message));
            }
            self.constraint = Some(constraint);
        }
        let style = tools.style(model);
        self.keeps_special = style.is_some();
        Ok(Calls::new(style).typed(tools.types()))
    }

    /// Whether the choice of a token needs all logits.
    pub(crate) fn needs_logits(&self) -> bool {
        let penalises = self.presence != 0.0 || self.frequency != 0.0;
        let is_free = self.bias.is_empty() && self.constraint.is_none();
        penalises || !is_free || self.logprobs.is_some()
    }
}

impl Sending {
    /// What the fields say.
    pub(crate) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let stream = fields.flag("stream")?.unwrap_or(false);
        let Some(options) = fields.any("stream_options") else {
            return Ok(Self { stream, include_usage: false });
        };
        let mut options = Fields::of(options).map_err(|_| wrong("stream_options", "an object"))?;
        let usage = options.flag("include_usage").map_err(|e| e.about("stream_options"))?;
        Ok(Self { stream, include_usage: usage.unwrap_or(false) })
    }
}

/// Refuses a model that is not served, and says which are.
pub(crate) fn check_model(fields: &mut Fields<'_>, model: &ModelFacts) -> Result<(), ApiError> {
    let Some(name) = fields.text("model")? else { return Ok(()) };
    if name.is_empty() || model.names.iter().any(|known| known == name) {
        return Ok(());
    }
    Err(no_model(model, name).about("model"))
}

/// That there is no such model. Other names of the one there is may be paths of this machine.
pub(crate) fn no_model(model: &ModelFacts, name: &str) -> ApiError {
    let served = &model.names[0];
    let message = format!("model: '{}' is not served here; there is: {served}", clip(name));
    let error = ApiError::new(axum::http::StatusCode::NOT_FOUND, "model_not_found", message);
    error.with("models", serde_json::json!([served]))
}

fn sampling(fields: &mut Fields<'_>, model: &ModelFacts) -> Result<SamplingParams, ApiError> {
    let (off, authors) = (SamplingParams::default(), &model.generation);
    let model_temperature = match authors.do_sample {
        Some(true) => authors.temperature.unwrap_or(1.0),
        _ => off.temperature,
    };
    let temperature = fields.number("temperature", 0.0..=100.0)?.unwrap_or(model_temperature);
    let penalty = fields.number("repeat_penalty", 1e-3..=1e3)?;
    let penalty = fields.number("repetition_penalty", 1e-3..=1e3)?.or(penalty);
    // Of no probability at all there is no token: the best one is what is left of 0.
    let top_p = fields.number("top_p", 0.0..=1.0)?.map(|p| p.max(f32::MIN_POSITIVE));
    Ok(SamplingParams {
        temperature,
        top_k: top_k(fields)?.or(authors.top_k.map(|k| k as usize)).unwrap_or(off.top_k),
        top_p: top_p.or(authors.top_p).unwrap_or(off.top_p),
        min_p: fields.number("min_p", 0.0..=1.0)?.or(authors.min_p).unwrap_or(off.min_p),
        repeat_penalty: penalty.or(authors.repetition_penalty).unwrap_or(off.repeat_penalty),
        repeat_last_n: fields.count("repeat_last_n")?.unwrap_or(off.repeat_last_n),
        seed: seed(fields)?.unwrap_or_else(|| draw_seed(temperature)),
    })
}

/// The seed of a request that has none. It is of 32 bits, as llama.cpp's are: clients that read
/// numbers as floats can send it back.
fn draw_seed(temperature: f32) -> u64 {
    if temperature == 0.0 {
        return SamplingParams::default().seed;
    }
    random::bits() & u64::from(u32::MAX)
}

/// Both 0 and -1 keep all.
fn top_k(fields: &mut Fields<'_>) -> Result<Option<usize>, ApiError> {
    if fields.any("top_k").is_some_and(|k| k.as_i64() == Some(-1)) {
        return Ok(Some(0));
    }
    Ok(fields.whole("top_k", 0..=1 << 30)?.map(|k| k as usize))
}

/// Where nothing is said, and with -1, it is the first.
fn slot(fields: &mut Fields<'_>) -> Result<usize, ApiError> {
    if fields.any("id_slot").is_some_and(|slot| slot.as_i64() == Some(-1)) {
        return Ok(0);
    }
    Ok(fields.whole("id_slot", 0..=u64::from(u16::MAX))?.unwrap_or(0) as usize)
}

/// A seed below 0 is none: llama.cpp's clients send -1.
fn seed(fields: &mut Fields<'_>) -> Result<Option<u64>, ApiError> {
    if fields.any("seed").is_some_and(|seed| seed.as_i64().is_some_and(|seed| seed < 0)) {
        return Ok(None);
    }
    fields.whole("seed", 0..=u64::MAX)
}

fn stop(fields: &mut Fields<'_>, endpoint: Endpoint) -> Result<Vec<String>, ApiError> {
    let name = if endpoint == Endpoint::Messages { "stop_sequences" } else { "stop" };
    let refused = || {
        let wanted = format!(
            "a text or up to {MAX_STOPS} texts, none empty or above {MAX_STOP_BYTES} bytes"
        );
        wrong(name, &wanted)
    };
    let texts: Vec<&Value> = match fields.any(name) {
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list.iter().collect(),
        Some(one) => vec![one],
    };
    let is_sound = |text: &&str| !text.is_empty() && text.len() <= MAX_STOP_BYTES;
    let sound = texts.iter().map(|text| text.as_str().filter(is_sound).map(str::to_owned));
    match sound.collect::<Option<Vec<_>>>() {
        Some(stops) if stops.len() <= MAX_STOPS => Ok(stops),
        _ => Err(refused()),
    }
}

/// OpenAI's object by tokens, or llama.cpp's list of pairs, whose tokens may be texts and whose
/// `false` is never.
fn bias(fields: &mut Fields<'_>, model: &ModelFacts) -> Result<Vec<(u32, f32)>, ApiError> {
    let refused = || {
        let vocab = model.vocab_size;
        let wanted = format!(
            "an object of at most {MAX_BIASED} tokens below {vocab} and numbers from -100 to 100, \
             or a list of pairs of a token or a text and such a number or false"
        );
        wrong("logit_bias", &wanted)
    };
    let id = |id: u64| u32::try_from(id).ok().filter(|id| (*id as usize) < model.vocab_size);
    let number = |value: &Value| {
        let value = value.as_f64().filter(|value| value.abs() <= 100.0)?;
        Some(value as f32)
    };
    let pair = |pair: &Value| {
        let [token, value] = pair.as_array()?.as_slice() else { return None };
        let ids = match token {
            // A text is of no more tokens than it has bytes, and more would be refused anyhow.
            Value::String(text) if text.len() <= MAX_STOP_BYTES => {
                model.tokenizer.encode(text, Specials::of_text(false)).ok()?
            }
            token => vec![id(token.as_u64()?)?],
        };
        let is_banned = *value == Value::Bool(false);
        let value = if is_banned { f32::NEG_INFINITY } else { number(value)? };
        Some(ids.into_iter().map(move |id| (id, value)))
    };
    let found: Option<Vec<(u32, f32)>> = match fields.any("logit_bias") {
        None => return Ok(Vec::new()),
        Some(Value::Object(map)) if map.len() <= MAX_BIASED => map
            .iter()
            .map(|(token, value)| Some((id(token.parse().ok()?)?, number(value)?)))
            .collect(),
        Some(Value::Array(list)) if list.len() <= MAX_BIASED => list
            .iter()
            .map(pair)
            .collect::<Option<Vec<_>>>()
            .map(|all| all.into_iter().flatten().collect()),
        Some(_) => None,
    };
    found.filter(|found| found.len() <= MAX_BIASED).ok_or_else(refused)
}

/// OpenAI's two forms: a number in completions, a flag and a number in chats.
fn logprobs(fields: &mut Fields<'_>, endpoint: Endpoint) -> Result<Option<usize>, ApiError> {
    // llama.cpp's name, whose 0 asks for nothing.
    let n_probs = fields.whole("n_probs", 0..=MAX_LOGPROBS)?.map(|n| n as usize);
    let n_probs = n_probs.filter(|n| *n > 0);
    if endpoint == Endpoint::Native {
        return Ok(n_probs);
    }
    if endpoint == Endpoint::Completions {
        let logprobs = fields.whole("logprobs", 0..=MAX_LOGPROBS)?.map(|n| n as usize);
        return Ok(logprobs.or(n_probs));
    }
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.whole("top_logprobs", 0..=MAX_LOGPROBS)?.map(|n| n as usize);
    match (wanted, top) {
        (true, top) => Ok(Some(top.or(n_probs).unwrap_or(0))),
        (false, None | Some(0)) => Ok(n_probs),
        (false, Some(_)) => Err(wrong("top_logprobs", "given together with logprobs: true")),
    }
}

/// Where drafts come from. `none` is what the command line calls `off`.
fn draft(fields: &mut Fields<'_>) -> Result<Option<Draft>, ApiError> {
    match fields.text("draft")? {
        None => Ok(None),
        Some("lookup") => Ok(Some(Draft::Lookup)),
        Some("none" | "off") => Ok(Some(Draft::Off)),
        Some(_) => Err(wrong("draft", "one of lookup, off, none")),
    }
}

/// How the prompt is read. What a policy needs of it is found before the request waits.
pub(crate) fn prefill(
    fields: &mut Fields<'_>,
    model: &ModelFacts,
    options: &PolicyOptions,
) -> Result<PrefillMode, ApiError> {
    let given = fields.text("prefill")?.map(|text| {
        text.parse().map_err(|_| {
            wrong("prefill", "exact, sparse, or sparse:THRESHOLD with a number above 0, at most 1")
        })
    });
    let mode = given.transpose()?.unwrap_or(model.prefill);
    let (_, policy) = resolve_policy(options, model.n_layers, model.ctx_size)
        .map_err(|error| ApiError::bad("invalid_policy", as_field(&error)).about("policy"))?;
    if !mode.is_exact() && policy.needs_all_queries() {
        let name = options.preset.name();
        let message = format!(
            "prefill: {mode} does not compute the attention of all queries that the policy {name} \
             keeps: ask with prefill exact, or with another policy"
        );
        return Err(ApiError::field("prefill", message));
    }
    Ok(mode)
}

/// What each generated token attends.
fn policy(fields: &mut Fields<'_>, model: &ModelFacts) -> Result<PolicyOptions, ApiError> {
    let mut options = model.policy.clone();
    if let Some(name) = fields.text("policy")? {
        let preset: Preset = name.parse().map_err(|_| {
            let names: Vec<_> = Preset::ALL.iter().map(|(preset, _)| preset.name()).collect();
            wrong("policy", &format!("one of {}", names.join(", ")))
        })?;
        if preset != options.preset {
            options = PolicyOptions::new(preset);
        }
    }
    if let Some(budget) = fields.whole("budget", 1..=1 << 30)? {
        set(&mut options, "budget", &budget.to_string())?;
    }
    if let Some(residual) = fields.text("residual")? {
        set(&mut options, "residual", residual)?;
    }
    if let Some(given) = fields.any("policy_options") {
        let refused = || wrong("policy_options", "an object of texts");
        for (name, value) in given.as_object().ok_or_else(refused)? {
            let set = options.set(name, value.as_str().ok_or_else(refused)?);
            set.map_err(|error| ApiError::field("policy_options", as_field(&error)))?;
        }
    }
    // What cannot work together is found before the request waits.
    resolve_policy(&options, model.n_layers, model.ctx_size)
        .map_err(|error| ApiError::bad("invalid_policy", as_field(&error)).about("policy"))?;
    Ok(options)
}

fn set(options: &mut PolicyOptions, name: &'static str, text: &str) -> Result<(), ApiError> {
    options.set(name, text).map_err(|error| ApiError::field(name, as_field(&error)))
}

/// What is wrong with an option that is a field here, and not one of a command line.
fn as_field(error: &PolicyError) -> String {
    error.to_string().trim_start_matches("--").to_owned()
}
