//! Files that commands write, checked before the work begins and whole when they appear.

use std::fs::{self, File, Metadata};
use std::io::{self, BufRead, ErrorKind, IsTerminal, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Error, Result, anyhow, bail};

use super::kind::{FileKind, seems};
use super::part::Part;
use super::target::{Identity, Target, folder_of, head_of, is_same_file};
use crate::clean;
use crate::failure::describe;

/// What is to be written, and where.
#[derive(Clone, Copy)]
pub struct Output<'a> {
    /// The option that names it, for messages.
    pub option: &'a str,
    /// As it was given.
    pub path: &'a Path,
    /// What it will be.
    pub kind: FileKind,
    /// Whether an older one may be replaced without a question.
    pub force: bool,
    /// What is read, each with what a message calls it: none of them is written to.
    pub inputs: &'a [(String, PathBuf)],
}

/// A file that will be written, or not be touched at all.
///
/// What is there already is replaced only if it is a regular file of the same kind, and then only
/// with `--force` or after a question on the terminal. The part that is written has its name from
/// the start, so that whatever stands in the way is found before hours of work.
#[derive(Debug)]
pub struct OutputFile {
    /// Option and name, for messages.
    shown: String,
    name: PathBuf,
    kind: FileKind,
    target: PathBuf,
    /// The file that is to be replaced, if there is one.
    before: Option<Identity>,
    force: bool,
    part: Part,
}

/// The file that is written. It notes why the system refused, as the errors of those who write
/// do not always say it.
pub struct Noted<'a> {
    file: &'a mut File,
    failed: Option<ErrorKind>,
}

impl Write for Noted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).inspect_err(|error| self.failed = Some(error.kind()))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().inspect_err(|error| self.failed = Some(error.kind()))
    }
}

impl Output<'_> {
    fn shown(&self) -> String {
        format!("{} {}", self.option, self.path.display())
    }

    /// Follows links and refuses what must not be written to.
    fn target(&self) -> Result<Target> {
        let shown = self.shown();
        let target = Target::of(self.path).with_context(|| shown.clone()).map_err(on_one_line)?;
        let same = self.inputs.iter().find(|(_, input)| is_same_file(input, &target.path));
        if let Some((what, _)) = same {
            bail!("{shown}: is {what}, which is read; give another name");
        }
        if let Some(found) = &target.found {
            self.check_kind(found, &target.path)?;
        }
        Ok(target)
    }

    fn check_kind(&self, found: &Metadata, path: &Path) -> Result<()> {
        let shown = self.shown();
        let head = head_of(path).map_err(|error| {
            anyhow!("{shown}: is there and cannot be read to see what it is ({error})")
        })?;
        if found.len() > 0 && !self.kind.is_own(&head) {
            bail!(
                "{shown}: is not {}, it seems to be {}; nothing but {} is written over, also with \
                 --force: give another name, or move it away",
                self.kind.name(),
                seems(&head),
                self.kind.name()
            );
        }
        Ok(())
    }

    /// Whether the file that is there may be replaced.
    fn check_consent(&self) -> Result<()> {
        let shown = self.shown();
        if self.force {
            return Ok(());
        }
        if !(io::stdin().is_terminal() && io::stderr().is_terminal()) {
            bail!(
                "{shown}: is there already ({}); give --force to replace it, or another name",
                self.kind.name()
            );
        }
        if !is_agreed(&format!("replace {}?", self.path.display()))? {
            bail!("{shown}: is left as it is; give another name");
        }
        Ok(())
    }

    /// Makes the checks and asks the question, and begins nothing: whether there is a file that is
    /// to be replaced, or `force` was given.
    ///
    /// # Errors
    /// As [`Output::prepare`].
    pub fn check(self) -> Result<bool> {
        // The folder may still have to be made.
        if folder_of(self.path).symlink_metadata().is_err() {
            return Ok(self.force);
        }
        let is_there = self.target()?.found.is_some();
        if is_there {
            self.check_consent()?;
        }
        Ok(is_there || self.force)
    }

    /// Checks all that can be checked before the work, asks if it must, and begins the file.
    ///
    /// # Errors
    /// Names the option, the file, what stands in the way and what to do.
    pub fn prepare(self) -> Result<OutputFile> {
        let shown = self.shown();
        let target = self.target()?;
        if target.found.is_some() {
            self.check_consent()?;
        }
        let part = Part::create(&target.path, self.kind, target.found.as_ref())
            .with_context(|| shown.clone())
            .map_err(on_one_line)?;
        let before = target.found.as_ref().map(Identity::of);
        let Self { kind, force, path, .. } = self;
        Ok(OutputFile {
            shown,
            name: path.to_owned(),
            kind,
            target: target.path,
            before,
            force,
            part,
        })
    }
}

