//! A session file of any version that this release reads.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use longview_core::{LayerId, RangeSource};

use super::content::SessionContent;
use super::directory::{Kind, covers};
use super::fields::{Fields, SliceFields};
use super::header::{self, SessionHeader};
use super::record_file::RecordFile;
use super::v1::{Stream, StreamFile};
use crate::error::SessionFileError;
use crate::layout::HostRows;
use crate::policy::Policy;

/// A file whose header is proved, and where everything is; the rest is not yet.
pub struct SessionFile<'a>(Form<'a>);

enum Form<'a> {
    Stream(StreamFile<'a>),
    Records(RecordFile<'a>),
}

impl<'a> SessionFile<'a> {
    /// Reads what is little beside the rows: header, directory, trailer.
    ///
    /// # Errors
    /// If it is no session, of a version that this release does not read, not complete, or damaged
    /// there.
    pub fn open(source: &'a dyn RangeSource) -> Result<Self, SessionFileError> {
        let first = header::read(source)?;
        if first.version == 1 {
            return Ok(Self(Form::Stream(StreamFile::open(source, &first)?)));
        }
        let mut file = RecordFile::open(source, first)?;
        let entry = file.directory.only(Kind::Session, None)?;
        let missing = SessionFileError::Inconsistent("it does not say what it holds");
        let session = file.record(entry.ok_or(missing)?)?;
        file.header.take_session(&session)?;
        Ok(Self(Form::Records(file)))
    }

    /// What the file was made with.
    pub fn header(&self) -> &SessionHeader {
        match &self.0 {
            Form::Stream(file) => file.header(),
            Form::Records(file) => &file.header,
        }
    }

    /// Bytes at the end that belong to an append that did not end; they are of no use.
    pub fn n_torn_bytes(&self) -> u64 {
        match &self.0 {
            Form::Stream(_) => 0,
            Form::Records(file) => file.n_torn(),
        }
    }

    /// All tokens whose rows the file has, without the rows. None for version 1, whose tokens stand
    /// behind them.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn tokens(&self) -> Result<Vec<u32>, SessionFileError> {
        self.records().map_or(Ok(Vec::new()), RecordFile::tokens)
    }

    /// Bytes of the file up to where more may be appended; `None` for a version that is not
    /// appended to.
    pub fn append_at(&self) -> Option<u64> {
        self.records().map(|file| file.end)
    }

    /// Whether its policy recalls by an index, and the file has none: it was saved before the
    /// prompt's end ([`SaveOptions::rows_alone`](super::SaveOptions)). Who opens it makes one,
    /// which takes as long each time until the session is saved again.
    pub fn lacks_index(&self) -> bool {
        let Form::Records(file) = &self.0 else { return false };
        let header = &file.header;
        // What is wrong with the options is said by who opens the session.
        let policy = header.policy_options().ok();
        let policy = policy.and_then(|options| Policy::resolve(&options, header.context).ok());
        let Some(policy) = policy.filter(|policy| policy.index.is_some()) else { return false };
        // Where every step attends to all tokens nobody has made one yet.
        let waits = header.host_rows == HostRows::Plain && header.n_tokens <= policy.attend_all;
        !waits && !file.has_states()
    }

    pub(super) fn records(&self) -> Option<&RecordFile<'a>> {
        match &self.0 {
            Form::Stream(_) => None,
            Form::Records(file) => Some(file),
        }
    }

    /// Compares all of the file with its digests, on up to `n_threads` threads.
    ///
    /// # Errors
    /// The first part that is not as it was written.
    pub fn verify(self, n_threads: usize) -> Result<(), SessionFileError> {
        match self.0 {
            Form::Stream(file) => file.verify().map(drop),
            Form::Records(file) => file.verify(n_threads),
        }
    }

    /// Begins to read. Files of version 1 are compared with their digests as a whole before; of
    /// later ones each record is compared when it is read.
    ///
    /// # Errors
    /// The first part that is not as it was written.
    pub fn read(self) -> Result<SessionReader<'a>, SessionFileError> {
        let reading = match self.0 {
            Form::Stream(file) => Reading::Stream(file.verify()?),
            Form::Records(file) => Reading::Records(file),
        };
        Ok(SessionReader { reading, stop: Arc::default() })
    }
}

/// A file that is being read.
pub struct SessionReader<'a> {
    pub(super) reading: Reading<'a>,
    /// Ends reading, and the indexing of what was read.
    pub(super) stop: Arc<AtomicBool>,
}

pub(super) enum Reading<'a> {
    Stream(Stream<'a>),
    Records(RecordFile<'a>),
}

impl SessionReader<'_> {
    /// What the file was made with.
    pub fn header(&self) -> &SessionHeader {
        match &self.reading {
            Reading::Stream(file) => file.header(),
            Reading::Records(file) => &file.header,
        }
    }

    /// Lets `stop` end [`restore_sequence`](super::restore_sequence) between two layers, or two
    /// iterations of an index that has to be made.
    pub fn stop_with(&mut self, stop: Arc<AtomicBool>) {
        self.stop = stop;
    }

    /// The caller's part, which has to be taken before the sequence.
    ///
    /// # Errors
    /// If the file is damaged there, or is not made as it should be.
    pub fn content(&mut self) -> Result<SessionContent, SessionFileError> {
        match &mut self.reading {
            Reading::Stream(file) => file.content(),
            Reading::Records(file) => file.content(),
        }
    }
}

impl RecordFile<'_> {
    /// Whether every layer has what its policy keeps of it.
    pub(super) fn has_states(&self) -> bool {
        let mut layers = (0..self.header.n_layers).map(LayerId::new);
        layers.all(|layer| self.directory.of(Kind::State, Some(layer)).next().is_some())
    }

    fn content(&self) -> Result<SessionContent, SessionFileError> {
        let mut content = SessionContent { tokens: self.tokens()?, ..SessionContent::default() };
        if let Some(entry) = self.directory.only(Kind::Note, None)? {
            content.note = self.record(entry)?;
        }
        if let Some(entry) = self.directory.only(Kind::Last, None)? {
            content.take_last(&self.record(entry)?)?;
        }
        Ok(content)
    }

    /// All tokens whose rows the file has.
    pub fn tokens(&self) -> Result<Vec<u32>, SessionFileError> {
        let n = self.header.n_tokens;
        if !covers(self.directory.of(Kind::Tokens, None), n) {
            return Err(SessionFileError::Inconsistent("its tokens"));
        }
        let mut tokens = Vec::new();
        for entry in self.directory.of(Kind::Tokens, None) {
            let bytes = self.record(entry)?;
            tokens.extend(SliceFields(&bytes).u32s(entry.key.span.len())?);
        }
        Ok(tokens)
    }
}
