//! What a model at the hub would be, before anything large of it is downloaded.

use crate::error::LibraryError;
use crate::http::Request;
use crate::hub::Hub;
use crate::remote_path::RemotePath;
use crate::retry::{Failure, Retry};
use crate::select::Wanted;
use crate::variant::Format;
use crate::watch::Watch;

/// The most bytes of a file's beginning. A GGUF file's vocabulary is among them: some 8 MB.
const MAX_BEGIN: usize = 64 << 20;
/// Bytes after which it is first asked whether they suffice.
const FIRST_BEGIN: usize = 64 << 10;

/// A model at the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remote {
    /// How its weights are stored.
    pub format: Format,
    /// Its files.
    pub n_files: usize,
    /// Bytes of all of them.
    pub total_bytes: u64,
    /// Bytes of them that are here already: a download goes on from there.
    pub present_bytes: u64,
    /// Bytes of the file that `begin` is of.
    pub begin_of_bytes: u64,
    /// Its licence as its publisher names it, such as `apache-2.0`.
    pub license: Option<String>,
    /// The commit of its repository.
    pub commit: String,
    /// `config.json` of a folder; the beginning of the (first) GGUF file.
    pub begin: Vec<u8>,
}

impl Hub<'_> {
    /// The beginning of a file, until `is_enough` says so.
    pub(crate) fn begin(
        &self,
        wanted: &Wanted<'_>,
        commit: &str,
        file: &RemotePath,
        is_enough: &dyn Fn(&[u8]) -> bool,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<u8>, LibraryError> {
        let mut retry = Retry::new(file.as_str(), self.patience);
        loop {
            match self.try_begin(wanted, commit, file, is_enough, watch) {
                Ok(bytes) => return Ok(bytes),
                Err(failure) => retry.wait(failure, watch)?,
            }
        }
    }

    fn try_begin(
        &self,
        wanted: &Wanted<'_>,
        commit: &str,
        file: &RemotePath,
        is_enough: &dyn Fn(&[u8]) -> bool,
        watch: &Watch<'_>,
    ) -> Result<Vec<u8>, Failure> {
        let uri = self.address(wanted.name, commit, file)?;
        let mut answer = self.client.get(Request { uri, from: 0, if_range: None }, watch)?;
        if answer.status != 200 {
            return Err(self.refusal(&answer, wanted.name, file.as_str()));
        }
        let (mut begin, mut asked_at) = (Vec::new(), FIRST_BEGIN);
        while let Some(piece) = answer.piece(watch)? {
            begin.extend_from_slice(&piece);
            // Asked each time that there is twice as much: the caller reads it from the start.
            if begin.len() >= asked_at {
                if is_enough(&begin) || begin.len() >= MAX_BEGIN {
                    break;
                }
                asked_at = 2 * begin.len();
            }
        }
        Ok(begin)
    }
}