/// Fails where results cannot be added to `path`: to add needs no `--force`.
///
/// # Errors
/// As [`Output::prepare`].
pub fn check_appended(option: &str, path: &Path, inputs: &[(String, PathBuf)]) -> Result<()> {
    let output = Output { option, path, kind: FileKind::Results, force: false, inputs };
    let (shown, target) = (output.shown(), output.target()?);
    if target.found.is_some() {
        let opened = fs::OpenOptions::new().append(true).open(&target.path);
        return opened.map(drop).map_err(|e| anyhow!("{shown}: cannot be written to ({e})"));
    }
    // The one way to know is to create a file, and an empty one must not be left if the work fails.
    let part = Part::create(&target.path, FileKind::Results, None);
    part.map(drop).with_context(|| shown).map_err(on_one_line)
}

impl OutputFile {
    /// The name as it was given.
    pub fn name(&self) -> &Path {
        &self.name
    }

    /// Lets `fill` write the file, and gives it its name when it is on the disk. Says how many
    /// bytes it has. If anything fails, what was there before is there still.
    ///
    /// # Errors
    /// What `fill` says, what the system says, and if another program wrote the target meanwhile.
    pub fn write(self, fill: impl FnOnce(&mut Noted<'_>) -> Result<()>) -> Result<u64> {
        let shown = self.shown.clone();
        self.write_unnamed(fill).map_err(|error| {
            let reason = space_reason(&error).map_or_else(|| describe(&error), str::to_owned);
            anyhow!("{shown}: {reason}")
        })
    }

    /// The file that is there and may be replaced, if `path` is that file.
    pub fn before(&self, path: &Path) -> Option<&Path> {
        let is_there = self.before.is_some() && is_same_file(path, &self.target);
        is_there.then_some(&*self.target)
    }

    /// Lets `fill` write behind the first `at` bytes of the file that is there, in place: `fill`
    /// says `false` if it has written nothing and the file has to be replaced. If anything fails,
    /// the first `at` bytes are there still. Says how many bytes the file has then.
    ///
    /// # Errors
    /// As [`OutputFile::write`]. (Who has begun the part is the only one who writes: no lock.)
    pub fn append(
        &self,
        at: u64,
        fill: impl FnOnce(&mut Noted<'_>) -> Result<bool>,
    ) -> Result<Option<u64>> {
        self.append_unnamed(at, fill).map_err(|error| {
            let reason = space_reason(&error).map_or_else(|| describe(&error), str::to_owned);
            anyhow!("{}: {reason}", self.shown)
        })
    }

    fn append_unnamed(
        &self,
        at: u64,
        fill: impl FnOnce(&mut Noted<'_>) -> Result<bool>,
    ) -> Result<Option<u64>> {
        let mut file = fs::OpenOptions::new().write(true).open(&self.target)?;
        if self.before != Some(Identity::of(&file.metadata()?)) {
            bail!("another program wrote this file meanwhile; open it and save again");
        }
        file.seek(SeekFrom::Start(at))?;
        let mut out = Noted { file: &mut file, failed: None };
        let (filled, failed) = (fill(&mut out), out.failed);
        let is_written = filled.map_err(|error| {
            // What is cut off is of no use; where even that fails it is known for what it is.
            let _ = file.set_len(at);
            match failed {
                Some(kind) if space_text(kind).is_some() => io::Error::from(kind).into(),
                _ => error,
            }
        })?;
        if !is_written {
            return Ok(None);
        }
        let end = file.stream_position()?;
        file.set_len(end)?;
        file.sync_all()?;
        Ok(Some(end))
    }

    fn write_unnamed(mut self, fill: impl FnOnce(&mut Noted<'_>) -> Result<()>) -> Result<u64> {
        let mut out = Noted { file: &mut self.part.file, failed: None };
        let (filled, failed) = (fill(&mut out), out.failed);
        filled.map_err(|error| match failed {
            Some(kind) if space_text(kind).is_some() => io::Error::from(kind).into(),
            _ => error,
        })?;
        self.part.file.sync_all()?;
        let n_bytes = self.part.file.metadata()?.len();
        let folder = folder_of(&self.target);
        self.finish()?;
        // The name is on the disk when its folder is. Not every system has that.
        let _ = File::open(folder).and_then(|folder| folder.sync_all());
        Ok(n_bytes)
    }

    /// Gives the part its name, unless somebody else took it since [`Output::prepare`].
    fn finish(self) -> Result<()> {
        let now = match self.target.symlink_metadata() {
            Ok(found) => Some(found),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => bail!("cannot be looked at ({error})"),
        };
        let Some(found) = now else {
            return match self.part.publish(&self.target)? {
                None => Ok(()),
                Some(part) => keep_elsewhere(part, &self.target, WRITTEN_MEANWHILE),
            };
        };
        let is_as_before = self.before.as_ref() == Some(&Identity::of(&found));
        let may_replace = is_as_before || (self.force && found.is_file() && self.is_own());
        if !may_replace {
            return keep_elsewhere(self.part, &self.target, WRITTEN_MEANWHILE);
        }
        self.part.replace(&self.target).or_else(|(part, error)| {
            keep_elsewhere(part, &self.target, &format!("this file cannot be replaced ({error})"))
        })
    }

    fn is_own(&self) -> bool {
        head_of(&self.target).is_ok_and(|head| self.kind.is_own(&head))
    }
}

const WRITTEN_MEANWHILE: &str = "another program wrote this file meanwhile, so it is not replaced";

/// Gives the work the first free name of the form `NAME.1`: it took long, and the name that was
/// asked for cannot be had, for `reason`.
fn keep_elsewhere(mut part: Part, target: &Path, reason: &str) -> Result<()> {
    for n in 1..1000 {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{n}"));
        let other = target.with_file_name(name);
        match part.publish(&other)? {
            None => bail!("{reason}; what was to go there is in {}", other.display()),
            Some(back) => part = back,
        }
    }
    bail!("{reason}")
}

/// What ran out, if that is why `error` came.
fn space_reason(error: &Error) -> Option<&'static str> {
    let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    kinds.map(io::Error::kind).find_map(space_text)
}

fn space_text(kind: ErrorKind) -> Option<&'static str> {
    match kind {
        ErrorKind::StorageFull => Some(
            "the disk is full; what was there before is as it was: make room, or give a name on \
             another disk",
        ),
        ErrorKind::QuotaExceeded => Some(
            "your share of the disk is used up; what was there before is as it was: make room, or \
             give a name on another disk",
        ),
        ErrorKind::FileTooLarge => Some(
            "the file is larger than the system allows here; what was there before is as it was: \
             raise the limit (ulimit -f), or give a name on another disk",
        ),
        _ => None,
    }
}

/// Asks on the terminal; everything but a yes is a no.
fn is_agreed(question: &str) -> Result<bool> {
    let mut err = io::stderr();
    write!(err, "{} [y/N] ", clean::message(question)).and_then(|()| err.flush())?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).context("stdin: cannot be read")?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

/// `shown: reason` rather than a cause on a line of its own.
fn on_one_line(error: Error) -> Error {
    anyhow!("{error:#}")
}
