//! A file that gets the name of another one.

use std::io;
use std::path::Path;
use std::{fs, thread, time::Duration};

/// Gives the file `from` the name `to`, in place of a file that has it, which somebody may have
/// open: who reads it reads on.
///
/// On Windows another program that looks at the file for a moment (a virus scanner, a reader) makes
/// a rename fail, so it is tried again, for a second. File systems that replace no open file at all
/// (FAT, some of the network) have the old one set aside first, as `NAME.PROCESS.old`, which goes
/// when it is closed; if the program dies between the two steps, both files are there.
///
/// # Errors
/// What the system says; both files have their names then.
pub fn replace(from: &Path, to: &Path) -> io::Result<()> {
    let attempts = if cfg!(windows) { 50 } else { 1 };
    let mut done = fs::rename(from, to);
    for _ in 1..attempts {
        match &done {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {}
            _ => return done,
        }
        thread::sleep(Duration::from_millis(20));
        done = fs::rename(from, to);
    }
    if cfg!(windows) && done.is_err() && to.is_file() { set_aside(from, to) } else { done }
}

fn set_aside(from: &Path, to: &Path) -> io::Result<()> {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.old", std::process::id()));
    let aside = to.with_file_name(name);
    fs::rename(to, &aside)?;
    if let Err(error) = fs::rename(from, to) {
        fs::rename(&aside, to)?;
        return Err(error);
    }
    let _ = fs::remove_file(&aside);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_is_set_aside_and_goes_when_it_is_closed() {
        let folder = std::env::temp_dir().join(format!("longview-aside-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (old, new) = (folder.join("a"), folder.join("b"));
        fs::write(&old, "old").unwrap();
        let open = fs::File::open(&old).unwrap();
        assert!(set_aside(&new, &old).is_err(), "there is nothing to put there");
        assert_eq!(fs::read_to_string(&old).unwrap(), "old");
        fs::write(&new, "new").unwrap();
        set_aside(&new, &old).unwrap();
        assert_eq!(io::read_to_string(&open).unwrap(), "old");
        assert_eq!(fs::read_to_string(&old).unwrap(), "new");
        drop(open);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
        fs::remove_dir_all(&folder).unwrap();
    }
}
