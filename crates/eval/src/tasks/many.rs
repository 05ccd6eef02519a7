//! Many needles in one answer: every record of a register, as one JSON object. Whatever stands for
//! the rows of many similar records (low-rank keys, means of blocks) has to tell them all apart,
//! which is where such methods lose first.

use super::native::hide;
use super::task::{Setting, Task};
use crate::error::EvalError;
use crate::facts::Fact;
use crate::sample::{Question, Sample};
use crate::score::Metric;
use crate::words::{self, Words};

/// Records of a document, by name.
const SIZES: [(&str, usize); 3] =
    [("many-json-10", 10), ("many-json-30", 30), ("many-json-50", 50)];

const ASK: &str = "\n\nList every badge number that the text gives, as one JSON object with names as \
    keys and badge numbers as values, in the order of the text. Write nothing else.";

struct Json {
    name: &'static str,
    n_records: usize,
}

pub(super) fn tasks() -> impl Iterator<Item = Box<dyn Task>> {
    SIZES.iter().map(|(name, n)| Box::new(Json { name, n_records: *n }) as Box<dyn Task>)
}

impl Task for Json {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> String {
        format!("{} records of one text in one answer, as a JSON object", self.n_records)
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let n = self.n_records;
        let mut rng = setting.rng(self.name);
        let mut words = Words::new();
        let records: Vec<(String, String)> =
            (0..n).map(|_| (words.pair(&mut rng), words::number(6, &mut rng))).collect();
        let facts: Vec<Fact> = records
            .iter()
            .map(|(name, value)| Fact {
                statement: format!(" The badge number of {name} is {value}."),
                question: String::new(),
                answer: String::new(),
            })
            .collect();
        let depths: Vec<f64> =
            (0..n).map(|i| (i as f64 + f64::from(rng.next_f32())) / n as f64).collect();
        let members: Vec<String> =
            records.iter().map(|(name, value)| format!("\"{name}\": \"{value}\"")).collect();
        let full = format!("{{{}}}", members.join(", "));
        // Line breaks and indents of another style need a third more.
        let max_new = setting.prompter.count(&full)? * 4 / 3;
        let seed = rng.next_u64();
        setting.largest(self.name, 0, usize::MAX, &|size| {
            let filler: Vec<String> = setting.text.sentences(seed).take(size).collect();
            let text = hide(&filler, &facts, &depths);
            let document = format!(
                "Some people in the following text have badge numbers. You will be asked for all \
                 of them.\n\n{}",
                text.trim_start()
            );
            let question = Question {
                ask: ASK.to_owned(),
                references: records
                    .iter()
                    .map(|(name, value)| format!("{name}: {value}"))
                    .collect(),
                max_new,
                stop: vec!["}".to_owned()],
                metric: Metric::JsonMembers,
                ..Question::default()
            };
            Sample { document, questions: vec![question], chat: true }
        })
    }
}
