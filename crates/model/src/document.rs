//! From a document to the tokens that every question about it begins with.
//!
//! A tokenizer may join a document's end and a question's begin. So what is read of a document is
//! what it has in common behind questions that have nothing in common: the joint belongs to the
//! question. Whoever reads a document (the reader, the command line, the server) asks here, so that
//! a session of one serves the others.

/// Questions that begin unlike each other, and unlike each other for tokenizers.
pub const QUESTIONS: [&str; 5] = ["A", " a", "1", "?", "\n"];

/// What stands between a document and a question in a chat. A model without a chat template gets
/// the question at once behind the document.
const BETWEEN: &str = "\n\n";

/// What is said first about a document: the user's turn in a chat, else the whole text.
pub fn first_turn(document: &str, question: &str, is_chat: bool) -> String {
    let is_apart = is_chat && !document.is_empty() && !question.is_empty();
    [document, if is_apart { BETWEEN } else { "" }, question].concat()
}

/// The tokens, or characters, that prompts about a document begin with, whatever the question.
/// `prompt` gets each of [`QUESTIONS`] and returns the whole prompt with it.
///
/// # Errors
/// The first error of `prompt`.
pub fn shared_prefix<T: PartialEq, E>(
    mut prompt: impl FnMut(&str) -> Result<Vec<T>, E>,
) -> Result<Vec<T>, E> {
    let [first, others @ ..] = QUESTIONS;
    let mut shared = prompt(first)?;
    for question in others {
        let other = prompt(question)?;
        shared.truncate(common_prefix(&shared, &other));
    }
    Ok(shared)
}

/// How many tokens, or characters, two lists begin with alike.
pub fn common_prefix<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_where_tokens_differ() {
        assert_eq!(common_prefix(&[1, 2, 3], &[1, 2, 4, 5]), 2);
        assert_eq!(common_prefix(&[], &[1]), 0);
        assert_eq!(common_prefix(&[7], &[7]), 1);
        assert_eq!(common_prefix(&[1, 2], &[1, 2, 3]), 2);
    }

    /// A tokenizer of bytes that joins two line ends.
    fn encode(text: &str) -> Vec<u32> {
        let joined = text.replace("\n\n\n", "\u{1}").replace("\n\n", "\u{2}");
        joined.bytes().map(u32::from).collect()
    }

    #[test]
    fn what_a_question_may_change_belongs_to_the_question() {
        let ids = |is_chat: bool| {
            let ids = shared_prefix(|q| Ok::<_, ()>(encode(&first_turn("doc", q, is_chat))));
            ids.unwrap()
        };
        assert_eq!(ids(false), encode("doc"));
        // A question that begins with a line end makes another token of the two before it.
        assert_eq!(ids(true), encode("doc"));
        let refused = shared_prefix(|q| if q == "?" { Err(q.len()) } else { Ok(vec![0]) });
        assert_eq!(refused, Err(1));
    }
}
