//! `longview quantize`: a model as a GGUF file of another type.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Args;
use longview_model::export::{ExportType, GgufExport};
use longview_model::folder::ModelFolder;

use crate::files::{FileKind, Output, OutputFile, model_files};
use crate::interrupt::Interrupt;
use crate::load::open_folder;
use crate::out::{bytes, note};
use crate::progress::{WriteBar, clock};
use crate::units;

/// Options of `longview quantize`.
#[derive(Args)]
#[command(after_help = "\
Norms and biases become F32, all matrices TYPE. Of types below 8 bits, embedding and output are \
q6_k. Where rows are no whole blocks of 256, q5_0 takes the place of q4_k, q5_1 that of q5_k and \
q8_0 that of q6_k. The weights are those of `longview run --quantize TYPE`, to the bit. Longview and \
llama.cpp read the file.\n\
Prints the name of the file.")]
pub struct QuantizeArgs {
    /// Folder of the model in Hugging Face layout, a GGUF file in 16 or 32 bits, or the name of a
    /// downloaded model (`longview ls`).
    #[arg(short, long, value_name = "MODEL")]
    model: PathBuf,

    /// File to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// Type of matrices: q8_0, q6_k, q5_k, q4_k, q5_0, q5_1, q4_0, q4_1, iq4_nl, mxfp4, bf16,
    /// f16 or f32.
    #[arg(long = "type", value_name = "TYPE", default_value = "q8_0")]
    ty: ExportType,

    /// Replace FILE if it is a GGUF file already [default: off].
    #[arg(long)]
    force: bool,
}

/// Writes the file and prints its name.
pub fn run(args: &QuantizeArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let folder = open_folder(&args.model)?;
    let file = prepare(args, &folder)?;
    let export = GgufExport::plan(&folder, args.ty)?;
    for text in export.notes() {
        note(format_args!("note: {text}"));
    }
    let types: Vec<String> =
        export.types().into_iter().map(|(ty, n)| format!("{n} {}", ty.name())).collect();
    note(format_args!(
        "{}: {}, {} ({} tensors)",
        args.output.display(),
        export.architecture(),
        units::bytes(export.n_bytes()),
        types.join(", "),
    ));
    let start = Instant::now();
    let n_bytes = write(file, &export, &interrupt)?;
    note(format_args!("{} in {}", units::bytes(n_bytes), clock(start.elapsed())));
    bytes(format!("{}\n", args.output.display()).as_bytes())
}

/// Nothing of the model itself is written to.
fn prepare(args: &QuantizeArgs, folder: &ModelFolder) -> Result<OutputFile> {
    let inputs = read_files(&folder.path);
    let (path, kind, force) = (&args.output, FileKind::Gguf, args.force);
    Output { option: "-o", path, kind, force, inputs: &inputs }.prepare()
}

/// The files that the model is read from: a folder's, or a file with its other parts.
fn read_files(path: &Path) -> Vec<(String, PathBuf)> {
    if path.is_dir() {
        return model_files(path);
    }
    let stem = |path: &Path| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        name.split_once("-of-")
            .map(|(first, _)| first.trim_end_matches(char::is_numeric).to_owned())
    };
    let own = stem(path);
    let mut files = model_files(path.parent().unwrap_or(Path::new("")));
    files.retain(|(_, file)| own.is_some() && stem(file) == own);
    files.push(("the model".to_owned(), path.to_owned()));
    files
}

fn write(file: OutputFile, export: &GgufExport, interrupt: &Interrupt) -> Result<u64> {
    let mut bar = WriteBar::new(export.n_bytes());
    let _guard = interrupt.end_with(bar.last_words());
    file.write(|out| {
        export.write(out, &mut |done| bar.update(done)).context("the file is not complete")
    })
}
