//! The file that is written before it gets the name that was asked for.
//!
//! There is one for each target, `NAME.part` beside it, locked as long as its writer lives. So two
//! writers of one target see each other, and a part that nobody holds is of a process that died:
//! the next writer removes it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use longview_library::replace;

use super::kind::FileKind;
use super::target::{folder_of, head, head_of, is_open_as};

/// Parts of this process that have no other name yet.
static UNFINISHED: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

fn unfinished() -> MutexGuard<'static, Vec<PathBuf>> {
    // Nothing that holds the lock can leave it half changed.
    UNFINISHED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Removes what this process has begun to write, for a program that ends now.
pub fn remove_unfinished() {
    let mut all = unfinished();
    for path in all.drain(..) {
        let _ = fs::remove_file(path);
    }
}

/// An open and locked part. Unless it gets another name, it is removed in the end.
#[derive(Debug)]
pub struct Part {
    /// To be written.
    pub file: File,
    path: PathBuf,
}

impl Part {
    /// Creates the part of `target`, and removes those that dead processes left.
    ///
    /// # Errors
    /// If another process writes this target, something else has the part's name, or the folder
    /// cannot be written to.
    pub fn create(target: &Path, kind: FileKind, like: Option<&Metadata>) -> Result<Self> {
        remove_old_parts(target, kind);
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(".part");
        let path = target.with_file_name(name);
        // Again where a stale part was removed, or where another process took it for one.
        for _ in 0..8 {
            match create_listed(&path) {
                Ok(Some(file)) => {
                    let part = Self { file, path };
                    if let Some(like) = like {
                        part.take_mode(like);
                    }
                    return Ok(part);
                }
                Ok(None) => thread::sleep(Duration::from_millis(5)),
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    remove_stale(&path, kind)?;
                }
                Err(error) => {
                    let folder = folder_of(target);
                    return Err(error)
                        .with_context(|| format!("cannot write to {}", folder.display()));
                }
            }
        }
        bail!("{} comes back as often as it is removed; wait, and try again", path.display())
    }

    /// Gives the part the name `target`, in place of the file that has it.
    ///
    /// # Errors
    /// The part as it is, and what the system says.
    pub fn replace(self, target: &Path) -> Result<(), (Self, io::Error)> {
        // Ctrl-C waits until it is known whether there is a part to remove.
        let mut all = unfinished();
        if let Err(error) = replace(&self.path, target) {
            drop(all);
            return Err((self, error));
        }
        all.retain(|path| *path != self.path);
        Ok(())
    }

    /// Gives the part the name `target` if nothing has it; else returns it as it is.
    pub fn publish(self, target: &Path) -> io::Result<Option<Self>> {
        let mut all = unfinished();
        match fs::hard_link(&self.path, target) {
            Ok(()) => {
                let _ = fs::remove_file(&self.path);
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(Some(self)),
            // Not every file system has hard links; then there is a moment between the two.
            Err(_) if target.symlink_metadata().is_ok() => return Ok(Some(self)),
            Err(_) => fs::rename(&self.path, target)?,
        }
        all.retain(|path| *path != self.path);
        Ok(None)
    }

    /// Owner and mode of the file that it will replace, as far as they may be given away. Before
    /// anything is written: what nobody else may read is never open to them.
    fn take_mode(&self, like: &Metadata) {
        #[cfg(unix)]
        {
            use std::os::unix::fs::{MetadataExt, fchown};
            let _ = fchown(&self.file, Some(like.uid()), Some(like.gid()));
        }
        let _ = self.file.set_permissions(like.permissions());
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let mut all = unfinished();
        if let Some(at) = all.iter().position(|path| *path == self.path) {
            all.swap_remove(at);
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// As [`create_locked`], and listed as unfinished: Ctrl-C comes before or after both.
fn create_listed(path: &Path) -> io::Result<Option<File>> {
    let mut all = unfinished();
    let created = create_locked(path)?;
    if created.is_some() {
        all.push(path.to_owned());
    }
    Ok(created)
}

/// A new file under this name, locked; `None` if another process removed it meanwhile.
fn create_locked(path: &Path) -> io::Result<Option<File>> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path)?;
    match file.try_lock() {
        Ok(()) => {}
        // Where files cannot be locked the name alone keeps others away.
        Err(TryLockError::Error(_)) => return Ok(Some(file)),
        Err(TryLockError::WouldBlock) => return Ok(None),
    }
    Ok(is_open_as(&file, path).then_some(file))
}

/// Removes a part that nobody holds.
fn remove_stale(path: &Path, kind: FileKind) -> Result<()> {
    let shown = path.display();
    let foreign = || {
        format!(
            "{shown} is in the way, and it is not what longview leaves when it is stopped; move it \
             away"
        )
    };
    let found = match path.symlink_metadata() {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => bail!("{shown}: cannot be looked at ({error})"),
    };
    if !found.is_file() {
        bail!(foreign());
    }
    let file = File::open(path).with_context(foreign)?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            bail!("another longview writes it now ({shown}); wait for it, or give another name")
        }
        Err(TryLockError::Error(error)) => {
            bail!("{shown} is in the way ({error}); remove it if no other longview writes it")
        }
    }
    if !head(&file).is_ok_and(|head| kind.may_be_part(&head)) {
        bail!(foreign());
    }
    if is_open_as(&file, path) {
        fs::remove_file(path).with_context(|| format!("{shown}: cannot be removed"))?;
    }
    Ok(())
}

