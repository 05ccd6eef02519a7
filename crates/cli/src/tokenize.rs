//! `longview tokenize`: the tokens of a text, as the server's `/tokenize` has them.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use longview_model::folder::ModelFolder;
use longview_model::tokenizer::{Piece, Specials, Tokenizer};

use crate::files::input;
use crate::interrupt::Interrupt;
use crate::models::HubArgs;
use crate::{load, out, template};

/// Options of `longview tokenize`.
#[derive(Args)]
#[command(after_help = "\
Prints a line for each token: its id, and its text in quotes, as JSON has it. A token that is a part \
of a character is shown as its bytes: <0xE2 0x82>. Special tokens that the text spells out become \
their ids. Without -p and -f the text is read from stdin.")]
pub struct TokenizeArgs {
    /// Folder of the model, a GGUF file, the name of a downloaded model, or `needle`, as for
    /// `longview run`.
    #[arg(short, long, value_name = "MODEL", required_unless_present = "hf_repo")]
    model: Option<PathBuf>,

    #[command(flatten)]
    hub: HubArgs,

    /// The text [default: that of -f, or stdin].
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true, conflicts_with = "file")]
    prompt: Option<String>,

    /// A file with the text, in UTF-8; - is stdin [default: none].
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Add the tokens that begin a text, as the model was trained with [default: off].
    #[arg(long)]
    add_special: bool,

    /// Print one line, the ids as a JSON list [default: off].
    #[arg(long)]
    ids: bool,

    /// Print the number of tokens alone [default: off].
    #[arg(long, conflicts_with = "ids")]
    count: bool,
}

/// Prints them.
pub fn run(args: &TokenizeArgs) -> Result<()> {
    let text = text(args)?;
    let folder = open(args)?;
    let tokenizer = folder.tokenizer()?;
    let ids = tokenizer.encode(&text, Specials::of_text(args.add_special))?;
    if args.ids {
        return out::bytes(format!("{}\n", serde_json::to_string(&ids)?).as_bytes());
    }
    if args.count {
        return out::bytes(format!("{}\n", ids.len()).as_bytes());
    }
    let mut lines = String::new();
    for id in ids {
        lines.push_str(&line(tokenizer, id)?);
    }
    out::bytes(lines.as_bytes())
}

fn text(args: &TokenizeArgs) -> Result<String> {
    match (&args.prompt, &args.file) {
        (Some(text), _) => Ok(text.clone()),
        (None, Some(path)) => input::read_text("-f", path),
        (None, None) if io::stdin().is_terminal() => {
            bail!("there is no text: give it with -p TEXT or -f FILE, or pipe it in")
        }
        (None, None) => input::read_text("-f", Path::new("-")),
    }
}

fn open(args: &TokenizeArgs) -> Result<ModelFolder> {
    match (args.hub.fetch(&Interrupt::install()?)?, &args.model) {
        (Some(path), _) => Ok(template::open_folder(&path)?),
        (None, model) => load::open_folder(model.as_deref().unwrap_or(Path::new(""))),
    }
}

fn line(tokenizer: &Tokenizer, id: u32) -> Result<String> {
    let Piece { text, bytes } = tokenizer.piece(id)?;
    if text.as_bytes() == bytes {
        return Ok(format!("{id:>7}  {}\n", serde_json::to_string(&text)?));
    }
    let bytes: Vec<String> = bytes.iter().map(|byte| format!("0x{byte:02X}")).collect();
    Ok(format!("{id:>7}  <{}>\n", bytes.join(" ")))
}
