//! What the hub says: the files of a repository, with the size and the hash of each.

use std::time::Duration;

use serde::Deserialize;
use ureq::http::Uri;

use crate::digest::{BlobId, is_commit};
use crate::error::LibraryError;
use crate::http::{Answer, Client, Request};
use crate::name::ModelName;
use crate::origin::encoded;
use crate::remote_path::RemotePath;
use crate::retry::{Failure, Retry};
use crate::settings::{Endpoint, Patience};
use crate::watch::Watch;

/// The most bytes of a list; one of 10,000 files has 3 MB.
const MAX_LIST: usize = 64 << 20;
/// What the tag of a licence begins with.
const LICENSE: &str = "license:";
/// Letters of a licence's name: it is shown.
const MAX_LICENSE: usize = 64;

/// A repository at one commit.
#[derive(Debug)]
pub(crate) struct Repository {
    pub(crate) commit: String,
    pub(crate) files: Vec<RemoteFile>,
    /// As its publisher names it.
    pub(crate) license: Option<String>,
}

/// A file of a repository, under the name that the hub gives it.
#[derive(Debug)]
pub(crate) struct RemoteFile {
    pub(crate) name: String,
    /// Hash and size, if the hub says them.
    pub(crate) content: Option<(BlobId, u64)>,
}

/// Asks one hub for lists.
pub(crate) struct Hub<'a> {
    pub(crate) client: &'a Client,
    pub(crate) endpoint: &'a Endpoint,
    pub(crate) patience: Patience,
}

#[derive(Deserialize)]
struct Listed {
    sha: String,
    siblings: Vec<Sibling>,
    /// Words such as `license:apache-2.0`.
    #[serde(default)]
    tags: Vec<String>,
}

#[derive(Deserialize)]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
    size: u64,
}

impl Sibling {
    fn content(&self) -> Option<(BlobId, u64)> {
        match &self.lfs {
            Some(lfs) => Some((BlobId::sha256(&lfs.sha256)?, lfs.size)),
            None => Some((BlobId::git(self.blob_id.as_deref()?)?, self.size?)),
        }
    }
}

impl Hub<'_> {
    /// The files of a repository at the revision of `name`, or at its newest.
    pub(crate) fn list(
        &self,
        name: &ModelName,
        watch: &mut Watch<'_>,
    ) -> Result<Repository, LibraryError> {
        let what = format!("{}: the list of its files", name.repo());
        let mut retry = Retry::new(&what, self.patience);
        loop {
            match self.try_list(name, watch) {
                Ok(repository) => return Ok(repository),
                Err(failure) => retry.wait(failure, watch)?,
            }
        }
    }

    fn try_list(&self, name: &ModelName, watch: &Watch<'_>) -> Result<Repository, Failure> {
        let revision = encoded(name.revision().unwrap_or("main"), false);
        let path = format!("/api/models/{}/revision/{revision}?blobs=true", name.repo());
        let request = Request { uri: self.endpoint.join(&path)?, from: 0, if_range: None };
        let answer = self.client.get(request, watch)?;
        if answer.status != 200 {
            return Err(self.refusal(&answer, name, "the list of files"));
        }
        let host = answer.origin.to_string();
        let wrong = |what: &str| LibraryError::BadAnswer { host, what: what.to_owned() };
        let text = answer.whole(MAX_LIST, watch)?;
        match serde_json::from_slice::<Listed>(&text) {
            Ok(listed) if is_commit(&listed.sha) => Ok(Repository::of(listed)),
            Ok(_) => Err(wrong("a commit that is none").into()),
            Err(_) => Err(wrong("something that is no list of files").into()),
        }
    }

    /// The address of a file at a commit.
    pub(crate) fn address(
        &self,
        name: &ModelName,
        commit: &str,
        file: &RemotePath,
    ) -> Result<Uri, LibraryError> {
        let file = encoded(file.as_str(), true);
        self.endpoint.join(&format!("/{}/resolve/{commit}/{file}", name.repo()))
    }

    /// What an answer other than the content of `file` means.
    pub(crate) fn refusal(&self, answer: &Answer, name: &ModelName, file: &str) -> Failure {
        let (status, host) = (answer.status, answer.origin.to_string());
        let repo = name.repo().to_owned();
        let has_token = self.client.has_token();
        let code = answer.header("x-error-code").unwrap_or_default();
        let message = answer.header("x-error-message").unwrap_or_default();
        let is_hub = answer.origin == self.endpoint.origin;
        if status == 429 || status >= 500 {
            return self.passing(answer);
        }
        // A host of large files refuses addresses that are too old; the next ones are new.
        if !is_hub && status == 403 {
            return Failure::passing(format!("{host} answers with status 403"));
        }
        let error = match (code, status) {
            ("GatedRepo", _) => {
                LibraryError::Gated { page: self.endpoint.page(&repo), repo, has_token }
            }
            ("RevisionNotFound", _) => LibraryError::NoRevision {
                repo,
                revision: name.revision().unwrap_or("main").to_owned(),
            },
            ("EntryNotFound", _) => {
                LibraryError::NoFile { repo, file: file.to_owned(), available: Vec::new() }
            }
            (_, 401) if is_hub && has_token && message.contains("Invalid credentials") => {
                LibraryError::BadToken { host }
            }
            ("RepoNotFound", _) | (_, 401 | 404) if is_hub => {
                LibraryError::NoRepository { repo, host, has_token }
            }
            (_, 403) if is_hub => {
                LibraryError::Gated { page: self.endpoint.page(&repo), repo, has_token }
            }
            _ => LibraryError::Status { host, file: file.to_owned(), status },
        };
        error.into()
    }

    /// What passes: too many requests, or a hub that has trouble of its own.
    fn passing(&self, answer: &Answer) -> Failure {
        let wait = answer.header("retry-after").and_then(|text| text.trim().parse().ok());
        let wait = wait.map(Duration::from_secs);
        let host = answer.origin.to_string();
        if let Some(wait) = wait.filter(|wait| *wait > self.patience.longest_pause) {
            let has_token = self.client.has_token();
            return LibraryError::Busy { host, seconds: wait.as_secs(), has_token }.into();
        }
        Failure::Passing { reason: format!("{host} answers with status {}", answer.status), wait }
    }
}

impl Repository {
    fn of(listed: Listed) -> Self {
        let file = |sibling: Sibling| {
            let content = sibling.content();
            RemoteFile { name: sibling.rfilename, content }
        };
        let mut tags = listed.tags.iter();
        let license = tags
            .find_map(|tag| tag.strip_prefix(LICENSE))
            .map(|name| name.chars().filter(|c| !c.is_control()).take(MAX_LICENSE).collect());
        Self { commit: listed.sha, files: listed.siblings.into_iter().map(file).collect(), license }
    }

    /// The names of all files.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.files.iter().map(|file| file.name.as_str()).collect()
    }
}
