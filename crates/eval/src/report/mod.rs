//! Results files to one self-contained page, plots as SVG and PNG, and a Markdown table.

mod chart;
mod data;
mod error;
mod figure;
mod figures;
mod marks;
mod numbers;
mod page;
mod read;
mod speeds;

use std::collections::HashSet;

pub use self::chart::{Axis, Chart, Point, Series, Unit};
pub use self::data::Data;
pub use self::error::ReportError;
pub use self::figure::Figure;

/// The page, which names the files beside it.
pub const PAGE: &str = "index.html";
/// The table.
pub const SCORES: &str = "scores.md";

/// A file of a report.
#[derive(Clone, Debug)]
pub struct ReportFile {
    /// Its name in the folder.
    pub name: String,
    /// What is in it.
    pub bytes: Vec<u8>,
}

/// A report: the plots, the table, and last the page. Nothing is written.
pub fn files(data: &Data) -> Result<Vec<ReportFile>, ReportError> {
    let (mut files, mut drawn) = (Vec::new(), Vec::new());
    let mut taken = HashSet::new();
    let mut add = |name: String, bytes: Vec<u8>| files.push(ReportFile { name, bytes });
    for mut figure in data.figures() {
        figure.name = file_name(&figure.name, &mut taken);
        let svg = figure.chart.svg(&figure.title)?;
        add(format!("{}.svg", figure.name), svg.clone().into());
        add(format!("{}.png", figure.name), figure.chart.png(&figure.title)?);
        drawn.push((figure, svg));
    }
    add(SCORES.to_owned(), data.markdown().into());
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    let page = page::html(data, &drawn, &names);
    files.push(ReportFile { name: PAGE.to_owned(), bytes: page.into() });
    Ok(files)
}

/// `name` as the name of a file that no other figure has. Tasks and texts are named in results
/// files, which may come from anywhere: a path in them leads nowhere.
fn file_name(name: &str, taken: &mut HashSet<String>) -> String {
    let plain = |c: char| if c.is_alphanumeric() || "-_.=+".contains(c) { c } else { '-' };
    let name: String = name.trim_start_matches('.').chars().take(60).map(plain).collect();
    let mut free = name.clone();
    let mut n = 1;
    // Some systems take capitals and small letters for the same.
    while !taken.insert(free.to_lowercase()) {
        n += 1;
        free = format!("{name}-{n}");
    }
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_plots_are_names_of_files_in_the_folder() {
        let mut taken = HashSet::new();
        let mut name = |name: &str| file_name(name, &mut taken);
        assert_eq!(name("score-niah-1.5_a-4096"), "score-niah-1.5_a-4096");
        assert_eq!(name("../../etc/passwd"), "-..-etc-passwd");
        assert_eq!(name("a/b"), "a-b");
        assert_eq!(name("a b"), "a-b-2");
        assert_eq!(name("A-B"), "A-B-3");
        assert!(name(&"x".repeat(1000)).len() < 100);
        assert!(!name("a\u{1b}[0m\0").contains(char::is_control));
    }
}
