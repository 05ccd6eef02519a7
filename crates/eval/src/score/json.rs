//! Members of a JSON object that a model wrote, whole or cut off.

/// The share of `name: value` references that `prediction` has as members: the name in quotes, a
/// colon, and the value with or without quotes. The first value of a name counts.
pub fn members(prediction: &str, references: &[String]) -> f64 {
    let right = references.iter().filter(|reference| {
        reference.split_once(": ").is_some_and(|(name, wanted)| {
            value_of(prediction, name).is_some_and(|found| found == wanted)
        })
    });
    right.count() as f64 / references.len().max(1) as f64
}

/// The first value of `name`.
fn value_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let quoted = format!("\"{name}\"");
    let rest = &text[text.find(&quoted)? + quoted.len()..];
    let rest = rest.trim_start().strip_prefix(':')?.trim_start();
    match rest.strip_prefix('"') {
        Some(string) => string.split_once('"').map(|(value, _)| value),
        None => {
            let is_end = |c: char| c.is_whitespace() || ",}".contains(c);
            let end = rest.find(is_end).unwrap_or(rest.len());
            Some(&rest[..end])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score(prediction: &str) -> f64 {
        members(prediction, &["a-b: 12".to_owned(), "c-d: 34".to_owned()])
    }

    #[test]
    fn members_are_found_with_their_values() {
        assert_eq!(score("{\"a-b\": 12, \"c-d\": \"34\"}"), 1.0);
        assert_eq!(score("Here: {\"c-d\":34"), 0.5);
        assert_eq!(score("{\"a-b\": 34, \"c-d\": 12}"), 0.0);
        assert_eq!(score("{\"a-b\": 1, \"a-b\": 12}"), 0.0, "the first value of a name counts");
        assert_eq!(score("a-b: 12, c-d: 34"), 0.0, "this is no JSON");
        assert_eq!(score("{\"a-b\": \"12"), 0.0, "a string without end");
    }
}
