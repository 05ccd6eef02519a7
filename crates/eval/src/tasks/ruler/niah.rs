//! Needles in a haystack: the eight of RULER, which are one with other parameters.

use longview_core::SplitMix64;

use super::super::task::{Setting, Task};
use super::answer::{Answer, sample};
use crate::error::EvalError;
use crate::haystack;
use crate::sample::Sample;
use crate::score::Metric;
use crate::words::{self, Words};

/// Tokens of an answer.
const MAX_NEW: usize = 128;
/// Depths at which a needle may stand, evenly from 0 to 100 %.
const DEPTHS: usize = 40;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Haystack {
    Noise,
    Essay,
    /// Further needles.
    Needles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Words,
    Numbers,
    Uuids,
}

#[derive(Clone, Copy, Debug)]
struct Niah {
    name: &'static str,
    haystack: Haystack,
    key: Kind,
    value: Kind,
    n_keys: usize,
    n_values: usize,
    n_queries: usize,
}

impl Niah {
    const fn new(name: &'static str, haystack: Haystack, key: Kind, value: Kind) -> Self {
        Self { name, haystack, key, value, n_keys: 1, n_values: 1, n_queries: 1 }
    }
}

use Haystack::{Essay, Needles, Noise};
use Kind::{Numbers, Uuids};

const TASKS: [Niah; 8] = [
    Niah::new("ruler-niah-single-1", Noise, Kind::Words, Numbers),
    Niah::new("ruler-niah-single-2", Essay, Kind::Words, Numbers),
    Niah::new("ruler-niah-single-3", Essay, Kind::Words, Uuids),
    Niah { n_keys: 4, ..Niah::new("ruler-niah-multikey-1", Essay, Kind::Words, Numbers) },
    Niah::new("ruler-niah-multikey-2", Needles, Kind::Words, Numbers),
    Niah::new("ruler-niah-multikey-3", Needles, Uuids, Uuids),
    Niah { n_values: 4, ..Niah::new("ruler-niah-multivalue", Essay, Kind::Words, Numbers) },
    Niah {
        n_keys: 4,
        n_queries: 4,
        ..Niah::new("ruler-niah-multiquery", Essay, Kind::Words, Numbers)
    },
];

pub(super) fn tasks() -> Vec<Box<dyn Task>> {
    TASKS.iter().map(|task| Box::new(*task) as Box<dyn Task>).collect()
}

impl Kind {
    fn plural(self) -> &'static str {
        match self {
            Kind::Words => "words",
            Kind::Numbers => "numbers",
            Kind::Uuids => "uuids",
        }
    }

    fn make(self, words: &mut Words, rng: &mut SplitMix64) -> String {
        match self {
            Kind::Words => words.pair(rng),
            Kind::Numbers => words::number(7, rng),
            Kind::Uuids => words::uuid(rng),
        }
    }
}

fn needle(kind: Kind, key: &str, value: &str) -> String {
    format!("One of the special magic {} for {key} is: {value}.", kind.plural())
}

/// Everything of a sample but its length.
struct Content {
    needles: Vec<String>,
    queries: Vec<String>,
    references: Vec<String>,
    /// Depths of the needles, in per cent, rising.
    depths: Vec<f64>,
    /// For what differs with the length.
    seed: u64,
}

impl Niah {
    fn content(&self, setting: &Setting<'_>) -> Content {
        let mut rng = setting.rng(self.name);
        let mut words = Words::new();
        let (mut keys, mut values, mut needles) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..self.n_keys.max(self.n_queries) {
            let key = self.key.make(&mut words, &mut rng);
            let of_key: Vec<String> =
                (0..self.n_values).map(|_| self.value.make(&mut words, &mut rng)).collect();
            needles.extend(of_key.iter().map(|value| needle(self.value, &key, value)));
            keys.push(key);
            values.push(of_key);
        }
        let order = words::shuffled(needles.len(), &mut rng);
        let needles: Vec<String> = order.into_iter().map(|i| needles[i].clone()).collect();
        let asked = rng.distinct(keys.len(), self.n_queries);
        let queries = asked.iter().map(|i| keys[*i as usize].clone()).collect();
        let references = asked.iter().flat_map(|i| values[*i as usize].clone()).collect();
        let mut depths = rng.distinct(DEPTHS, needles.len());
        depths.sort_unstable();
        let depths = depths.iter().map(|i| f64::from(*i) / (DEPTHS - 1) as f64).collect();
        Content { needles, queries, references, depths, seed: rng.next_u64() }
    }

