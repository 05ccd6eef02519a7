//! The options of `longview run`.

use std::path::PathBuf;

use clap::Args;
use longview_engine::{Draft, Engine, GenerationParams, MAX_DRAFTED};
use longview_ops::Backend;

use crate::args::numbers::whole;
use crate::args::{EngineArgs, PolicyArgs, RopeArgs, SamplingArgs};
use crate::load::ModelArgs;

/// Options of `longview run`.
#[derive(Args)]
#[command(after_help = "\
With -p: one shot. The text is the file followed by the prompt. A model with a chat template gets \
it as one user message (file, blank line, prompt); --no-chat-template continues the plain text \
instead, the prompt directly behind the file.\n\
Without -p: a chat, about the file if there is one; /help lists its commands, Ctrl-C stops an \
answer, Ctrl-D ends. Through pipes each line is a turn, and a file alone is one shot.\n\
With --session: -p asks about the document that was saved; without it, a chat about it begins.\n\
The history of chats is in $XDG_STATE_HOME/longview/history; LONGVIEW_HISTORY names another file, \
or is off.")]
pub struct RunArgs {
    #[command(flatten)]
    pub(super) model: ModelArgs,

    /// A UTF-8 text that comes before the prompt, such as a document; - reads stdin [default:
    /// none].
    #[arg(short, long, value_name = "FILE")]
    pub(super) file: Option<PathBuf>,

    /// The prompt [default: none].
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) prompt: Option<String>,

    /// Read the document (-f) and write what was read to FILE; -p is answered afterwards, if it is
    /// given. With --session only what the session lacks is read. Only an older session is replaced
    /// or added to, with --force or after a question [default: none].
    #[arg(long, value_name = "FILE", requires = "file")]
    pub(super) save_session: Option<PathBuf>,

    /// Let --save-session replace an older session without a question [default: off].
    #[arg(long, requires = "save_session")]
    pub(super) force: bool,

    /// How the index is kept that a session lacks, where another command runs this one.
    #[arg(skip)]
    pub(super) keep_index: Option<String>,

    /// What the session is called, where another command runs this one.
    #[arg(skip)]
    pub(super) title: Option<String>,

    /// Go on from a document that --save-session wrote, without reading it again, under the policy
    /// that it was saved under unless another one is given. With -f: the document's text, for files
    /// that hold none [default: none].
    #[arg(long, value_name = "FILE")]
    pub(super) session: Option<PathBuf>,

    /// Most tokens to generate; -1: until the model ends or the context is full.
    #[arg(
        short = 'n',
        long,
        visible_alias = "n-predict",
        value_name = "TOKENS",
        default_value = "-1",
        allow_hyphen_values = true,
        value_parser = whole(-1..=1 << 30)
    )]
    pub(super) predict: i64,

    /// System message of the chat template [default: none].
    #[arg(long, visible_alias = "system-prompt", value_name = "TEXT", allow_hyphen_values = true)]
    pub(super) system: Option<String>,

    /// Continue the plain text even if the model has a chat template [default: off].
    #[arg(long, conflicts_with = "system")]
    pub(super) no_chat_template: bool,

    /// Print one JSON object instead of the text: token ids, text, timings, statistics
    /// [default: off].
    #[arg(long)]
    pub(super) json: bool,

    /// Print timings and what the policy did to stderr [default: off].
    #[arg(long)]
    pub(super) stats: bool,

    /// Keep recalled tokens in separate device buffers although the CPU could read them where they
    /// are, so that hits and misses are real [default: off].
    #[arg(long)]
    pub(super) simulate_device: bool,

    #[command(flatten)]
    pub(super) sampling: SamplingArgs,

    #[command(flatten)]
    pub(super) policy: PolicyArgs,

    #[command(flatten)]
    pub(super) engine: EngineArgs,

    #[command(flatten)]
    pub(super) rope: RopeArgs,
}

/// Most drafted tokens of a step: room for them costs a few rows of logits.
pub(super) fn max_drafted(args: &RunArgs, is_chat: bool) -> usize {
    // A chat may change its mind: /set draft.
    let may_draft = is_chat || args.sampling.draft() == Some(Draft::Lookup);
    if may_draft { MAX_DRAFTED } else { 0 }
}

/// How the answers of `engine` are generated.
pub(super) fn params<B: Backend>(args: &RunArgs, engine: &Engine<B>) -> GenerationParams {
    let max_tokens = usize::try_from(args.predict).ok();
    args.sampling.params(engine.generation_defaults(), max_tokens)
}
