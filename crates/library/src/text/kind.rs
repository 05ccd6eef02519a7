//! The kinds of files that are read.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A kind of file that has text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Plain text.
    Txt,
    /// Markdown, which is read as it is.
    Md,
    /// A page of HTML.
    Html,
    /// A PDF document.
    Pdf,
    /// A Word document.
    Docx,
}

impl Kind {
    /// As a manifest and a command line say it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Txt => "txt",
            Self::Md => "md",
            Self::Html => "html",
            Self::Pdf => "pdf",
            Self::Docx => "docx",
        }
    }

    pub(super) fn from_name(name: &str) -> Option<Self> {
        [Self::Txt, Self::Md, Self::Html, Self::Pdf, Self::Docx]
            .into_iter()
            .find(|kind| kind.name() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
