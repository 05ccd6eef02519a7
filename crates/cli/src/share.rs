//! `--share`: storage through which machines share documents.

use std::path::PathBuf;

use anyhow::{Result, anyhow, bail};
use clap::Args;
use longview_library::shared::{Share, ShareKey};

use crate::files::input;

/// The key, for who has no file for it.
const KEY: &str = "LONGVIEW_SHARE_KEY";

/// Options of commands that share documents.
#[derive(Args, Clone)]
pub struct ShareArgs {
    /// Storage that machines share documents through: s3://BUCKET/PREFIX, gs://.., az://.., or a
    /// folder. What is read to its end is copied there, what another machine has read comes from
    /// there. It needs a key that all of them have [default: LONGVIEW_SHARE, else none].
    #[arg(long, value_name = "ADDRESS", env = "LONGVIEW_SHARE", hide_env = true)]
    share: Option<String>,

    /// File with the key; what is in the storage without a tag of it counts for nothing [default:
    /// LONGVIEW_SHARE_KEY_FILE, else LONGVIEW_SHARE_KEY is the key].
    #[arg(long, value_name = "FILE", env = "LONGVIEW_SHARE_KEY_FILE", hide_env = true)]
    share_key_file: Option<PathBuf>,
}

impl ShareArgs {
    /// What was named.
    pub fn address(&self) -> Option<&str> {
        self.share.as_deref().filter(|address| !address.is_empty())
    }

    /// The storage, if one was named. Nothing is asked of it yet.
    ///
    /// # Errors
    /// Without a key, and for what is no address.
    pub fn open(&self) -> Result<Option<Share>> {
        let Some(address) = self.address() else { return Ok(None) };
        let (text, option) = match (&self.share_key_file, std::env::var(KEY)) {
            (Some(path), _) => (input::read_text("--share-key-file", path)?, "--share-key-file"),
            (None, Ok(key)) if !key.is_empty() => (key, KEY),
            _ => bail!(
                "--share {address}: needs the key that all machines have which share documents: \
                 give --share-key-file FILE, or set {KEY}; `openssl rand -hex 32` makes one"
            ),
        };
        let key = ShareKey::new(&text).map_err(|error| anyhow!("{option}: {error}"))?;
        let share = Share::open(address, &key).map_err(|error| anyhow!("--share {error}"))?;
        Ok(Some(share))
    }
}
