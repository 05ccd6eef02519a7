//! One line of the terminal, drawn again and again.

use std::io::{self, Write as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::terminal;

/// DECAWM: whether a terminal goes on in the next row behind the last column.
const WRAP_OFF: &str = "\x1b[?7l";
const WRAP_ON: &str = "\x1b[?7h";

/// Cells of a full bar.
const BAR: usize = 32;

/// One line of the terminal that is drawn again and again; nothing where stderr is no terminal.
#[derive(Default)]
pub(super) struct LiveLine(Mutex<Drawn>);

impl LiveLine {
    pub fn draw(&self, text: &str) {
        self.write(|drawn, columns| drawn.redraw(text, columns));
    }

    pub fn clear(&self) {
        self.write(Drawn::erase);
    }

    fn write(&self, change: impl FnOnce(&mut Drawn, usize) -> String) {
        if let Some(columns) = terminal::columns() {
            // Nothing that holds the lock can leave it half changed.
            let text = change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner), columns);
            let mut stderr = io::stderr().lock();
            // What nobody can read is dropped.
            let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
        }
    }
}

/// What stands on the line.
#[derive(Default)]
struct Drawn {
    /// Columns that stand there; 0: nothing.
    drawn: usize,
}

impl Drawn {
    /// What to write so that `text` stands there in place of what stood, on a terminal of `columns`
    /// columns.
    fn redraw(&mut self, text: &str, columns: usize) -> String {
        let mut out = self.erase(columns);
        // The last column stays free: a terminal wraps what fills it.
        let most = columns.saturating_sub(1);
        let fitting: String = text.chars().take(most).collect();
        self.drawn = fitting.chars().count();
        // A window may be narrower by now than it was said to be. Without wrapping, what is too
        // wide still takes one row, and only the window's change can have broken it into more.
        out.push_str(WRAP_OFF);
        out.push_str(&fitting);
        out.push_str(WRAP_ON);
        out
    }

    /// What to write so that nothing stands there.
    fn erase(&mut self, columns: usize) -> String {
        let mut out = String::new();
        if self.drawn > 0 {
            // Row by row: where the rest of a screen is cleared from its top, some terminals keep
            // it as if it had scrolled away.
            out.push_str("\r\x1b[2K");
            // Rows that a window made narrower since has broken the line into.
            let rows_above = (self.drawn - 1) / columns.max(1);
            out.push_str(&"\x1b[1A\x1b[2K".repeat(rows_above));
        }
        self.drawn = 0;
        out
    }
}

/// `[=======>      ]`.
fn bar(done: usize, total: usize, cells: usize) -> String {
    let filled = (done.min(total) * cells).checked_div(total).unwrap_or(cells);
    let mut bar = String::from("[");
    for cell in 0..cells {
        bar.push(match cell {
            cell if cell < filled => '=',
            cell if cell == filled => '>',
            _ => ' ',
        });
    }
    bar.push(']');
    bar
}

/// A bar with words on both sides, short enough for the terminal: the bar gives way first.
pub(super) fn labelled(name: &str, done: usize, total: usize, words: &str) -> String {
    let columns = terminal::columns().unwrap_or(80);
    let around = name.chars().count() + words.trim_end().chars().count() + 5;
    let cells = columns.saturating_sub(around).min(BAR);
    if cells < 4 {
        return format!("{name} {}", words.trim_end());
    }
    format!("{name} {} {}", bar(done, total, cells), words.trim_end())
}

/// `1:05`.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs_f64().ceil() as u64;
    format!("{}:{:02}", seconds / 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_left_is_rounded_up() {
        assert_eq!(clock(Duration::from_millis(64_100)), "1:05");
        assert_eq!(clock(Duration::ZERO), "0:00");
    }

    #[test]
    fn a_bar_is_as_wide_as_it_says() {
        assert_eq!(bar(0, 8, 4), "[>   ]");
        assert_eq!(bar(4, 8, 4), "[==> ]");
        assert_eq!(bar(8, 8, 4), "[====]");
        assert_eq!(bar(9, 8, 4), "[====]");
        assert_eq!(bar(0, 0, 4), "[====]");
    }

    #[test]
    fn a_line_never_reaches_the_last_column() {
        let mut line = Drawn::default();
        assert_eq!(line.redraw("0123456789", 10), "\x1b[?7l012345678\x1b[?7h");
        assert_eq!(line.redraw("01", 10), "\r\x1b[2K\x1b[?7l01\x1b[?7h");
        assert_eq!(line.erase(10), "\r\x1b[2K");
        assert_eq!(line.erase(10), "", "nothing stands there");
    }

    #[test]
    fn a_line_that_a_narrower_window_broke_is_erased_whole() {
        let mut line = Drawn::default();
        line.redraw(&"x".repeat(70), 80);
        let erased = "\r\x1b[2K\x1b[1A\x1b[2K\x1b[1A\x1b[2K";
        assert_eq!(line.redraw("y", 30), format!("{erased}{WRAP_OFF}y{WRAP_ON}"));
        line.redraw(&"x".repeat(30), 80);
        assert_eq!(line.erase(30), "\r\x1b[2K", "it fills one row and no more");
    }
}
