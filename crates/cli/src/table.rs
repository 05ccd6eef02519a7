//! A table of text: names to the left, figures to the right of their columns.

use std::io::{self, Write};

/// Rows of cells; a row of one cell is a heading.
#[derive(Default)]
pub struct Table(Vec<Vec<String>>);

impl Table {
    /// A table whose columns behind the first are headed by `columns`.
    pub fn new(corner: &str, columns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut table = Self::default();
        table.row(corner, columns);
        table
    }

    /// Adds a row.
    pub fn row(&mut self, name: &str, cells: impl IntoIterator<Item = impl Into<String>>) {
        let name = std::iter::once(name.to_owned());
        self.0.push(name.chain(cells.into_iter().map(Into::into)).collect());
    }

    /// Adds a line of its own above the rows that follow.
    pub fn heading(&mut self, text: &str) {
        self.0.push(vec![text.to_owned()]);
    }

    /// Writes all rows, columns aligned.
    pub fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        for row in &self.0 {
            let mut line = String::new();
            for (column, cell) in row.iter().enumerate() {
                let width = self.width(column);
                match column {
                    0 => line.push_str(&format!("{cell:<width$}")),
                    _ => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }

    fn width(&self, column: usize) -> usize {
        let rows = self.0.iter().filter(|row| row.len() > 1);
        rows.filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_headings_do_not_widen_them() {
        let mut table = Table::new("", ["full", "x"]);
        table.heading("a long heading over the rows");
        table.row("  bytes", ["1", "100"]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "         full    x\na long heading over the rows\n  bytes     1  100\n");
    }
}
