//! The document: filler with facts at all depths, as token ids.

use anyhow::{Result, bail};
use longview_core::SplitMix64;
use longview_model::tokenizer::{Specials, Tokenizer};
use longview_needles::facts::{self, Fact};
use longview_needles::filler::Filler;

/// Filler before the first fact may stand.
const HEAD: usize = 40;
/// Filler that each fact has before the next one, at least.
const MIN_GAP: usize = 8;

/// What to write.
#[derive(Clone, Copy, Debug)]
pub struct DocumentSpec {
    /// Tokens of the document and the longest question with its answer together.
    pub context: usize,
    /// Facts hidden, and questions to ask.
    pub n_questions: usize,
    /// Everything random.
    pub seed: u64,
}

/// A question about one fact.
#[derive(Clone, Debug)]
pub struct Question {
    /// The question as text.
    pub text: String,
    /// The same as tokens.
    pub ids: Vec<u32>,
    /// The text that must follow.
    pub answer: String,
    /// Tokens of the answer.
    pub n_answer: usize,
    /// Where its fact stands, from 0 at the start of the document to 1.
    pub depth: f64,
}

/// A document and the questions about it, in the order of their facts.
#[derive(Clone, Debug)]
pub struct Document {
    /// Tokens, the beginning-of-sequence token first.
    pub ids: Vec<u32>,
    /// One for each fact.
    pub questions: Vec<Question>,
}

/// Statements as tokens, and how many tokens lie where.
struct Layout {
    statements: Vec<Vec<u32>>,
    n_tokens: usize,
    /// Filler in front of each statement, counted from the start.
    depths: Vec<usize>,
}

impl Document {
    /// Writes the document of `spec`. Fails if the context is too short for its facts.
    pub fn write(tokenizer: &Tokenizer, spec: DocumentSpec) -> Result<Self> {
        let mut rng = SplitMix64::new(spec.seed);
        let facts = facts::facts(spec.n_questions, &mut rng);
        let encode = |text: &str| tokenizer.encode(text, Specials::AsWritten);
        let mut questions = Vec::with_capacity(facts.len());
        for fact in &facts {
            questions.push(question(fact, encode(&fact.question)?, encode(&fact.answer)?.len()));
        }
        let mut statements = Vec::with_capacity(facts.len());
        for fact in &facts {
            statements.push(encode(&fact.statement)?);
        }
        let longest = questions.iter().map(|q| q.ids.len() + q.n_answer).max().unwrap_or(0);
        let layout = Layout::new(statements, longest, spec, &mut rng)?;

        let mut filler = Filler::new(rng.next_u64());
        let mut ids: Vec<u32> = tokenizer.bos_id().into_iter().collect();
        let mut used = 0;
        let mut next = 0;
        while ids.len() < layout.n_tokens {
            while next < questions.len() && used >= layout.depths[next] {
                questions[next].depth = ids.len() as f64 / layout.n_tokens as f64;
                ids.extend(&layout.statements[next]);
                next += 1;
            }
            let sentence = encode(&filler.sentence())?;
            used += sentence.len();
            ids.extend(sentence);
        }
        assert_eq!(next, questions.len(), "the layout leaves room behind the last fact");
        ids.truncate(layout.n_tokens);
        Ok(Self { ids, questions })
    }
}

fn question(fact: &Fact, ids: Vec<u32>, n_answer: usize) -> Question {
    let text = fact.question.trim_start().to_owned();
    Question { text, ids, answer: fact.answer.clone(), n_answer, depth: 0.0 }
}

impl Layout {
    fn new(
        statements: Vec<Vec<u32>>,
        longest: usize,
        spec: DocumentSpec,
        rng: &mut SplitMix64,
    ) -> Result<Self> {
        let n_facts = statements.len();
        let stated: usize = statements.iter().map(Vec::len).sum();
        let fixed = HEAD + stated + n_facts * MIN_GAP;
        let n_tokens = spec.context.saturating_sub(longest);
        let ending = ending(n_tokens);
        if n_tokens < fixed + ending {
            let enough = (fixed + longest) * 5 / 4 + 8;
            bail!(
                "--context {}: too short to hide {n_facts} facts; use --context {enough} or more, \
                 or fewer --questions",
                spec.context
            );
        }
        let span = (n_tokens - HEAD - stated - ending) as f64;
        let depths = (0..n_facts).map(|i| {
            // Evenly spread, moved by up to 0.3 of the distance between two facts.
            let place = (i as f64 + 0.2 + 0.6 * f64::from(rng.next_f32())) / n_facts as f64;
            HEAD + (span * place) as usize
        });
        let depths = depths.collect();
        Ok(Self { statements, n_tokens, depths })
    }
}

/// Tokens at the end that hold no fact: a policy that keeps only the last tokens must not see one.
fn ending(n_tokens: usize) -> usize {
    (n_tokens / 24).clamp(600, 2400).min(n_tokens / 5)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longview_startup::embedded;

    fn write(context: usize, n_questions: usize) -> Result<Document> {
        let folder = embedded::open().unwrap();
        let spec = DocumentSpec { context, n_questions, seed: 3 };
        Document::write(folder.tokenizer().unwrap(), spec)
    }

    #[test]
    fn facts_stand_at_all_depths_but_the_end() {
        let document = write(4096, 24).unwrap();
        let longest = document.questions.iter().map(|q| q.ids.len() + q.n_answer).max().unwrap();
        assert_eq!(document.ids.len() + longest, 4096);
        let depths: Vec<f64> = document.questions.iter().map(|q| q.depth).collect();
        assert!(depths.is_sorted());
        assert!(depths[0] < 0.05 && depths[23] > 0.7 && depths[23] < 0.86, "{depths:?}");
        let folder = embedded::open().unwrap();
        let text = folder.tokenizer().unwrap().decode(&document.ids, true).unwrap();
        for question in &document.questions {
            assert!(text.contains(&question.answer), "{question:?}");
        }
    }

    #[test]
    fn every_length_that_is_accepted_holds_all_facts() {
        let message = write(512, 24).unwrap_err().to_string();
        let enough = message.split_once("use --context ").unwrap().1.split_once(' ').unwrap().0;
        let enough: usize = enough.parse().unwrap();
        assert_eq!(write(enough, 24).unwrap().questions.len(), 24);
        assert!(write(1024, 1).unwrap().questions[0].depth > 0.0);
    }
}
