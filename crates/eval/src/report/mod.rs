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

use std::fs;
use std::path::Path;

pub use self::chart::{Axis, Chart, Point, Series, Unit};
pub use self::data::Data;
pub use self::error::ReportError;
pub use self::figure::Figure;

/// Writes `index.html`, `scores.md` and the plots into `folder`, and says how many plots there are.
pub fn write(data: &Data, folder: &Path) -> Result<usize, ReportError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| ReportError::File { path, source }
    };
    fs::create_dir_all(folder).map_err(file(folder))?;
    let mut drawn = Vec::new();
    for figure in data.figures() {
        let svg = figure.chart.svg(&figure.title)?;
        let path = folder.join(format!("{}.svg", figure.name));
        fs::write(&path, &svg).map_err(file(&path))?;
        figure.chart.png(&figure.title, &folder.join(format!("{}.png", figure.name)))?;
        drawn.push((figure, svg));
    }
    let path = folder.join("scores.md");
    fs::write(&path, data.markdown()).map_err(file(&path))?;
    let path = folder.join("index.html");
    fs::write(&path, page::html(data, &drawn)).map_err(file(&path))?;
    Ok(drawn.len())
}
