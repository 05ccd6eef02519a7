//! In place of [`evaluation`](self) in a build without the feature of that name: its commands are
//! listed, take any words and say how to build them.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;

use anyhow::Result;
use clap::Args;

/// How to build the commands.
const COMMAND: &str = "cargo build --profile dist --features evaluation";

/// A command that this program was built without.
#[derive(Debug)]
pub struct NotBuilt(&'static str);

impl fmt::Display for NotBuilt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`longview {}` is not in this build, which has no feature `evaluation`; `{COMMAND}` \
             builds it into target/dist",
            self.0
        )
    }
}

impl Error for NotBuilt {}

/// The words behind a command that is not there.
#[derive(Args)]
#[command(after_help = format!("Not in this build: `{COMMAND}` builds it into target/dist."))]
pub struct Words {
    /// Any options: none of them is read.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    words: Vec<OsString>,
}

pub type EvalArgs = Words;
pub type ProbeArgs = Words;
pub type SpeedArgs = Words;
pub type ReportArgs = Words;

/// Says how to build `longview eval`.
pub fn eval(_: &EvalArgs) -> Result<()> {
    Err(NotBuilt("eval").into())
}

/// Says how to build `longview probe`.
pub fn probe(_: &ProbeArgs) -> Result<()> {
    Err(NotBuilt("probe").into())
}

/// Says how to build `longview speed`.
pub fn speed(_: &SpeedArgs) -> Result<()> {
    Err(NotBuilt("speed").into())
}

/// Says how to build `longview report`.
pub fn report(_: &ReportArgs) -> Result<()> {
    Err(NotBuilt("report").into())
}
