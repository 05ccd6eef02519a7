//! `longview serve`: a model for other programs, over HTTP.

use std::collections::BTreeSet;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use clap::builder::{FalseyValueParser, Resettable};
use clap::{ArgAction, Args};
use longview_engine::{Draft, EngineOptions, MAX_DRAFTED};
use longview_model::chat::ChatTemplate;
use longview_model::folder::ModelFolder;
use longview_model::generation::GenerationDefaults;
use longview_model::tokenizer::Tokenizer;
use longview_scheduler::PolicyOptions;
use longview_server::{
    ApiKey, KvEventsOptions, Limits, ModelFacts, Origin, Server, ServerOptions, Turns, curl_line,
};
use longview_startup::embedded;
use tracing::level_filters::LevelFilter;

use crate::args::{DRAFTS, EngineArgs, PolicyArgs, RopeArgs, numbers, one_of};
use crate::context::{self, Chooser, Content, Limit};
use crate::device::with_device;
use crate::files::input;
use crate::interrupt::Interrupt;
use crate::load::{self, ModelArgs};
use crate::log::LogFormat;
use crate::out::note;
use crate::share::ShareArgs;
use crate::{kv, log, template, units};

/// Sequences of a step, at least: several answers to one request share steps as well.
const MIN_SEQUENCES: usize = 4;

/// Options of `longview serve`.
#[derive(Args)]
#[command(
    mut_arg("model", |arg| arg.required_unless_present(Resettable::Reset)),
    mut_args(|arg| {
        // By the name that is typed: some are known by another one to the program.
        let name = arg.get_long().unwrap_or(arg.get_id().as_str());
        let name = format!("LONGVIEW_{}", name.to_uppercase().replace('-', "_"));
        match arg.get_action() {
            // Set by any value but `0`, `false`, `no` and `off`.
            ArgAction::SetTrue => {
                arg.value_parser(FalseyValueParser::new()).env(name).hide_env(true)
            }
            action if action.takes_values() => arg.env(name).hide_env(true),
            _ => arg,
        }
    }),
    after_help = "\
Without -m the model that is part of this program is served. Options can be given in the \
environment too: --ctx-size as LONGVIEW_CTX_SIZE, --no-library as LONGVIEW_NO_LIBRARY=1. \
docs/server.md has endpoints, fields, \
errors and examples."
)]
pub struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,

    /// Address to listen on. One that other machines reach needs --api-key.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1")]
    host: IpAddr,

    /// Port; 0: one that is free.
    #[arg(long, value_name = "N", default_value_t = 8080)]
    port: u16,

    /// What clients must send as `Authorization: Bearer KEY`; several with commas or several times.
    /// Each has contexts of its own; as NAME:KEY they go with the name [default: none].
    #[arg(
        long,
        value_name = "KEY",
        value_delimiter = ',',
        conflicts_with = "api_key_file",
        hide_env_values = true
    )]
    api_key: Vec<String>,

    /// A file with a key in each line, which other users of the machine do not see among the
    /// processes; lines that begin with # are comments [default: none].
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,

    /// A name of this machine that clients may use in the Host header; may be given several times
    /// [default: localhost and the address].
    #[arg(long, value_name = "NAME")]
    allowed_host: Vec<String>,

    /// Pages of another site that may ask from a browser, as `https://chat.example` or
    /// `http://localhost:3000`; several with commas or several times. They need the key all the same
    /// [default: none].
    #[arg(long, value_name = "ORIGIN", value_delimiter = ',', value_parser = Origin::parse)]
    allow_origin: Vec<Origin>,

    /// What clients call the model [default: its file or folder].
    #[arg(short, long, value_name = "NAME")]
    alias: Option<String>,

    /// Requests that run at the same time.
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = numbers::count(1..=64))]
    parallel: usize,

    /// Requests that wait; one more is told to come again later.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = numbers::count(0..=10_000))]
    max_waiting: usize,

    /// Most milliseconds that an answer waits for its next token while prompts of others are read.
    #[arg(long, value_name = "MS", default_value_t = 200, value_parser = numbers::count(1..=9999))]
    max_stall: usize,

    /// Contexts that are kept in memory after their requests, so that what begins like them is not
    /// read again; 0 keeps none.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = numbers::count(0..=1000))]
    keep: usize,

    /// Bytes on disk for prompts of 1,024 tokens and more that nobody named: they are written to
    /// the library when the server ends, and conversations when memory needs their room, so that
    /// they are not read again; 0: none.
    #[arg(long, value_name = "SIZE", default_value = "8GiB", value_parser = size_or_none)]
    keep_on_disk: u64,

    /// Memory for the keys, values and indexes of what runs and what is kept. Requests wait until
    /// there is enough, and what is kept goes for them [default: what the system has left].
    #[arg(long, value_name = "SIZE", value_parser = units::parse_bytes)]
    session_memory: Option<u64>,

    /// Most MiB of a request.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = numbers::count(1..=1024))]
    max_body: usize,

    /// Answers that repeat what was read, faster: lookup: what followed the same tokens earlier is
    /// computed on trial, several tokens a step. Answers are the same, token by token. Requests
    /// under a policy that cannot take a token back go without. Requests may say it themselves.
    #[arg(long, value_name = "HOW", default_value = "off", value_parser = one_of(DRAFTS))]
    draft: Draft,

    /// Folder of the library in which contexts are kept [default: the user's data folder].
    #[arg(long, value_name = "DIR")]
    library: Option<PathBuf>,

    /// Keep no contexts on disk: there is no /v1/contexts then [default: off].
    #[arg(long)]
    no_library: bool,

    #[command(flatten)]
    share: ShareArgs,

    #[command(flatten)]
    kv_events: KvEventsArgs,

    /// No page for people at `/` [default: off].
    #[arg(long)]
    no_page: bool,

    /// What goes to stderr while it serves: lines from this level on; debug has each request's
    /// method, path and status. None has a prompt or an answer in it.
    #[arg(long, value_name = "LEVEL", default_value = "info", value_parser = one_of(log::LEVELS))]
    log: LevelFilter,

    /// How these lines look: text: the message; json: an object in each line with time, level and
    /// fields, of a request its id, route, status and ms.
    #[arg(
        long,
        value_name = "HOW",
        default_value = "text",
        value_parser = one_of(log::FORMATS)
    )]
    log_format: LogFormat,

    #[command(flatten)]
    policy: PolicyArgs,

    #[command(flatten)]
    engine: EngineArgs,

    #[command(flatten)]
    rope: RopeArgs,
}

