//! Models by name: `longview pull`, `ls` and `rm`, and names behind `-m` and `-hf`.

mod date;
mod ls;
mod place;
mod pull;
mod rm;

pub use self::date::day;
pub use self::ls::{LsArgs, ls};
pub use self::place::{HubArgs, place};
pub use self::pull::{PullArgs, pull};
pub use self::rm::{RmArgs, rm};
