//! Names of files as the hub gives them. They are never joined as paths: a name is taken apart,
//! each part is checked for every system, and only plain parts are put together again.

use std::path::{Path, PathBuf};

/// The most bytes of one part; file systems hold 255.
const MAX_PART: usize = 200;
/// The most bytes of a whole name.
const MAX_WHOLE: usize = 1000;
/// The most parts.
const MAX_PARTS: usize = 16;

/// Names that Windows takes for devices, whatever their extension.
const DEVICES: [&str; 6] = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"];

/// The checked name of a file in a repository, with `/` between its parts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct RemotePath(String);

impl RemotePath {
    /// Checks a name.
    ///
    /// # Errors
    /// With the reason why it could lie elsewhere, or nowhere, on some system.
    pub(crate) fn parse(name: &str) -> Result<Self, &'static str> {
        if name.len() > MAX_WHOLE {
            return Err("it is too long");
        }
        let mut n_parts = 0;
        for part in name.split('/') {
            check_part(part)?;
            n_parts += 1;
        }
        if n_parts > MAX_PARTS {
            return Err("it has too many parts");
        }
        Ok(Self(name.to_owned()))
    }

    /// The name, with `/` between its parts.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// How many folders the file lies below the repository's own.
    pub(crate) fn depth(&self) -> usize {
        self.0.split('/').count() - 1
    }

    /// The file below `folder`, put together from plain parts.
    pub(crate) fn below(&self, folder: &Path) -> PathBuf {
        self.0.split('/').fold(folder.to_owned(), |path, part| path.join(part))
    }
}

fn check_part(part: &str) -> Result<(), &'static str> {
    if part.is_empty() {
        return Err("a part of it is empty");
    }
    if part == "." || part == ".." {
        return Err("it contains `.` or `..`");
    }
    if part.len() > MAX_PART {
        return Err("a part of it is too long");
    }
    if part.chars().any(|c| c.is_control() || "\\:<>\"|?*".contains(c)) {
        return Err("it contains a character that no file name may have everywhere");
    }
    if part.ends_with(['.', ' ']) || part.starts_with(' ') {
        return Err("a part of it ends with a dot or a space");
    }
    if is_device(part) {
        return Err("a part of it is the name of a device on Windows");
    }
    Ok(())
}

fn is_device(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or_default().trim_end().to_ascii_uppercase();
    let is_port = ["COM", "LPT"].iter().any(|port| {
        let number = stem.strip_prefix(port);
        number
            .is_some_and(|n| n.chars().count() == 1 && !n.starts_with(|c: char| c.is_alphabetic()))
    });
    is_port || DEVICES.contains(&stem.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_names_become_paths() {
        for name in ["config.json", "a/b-00001-of-00002.gguf", ".gitattributes", "COMMAND", "com"] {
            let path = RemotePath::parse(name).unwrap();
            assert_eq!(path.as_str(), name);
            let parts: Vec<_> = path.below("x".as_ref()).iter().map(ToOwned::to_owned).collect();
            assert_eq!(parts.len(), 1 + name.split('/').count());
        }
        assert_eq!(RemotePath::parse("a/b/c").unwrap().depth(), 2);
    }

    #[test]
    fn hostile_names_are_refused() {
        let long = "x".repeat(201);
        let whole = "x/".repeat(600) + "x";
        let deep = "x/".repeat(20) + "x";
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a/./b",
            "a//b",
            "a/",
            "..",
            ".",
            "a\\b",
            "C:\\x",
            "c:x",
            "a\0b",
            "a\nb",
            "\u{1b}[2J",
            "\u{9b}x",
            "NUL",
            "nul.json",
            "a/COM1.gguf",
            "lpt9",
            "Aux.safetensors",
            "con .txt",
            "x.",
            "x ",
            " x",
            "a?b",
            "a*b",
            "a|b",
            "a<b",
            "a>b",
            "a\"b",
            &long,
            &whole,
            &deep,
        ] {
            assert!(RemotePath::parse(name).is_err(), "{name:?}");
        }
    }
}
