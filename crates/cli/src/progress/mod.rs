//! How far work is, on stderr: one line that changes on a terminal, a line now and then elsewhere.
//!
//! The line never reaches the last column, so no terminal wraps it, and a window that becomes
//! narrower than what stands there is taken into account: most terminals then break the line in
//! two. While it stands, what is typed does not show (`terminal::Quiet`).

mod download;
mod line;
mod pace;
mod prefill;
#[cfg(feature = "evaluation")]
mod run;
mod write;

pub use self::download::DownloadBar;
pub use self::line::clock;
pub use self::prefill::PrefillBar;
#[cfg(feature = "evaluation")]
pub use self::run::RunProgress;
pub use self::write::WriteBar;
