//! What the server logs, on stderr as notes are.

use std::io;

use anyhow::Result;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::field::MakeExt;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::debug_fn;
use tracing_subscriber::fmt::layer;
use tracing_subscriber::layer::SubscriberExt;

use crate::clean;

/// Whose lines are shown. Other crates log too, and some of them what they send and get.
const OURS: &str = "longview_server";

/// From which level on lines are shown, by the names that `--log` takes.
pub const LEVELS: &[(LevelFilter, &str)] = &[
    (LevelFilter::OFF, "off"),
    (LevelFilter::ERROR, "error"),
    (LevelFilter::WARN, "warn"),
    (LevelFilter::INFO, "info"),
    (LevelFilter::DEBUG, "debug"),
];

/// Shows lines of all threads from now on: the message alone, and the fields of what has some.
///
/// # Errors
/// If it was called before.
pub fn show(least: LevelFilter) -> Result<()> {
    let fields = debug_fn(|writer, field, value| {
        let value = clean::message(&format!("{value:?}"));
        match field.name() {
            "message" => write!(writer, "{value}"),
            name => write!(writer, "{name}={value}"),
        }
    });
    let lines = layer()
        .fmt_fields(fields.delimited(" "))
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_ansi(false)
        .with_writer(io::stderr)
        // A line that nobody can read is dropped.
        .log_internal_errors(false);
    let ours = Targets::new().with_target(OURS, least);
    // Not by `init`: with another crate's features that would also show what comes by `log`.
    let all = tracing_subscriber::registry().with(ours).with(lines);
    Ok(tracing::subscriber::set_global_default(all)?)
}
