//! What the server logs, on stderr as notes are: as text, or as JSON for programs.

use std::{fmt, io};

use anyhow::Result;
use tracing::Subscriber;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::{FormatFields, Writer};
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;

use crate::clean;

/// Lines that wait to be written. More are dropped: who starts a server and does not read what it
/// says must not stop it.
const MOST_WAITING: usize = 16_384;
/// Whose lines are shown. Other crates log too, and some of them what they send and get.
const OURS: &str = "longview_server";
/// A field of events whose message says what their fields say.
const SAID: &str = "route";

/// From which level on lines are shown, by the names that `--log` takes.
pub const LEVELS: &[(LevelFilter, &str)] = &[
    (LevelFilter::OFF, "off"),
    (LevelFilter::ERROR, "error"),
    (LevelFilter::WARN, "warn"),
    (LevelFilter::INFO, "info"),
    (LevelFilter::DEBUG, "debug"),
];

/// How lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    Json,
}

/// By the names that `--log-format` takes.
pub const FORMATS: &[(LogFormat, &str)] = &[(LogFormat::Text, "text"), (LogFormat::Json, "json")];

/// Shows lines of all threads from now on, until what it returns is dropped. A text is the message
/// alone, and the fields of what has some that it does not say; an object has time and level as
/// well, and all fields.
///
/// # Errors
/// If it was called before.
pub fn show(least: LevelFilter, format: LogFormat) -> Result<WorkerGuard> {
    let ours = Targets::new().with_target(OURS, least);
    // Not by `init`: with another crate's features that would also show what comes by `log`.
    let all = tracing_subscriber::registry().with(ours);
    let waiting = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(MOST_WAITING);
    let (writer, shown) = waiting.thread_name("log").finish(io::stderr());
    // A line that nobody can read is dropped.
    let lines = layer().with_writer(writer).with_target(false).log_internal_errors(false);
    match format {
        LogFormat::Text => {
            let lines = lines.with_ansi(false).without_time().with_level(false);
            set(all.with(lines.fmt_fields(Words)))?;
        }
        LogFormat::Json => set(all.with(lines.json().flatten_event(true).with_span_list(false)))?,
    }
    Ok(shown)
}

fn set(subscriber: impl Subscriber + Send + Sync + 'static) -> Result<()> {
    Ok(tracing::subscriber::set_global_default(subscriber)?)
}

/// A note among the lines, where programs read them.
pub fn note(text: fmt::Arguments<'_>) {
    tracing::info!(target: OURS, "{}", text.to_string().trim());
}

/// Writes fields as text.
struct Words;

impl<'w> FormatFields<'w> for Words {
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'w>, fields: R) -> fmt::Result {
        let mut found = Found::default();
        fields.record(&mut found);
        let is_said = found.0.iter().any(|(name, _)| *name == SAID);
        let is_shown = |name: &str| !is_said || matches!(name, "message" | "request_id");
        let shown = found.0.iter().filter(|(name, _)| is_shown(name));
        for (i, (name, value)) in shown.enumerate() {
            let gap = if i == 0 { "" } else { " " };
            match *name {
                "message" => write!(writer, "{gap}{value}")?,
                name => write!(writer, "{gap}{name}={value}")?,
            }
        }
        Ok(())
    }
}

/// Fields in their order.
#[derive(Default)]
struct Found(Vec<(&'static str, String)>);

impl Visit for Found {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.push((field.name(), clean::message(&format!("{value:?}"))));
    }
}