/// Removes `NAME.PID.part`, as earlier versions called their parts, of processes that are dead.
fn remove_old_parts(target: &Path, kind: FileKind) {
    let Some(name) = target.file_name() else { return };
    let Ok(entries) = fs::read_dir(folder_of(target)) else { return };
    for entry in entries.flatten() {
        let is_of_dead = process_of(&entry.file_name(), name).is_some_and(is_dead);
        let path = entry.path();
        if is_of_dead
            && entry.file_type().is_ok_and(|found| found.is_file())
            && head_of(&path).is_ok_and(|head| kind.may_be_part(&head))
        {
            let _ = fs::remove_file(&path);
        }
    }
}

/// The number in `NAME.PID.part`.
fn process_of(part: &OsStr, name: &OsStr) -> Option<u32> {
    let mut start: OsString = name.to_owned();
    start.push(".");
    let rest = part.as_encoded_bytes().strip_prefix(start.as_encoded_bytes())?;
    let number = std::str::from_utf8(rest.strip_suffix(b".part")?).ok()?;
    number.bytes().all(|byte| byte.is_ascii_digit()).then(|| number.parse().ok()).flatten()
}

/// Whether it is known that no process has this number.
fn is_dead(process: u32) -> bool {
    has_processes() && !Path::new(&format!("/proc/{process}")).exists()
}

/// Whether `/proc` lists processes by the numbers that they know of themselves; Wine shows one with
/// other numbers.
fn has_processes() -> bool {
    cfg!(target_os = "linux") && Path::new("/proc/self").exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder =
            std::env::temp_dir().join(format!("longview-part-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn one_writer_at_a_time_and_nothing_is_left() {
        let folder = folder("one");
        let target = folder.join("a.lvs");
        let part = Part::create(&target, FileKind::Session, None).unwrap();
        assert_eq!(names(&folder), ["a.lvs.part"]);
        let second = Part::create(&target, FileKind::Session, None).unwrap_err().to_string();
        assert!(second.contains("another longview writes it now"), "{second}");
        drop(part);
        assert!(names(&folder).is_empty());
        let part = Part::create(&target, FileKind::Session, None).unwrap();
        assert!(part.publish(&target).unwrap().is_none());
        assert_eq!(names(&folder), ["a.lvs"]);
        let part = Part::create(&target, FileKind::Session, None).unwrap();
        let part = part.publish(&target).unwrap().expect("the name is taken");
        fs::create_dir(folder.join("b.lvs")).unwrap();
        let (part, _) = part.replace(&folder.join("b.lvs")).unwrap_err();
        fs::remove_dir(folder.join("b.lvs")).unwrap();
        part.replace(&target).unwrap();
        assert_eq!(names(&folder), ["a.lvs"]);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn stale_parts_go_and_other_files_stay() {
        let folder = folder("stale");
        let target = folder.join("a.lvs");
        for name in ["a.lvs.part", "a.lvs.4194400.part", "b.lvs.4194400.part"] {
            fs::write(folder.join(name), b"\x89LVS").unwrap();
        }
        fs::write(folder.join("a.lvs.4194401.part"), b"a text").unwrap();
        fs::write(folder.join(format!("a.lvs.{}.part", std::process::id())), b"").unwrap();
        drop(Part::create(&target, FileKind::Session, None).unwrap());
        let mut left = vec!["a.lvs.4194401.part".to_owned(), "b.lvs.4194400.part".to_owned()];
        left.push(format!("a.lvs.{}.part", std::process::id()));
        if !has_processes() {
            left.push("a.lvs.4194400.part".to_owned());
        }
        left.sort();
        assert_eq!(names(&folder), left);
        fs::write(folder.join("a.lvs.part"), b"a text").unwrap();
        let message = Part::create(&target, FileKind::Session, None).unwrap_err().to_string();
        assert!(message.contains("not what longview leaves"), "{message}");
        assert_eq!(fs::read(folder.join("a.lvs.part")).unwrap(), b"a text");
        fs::remove_dir_all(&folder).unwrap();
    }
}
