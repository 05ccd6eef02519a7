//! Questions and answers as Markdown.

use crate::document::{Document, Reply};
use crate::figures::percent;
use crate::strings;

/// A document's questions, answers, and the passages that they rest on.
pub fn markdown(document: &Document) -> String {
    let mut out = format!("# {}\n", plain(&document.title));
    for exchange in &document.conversation {
        out += &format!("\n## {}\n", plain(&exchange.question));
        for reply in exchange.replies.iter().filter(|reply| reply.answer.is_some()) {
            add(&mut out, document, reply);
        }
    }
    out
}

fn add(out: &mut String, document: &Document, reply: &Reply) {
    let Some(answer) = &reply.answer else { return };
    *out += &format!("\n{}\n\n*{}.", plain(reply.shown()), strings::attention(reply.attention));
    if let Some(attended) = answer.attended {
        *out += &format!(" {}", strings::attended(attended, answer.context));
    }
    *out += "*\n";
    for (i, passage) in answer.passages.iter().enumerate() {
        if i == 0 {
            *out += &format!("\n{}:\n\n", strings::PASSAGES);
        }
        let quote = plain(&document.quote(passage));
        *out += &format!("{}. > {quote} ({})\n", i + 1, percent(passage.weight));
    }
}

/// A text on one line in which nothing is markup.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.split_whitespace().collect::<Vec<_>>().join(" ").chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '|') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_document_says_is_no_markup() {
        assert_eq!(plain("# a\n*b* <c>"), "\\# a \\*b\\* \\<c\\>");
    }
}
