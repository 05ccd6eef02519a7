//! Dialogs in which a person chooses files.
//!
//! On Linux they are the desktop's portal, or else the program `zenity`. Where there is neither,
//! that is told: a button that does nothing looks broken.

use std::path::PathBuf;

use crate::engine::{Failure, FailureKind};
use crate::files::{Arrival, ENDINGS, SESSION};
use crate::strings;

/// The system has no such dialog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoDialog;

impl NoDialog {
    /// What the window says then.
    pub fn told(self) -> Arrival {
        let message = strings::NO_DIALOG.to_owned();
        Arrival::Failed(Failure { kind: FailureKind::NoDialog, message })
    }
}

/// Asks for names of files. It may wait for the person: it runs on a thread of its own.
pub trait Dialogs: Send + Sync + 'static {
    /// Texts to open; none if the person changed their mind.
    fn open(&self) -> Result<Vec<PathBuf>, NoDialog>;
    /// A folder of texts.
    fn folder(&self) -> Result<Option<PathBuf>, NoDialog>;
    /// A model: its folder, or its GGUF file.
    fn model(&self, is_folder: bool) -> Result<Option<PathBuf>, NoDialog>;
    /// A name for the answers.
    fn save(&self, suggested: &str) -> Result<Option<PathBuf>, NoDialog>;
    /// The folder that answers go to where there is no dialog.
    fn place(&self) -> Option<PathBuf>;
}

/// The dialogs of the desktop.
pub struct SystemDialogs;

impl Dialogs for SystemDialogs {
    fn open(&self) -> Result<Vec<PathBuf>, NoDialog> {
        let dialog = rfd::FileDialog::new().set_title(strings::OPEN_FILE);
        let endings = [&ENDINGS[..], &[SESSION]].concat();
        let dialog = dialog.add_filter("Text", &endings).add_filter("All", &["*"]);
        Ok(shown(|| dialog.pick_files())?.unwrap_or_default())
    }

    fn folder(&self) -> Result<Option<PathBuf>, NoDialog> {
        shown(|| rfd::FileDialog::new().set_title(strings::OPEN_FOLDER).pick_folder())
    }

    fn model(&self, is_folder: bool) -> Result<Option<PathBuf>, NoDialog> {
        let dialog = rfd::FileDialog::new().set_title(strings::MODELS);
        if is_folder {
            return shown(|| dialog.pick_folder());
        }
        shown(|| dialog.add_filter("GGUF", &["gguf"]).pick_file())
    }

    fn save(&self, suggested: &str) -> Result<Option<PathBuf>, NoDialog> {
        shown(|| rfd::FileDialog::new().set_file_name(suggested).save_file())
    }

    fn place(&self) -> Option<PathBuf> {
        let folders = directories::UserDirs::new()?;
        let documents = folders.document_dir().filter(|folder| folder.is_dir());
        Some(documents.unwrap_or(folders.home_dir()).to_owned())
    }
}

/// What was chosen, if a dialog could be shown.
#[cfg(any(windows, target_os = "macos"))]
fn shown<T>(ask: impl FnOnce() -> T) -> Result<T, NoDialog> {
    Ok(ask())
}

#[cfg(not(any(windows, target_os = "macos")))]
use self::listener::shown;

/// `rfd` returns nothing where a person chooses nothing, and where there is no dialog. It writes to
/// the log in the second case alone, so the log is listened to.
#[cfg(not(any(windows, target_os = "macos")))]
mod listener {
    use std::cell::Cell;
    use std::sync::Once;

    use log::{Level, LevelFilter, Log, Metadata, Record};

    use super::NoDialog;

    /// What the last resort is called in the message that says that it failed.
    const LAST: &str = "zenity";

    thread_local! {
        static HAS_FAILED: Cell<bool> = const { Cell::new(false) };
    }

    struct Listener;

    impl Log for Listener {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            metadata.level() == Level::Error && metadata.target().starts_with("rfd")
        }

        fn log(&self, record: &Record<'_>) {
            if self.enabled(record.metadata()) && record.args().to_string().contains(LAST) {
                HAS_FAILED.set(true);
            }
        }

        fn flush(&self) {}
    }

    /// What was chosen, if a dialog could be shown.
    pub(super) fn shown<T>(ask: impl FnOnce() -> T) -> Result<T, NoDialog> {
        static LISTENS: Once = Once::new();
        LISTENS.call_once(|| {
            // Nothing else of this program has a log.
            if log::set_logger(&Listener).is_ok() {
                log::set_max_level(LevelFilter::Error);
            }
        });
        HAS_FAILED.set(false);
        let chosen = ask();
        if HAS_FAILED.get() { Err(NoDialog) } else { Ok(chosen) }
    }
}
