//! The terminal that a person sits at: how wide it is, and whether it shows what is typed.

use std::io::{self, IsTerminal};

/// Columns of the terminal behind stderr; `None` where there is no terminal.
pub fn columns() -> Option<usize> {
    if !io::stderr().is_terminal() {
        return None;
    }
    // Some terminals over serial lines say that they have no columns.
    let width = terminal_size::terminal_size().map_or(0, |(width, _)| usize::from(width.0));
    Some(if width == 0 { 80 } else { width })
}

/// The widest text that is set for a window: longer lines are hard to read.
const TEXT_COLUMNS: usize = 100;

/// Columns for texts on stdout: those of its terminal, up to 100; 100 where there is none.
pub fn text_columns() -> usize {
    let found = terminal_size::terminal_size().filter(|_| io::stdout().is_terminal());
    let width = found.map_or(0, |(width, _)| usize::from(width.0));
    if width == 0 { TEXT_COLUMNS } else { width.min(TEXT_COLUMNS) }
}

/// Whether something waits in stdin to be read, from a file or through a pipe. Nothing is waited
/// for, so that what comes later is not seen.
#[cfg(unix)]
pub fn has_piped_input() -> bool {
    let stdin = io::stdin();
    // The system says it of files, pipes and sockets; `/dev/null` has no such number.
    !stdin.is_terminal() && rustix::io::ioctl_fionread(&stdin).is_ok_and(|n_bytes| n_bytes > 0)
}

/// Where the system has no such question, nothing is seen.
#[cfg(not(unix))]
pub fn has_piped_input() -> bool {
    false
}

/// Whether stdin and stdout are a terminal: somebody reads and types.
pub fn is_interactive() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal()
}

pub use quiet::{Quiet, restore};

#[cfg(unix)]
mod quiet {
    use std::io::{self, IsTerminal};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    use rustix::process::getpgrp;
    use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetpgrp, tcsetattr};

    /// How the terminal was, and how many guards keep it quiet.
    static BEFORE: Mutex<Option<(Termios, usize)>> = Mutex::new(None);

    /// While it lives, what is typed does not show: it would stand in the middle of a bar or an
    /// answer. It waits for the next prompt instead. Ctrl-C works as before.
    pub struct Quiet(());

    impl Quiet {
        /// Does nothing where stdin is no terminal, or is that of another program.
        pub fn new() -> Self {
            let mut before = before();
            if let Some((_, n_guards)) = before.as_mut() {
                *n_guards += 1;
            } else if let Some(modes) = own_terminal() {
                let mut quiet = modes.clone();
                // Without lines of its own the terminal keeps every key for the line editor.
                quiet.local_modes -= LocalModes::ECHO | LocalModes::ICANON;
                if tcsetattr(io::stdin(), OptionalActions::Now, &quiet).is_ok() {
                    *before = Some((modes, 1));
                }
            }
            Self(())
        }
    }

    impl Drop for Quiet {
        fn drop(&mut self) {
            let is_last = match before().as_mut() {
                Some((_, n_guards)) => {
                    *n_guards -= 1;
                    *n_guards == 0
                }
                None => false,
            };
            if is_last {
                restore();
            }
        }
    }

    /// Makes the terminal as it was, for a program that ends at once.
    pub fn restore() {
        if let Some((modes, _)) = before().take() {
            // A terminal that is gone needs nothing.
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &modes);
        }
    }

    /// How stdin is set, if it is a terminal and this program has it: another program's terminal
    /// would stop this one for touching it.
    fn own_terminal() -> Option<Termios> {
        let stdin = io::stdin();
        if !stdin.is_terminal() || tcgetpgrp(&stdin).ok()? != getpgrp() {
            return None;
        }
        tcgetattr(&stdin).ok()
    }

    fn before() -> MutexGuard<'static, Option<(Termios, usize)>> {
        // Nothing that holds the lock can leave it half changed.
        BEFORE.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(not(unix))]
mod quiet {
    /// What is typed while a bar is drawn shows in it: nothing is done about that here.
    pub struct Quiet(());

    impl Quiet {
        /// Does nothing.
        pub fn new() -> Self {
            Self(())
        }
    }

    /// Does nothing.
    pub fn restore() {}
}
