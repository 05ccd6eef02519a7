//! `longview pull`: a model from the hub into the cache.

use anyhow::Result;
use clap::Args;
use longview_library::{Found, Library, ModelName, Prefer, Settings, Wanted, Watch};

use crate::interrupt::Interrupt;
use crate::out::{bytes, note};
use crate::progress::DownloadBar;

/// Options of `longview pull`.
#[derive(Args)]
#[command(after_help = "\
Downloads config.json, tokenizer, chat template and safetensors, or with :QUANT the GGUF file of \
that quantisation with all its parts; of a repository with GGUF files alone Q4_K_M, else Q8_0, \
else the first. What is here is not downloaded again, and what was begun goes on.\n\
Prints where the model lies. It is then found by `-m NAME`, and by Python: the cache is that of \
huggingface_hub.\n\
HF_TOKEN: a token for gated and private models. HF_HOME, HF_HUB_CACHE: the folder for models. \
HF_ENDPOINT: another hub. HTTPS_PROXY: a proxy. HF_HUB_OFFLINE=1: as --offline.")]
pub struct PullArgs {
    /// Model at the Hugging Face hub: USER/REPO, USER/REPO:QUANT or USER/REPO@REVISION.
    #[arg(value_name = "NAME")]
    name: ModelName,

    /// Download nothing: fail unless the model is here [default: off].
    #[arg(long)]
    offline: bool,
}

/// Downloads the model and prints where it lies.
pub fn pull(args: &PullArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let library = Library::new(Settings::from_environment(args.offline)?);
    let wanted = Wanted { name: &args.name, file: None, prefer: Prefer::Safetensors };
    let found = download(&library, &wanted, &interrupt)?;
    note(format_args!("{0}: ready, for example for `longview run -m {0}`", args.name));
    bytes(format!("{}\n", found.path.display()).as_bytes())
}

/// Downloads what is missing and shows how far it is. Ctrl-C ends the program at once: whatever a
/// download leaves is a beginning of the next one.
pub fn download(library: &Library, wanted: &Wanted<'_>, interrupt: &Interrupt) -> Result<Found> {
    let mut bar = DownloadBar::new(wanted.name.to_string());
    let _guard = interrupt.end_with(bar.last_words());
    let mut show = |event: longview_library::Event<'_>| bar.show(event);
    let mut watch = Watch { on_event: &mut show, is_cancelled: &|| false };
    Ok(library.pull(wanted, &mut watch)?)
}
