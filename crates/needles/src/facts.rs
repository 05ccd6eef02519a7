//! Facts to hide: numbers that are stored under names, in the forms of the field's needle tests,
//! which are those that the embedded model was trained on.
//!
//! Each fact has a name of its own, and a question gives the name: what answers it must be found by
//! meaning, not by its place. The forms are those of RULER's magic numbers (arXiv 2404.06654),
//! LongEval's lines, and plain sentences about people.

use longview_core::SplitMix64;

/// Facts that one document can hold.
pub const MAX_FACTS: usize = 96;

const ADJECTIVES: &str = "amber brisk calm dusty early fierce golden hollow ivory jolly kind lunar \
    mossy noble odd pale quiet rapid silver tiny urban velvet warm young";
const NOUNS: &str = "anvil basket candle dragon eagle feather guitar hammer island jacket kettle \
    ladder marble needle orchid pepper quiver ribbon saddle teapot urn violin wagon yarrow";
const PEOPLE: &str = "Anna Thomas Clara Edwin Martha Peter Helen Samuel Lucy Walter Alice Henry \
    Rose Albert Emma Oliver Grace Philip Nora Arthur Ingrid Tobias Marion Felix Judith Conrad \
    Sylvia Bernard";
const THINGS: [&str; 6] = [
    "phone number",
    "ticket number",
    "room number",
    "account number",
    "order number",
    "access code",
];

/// How a fact is stated and asked: `{k}` is its name, `{v}` the number.
struct Form {
    statement: &'static str,
    question: &'static str,
    digits: usize,
}

const MAGIC: Form = Form {
    statement: " One of the special magic numbers for {k} is: {v}.",
    question: " What is the special magic number for {k} mentioned in the provided text? \
               The special magic number for {k} mentioned in the provided text is",
    digits: 7,
};
const LINE: Form = Form {
    statement: " line {k}: REGISTER_CONTENT is {v}.",
    question: " Tell me what is the REGISTER_CONTENT in line {k}? \
               The REGISTER_CONTENT in line {k} is",
    digits: 5,
};
const PERSON: Form =
    Form { statement: " The {k} is {v}.", question: " What is the {k}? The {k} is", digits: 5 };

const PASS_KEY: Form = Form {
    statement: " The pass key is {v}. Remember it. {v} is the pass key.",
    question: " What is the pass key? The pass key is",
    digits: 5,
};

/// A fact as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// What stands in the document.
    pub statement: String,
    /// What is asked, and how the answer begins.
    pub question: String,
    /// The text that must follow.
    pub answer: String,
}

/// `n` facts of all forms in random order.
///
/// # Panics
/// If `n` is above [`MAX_FACTS`].
pub fn facts(n: usize, rng: &mut SplitMix64) -> Vec<Fact> {
    assert!(n <= MAX_FACTS, "{n} facts of at most {MAX_FACTS}");
    let pairs = pairs(n.div_ceil(3) * 2, rng);
    let people: Vec<&str> = PEOPLE.split_whitespace().collect();
    let owned = rng.distinct(people.len() * THINGS.len(), n.div_ceil(3));
    (0..n)
        .map(|i| match (i % 3, i / 3) {
            (0, j) => MAGIC.fill(&pairs[2 * j], rng),
            (1, j) => LINE.fill(&pairs[2 * j + 1], rng),
            (_, j) => {
                let (person, thing) =
                    (owned[j] as usize % people.len(), owned[j] as usize / people.len());
                PERSON.fill(&format!("{} of {}", THINGS[thing], people[person]), rng)
            }
        })
        .collect()
}

/// `n` of RULER's magic numbers under different names.
///
/// # Panics
/// If `n` is above [`MAX_FACTS`].
pub fn magic_numbers(n: usize, rng: &mut SplitMix64) -> Vec<Fact> {
    one_form(&MAGIC, n, rng)
}

/// `n` of LongEval's lines under different names.
///
/// # Panics
/// If `n` is above [`MAX_FACTS`].
pub fn lines(n: usize, rng: &mut SplitMix64) -> Vec<Fact> {
    one_form(&LINE, n, rng)
}

/// The pass key, of which a document has one.
pub fn pass_key(rng: &mut SplitMix64) -> Fact {
    PASS_KEY.fill("", rng)
}

fn one_form(form: &Form, n: usize, rng: &mut SplitMix64) -> Vec<Fact> {
    assert!(n <= MAX_FACTS, "{n} facts of at most {MAX_FACTS}");
    let names = pairs(n, rng);
    names.iter().map(|name| form.fill(name, rng)).collect()
}

/// `n` different names of an adjective and a noun.
fn pairs(n: usize, rng: &mut SplitMix64) -> Vec<String> {
    let adjectives: Vec<&str> = ADJECTIVES.split_whitespace().collect();
    let nouns: Vec<&str> = NOUNS.split_whitespace().collect();
    let chosen = rng.distinct(adjectives.len() * nouns.len(), n).into_iter();
    chosen
        .map(|i| i as usize)
        .map(|i| format!("{}-{}", adjectives[i % adjectives.len()], nouns[i / adjectives.len()]))
        .collect()
}

impl Form {
    fn fill(&self, name: &str, rng: &mut SplitMix64) -> Fact {
        let number: String =
            (0..self.digits).map(|_| char::from(b'0' + rng.below(10) as u8)).collect();
        Fact {
            statement: self.statement.replace("{k}", name).replace("{v}", &number),
            question: self.question.replace("{k}", name),
            answer: format!(" {number}."),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn questions_differ_and_only_the_statement_holds_the_answer() {
        for seed in 0..20 {
            let all = facts(MAX_FACTS, &mut SplitMix64::new(seed));
            let questions: BTreeSet<&String> = all.iter().map(|fact| &fact.question).collect();
            assert_eq!(questions.len(), MAX_FACTS, "seed {seed}");
            for fact in &all {
                assert!(fact.statement.ends_with(&fact.answer), "{fact:?}");
                assert!(!fact.question.contains(fact.answer.trim()), "{fact:?}");
                assert!(!fact.statement.contains('{') && !fact.question.contains('{'), "{fact:?}");
            }
        }
    }

    #[test]
    fn facts_of_one_form_have_names_of_their_own() {
        let mut rng = SplitMix64::new(4);
        for (all, sign) in
            [(magic_numbers(64, &mut rng), " magic "), (lines(64, &mut rng), " line ")]
        {
            let questions: BTreeSet<&String> = all.iter().map(|fact| &fact.question).collect();
            assert_eq!(questions.len(), 64);
            assert!(all.iter().all(|fact| fact.statement.contains(sign)), "{all:?}");
        }
        let key = pass_key(&mut rng);
        let digits = key.answer.trim().trim_end_matches('.');
        assert_eq!(digits.len(), 5);
        assert_eq!(key.statement.matches(digits).count(), 2);
    }

    #[test]
    fn facts_take_turns_in_three_forms() {
        let all = facts(6, &mut SplitMix64::new(1));
        for (i, fact) in all.iter().enumerate() {
            let sign = [" magic ", " line ", " of "][i % 3];
            assert!(fact.statement.contains(sign), "{fact:?}");
        }
    }
}
