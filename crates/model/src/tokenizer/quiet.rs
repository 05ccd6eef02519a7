//! Calls into a crate that panics on bad files.

use std::cell::Cell;
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::text::clip;

thread_local! {
    /// Panics of this thread are caught and told as errors.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call`, turning a panic of the crate into an error like any other: the file that provokes
/// it came from a stranger, and a server must survive it. Nothing is printed.
pub(super) fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                before(info);
            }
        }));
    });
    let was_quiet = IS_QUIET.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_QUIET.set(was_quiet);
    match result {
        Ok(result) => result.map_err(|error| plain(&error.to_string())),
        Err(_) => Err("the file contradicts itself".to_owned()),
    }
}

/// A reason of the crate without the names of its types.
fn plain(reason: &str) -> String {
    if reason.contains("untagged enum") {
        return "a part of it has a form that is not known".to_owned();
    }
    clip(reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_crate_is_an_error() {
        let caught = guarded(|| -> tokenizers::Result<()> { panic!("index {}", 7) });
        assert_eq!(caught, Err("the file contradicts itself".to_owned()));
        assert!(!IS_QUIET.get());
    }

    #[test]
    fn names_of_types_are_left_out() {
        let told = guarded(|| -> tokenizers::Result<()> {
            Err("data did not match any variant of untagged enum ModelUntagged".into())
        });
        assert_eq!(told, Err("a part of it has a form that is not known".to_owned()));
    }
}
