//! From a name to a model in the cache.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use crate::cache::{Cache, RepoFolder, create_folder};
use crate::error::LibraryError;
use crate::find::{Found, find};
use crate::http::Client;
use crate::hub::{Hub, Repository};
use crate::list::{Entry, list};
use crate::look::Remote;
use crate::name::ModelName;
use crate::remote_path::RemotePath;
use crate::remove::{Removed, remove};
use crate::select::{CONFIG, Choice, INDEX, MAX_INDEX, Wanted, choose, shards};
use crate::settings::{Offline, Settings};
use crate::space::free_bytes;
use crate::transfer::{Job, Tally, Transfer, is_whole};
use crate::variant::Format;
use crate::watch::{Event, Watch};

/// The models of this machine, and the hub that others come from.
pub struct Library {
    settings: Settings,
    cache: Cache,
}

impl Library {
    /// With the cache and the hub of `settings`. Nothing is opened yet.
    pub fn new(settings: Settings) -> Self {
        Self { cache: Cache::new(&settings.cache), settings }
    }

    /// The folder that models lie in.
    pub fn folder(&self) -> &Path {
        &self.settings.cache
    }

    /// Whether nothing is downloaded.
    pub fn is_offline(&self) -> bool {
        self.settings.is_offline()
    }

    /// A model that is here, whole.
    ///
    /// # Errors
    /// If it is not, with names like it, or with what is missing.
    pub fn find(&self, wanted: &Wanted<'_>) -> Result<Found, LibraryError> {
        find(&self.cache, wanted)
    }

    /// Every model that is here, at least in part.
    ///
    /// # Errors
    /// If the cache cannot be read.
    pub fn list(&self) -> Result<Vec<Entry>, LibraryError> {
        list(&self.cache)
    }

    /// Removes a model: `USER/REPO` as a whole, one GGUF file of it, or one of its revisions.
    ///
    /// # Errors
    /// If there is none of this name, if it is being downloaded, or if the system refuses.
    pub fn remove(&self, name: &ModelName) -> Result<Removed, LibraryError> {
        remove(&self.cache, name)
    }

    /// Downloads what is not here yet of a model, at the newest commit of its revision.
    ///
    /// # Errors
    /// See [`LibraryError`]. What was downloaded is kept, and the model that was here before stays
    /// as it is until the new one is whole.
    pub fn pull(&self, wanted: &Wanted<'_>, watch: &mut Watch<'_>) -> Result<Found, LibraryError> {
        if self.is_offline() {
            return self.find(wanted).map_err(|_| self.offline(wanted));
        }
        let client = Client::new(&self.settings);
        let (endpoint, patience) = (&self.settings.endpoint, self.settings.patience);
        let hub = Hub { client: &client, endpoint, patience };
        let repository = hub.list(wanted.name, watch)?;
        let repo = self.cache.repo(wanted.name);
        let pull = Pull { wanted, repository: &repository, repo: &repo, hub: &hub };
        pull.run(&Transfer { hub: &hub, client: &client, repo: &repo, name: wanted.name }, watch)?;
        self.find_commit(wanted, &repository.commit)
    }

    /// Asks the hub what [`Library::pull`] would download: how much, under which licence, and the
    /// beginning that tells the model's dimensions. Of a GGUF file `is_enough` says when that has
    /// come.
    ///
    /// # Errors
    /// See [`LibraryError`].
    pub fn look(
        &self,
        wanted: &Wanted<'_>,
        is_enough: &dyn Fn(&[u8]) -> bool,
        watch: &mut Watch<'_>,
    ) -> Result<Remote, LibraryError> {
        if self.is_offline() {
            return Err(self.offline(wanted));
        }
        let client = Client::new(&self.settings);
        let (endpoint, patience) = (&self.settings.endpoint, self.settings.patience);
        let hub = Hub { client: &client, endpoint, patience };
        let repository = hub.list(wanted.name, watch)?;
        let repo = self.cache.repo(wanted.name);
        let pull = Pull { wanted, repository: &repository, repo: &repo, hub: &hub };
        pull.look(
            &Transfer { hub: &hub, client: &client, repo: &repo, name: wanted.name },
            is_enough,
            watch,
        )
    }

    fn offline(&self, wanted: &Wanted<'_>) -> LibraryError {
        let by_variable = self.settings.offline == Offline::Variable;
        LibraryError::Offline { name: wanted.name.to_string(), by_variable }
    }

    /// What was just downloaded, whatever the branch says by now.
    fn find_commit(&self, wanted: &Wanted<'_>, commit: &str) -> Result<Found, LibraryError> {
        let name = wanted.name.with(wanted.name.quant(), Some(commit));
        find(&self.cache, &Wanted { name: &name, ..*wanted })
    }
}

/// One model on its way.
struct Pull<'a> {
    wanted: &'a Wanted<'a>,
    repository: &'a Repository,
    repo: &'a RepoFolder,
    hub: &'a Hub<'a>,
}