/// Options of events for routers.
#[derive(Args)]
struct KvEventsArgs {
    /// Address at which routers hear which blocks of 64 tokens are kept, in vLLM's format over
    /// ZeroMQ: tcp://127.0.0.1:5557. One that other machines reach needs --api-key, and is open to
    /// them without the key [default: none].
    #[arg(long, value_name = "ADDRESS", value_parser = KvEventsOptions::parse_address)]
    kv_events: Option<SocketAddr>,

    /// Address at which they ask for messages that they missed [default: none].
    #[arg(
        long,
        value_name = "ADDRESS",
        requires = "kv_events",
        value_parser = KvEventsOptions::parse_address
    )]
    kv_events_replay: Option<SocketAddr>,

    /// What these messages begin with, by which subscribers choose.
    #[arg(long, value_name = "TEXT", default_value = "", requires = "kv_events")]
    kv_events_topic: String,
}

impl KvEventsArgs {
    fn options(&self) -> Option<KvEventsOptions> {
        let (replay, topic) = (self.kv_events_replay, self.kv_events_topic.clone());
        self.kv_events.map(|address| KvEventsOptions { address, replay, topic })
    }
}

/// A size, or 0.
fn size_or_none(text: &str) -> Result<u64, String> {
    if text == "0" { Ok(0) } else { units::parse_bytes(text) }
}

