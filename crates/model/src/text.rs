//! Text from files of strangers, as it may stand in a message.

use longview_core::quoted;

/// Characters of a file's own words that a message quotes.
const MAX_QUOTED: usize = 200;

/// `text` on one line, cut where it grows long: a file may hold megabytes where a name is expected.
pub(crate) fn clip(text: &str) -> String {
    quoted(text, MAX_QUOTED)
}
