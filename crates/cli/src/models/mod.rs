//! Models by name: `longview pull`, `ls` and `rm`, and names behind `-m` and `-hf`.

mod ls;
mod place;
mod pull;
mod rm;

pub use self::ls::{LsArgs, ls};
pub use self::place::{HubArgs, place};
pub use self::pull::{PullArgs, pull};
pub use self::rm::{RmArgs, rm};
pub use longview_library::date::day;
