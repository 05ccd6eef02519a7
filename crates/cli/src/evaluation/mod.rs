//! The commands that compare policies with full attention: `eval`, `probe`, `speed` and `report`.
//!
//! They are behind the feature `evaluation`, because their plots, scores and spectra need crates
//! that no other command uses; `../evaluation_absent.rs` stands in for them without it.

mod compared;
mod eval;
mod probe;
mod record;
mod report;
mod speed;

pub use self::eval::{EvalArgs, run as eval};
pub use self::probe::{ProbeArgs, run as probe};
pub use self::report::{ReportArgs, run as report};
pub use self::speed::{SpeedArgs, run as speed};
