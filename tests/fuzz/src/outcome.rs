//! What may become of an input, and what a message may be.

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was read, and what it holds was used.
    Used,
    /// An error said what is wrong with it.
    Refused,
    /// A program ran until a limit ended it: a template, which is one.
    Limited,
}

impl Outcome {
    /// Whether an error ended it. Messages are made, since they quote the file.
    pub(crate) fn of<T>(result: Result<T, impl std::fmt::Display>) -> Self {
        match result {
            Ok(_) => Outcome::Used,
            Err(error) => {
                check_message(&error.to_string());
                Outcome::Refused
            }
        }
    }
}

/// A message goes to a terminal.
fn check_message(message: &str) {
    let acts = |letter: char| letter.is_control() && letter != '\n';
    assert!(!message.contains(acts), "a message with control characters: {message:?}");
    assert!(message.len() < 4_000, "a message of {} bytes: {message}", message.len());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "control characters")]
    fn a_message_that_acts_on_a_terminal_is_a_fault() {
        Outcome::of(Err::<(), _>("\u{1b}[2J"));
    }
}
