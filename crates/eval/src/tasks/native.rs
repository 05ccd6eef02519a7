//! The needle tasks in the words that the embedded model was trained on: each question begins its
//! own answer, and an answer is right if it is exactly the tokens of the value, as in the model's
//! card. Other models read them too, but a chat model would say more than the value.

use longview_core::SplitMix64;

use super::task::{Setting, Task};
use crate::error::EvalError;
use crate::facts::{self, Fact};
use crate::haystack;
use crate::sample::{Question, Sample};
use crate::score::Metric;

/// What stands between the facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Haystack {
    Noise,
    Text,
}

/// Which facts a document holds.
type Facts = fn(usize, &mut SplitMix64) -> Vec<Fact>;

/// Facts between sentences, and questions about some of them.
#[derive(Clone, Copy)]
struct Native {
    name: &'static str,
    about: &'static str,
    facts: Facts,
    n_facts: usize,
    /// Of which so many are asked about, each from the same state.
    n_asked: usize,
    haystack: Haystack,
}

/// All of them.
pub(super) fn tasks() -> impl Iterator<Item = Box<dyn Task>> {
    TASKS.iter().chain(MANY).map(|task| Box::new(*task) as Box<dyn Task>)
}

const TASKS: &[Native] = &[
    Native {
        name: "needle-passkey",
        about: "one pass key in noise",
        facts: |_, rng| vec![facts::pass_key(rng)],
        n_facts: 1,
        n_asked: 1,
        haystack: Haystack::Noise,
    },
    Native {
        name: "needle-single",
        about: "one magic number in text",
        facts: facts::magic_numbers,
        n_facts: 1,
        n_asked: 1,
        haystack: Haystack::Text,
    },
    Native {
        name: "needle-keys",
        about: "four magic numbers in text, each asked",
        facts: facts::magic_numbers,
        n_facts: 4,
        n_asked: 4,
        haystack: Haystack::Text,
    },
    Native {
        name: "needle-lines",
        about: "64 lines with registers in text, four asked",
        facts: facts::lines,
        n_facts: 64,
        n_asked: 4,
        haystack: Haystack::Text,
    },
    Native {
        name: "needle-mixed",
        about: "24 facts of three forms in text, each asked, as in the demo",
        facts: facts::facts,
        n_facts: 24,
        n_asked: 24,
        haystack: Haystack::Text,
    },
];

/// Many facts of three forms, all of them asked one after the other from the same state.
const MANY: &[Native] =
    &[many("many-asked-10", 10), many("many-asked-30", 30), many("many-asked-50", 50)];

const fn many(name: &'static str, n: usize) -> Native {
    let about = "many facts of three forms in text, each asked";
    let haystack = Haystack::Text;
    Native { name, about, facts: facts::facts, n_facts: n, n_asked: n, haystack }
}

impl Task for Native {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> String {
        format!("{}, in the embedded model's words", self.about)
    }

    fn n_questions(&self) -> usize {
        self.n_asked
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let mut rng = setting.rng(self.name);
        let facts = (self.facts)(self.n_facts, &mut rng);
        let mut depths: Vec<f64> = (0..self.n_facts)
            .map(|i| (i as f64 + f64::from(rng.next_f32())) / self.n_facts as f64)
            .collect();
        if let [only] = depths.as_mut_slice() {
            *only = setting.spread();
        }
        let mut asked = rng.distinct(self.n_facts, self.n_asked);
        asked.sort_unstable();
        let questions = asked.iter().map(|i| {
            let i = *i as usize;
            question(setting, &facts[i], depths[i])
        });
        let questions = questions.collect::<Result<Vec<_>, _>>()?;
        let seed = rng.next_u64();
        setting.largest(self.name, 0, usize::MAX, &|n| {
            let filler: Vec<String> = match self.haystack {
                Haystack::Noise => haystack::noise(n).into_iter().map(str::to_owned).collect(),
                Haystack::Text => setting.text.sentences(seed).take(n).collect(),
            };
            let document = hide(&filler, &facts, &depths);
            Sample { document, questions: questions.clone(), chat: false }
        })
    }
}

/// A question with room for exactly its answer.
pub(super) fn question(
    setting: &Setting<'_>,
    fact: &Fact,
    depth: f64,
) -> Result<Question, EvalError> {
    Ok(Question {
        ask: fact.question.clone(),
        references: vec![fact.answer.trim().to_owned()],
        max_new: setting.prompter.count(&fact.answer)?,
        metric: Metric::Exact,
        depth: Some(depth),
        ..Question::default()
    })
}

/// Sentences with each fact at its depth, 0 for before the first. Depths must not fall.
pub(super) fn hide(filler: &[String], facts: &[Fact], depths: &[f64]) -> String {
    let mut document = String::new();
    let mut hidden = 0;
    for i in 0..=filler.len() {
        while hidden < facts.len() && (depths[hidden] * filler.len() as f64) as usize <= i {
            document.push_str(&facts[hidden].statement);
            hidden += 1;
        }
        if let Some(sentence) = filler.get(i) {
            document.push(' ');
            document.push_str(sentence);
        }
    }
    document
}
