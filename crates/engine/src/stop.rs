//! Stop strings: found wherever token borders fall, and never shown.

/// Lets text through until a stop string appears, holding back what might be the start of one.
#[derive(Clone, Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    buffered: String,
}

impl StopFilter {
    /// A filter for these strings; empty ones are ignored.
    pub fn new(stops: impl IntoIterator<Item = String>) -> Self {
        Self {
            stops: stops.into_iter().filter(|s| !s.is_empty()).collect(),
            buffered: String::new(),
        }
    }

    /// Takes new text and appends what may be shown to `out`. Returns the stop string that ended
    /// the text, if one did; nothing behind it is shown.
    pub fn push(&mut self, text: &str, out: &mut String) -> Option<&str> {
        self.buffered.push_str(text);
        let first = self.stops.iter().filter_map(|s| self.buffered.find(s).map(|at| (at, s)));
        // The earliest; the longest of those that begin together.
        if let Some((at, stop)) = first.min_by_key(|(at, s)| (*at, usize::MAX - s.len())) {
            out.push_str(&self.buffered[..at]);
            self.buffered.clear();
            return Some(stop);
        }
        let keep = self.buffered.len() - self.longest_start();
        out.push_str(&self.buffered[..keep]);
        self.buffered.drain(..keep);
        None
    }

    /// The text ended otherwise: what was kept back is shown.
    pub fn finish(&mut self, out: &mut String) {
        out.push_str(&self.buffered);
        self.buffered.clear();
    }

    /// Bytes at the end of the buffered text that are the start of a stop string.
    fn longest_start(&self) -> usize {
        let starts = self.buffered.char_indices().map(|(at, _)| at);
        let begins = |at: &usize| self.stops.iter().any(|s| s.starts_with(&self.buffered[*at..]));
        starts.into_iter().find(begins).map_or(0, |at| self.buffered.len() - at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], parts: &[&str]) -> (String, Option<String>) {
        let mut filter = StopFilter::new(stops.iter().map(|s| s.to_string()));
        let mut out = String::new();
        for part in parts {
            if let Some(stop) = filter.push(part, &mut out) {
                let stop = stop.to_owned();
                return (out, Some(stop));
            }
        }
        filter.finish(&mut out);
        (out, None)
    }

    #[test]
    fn a_stop_string_across_tokens_is_found_and_not_shown() {
        let found = run(&["</s>", "\n\nUser:"], &["Hello", "\n", "\nUs", "er: no"]);
        assert_eq!(found, ("Hello".into(), Some("\n\nUser:".into())));
    }

    #[test]
    fn a_false_start_is_shown_in_the_end() {
        assert_eq!(run(&["abcd"], &["xab", "c", "e"]), ("xabce".into(), None));
        assert_eq!(run(&["abcd"], &["xab"]), ("xab".into(), None));
        assert_eq!(run(&["aab"], &["a", "a", "a", "b"]), ("a".into(), Some("aab".into())));
    }

    #[test]
    fn the_earliest_and_longest_wins() {
        assert_eq!(run(&["c", "bcd"], &["abcd"]), ("a".into(), Some("bcd".into())));
    }

    #[test]
    fn characters_are_never_split() {
        assert_eq!(run(&["é!"], &["caf", "é", "é", "!"]), ("café".into(), Some("é!".into())));
        assert_eq!(run(&[""], &["x"]), ("x".into(), None));
    }
}
