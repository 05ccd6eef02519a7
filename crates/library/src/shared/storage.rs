//! Objects of a storage, by name: the few things that are done with them, each on the thread of who
//! asks.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error, Extensions, GetOptions, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
};

use super::error::ShareError;
use super::folder::Folder;
use super::http::{Most, TooLong};

/// A storage, and where in it everything lies.
#[derive(Clone, Debug)]
pub(super) struct Storage {
    store: Arc<dyn ObjectStore>,
    root: Path,
    /// Where it is a folder, who may read it.
    folder: Option<Folder>,
}

/// An object of a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) name: String,
    /// When it was written, by the storage's clock.
    pub(super) changed_unix_s: u64,
}

impl Storage {
    pub(super) fn new(store: Arc<dyn ObjectStore>, root: Path) -> Self {
        Self { store, root, folder: None }
    }

    /// One in a folder.
    pub(super) fn in_folder(store: Arc<dyn ObjectStore>, folder: Folder) -> Self {
        Self { store, root: Path::default(), folder: Some(folder) }
    }

    /// The bytes of an object, if there is one. Of one with more than `most` bytes there are none:
    /// it is not what was written, and this machine need not find out by holding all of it.
    pub(super) fn get(&self, name: &str, most: u64) -> Result<Option<Bytes>, ShareError> {
        let path = self.path(name);
        let mut extensions = Extensions::new();
        extensions.insert(Most(most));
        let options = GetOptions::new().with_extensions(extensions);
        let got = run(async {
            let got = self.store.get_opts(&path, options).await?;
            if got.meta.size > most { Ok(Bytes::new()) } else { got.bytes().await }
        });
        match got {
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) if TooLong::is_why(&error) => Ok(Some(Bytes::new())),
            other => Ok(Some(other?)),
        }
    }

    /// Writes an object, in place of one that is there.
    pub(super) fn put(&self, name: &str, bytes: Bytes) -> Result<(), ShareError> {
        let path = self.path(name);
        self.privately(name, || {
            run(async { self.store.put(&path, bytes.into()).await })?;
            Ok(())
        })
    }

    /// Writes an object if there is none of this name; whether it did. One of several that try at
    /// the same time does.
    pub(super) fn put_new(&self, name: &str, bytes: Bytes) -> Result<bool, ShareError> {
        let path = self.path(name);
        let options = PutOptions::from(PutMode::Create);
        self.privately(name, || {
            match run(async { self.store.put_opts(&path, bytes.into(), options).await }) {
                Ok(_) => Ok(true),
                Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
                Err(error) => Err(error.into()),
            }
        })
    }

    /// What writes an object, where only those may read it who may read what is shared.
    fn privately<T>(
        &self,
        name: &str,
        write: impl FnOnce() -> Result<T, ShareError>,
    ) -> Result<T, ShareError> {
        let Some(folder) = &self.folder else { return write() };
        let failed = |error| Error::Generic { store: "folder", source: Box::new(error) };
        folder.open_way(name).map_err(failed)?;
        let written = write()?;
        folder.close(name).map_err(failed)?;
        Ok(written)
    }

    /// Objects in a folder, at most so many.
    pub(super) fn list(&self, folder: &str, most: usize) -> Result<Vec<Listed>, ShareError> {
        let path = self.path(folder);
        let found = run(async {
            let objects = self.store.list(Some(&path)).take(most);
            objects.try_collect::<Vec<_>>().await
        })?;
        let root = self.root.as_ref();
        let name = |path: Path| {
            let path = path.to_string();
            path.strip_prefix(root).unwrap_or(&path).trim_start_matches('/').to_owned()
        };
        let listed = found.into_iter().map(|object| {
            let changed_unix_s = u64::try_from(object.last_modified.timestamp()).unwrap_or(0);
            Listed { name: name(object.location), changed_unix_s }
        });
        Ok(listed.collect())
    }

    /// Removes an object, if there is one.
    pub(super) fn delete(&self, name: &str) -> Result<(), ShareError> {
        let path = self.path(name);
        match run(async { self.store.delete(&path).await }) {
            Ok(()) | Err(Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn path(&self, name: &str) -> Path {
        self.root.parts().chain(Path::from(name).parts()).collect()
    }
}

/// Waits for a request on this thread. The pauses between attempts need a runtime; requests block.
fn run<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime
        .map_err(|error| Error::Generic { store: "shared storage", source: error.into() })?;
    runtime.block_on(work)
}
