//! Facts to hide: four-digit numbers of which no two share a pair of neighbouring digits.
//!
//! The embedded model is small and completes numbers pair by pair. If a pair of digits occurred
//! twice in a document, two facts would fit one question, and an error would say nothing about
//! what was recalled. The numbers are cut from a random closed walk that uses each of the 100
//! ordered pairs of digits exactly once (Hierholzer's algorithm), so that no pair can repeat.

use longview_core::SplitMix64;

/// Facts that one document can hold: the walk of 101 digits in pieces of four that share an end.
pub const MAX_FACTS: usize = 33;

const DIGITS: usize = 4;
/// Digits that a question gives.
const GIVEN: usize = 2;

/// What the number belongs to, where a form asks for a thing.
const THINGS: &str = "carpenter parish island widow knight thief witch chapel castle farmer bishop \
    captain harbour colonel station post museum village tower palace college theatre bridge garage \
    school office hospital hotel mill fort ferry tunnel dock pier abbey temple studio lodge";

/// How a fact is stated and asked: `{a}` are the digits given, `{v}` those that answer.
struct Form {
    statement: &'static str,
    question: &'static str,
}

const FORMS: [Form; 4] = [
    Form {
        statement: " The ticket number is: {a}{v}.",
        question: " Which ticket number begins with {a}? The ticket number is: {a}",
    },
    Form {
        statement: " The special magic number for room {a} is: {a}{v}.",
        question: " What is the special magic number for room {a}? \
                   The special magic number for room {a} is: {a}",
    },
    Form {
        statement: " The pass key is {a}{v}. Remember it. {a}{v} is the pass key.",
        question: " What is the pass key that begins with {a}? The pass key is {a}",
    },
    Form {
        statement: " The number of the {w} is: {a}{v}.",
        question: " What is the number of the {w}? The number of the {w} is: {a}",
    },
];

/// A fact as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What stands in the document.
    pub statement: String,
    /// What is asked; ends with the digits given.
    pub question: String,
    /// The digits that must follow.
    pub answer: String,
}

/// `n` facts of all forms in random order.
///
/// # Panics
/// If `n` is above [`MAX_FACTS`].
pub fn facts(n: usize, rng: &mut SplitMix64) -> Vec<Fact> {
    assert!(n <= MAX_FACTS, "{n} facts of at most {MAX_FACTS}");
    let numbers = numbers(rng);
    let chosen = rng.distinct(numbers.len(), n);
    let things: Vec<&str> = THINGS.split_whitespace().collect();
    let things_chosen = rng.distinct(things.len(), n);
    let pairs = chosen.iter().zip(&things_chosen).enumerate();
    pairs
        .map(|(i, (number, thing))| {
            let (given, answer) = numbers[*number as usize].split_at(GIVEN);
            let fill = |form: &str| {
                form.replace("{a}", given)
                    .replace("{v}", answer)
                    .replace("{w}", things[*thing as usize])
            };
            let form = &FORMS[i % FORMS.len()];
            Fact {
                statement: fill(form.statement),
                question: fill(form.question),
                answer: answer.to_owned(),
            }
        })
        .collect()
}

/// The pieces of one walk.
fn numbers(rng: &mut SplitMix64) -> Vec<String> {
    let walk = closed_walk(rng);
    let starts = (0..=walk.len() - DIGITS).step_by(DIGITS - 1);
    starts.map(|start| walk[start..start + DIGITS].iter().collect()).collect()
}

/// A random Eulerian circuit of the complete digraph with loops on ten digits.
fn closed_walk(rng: &mut SplitMix64) -> Vec<char> {
    let mut unused: Vec<Vec<u32>> = (0..10).map(|_| rng.distinct(10, 10)).collect();
    let mut trail = vec![rng.below(10) as u32];
    let mut walk = Vec::with_capacity(101);
    while let Some(&digit) = trail.last() {
        match unused[digit as usize].pop() {
            Some(next) => trail.push(next),
            None => walk.extend(trail.pop().and_then(|digit| char::from_digit(digit, 10))),
        }
    }
    walk.reverse();
    walk
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_pair_of_digits_occurs_in_two_numbers() {
        for seed in 0..50 {
            let numbers = numbers(&mut SplitMix64::new(seed));
            assert_eq!(numbers.len(), MAX_FACTS);
            let pairs: BTreeSet<&str> =
                numbers.iter().flat_map(|n| (0..3).map(move |i| &n[i..i + 2])).collect();
            assert_eq!(pairs.len(), 3 * MAX_FACTS, "seed {seed}");
        }
    }

    #[test]
    fn a_question_gives_two_digits_and_the_statement_holds_the_rest() {
        let all = facts(MAX_FACTS, &mut SplitMix64::new(1));
        for fact in &all {
            let given = &fact.question[fact.question.len() - GIVEN..];
            assert!(fact.statement.contains(&format!("{given}{}", fact.answer)), "{fact:?}");
            assert!(!fact.question.contains(&format!("{given}{}", fact.answer)), "{fact:?}");
            assert!(!fact.statement.contains('{') && !fact.question.contains('{'), "{fact:?}");
        }
        let questions: BTreeSet<&String> = all.iter().map(|fact| &fact.question).collect();
        assert_eq!(questions.len(), MAX_FACTS);
    }
}
