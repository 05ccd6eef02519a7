//! The program: `longview-desktop [--model PATH] [--device NAME] [--read] [FILE...]`.
//!
//! A second start hands its files to the window that is open, and ends. `--exit-after-start` closes
//! the window once the engine is there and the first document can be read: a check that a machine
//! can run it. `--exit-after N` waits for so many documents, `--keep-every SECONDS` says how often
//! what is read is kept, `--ask QUESTION` asks once the first document is read, and
//! `--exit-after-answer` closes the window then: all of them are for tests.

#![cfg_attr(windows, windows_subsystem = "windows")]
#![expect(clippy::print_stderr, reason = "what is wrong with its arguments has no window yet")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use eframe::egui::ViewportBuilder;
use longview_desktop::app::{App, END_PATIENCE, Start};
use longview_desktop::dialogs::SystemDialogs;
use longview_desktop::engine::local::{self, LocalOptions};
use longview_desktop::engine::{Failure, FailureKind, Host, ModelSource};
use longview_desktop::instance::{self, Claim, First};
use longview_desktop::settings::{Settings, device_named};
use longview_desktop::store::Places;
use longview_desktop::{refusals, strings};
use longview_library::Library;
use longview_library::documents::{Documents, default_folder};

const USAGE: &str = "\
usage: longview-desktop [--model PATH] [--device auto|cpu|wgpu|cuda] [--read] [FILE...]";
const SIZE: [f32; 2] = [1280.0, 840.0];
const LEAST_SIZE: [f32; 2] = [480.0, 480.0];

#[derive(Default)]
struct Args {
    model: Option<ModelSource>,
    device: Option<String>,
    files: Vec<PathBuf>,
    reads: bool,
    exits: Option<usize>,
    asks: Option<String>,
    exits_answered: bool,
    keep_every: Option<Duration>,
}

fn main() -> ExitCode {
    // Files of strangers are read by a process of their own: this program, started again.
    if let Some(code) = longview_library::text::serve().or_else(longview_startup::template::serve) {
        return code;
    }
    let args = match parse(std::env::args_os().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("error: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    longview_cpu::return_large_memory();
    let first = match first(&args) {
        Ok(first) => first,
        Err(code) => return code,
    };
    match run(args, first) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: no window can be opened: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The right to be the first window, if the system has a place for it; an end if another one has
/// the files.
fn first(args: &Args) -> Result<Option<First>, ExitCode> {
    let Some(folder) = instance::folder() else { return Ok(None) };
    match instance::claim(&folder, &args.files) {
        Ok(Claim::First(first)) => Ok(Some(first)),
        Ok(Claim::Handed) => Err(ExitCode::SUCCESS),
        // A window that hangs must not keep another one from being opened.
        Err(error) => {
            eprintln!("warning: {}: {error}; a window of its own is opened", folder.display());
            Ok(None)
        }
    }
}

fn run(args: Args, first: Option<First>) -> eframe::Result {
    // What is missing is told in the window, and all else works.
    let mut failures = Vec::new();
    let library = default_folder().and_then(|folder| Documents::open(&folder));
    let library = library.map_err(|error| {
        let message = refusals::documents(&error);
        failures.push(Failure { kind: FailureKind::NoLibrary, message });
    });
    let library = library.ok();
    let models = longview_library::Settings::from_environment(false).map_err(|error| {
        failures.push(Failure { kind: FailureKind::NoModels, message: refusals::models(&error) });
    });
    let models = models.ok();
    let places = Places::of_system();
    let (settings, aside) = places.as_ref().map(Places::settings).unwrap_or_default();
    if let Some(aside) = aside {
        let message = strings::settings_aside(&aside.display().to_string());
        failures.push(Failure { kind: FailureKind::Settings, message });
    }
    let host = Host::default();
    let local = LocalOptions {
        library: library.clone(),
        host: Some(host.clone()),
        templates_apart: true,
        keep_every: args.keep_every.unwrap_or(LocalOptions::default().keep_every),
    };
    let start = Start {
        engines: local::engines(local),
        settings: chosen(settings, &args),
        dialogs: Arc::new(SystemDialogs),
        files: args.files,
        reads: args.reads,
        library,
        models: models.map(|settings| Arc::new(Library::new(settings))),
        places,
        host: Some(host),
        failures,
        first,
        exits: args.exits,
        asks: args.asks,
        exits_answered: args.exits_answered,
        patience: END_PATIENCE,
    };
    let viewport = ViewportBuilder::default()
        .with_title(strings::APP)
        .with_inner_size(SIZE)
        .with_min_inner_size(LEAST_SIZE);
    let options = eframe::NativeOptions { viewport, ..Default::default() };
    let app = |context: &eframe::CreationContext<'_>| {
        Ok(Box::new(App::new(&context.egui_ctx, start)) as Box<dyn eframe::App>)
    };
    eframe::run_native("longview", options, Box::new(app))
}

/// The settings with what the command line says.
fn chosen(mut settings: Settings, args: &Args) -> Settings {
    if let Some(model) = &args.model {
        settings.use_model(model.clone());
    }
    if let Some(device) = &args.device {
        settings.device.clone_from(device);
    }
    settings
}

fn parse(mut words: impl Iterator<Item = OsString>) -> Result<Args, String> {
    let mut args = Args::default();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{} needs a value", word.display()));
        match word.to_str() {
            Some("-m" | "--model") => args.model = Some(ModelSource::Path(value()?.into())),
            Some("--read") => args.reads = true,
            Some("--exit-after-start") => args.exits = Some(1),
            Some("--exit-after") => args.exits = Some(number(&value()?)?),
            Some("--keep-every") => {
                args.keep_every = Some(seconds(&value()?)?);
            }
            Some("--exit-after-answer") => args.exits_answered = true,
            Some("--ask") => args.asks = Some(value()?.to_string_lossy().into_owned()),
            Some("--device") => args.device = Some(device(&value()?)?),
            Some(option) if option.starts_with('-') => {
                return Err(format!("{option} is no option"));
            }
            _ => args.files.push(word.into()),
        }
    }
    Ok(args)
}

fn number(word: &OsString) -> Result<usize, String> {
    let parsed = word.to_str().and_then(|word| word.parse().ok());
    parsed.ok_or(format!("{}: must be a whole number", word.display()))
}

fn seconds(word: &OsString) -> Result<Duration, String> {
    let parsed = word.to_str().and_then(|word| word.parse().ok());
    let parsed = parsed.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    parsed.ok_or(format!("{}: must be a number of seconds", word.display()))
}

fn device(name: &OsString) -> Result<String, String> {
    let known = name.to_str().filter(|name| device_named(name).is_some());
    let known = known.ok_or(format!("{}: must be auto, cpu, wgpu or cuda", name.display()))?;
    Ok(known.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Args, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn words_are_options_or_the_file() {
        let args = parsed("--device cpu book.txt -m folder --read sequel.txt").unwrap();
        let settings = chosen(Settings::default(), &args);
        assert_eq!(settings.device, "cpu");
        assert_eq!(settings.model, ModelSource::Path("folder".into()));
        assert_eq!((args.files, args.reads), (vec!["book.txt".into(), "sequel.txt".into()], true));
        for wrong in ["--model", "--device tpu", "--fast", "--exit-after x", "--keep-every -1"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