/// Serves until a signal ends it.
pub fn run(args: &ServeArgs) -> Result<()> {
    let _lines = log::show(args.log, args.log_format)?;
    let server = options(args)?;
    let keys = server.api_keys.clone();
    let mut folder = open(args)?;
    if let Some(chat) = &folder.chat {
        template::check(chat)?;
    }
    // Handlers share the tokenizer with the engine, and render in its place.
    let texts = Texts {
        eos_ids: folder.eos_token_ids(),
        tokenizer: folder.tokenizer()?.clone(),
        chat: folder.chat.take(),
        generation: folder.generation.clone(),
        n_layers: folder.config.n_layers,
        n_kv_heads: folder.config.n_kv_heads,
        vocab_size: folder.config.vocab_size,
    };
    let policy = args.policy.options()?;
    let options = EngineOptions {
        rope: args.rope.scaling(&folder.config),
        max_sequences: args.parallel.max(MIN_SEQUENCES),
        // A request may ask for drafts whatever the option says.
        max_drafted: MAX_DRAFTED,
        ..args.engine.options(args.model.ctx_size.max(1))
    };
    let limit = Limit::new(&folder.config, &args.rope);
    with_device!(args.engine.device()?, backend => {
        let chooser = Chooser {
            backend: &*backend,
            folder: &folder,
            options: &options,
            policy: &policy,
            memory: context::memory(&args.engine, &*backend),
        };
        let ctx_size = match args.model.ctx_size {
            0 => chooser.choose(&limit, Content::Unknown)?,
            given => chooser.check(given, Content::Unknown)?,
        };
        let options = EngineOptions { ctx_size, ..options };
        let facts = facts(args, texts, ctx_size, policy.clone())?;
        let name = facts.names[0].clone();
        let draft = args.draft;
        let load = move || {
            let engine = load::engine(backend, folder, options, &policy)?.0;
            if draft != Draft::Off {
                engine.check_draft(&policy)?;
            }
            Ok(engine)
        };
        let server = Server::start(server, facts, load)?;
        introduce(args, &keys, &server, &name);
        Ok(server.wait()?)
    })
}

/// What handlers need of a model.
struct Texts {
    eos_ids: Vec<u32>,
    tokenizer: Tokenizer,
    chat: Option<ChatTemplate>,
    generation: GenerationDefaults,
    n_layers: usize,
    n_kv_heads: usize,
    vocab_size: usize,
}

fn open(args: &ServeArgs) -> Result<ModelFolder> {
    if args.model.is_absent() {
        return Ok(embedded::open()?);
    }
    // The server has signals of its own; a download goes on where it was ended.
    args.model.open(&Interrupt::without_handler())
}

fn options(args: &ServeArgs) -> Result<ServerOptions> {
    let documents = match (&args.library, args.no_library) {
        (_, true) => None,
        (library, false) => Some(kv::open_library(library.as_deref())?),
    };
    let share = args.share.open()?;
    if share.is_some() && documents.is_none() {
        bail!("--share: comes and goes through a library: leave --no-library out");
    }
    Ok(ServerOptions {
        host: args.host,
        port: args.port,
        api_keys: api_keys(args)?,
        allowed_hosts: args.allowed_host.iter().cloned().collect::<BTreeSet<_>>(),
        allowed_origins: args.allow_origin.iter().cloned().collect(),
        n_slots: args.parallel,
        max_waiting: args.max_waiting,
        max_kept: args.keep,
        prompt_bytes: args.keep_on_disk,
        session_memory: args.session_memory,
        free_memory: Some(longview_cpu::available_memory),
        documents,
        share,
        kv_events: args.kv_events.options(),
        has_page: !args.no_page,
        limits: Limits {
            body_bytes: args.max_body << 20,
            max_stall: Duration::from_millis(args.max_stall as u64),
            ..Limits::default()
        },
        catches_signals: true,
        turns: Turns::default(),
    })
}

