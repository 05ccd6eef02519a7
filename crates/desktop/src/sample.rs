//! The sample document, and the questions that a document suggests.
//!
//! Both are of the forms that the embedded model was trained on: facts of `longview-needles`
//! between sentences of its filler. A document of anybody else gets the same questions where it
//! states facts in these words, as the page in the browser has it.

use longview_core::SplitMix64;
use longview_needles::facts;
use longview_needles::filler::Filler;

/// Facts of the sample.
const FACTS: usize = 9;
/// Sentences before each fact, and behind the last: a policy that kept only the last tokens must
/// not see one.
const SENTENCES: usize = 26;
/// Sentences of a paragraph.
const PARAGRAPH: usize = 8;

/// The text of a seed: some 4,000 tokens of the embedded model.
pub fn document(seed: u64) -> String {
    let mut rng = SplitMix64::new(seed);
    let facts = facts::facts(FACTS, &mut rng);
    let mut filler = Filler::new(rng.next_u64());
    let mut text = String::new();
    let mut n_sentences = 0;
    let mut sentence = |text: &mut String| {
        let sentence = filler.sentence();
        let is_first = n_sentences % PARAGRAPH == 0;
        if is_first && n_sentences > 0 {
            text.push_str("\n\n");
        }
        text.push_str(if is_first { sentence.trim_start() } else { &sentence });
        n_sentences += 1;
    };
    for fact in &facts {
        // Not always at the end of a paragraph.
        for _ in 0..SENTENCES - 4 + rng.below(9) {
            sentence(&mut text);
        }
        text.push_str(&fact.statement);
    }
    for _ in 0..SENTENCES {
        sentence(&mut text);
    }
    text
}

/// How a fact is stated, and how it is asked: `{}` is its name.
struct Form {
    before: &'static str,
    after: &'static str,
    question: &'static str,
}

const FORMS: [Form; 4] = [
    Form {
        before: "One of the special magic numbers for ",
        after: " is: ",
        question: "What is the special magic number for {} mentioned in the provided text?",
    },
    Form {
        before: "line ",
        after: ": REGISTER_CONTENT is ",
        question: "Tell me what is the REGISTER_CONTENT in line {}?",
    },
    Form { before: "The ", after: " is ", question: "What is the {}?" },
    Form { before: "The pass key", after: " is ", question: "What is the pass key?{}" },
];

/// Things of people that have numbers, as in "The phone number of Anna is 12345."
const THINGS: [&str; 2] = [" number of ", " code of "];
/// Bytes that are looked at for facts: a few milliseconds.
const MOST_SEARCHED: usize = 4 << 20;
/// The longest name of a fact.
const LONG_NAME: usize = 48;

/// At most `n` questions about facts that stand in `text`, from all depths of its first megabytes:
/// the window looks for them when a text is opened.
pub fn suggestions(text: &str, n: usize) -> Vec<String> {
    let text = &text[..text.floor_char_boundary(MOST_SEARCHED)];
    let mut found: Vec<(usize, String)> = Vec::new();
    for form in &FORMS {
        let places = text.match_indices(form.before);
        found.extend(places.filter_map(|(at, _)| Some((at, form.asked(&text[at..])?))));
    }
    found.sort();
    found.dedup_by(|a, b| a.1 == b.1);
    let n = n.min(found.len());
    (0..n).map(|i| found[(2 * i + 1) * found.len() / (2 * n)].1.clone()).collect()
}

impl Form {
    /// The question about the fact that `text` begins with.
    fn asked(&self, text: &str) -> Option<String> {
        let text = &text[self.before.len()..];
        let name = &text[..text.find(self.after).filter(|end| *end <= LONG_NAME)?];
        let value = &text[name.len() + self.after.len()..];
        let digits = value.len() - value.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let is_number = digits > 0 && value[digits..].starts_with('.');
        let is_name = match self.before {
            "The " => THINGS.iter().any(|thing| name.contains(thing)) && !name.contains('.'),
            "The pass key" => name.is_empty(),
            _ => !name.contains(char::is_whitespace),
        };
        (is_number && is_name).then(|| self.question.replace("{}", name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_states_facts_at_all_depths_and_suggests_to_ask_for_them() {
        let text = document(1);
        assert_eq!(text, document(1));
        let all = suggestions(&text, 100);
        assert_eq!(all.len(), FACTS, "{all:?}");
        assert_eq!(suggestions(&text, 3), [1, 4, 7].map(|i| all[i].clone()));
        assert!(all[0].starts_with("What is the special magic number for "), "{all:?}");
        assert!(all[1].starts_with("Tell me what is the REGISTER_CONTENT"), "{all:?}");
        assert!(all[2].starts_with("What is the ") && all[2].contains(" of "), "{all:?}");
    }

    #[test]
    fn other_texts_suggest_nothing() {
        let text = "The number of sheep is 12. The code of honour is strict. The pass key is lost.";
        assert_eq!(suggestions(text, 4), Vec::<String>::new());
        assert_eq!(suggestions("A line of text: nothing else.", 4), Vec::<String>::new());
        assert_eq!(suggestions("The pass key is 48213. Remember.", 4), ["What is the pass key?"]);
    }
}