impl Pull<'_> {
    fn run(&self, transfer: &Transfer<'_>, watch: &mut Watch<'_>) -> Result<(), LibraryError> {
        let (_, names) = self.names(transfer, watch)?;
        let jobs = self.jobs(&names)?;
        let total = jobs.iter().map(|job| job.size).sum();
        let present = jobs.iter().map(|job| self.present(job)).sum();
        let n_files = jobs.len();
        watch.tell(Event::Planned { n_files, total_bytes: total, present_bytes: present });
        self.check_space(total - present)?;
        let mut tally = Tally { before: 0, total };
        for job in &jobs {
            transfer.run(job, tally, watch)?;
            tally.before += job.size;
        }
        self.name(&jobs)
    }

    /// The files of the model by name, the first of a GGUF file's parts first.
    fn names(
        &self,
        transfer: &Transfer<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<(Format, Vec<String>), LibraryError> {
        match choose(&self.repository.names(), self.wanted)? {
            Choice::Gguf(names) => Ok((Format::Gguf, names)),
            Choice::Folder { files, has_index: false } => Ok((Format::Safetensors, files)),
            Choice::Folder { mut files, has_index: true } => {
                files.extend(self.shards(transfer, watch)?);
                Ok((Format::Safetensors, files))
            }
        }
    }

    fn look(
        &self,
        transfer: &Transfer<'_>,
        is_enough: &dyn Fn(&[u8]) -> bool,
        watch: &mut Watch<'_>,
    ) -> Result<Remote, LibraryError> {
        let (format, names) = self.names(transfer, watch)?;
        let jobs = self.jobs(&names)?;
        let first = match format {
            Format::Gguf => names.first().map_or("", String::as_str),
            _ => CONFIG,
        };
        let first = self.job(first)?;
        let commit = &self.repository.commit;
        let begin = self.hub.begin(self.wanted, commit, &first.file, is_enough, watch)?;
        Ok(Remote {
            format,
            n_files: jobs.len(),
            total_bytes: jobs.iter().map(|job| job.size).sum(),
            present_bytes: jobs.iter().map(|job| self.present(job)).sum(),
            begin_of_bytes: first.size,
            license: self.repository.license.clone(),
            commit: commit.clone(),
            begin,
        })
    }

    /// The weights that the index names, which is downloaded for this.
    fn shards(
        &self,
        transfer: &Transfer<'_>,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<String>, LibraryError> {
        let wrong = |what: &str| LibraryError::BadAnswer {
            host: self.hub.endpoint.origin.to_string(),
            what: format!("a {INDEX} that {what}"),
        };
        let job = self.job(INDEX)?;
        if job.size > MAX_INDEX {
            return Err(wrong("is far too long"));
        }
        transfer.run(&job, Tally { before: 0, total: job.size }, watch)?;
        let path = self.repo.blob(&job.id);
        let text = fs::read(&path).map_err(LibraryError::io("read", &path))?;
        Ok(shards(&text).ok_or_else(|| wrong("names no files"))?.into_iter().collect())
    }

    /// The files by name, each once.
    fn jobs(&self, names: &[String]) -> Result<Vec<Job>, LibraryError> {
        let jobs = names.iter().map(|name| Ok((name, self.job(name)?)));
        let jobs = jobs.collect::<Result<BTreeMap<_, _>, LibraryError>>()?;
        let mut jobs: Vec<Job> = jobs.into_values().collect();
        // Small files first: what they say may be a reason to stop.
        jobs.sort_by_key(|job| job.size);
        Ok(jobs)
    }

    fn job(&self, name: &str) -> Result<Job, LibraryError> {
        let repo = || self.wanted.name.repo().to_owned();
        let file = RemotePath::parse(name).map_err(|reason| LibraryError::UnsafeName {
            repo: repo(),
            file: name.to_owned(),
            reason,
        })?;
        let known = self.repository.files.iter().find(|known| known.name == name);
        let known = known.ok_or_else(|| LibraryError::NoFile {
            repo: repo(),
            file: name.to_owned(),
            available: self.weights(),
        })?;
        let (id, size) = known.content.clone().ok_or_else(|| LibraryError::BadAnswer {
            host: self.hub.endpoint.origin.to_string(),
            what: format!("a list without the size or the hash of {name}"),
        })?;
        let uri = self.hub.address(self.wanted.name, &self.repository.commit, &file)?;
        Ok(Job { file, id, size, uri })
    }

    fn weights(&self) -> Vec<String> {
        let names = self.repository.names().into_iter();
        names.filter(|name| name.ends_with(".safetensors")).map(str::to_owned).collect()
    }

    /// Bytes of a content that are here.
    fn present(&self, job: &Job) -> u64 {
        if is_whole(&self.repo.blob(&job.id), job.size) {
            return job.size;
        }
        let begun = fs::metadata(self.repo.incomplete(&job.id));
        begun.map_or(0, |data| data.len()).min(job.size)
    }

    fn check_space(&self, needed_bytes: u64) -> Result<(), LibraryError> {
        if needed_bytes == 0 {
            return Ok(());
        }
        let folder = self.repo.blobs();
        create_folder(&folder)?;
        let free_bytes = free_bytes(&folder);
        if free_bytes.is_some_and(|free| free < needed_bytes) {
            return Err(LibraryError::NoSpace { folder, needed_bytes, free_bytes });
        }
        Ok(())
    }

    /// Gives the contents their names: those of the snapshot first, then that of the branch.
    fn name(&self, jobs: &[Job]) -> Result<(), LibraryError> {
        let commit = &self.repository.commit;
        for job in jobs {
            self.repo.link(commit, &job.file, &job.id)?;
        }
        let revision = self.wanted.name.revision().unwrap_or("main");
        match RemotePath::parse(revision) {
            Ok(reference) if revision != commit => self.repo.set_reference(&reference, commit),
            _ => Ok(()),
        }
    }
}
