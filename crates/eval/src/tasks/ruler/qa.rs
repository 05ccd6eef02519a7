//! Questions about one or two of many paragraphs: SQuAD and HotpotQA, from the files that their
//! authors publish.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde::Deserialize;

use super::super::files::TaskFiles;
use super::super::task::{Setting, Task};
use super::answer::{Answer, sample};
use crate::error::EvalError;
use crate::haystack::text_of_file;
use crate::sample::Sample;
use crate::score::Metric;
use crate::words;

const MAX_NEW: usize = 32;
const INSTRUCTION: &str = "Answer the question based on the given documents. Only give me the \
    answer and do not output any other words.";

#[derive(Clone, Copy)]
enum Source {
    Squad,
    HotpotQa,
}

struct Qa {
    source: Source,
    path: Option<PathBuf>,
    /// Read when it is first needed.
    data: OnceLock<Data>,
}

/// Paragraphs, each once, and questions with those that answer them.
#[derive(Default)]
struct Data {
    paragraphs: Vec<String>,
    /// Where each paragraph is.
    places: HashMap<String, usize>,
    questions: Vec<Asked>,
}

impl Data {
    /// The places of paragraphs, rising and each once; those that are new are added.
    fn places(&mut self, texts: impl Iterator<Item = String>) -> Vec<usize> {
        let mut places: Vec<usize> = texts.map(|text| self.place(text)).collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    fn place(&mut self, text: String) -> usize {
        if let Some(place) = self.places.get(&text) {
            return *place;
        }
        self.paragraphs.push(text.clone());
        self.places.insert(text, self.paragraphs.len() - 1);
        self.paragraphs.len() - 1
    }
}

struct Asked {
    question: String,
    answers: Vec<String>,
    /// Paragraphs that answer it.
    gold: Vec<usize>,
    /// Paragraphs that come with it.
    near: Vec<usize>,
}

#[derive(Deserialize)]
struct Squad {
    data: Vec<SquadArticle>,
}

#[derive(Deserialize)]
struct SquadArticle {
    paragraphs: Vec<SquadParagraph>,
}

#[derive(Deserialize)]
struct SquadParagraph {
    context: String,
    qas: Vec<SquadQuestion>,
}

#[derive(Deserialize)]
struct SquadQuestion {
    question: String,
    answers: Vec<SquadAnswer>,
    #[serde(default)]
    is_impossible: bool,
}

#[derive(Deserialize)]
struct SquadAnswer {
    text: String,
}

#[derive(Deserialize)]
struct HotpotQuestion {
    question: String,
    answer: String,
    /// Title and sentences.
    context: Vec<(String, Vec<String>)>,
}

pub(super) fn tasks(files: &TaskFiles) -> Vec<Box<dyn Task>> {
    let task = |source, path: &Option<PathBuf>| {
        Box::new(Qa { source, path: path.clone(), data: OnceLock::new() }) as Box<dyn Task>
    };
    vec![task(Source::Squad, &files.squad), task(Source::HotpotQa, &files.hotpotqa)]
}

impl Qa {
    fn data(&self) -> Result<&Data, EvalError> {
        if let Some(data) = self.data.get() {
            return Ok(data);
        }
        let (option, what) = match self.source {
            Source::Squad => ("--squad FILE", "SQuAD 2.0, dev-v2.0.json"),
            Source::HotpotQa => ("--hotpotqa FILE", "HotpotQA, hotpot_dev_distractor_v1.json"),
        };
        let task = self.name().to_owned();
        let path = self.path.as_deref().ok_or(EvalError::NoFile { task, option, what })?;
        let data = match self.source {
            Source::Squad => squad(path)?,
            Source::HotpotQa => hotpotqa(path)?,
        };
        if data.questions.is_empty() {
            return Err(EvalError::content(path, "holds no question with an answer"));
        }
        Ok(self.data.get_or_init(|| data))
    }
}

fn parse<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T, EvalError> {
    let text = text_of_file(path)?;
    serde_json::from_str(&text)
        .map_err(|e| EvalError::content(path, format!("is not as expected: {e}")))
}

fn squad(path: &Path) -> Result<Data, EvalError> {
    let file: Squad = parse(path)?;
    let mut data = Data::default();
    for article in file.data {
        let near = data.places(article.paragraphs.iter().map(|one| one.context.clone()));
        for paragraph in article.paragraphs {
            let gold = data.place(paragraph.context);
            for asked in paragraph.qas.into_iter().filter(|asked| !asked.is_impossible) {
                let answers = asked.answers.into_iter().map(|answer| answer.text).collect();
                let (question, near) = (asked.question, near.clone());
                data.questions.push(Asked { question, answers, gold: vec![gold], near });
            }
        }
    }
    Ok(data)
}

fn hotpotqa(path: &Path) -> Result<Data, EvalError> {
    let file: Vec<HotpotQuestion> = parse(path)?;
    let mut data = Data::default();
    for asked in file {
        let texts = asked.context.iter().map(|(title, text)| format!("{title}\n{}", text.concat()));
        let gold = data.places(texts);
        let (question, answers) = (asked.question, vec![asked.answer]);
        data.questions.push(Asked { question, answers, gold, near: Vec::new() });
    }
    Ok(data)
}

impl Task for Qa {
    fn name(&self) -> &str {
        match self.source {
            Source::Squad => "ruler-qa-1",
            Source::HotpotQa => "ruler-qa-2",
        }
    }

    fn about(&self) -> String {
        match self.source {
            Source::Squad => "a question of SQuAD among many paragraphs (--squad FILE)".to_owned(),
            Source::HotpotQa => {
                "a question of HotpotQA among many paragraphs (--hotpotqa FILE)".to_owned()
            }
        }
    }

    fn n_documents(&self, samples: usize) -> usize {
        self.data().map_or(samples, |data| samples.min(data.questions.len()))
    }

    fn check(&self) -> Result<(), EvalError> {
        self.data().map(|_| ())
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let data = self.data()?;
        let asked = &data.questions[setting.sample % data.questions.len()];
        let mut rng = setting.rng(self.name());
        let is_gold = |i: &usize| asked.gold.contains(i);
        let near = asked.near.iter().copied().filter(|i| !is_gold(i));
        let far = words::shuffled(data.paragraphs.len(), &mut rng).into_iter();
        let far = far.filter(|i| !is_gold(i) && !asked.near.contains(i));
        let others: Vec<usize> = near.chain(far).collect();
        let seed = rng.next_u64();
        let least = asked.gold.len();
        setting.largest(self.name(), least, least + others.len(), &|n| {
            let mut rng = longview_core::SplitMix64::new(seed);
            let chosen: Vec<usize> =
                asked.gold.iter().chain(&others[..n - least]).copied().collect();
            let order = words::shuffled(n, &mut rng);
            let texts = order.into_iter().enumerate();
            let texts: Vec<String> = texts
                .map(|(i, at)| format!("Document {}:\n{}", i + 1, data.paragraphs[chosen[at]]))
                .collect();
            let document = format!(
                "{INSTRUCTION}\n\nThe following are given documents.\n\n{}",
                texts.join("\n\n")
            );
            let ask = format!("\n\n{INSTRUCTION}\n\nQuestion: {}", asked.question);
            let answer = Answer {
                references: asked.answers.clone(),
                max_new: MAX_NEW,
                metric: Metric::MatchPart,
                depth: None,
            };
            sample(document, ask, " Answer:".to_owned(), answer)
        })
    }
}