fn api_keys(args: &ServeArgs) -> Result<Vec<ApiKey>> {
    let Some(path) = &args.api_key_file else {
        let key =
            |text: &String| ApiKey::parse(text).map_err(|error| anyhow!("--api-key: {error}"));
        return args.api_key.iter().map(key).collect();
    };
    let text = input::read_text("--api-key-file", path)?;
    let is_key = |line: &str| !line.is_empty() && !line.starts_with('#');
    let lines = text.lines().map(str::trim).enumerate().filter(|(_, line)| is_key(line));
    let key = |(at, line): (usize, &str)| {
        let wrong = |error| anyhow!("--api-key-file {}: line {}: {error}", path.display(), at + 1);
        ApiKey::parse(line).map_err(wrong)
    };
    let keys: Vec<ApiKey> = lines.map(key).collect::<Result<_>>()?;
    if keys.is_empty() {
        bail!("--api-key-file {}: has no key: give one in each line", path.display());
    }
    Ok(keys)
}

/// Whether the model inside the program is served: where none is named, and by its name.
fn is_embedded(args: &ServeArgs) -> bool {
    args.model.is_absent() || args.model.is_embedded()
}

fn facts(
    args: &ServeArgs,
    texts: Texts,
    ctx_size: usize,
    policy: PolicyOptions,
) -> Result<ModelFacts> {
    let (words, names) = if args.model.is_absent() {
        (embedded::NAME.to_owned(), vec![embedded::NAME.to_owned()])
    } else {
        let given = args.model.name();
        let file = Path::new(&given).file_name().map(|name| name.to_string_lossy().into_owned());
        let names = file.into_iter().chain([given]).collect();
        (kv::model_words(&args.model), names)
    };
    let mut names: Vec<String> = args.alias.iter().cloned().chain(names).collect();
    names.dedup();
    Ok(ModelFacts {
        names,
        words,
        is_embedded: is_embedded(args),
        eos_ids: texts.eos_ids,
        tokenizer: texts.tokenizer,
        chat: texts.chat,
        generation: texts.generation,
        n_layers: texts.n_layers,
        n_kv_heads: texts.n_kv_heads,
        vocab_size: texts.vocab_size,
        ctx_size,
        policy,
        draft: args.draft,
        prefill: args.engine.prefill.first(),
    })
}

/// Where it listens, and a line to try it with.
fn introduce(args: &ServeArgs, keys: &[ApiKey], server: &Server, name: &str) {
    let note = |line: fmt::Arguments<'_>| match args.log_format {
        LogFormat::Text => note(line),
        LogFormat::Json => log::note(line),
    };
    let address = server.address();
    let places = units::count(args.parallel);
    note(format_args!("serving {name} at http://{address}/v1, {places} at a time; Ctrl-C ends it"));
    if !args.no_page {
        note(format_args!("  a page for people: http://{address}/"));
    }
    if let Some(address) = args.share.address() {
        note(format_args!("  documents are shared through {address}"));
    }
    if let Some((address, replay)) = server.kv_events() {
        let missed = replay.map(|at| format!(", missed ones at tcp://{at}")).unwrap_or_default();
        note(format_args!("  KV events for routers: tcp://{address}{missed}"));
    }
    let is_named = |keys: &[ApiKey]| keys.len() > 1 || keys.iter().any(|key| key.name().is_some());
    if is_named(keys) {
        let n = units::count(keys.len());
        note(format_args!(
            "  {n} keys: each name, and each key without one, has contexts of its own"
        ));
    }
    let key = (!keys.is_empty()).then_some("KEY");
    note(format_args!("  {}", curl_line(address, is_embedded(args), key)));
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use clap::Command;

    use super::*;

    /// Those of parts that other commands have too are among them.
    #[test]
    fn every_argument_has_its_variable() {
        let command = ServeArgs::augment_args(Command::new("serve"));
        let names: Vec<_> = command.get_arguments().map(|arg| arg.get_id().as_str()).collect();
        for known in ["model", "ctx_size", "policy", "budget", "kv_type", "rope_scaling", "share"] {
            assert!(names.contains(&known), "{known}: {names:?}");
        }
        for arg in command.get_arguments() {
            let long = arg.get_long().unwrap_or_else(|| panic!("{} has no name", arg.get_id()));
            let name = format!("LONGVIEW_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env(), Some(OsStr::new(&name)), "--{long}");
        }
    }
}