    /// The text and where the first needle stands in it, from 0 to 1.
    fn context(&self, setting: &Setting<'_>, content: &Content, size: usize) -> (String, f64) {
        let mut rng = SplitMix64::new(content.seed);
        match self.haystack {
            Haystack::Essay => essay(setting, content, size),
            Haystack::Noise => {
                let lines = vec![haystack::NOISE.to_owned(); size];
                scatter(lines, &content.needles, &mut rng)
            }
            Haystack::Needles => {
                let mut words = Words::new();
                let lines = (0..size).map(|_| {
                    let key = self.key.make(&mut words, &mut rng);
                    needle(self.value, &key, &self.value.make(&mut words, &mut rng))
                });
                // The lines come first, so that a longer haystack begins as a shorter one.
                let lines = lines.collect();
                scatter(lines, &content.needles, &mut SplitMix64::new(content.seed))
            }
        }
    }

    fn build(&self, setting: &Setting<'_>, content: &Content, size: usize) -> Sample {
        let (context, depth) = self.context(setting, content, size);
        let plural = self.value.plural();
        let query = listed(&content.queries);
        let is_one = self.n_queries * self.n_values == 1;
        let kind = if is_one { plural.trim_end_matches('s') } else { plural };
        let (some, are, is_or_are) =
            if is_one { ("A", "is", "is the") } else { ("Some", "are", "are all the") };
        let document = format!(
            "{some} special magic {kind} {are} hidden within the following text. Make sure to \
             memorize it. I will quiz you about the {kind} afterwards.\n{context}"
        );
        let ask = format!(
            "\nWhat {is_or_are} special magic {kind} for {query} mentioned in the provided text?"
        );
        let lead =
            format!(" The special magic {kind} for {query} mentioned in the provided text {are}");
        let depth = (content.needles.len() == 1).then_some(depth);
        let references = content.references.clone();
        let answer = Answer { references, max_new: MAX_NEW, metric: Metric::MatchAll, depth };
        sample(document, ask, lead, answer)
    }
}

impl Task for Niah {
    fn name(&self) -> &str {
        self.name
    }

    fn about(&self) -> String {
        let haystack = match self.haystack {
            Haystack::Noise => "noise",
            Haystack::Essay => "essays",
            Haystack::Needles => "other needles",
        };
        let n_needles = self.n_keys.max(self.n_queries) * self.n_values;
        let kind = self.value.plural();
        let n_asked = self.n_queries * self.n_values;
        format!("{n_asked} of {n_needles} magic {kind} under names, in {haystack}")
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let content = self.content(setting);
        setting.largest(self.name, 1, usize::MAX, &|size| self.build(setting, &content, size))
    }
}

/// `a`, `a, and b`, `a, b, and c`.
fn listed(items: &[String]) -> String {
    match items {
        [rest @ .., last] if !rest.is_empty() => format!("{}, and {last}", rest.join(", ")),
        _ => items.concat(),
    }
}

/// Sentences of essays with each needle before the sentence at its depth.
fn essay(setting: &Setting<'_>, content: &Content, n_words: usize) -> (String, f64) {
    let sentences = setting.text.essay(content.seed, n_words);
    let places: Vec<usize> =
        content.depths.iter().map(|depth| (depth * sentences.len() as f64) as usize).collect();
    let mut parts: Vec<&str> = Vec::with_capacity(sentences.len() + places.len());
    let mut next = 0;
    for i in 0..=sentences.len() {
        while next < places.len() && places[next] == i {
            parts.push(&content.needles[next]);
            next += 1;
        }
        parts.extend(sentences.get(i).map(String::as_str));
    }
    (parts.join(" "), content.depths.first().copied().unwrap_or(0.0))
}

/// Lines with the needles at random places among them.
fn scatter(lines: Vec<String>, needles: &[String], rng: &mut SplitMix64) -> (String, f64) {
    let n = lines.len();
    let mut places: Vec<usize> =
        needles.iter().map(|_| (f64::from(rng.next_f32()) * n as f64) as usize).collect();
    places.sort_unstable();
    let mut all = lines;
    for (place, needle) in places.iter().zip(needles).rev() {
        all.insert(*place, needle.clone());
    }
    let depth = places.first().map_or(0.0, |place| *place as f64 / n.max(1) as f64);
    (all.join("\n"), depth)
}
