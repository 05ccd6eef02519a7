//! The program: `longview-desktop [--model PATH] [--device NAME] [FILE]`.
//!
//! `--exit-after-start` closes the window once the engine is there and the first document can be
//! read: a check that a machine can run it.

#![cfg_attr(windows, windows_subsystem = "windows")]
#![expect(clippy::print_stderr, reason = "what is wrong with its arguments has no window yet")]

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use eframe::egui::ViewportBuilder;
use longview_desktop::app::{App, Start};
use longview_desktop::engine::local::{self, ModelSource};
use longview_desktop::files::SystemDialogs;
use longview_desktop::strings;
use longview_library::documents::{Documents, default_folder};
use longview_startup::DeviceChoice;

const USAGE: &str = "usage: longview-desktop [--model PATH] [--device auto|cpu|wgpu|cuda] [FILE]";
const SIZE: [f32; 2] = [1280.0, 840.0];
const LEAST_SIZE: [f32; 2] = [480.0, 480.0];

struct Args {
    model: ModelSource,
    device: DeviceChoice,
    file: Option<PathBuf>,
    exits: bool,
}

fn main() -> ExitCode {
    // Files of strangers are read by a process of their own: this program, started again.
    if let Some(code) = longview_library::text::serve() {
        return code;
    }
    let args = match parse(std::env::args_os().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("error: {message}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: no window can be opened: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> eframe::Result {
    // Without a place for it nothing is kept, and all else works.
    let library = default_folder().and_then(|folder| Documents::open(&folder)).ok();
    let start = Start {
        open: local::opener(args.model, args.device, library.clone()),
        dialogs: Arc::new(SystemDialogs),
        file: args.file,
        library,
        exits: args.exits,
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

fn parse(mut words: impl Iterator<Item = OsString>) -> Result<Args, String> {
    let (model, device) = (ModelSource::Embedded, DeviceChoice::Auto);
    let mut args = Args { model, device, file: None, exits: false };
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or(format!("{} needs a value", word.display()));
        match word.to_str() {
            Some("-m" | "--model") => args.model = ModelSource::Path(value()?.into()),
            Some("--exit-after-start") => args.exits = true,
            Some("--device") => args.device = device_named(&value()?)?,
            Some(option) if option.starts_with('-') => {
                return Err(format!("{option} is no option"));
            }
            _ if args.file.is_some() => return Err("one file at a time".to_owned()),
            _ => args.file = Some(word.into()),
        }
    }
    Ok(args)
}

fn device_named(name: &OsString) -> Result<DeviceChoice, String> {
    match name.to_str() {
        Some("auto") => Ok(DeviceChoice::Auto),
        Some("cpu") => Ok(DeviceChoice::Cpu),
        Some("wgpu") => Ok(DeviceChoice::Wgpu),
        Some("cuda") => Ok(DeviceChoice::Cuda),
        _ => Err(format!("{}: must be auto, cpu, wgpu or cuda", name.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Args, String> {
        parse(line.split_whitespace().map(OsString::from))
    }

    #[test]
    fn words_are_options_or_the_file() {
        let args = parsed("--device cpu book.txt -m folder").unwrap();
        assert_eq!(args.device, DeviceChoice::Cpu);
        assert_eq!(args.model, ModelSource::Path("folder".into()));
        assert_eq!(args.file, Some("book.txt".into()));
        for wrong in ["--model", "--device tpu", "--fast", "a b"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
