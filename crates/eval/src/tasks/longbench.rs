//! LongBench (Bai et al., 2024, arXiv 2308.14508): its 21 data sets from local files, one JSON
//! object a line with `input`, `context`, `answers` and `all_classes`. Answer lengths, metrics, the
//! cut in the middle and who gets no chat template are the official ones; the instructions say the
//! same in other words.

use std::path::PathBuf;
use std::sync::OnceLock;

use longview_model::tokenizer::Specials;
use serde::Deserialize;

use super::files::TaskFiles;
use super::task::{Setting, Task};
use crate::error::EvalError;
use crate::haystack::text_of_file;
use crate::sample::{Question, Sample};
use crate::score::Metric;

/// A data set: where `{context}` and `{input}` go, and how it is scored.
struct DataSet {
    name: &'static str,
    /// Before the context.
    before: &'static str,
    /// Behind it, with `{input}`.
    after: &'static str,
    max_new: usize,
    metric: Scored,
    /// Few-shot and code: continued as plain text, even by chat models.
    is_plain: bool,
    /// Only the first line of the answer counts, or generation stops there.
    lines: Lines,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scored {
    QaF1,
    QaF1Zh,
    RougeL,
    RougeLZh,
    Classes,
    Retrieval,
    Count,
    Code,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lines {
    All,
    /// The first is scored.
    First,
    /// The first is scored, and generation ends with it.
    Stop,
}

use Lines::{All, First, Stop};
use Scored::{Classes, Code, Count, QaF1, QaF1Zh, Retrieval, RougeL, RougeLZh};

const fn set(
    name: &'static str,
    template: (&'static str, &'static str),
    max_new: usize,
    metric: Scored,
) -> DataSet {
    let (before, after) = template;
    DataSet { name, before, after, max_new, metric, is_plain: false, lines: All }
}

const fn plain(set: DataSet, lines: Lines) -> DataSet {
    DataSet { is_plain: true, lines, ..set }
}

const PASSAGES: (&str, &str) = (
    "Use the passages below to answer a question. Give the answer alone, without further words.\n\n\
     Passages:\n",
    "\n\nUse the passages above to answer the question. Give the answer alone, without further \
     words.\n\nQuestion: {input}\nAnswer:",
);
const STORY: (&str, &str) = (
    "Below are a story (a novel or a film script) and a question. Answer as briefly as possible, \
     best with a single phrase, and explain nothing.\n\nStory: ",
    "\n\nAnswer the question about the story as briefly as possible, best with a single phrase, \
     and explain nothing.\n\nQuestion: {input}\n\nAnswer:",
);
const ARTICLE: (&str, &str) = (
    "Below are a scientific article and a question. Answer as briefly as possible, with a phrase or \
     a sentence. If the article does not answer the question, write \"unanswerable\". To a yes/no \
     question write \"yes\", \"no\" or \"unanswerable\". Explain nothing.\n\nArticle: ",
    "\n\nAnswer the question about the article as briefly as possible, with a phrase or a sentence. \
     If the article does not answer it, write \"unanswerable\". To a yes/no question write \"yes\", \
     \"no\" or \"unanswerable\". Explain nothing.\n\nQuestion: {input}\n\nAnswer:",
);
const FIELDS: (&str, &str) = (
    "Read this text and answer briefly.\n\n",
    "\n\nAnswer the following question about the text. Give the answer alone, without further \
     words.\n\nQuestion: {input}\nAnswer:",
);
const FIELDS_ZH: (&str, &str) = (
    "请阅读下面的文字，并用中文简短作答。\n\n",
    "\n\n请根据上面的文章回答问题，只给出答案，不要写其他内容。\n\n问题：{input}\n回答：",
);
const ARTICLES_ZH: (&str, &str) = (
    "请根据所给文章回答问题。\n\n文章：",
    "\n\n请根据上面的文章回答问题。\n\n问题：{input}\n回答：",
);
const REPORT: (&str, &str) = (
    "Below is a report of a government agency. Summarize it on one page.\n\nReport:\n",
    "\n\nWrite a summary of the report of one page.\n\nSummary:",
);
const MEETING: (&str, &str) = (
    "Below are the transcript of a meeting and a query about it. Answer the query in one or more \
     sentences.\n\nTranscript:\n",
    "\n\nAnswer the query about the meeting in one or more sentences.\n\nQuery: {input}\nAnswer:",
);
const NEWS: (&str, &str) = (
    "Below are several news passages. Summarize them all on one page.\n\nNews:\n",
    "\n\nWrite a summary of all the news of one page.\n\nSummary:",
);
const MEETING_ZH: (&str, &str) =
    ("下面是一份会议记录。请阅读后写一段总结，概括会议内容。\n会议记录：\n", "\n\n会议总结：");
const TYPES: (&str, &str) =
    ("Find the type of the last question below. The others are examples.\n\n", "\n{input}");
const TRIVIA: (&str, &str) = (
    "Answer the question with the help of the passage. Give the answer alone, without further \
     words. Some examples come first.\n\n",
    "\n\n{input}",
);
const DIALOGUE: (&str, &str) = (
    "Summarize the dialogue in a few short sentences. Some examples come first.\n\n",
    "\n\n{input}",
);
const CLASSES_ZH: (&str, &str) = ("请判断新闻所属的类别，下面先给出一些例子。\n\n", "\n{input}");
const COPIES: (&str, &str) = (
    "Below are paragraphs from Wikipedia, some of them more than once. Read them carefully and find \
     out how many different paragraphs there are, each counted once.\n\n",
    "\n\nGive the number of different paragraphs. Write only the number, such as 1, 2, 3.\n\nThe \
     final answer is: ",
);
const ABSTRACT: (&str, &str) = (
    "Below are 30 paragraphs from Wikipedia and an abstract. Find the paragraph that the abstract \
     was made from.\n\n",
    "\n\nThe abstract:\n\n{input}\n\nGive the number of the paragraph that the abstract was made \
     from, in the form \"Paragraph 1\", \"Paragraph 2\".\n\nThe answer is: ",
);
const ABSTRACT_ZH: (&str, &str) = (
    "下面有若干段文字和其中一段的摘要。请找出摘要来自哪一段。\n\n",
    "\n\n摘要如下：\n\n{input}\n\n请写出摘要所属段落的编号，格式为\"段落1\"、\"段落2\"。\n\n答案是：",
);
const CODE: (&str, &str) = ("Complete the code below.\n", "{input}Next line of code:\n");

const SETS: [DataSet; 21] = [
    set("narrativeqa", STORY, 128, QaF1),
    set("qasper", ARTICLE, 128, QaF1),
    set("multifieldqa_en", FIELDS, 64, QaF1),
    set("multifieldqa_zh", FIELDS_ZH, 64, QaF1Zh),
    set("hotpotqa", PASSAGES, 32, QaF1),
    set("2wikimqa", PASSAGES, 32, QaF1),
    set("musique", PASSAGES, 32, QaF1),
    set("dureader", ARTICLES_ZH, 128, RougeLZh),
    set("gov_report", REPORT, 512, RougeL),
    set("qmsum", MEETING, 512, RougeL),
    set("multi_news", NEWS, 512, RougeL),
    set("vcsum", MEETING_ZH, 512, RougeLZh),
    plain(set("trec", TYPES, 64, Classes), First),
    plain(set("triviaqa", TRIVIA, 32, QaF1), First),
    plain(set("samsum", DIALOGUE, 128, RougeL), Stop),
    plain(set("lsht", CLASSES_ZH, 64, Classes), First),
    set("passage_count", COPIES, 32, Count),
    set("passage_retrieval_en", ABSTRACT, 32, Retrieval),
    set("passage_retrieval_zh", ABSTRACT_ZH, 32, Retrieval),
    plain(set("lcc", CODE, 64, Code), All),
    plain(set("repobench-p", CODE, 64, Code), All),
];

/// A line of a file.
#[derive(Clone, Debug, Deserialize)]
struct Row {
    #[serde(default)]
    input: String,
    context: String,
    answers: Vec<String>,
    #[serde(default)]
    all_classes: Option<Vec<String>>,
}

struct LongBench {
    name: String,
    set: &'static DataSet,
    folder: Option<PathBuf>,
    rows: OnceLock<Vec<Row>>,
}

pub(super) fn tasks(files: &TaskFiles) -> Vec<Box<dyn Task>> {
    let task = |set: &'static DataSet| {
        let name = format!("longbench-{}", set.name.replace('_', "-"));
        let folder = files.longbench.clone();
        Box::new(LongBench { name, set, folder, rows: OnceLock::new() }) as Box<dyn Task>
    };
    SETS.iter().map(task).collect()
}

impl LongBench {
    fn rows(&self) -> Result<&[Row], EvalError> {
        if let Some(rows) = self.rows.get() {
            return Ok(rows);
        }
        let missing = || EvalError::NoFile {
            task: self.name.clone(),
            option: "--longbench DIR",
            what: "a folder that holds the data set's .jsonl",
        };
        let folder = self.folder.as_deref().ok_or_else(missing)?;
        let path = folder.join(format!("{}.jsonl", self.set.name));
        if !path.is_file() {
            return Err(missing());
        }
        let text = text_of_file(&path)?;
        let mut rows = Vec::new();
        for (i, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            let row: Row = serde_json::from_str(line)
                .map_err(|e| EvalError::content(&path, format!("line {}: {e}", i + 1)))?;
            rows.push(row);
        }
        if rows.is_empty() {
            return Err(EvalError::content(&path, "holds no line"));
        }
        Ok(self.rows.get_or_init(|| rows))
    }

    fn question(&self, row: &Row) -> Question {
        let set = self.set;
        let metric = match set.metric {
            QaF1 => Metric::QaF1,
            QaF1Zh => Metric::QaF1Zh,
            RougeL => Metric::RougeL,
            RougeLZh => Metric::RougeLZh,
            Classes => {
                Metric::Classification { classes: row.all_classes.clone().unwrap_or_default() }
            }
            Retrieval => Metric::Retrieval,
            Count => Metric::Count,
            Code => Metric::CodeSimilarity,
        };
        let metric = match set.lines {
            All => metric,
            First | Stop => Metric::FirstLine(Box::new(metric)),
        };
        Question {
            ask: set.after.replace("{input}", &row.input),
            references: row.answers.clone(),
            max_new: set.max_new,
            stop: if set.lines == Stop { vec!["\n".to_owned()] } else { Vec::new() },
            metric,
            ..Question::default()
        }
    }
}

impl Task for LongBench {
    fn name(&self) -> &str {
        &self.name
    }

    fn about(&self) -> String {
        let metric = match self.set.metric {
            QaF1 | QaF1Zh => "F1",
            RougeL | RougeLZh => "ROUGE-L",
            Classes => "classes",
            Retrieval | Count => "numbers",
            Code => "similarity of code",
        };
        format!("LongBench's {}, by {metric} (--longbench DIR)", self.set.name)
    }

    fn n_documents(&self, samples: usize) -> usize {
        self.rows().map_or(samples, |rows| samples.min(rows.len()))
    }

    fn check(&self) -> Result<(), EvalError> {
        self.rows().map(|_| ())
    }

    fn sample(&self, setting: &Setting<'_>) -> Result<Sample, EvalError> {
        let rows = self.rows()?;
        let row = &rows[setting.sample % rows.len()];
        let question = self.question(row);
        let build = |document: String| Sample {
            document,
            questions: vec![question.clone()],
            chat: !self.set.is_plain,
        };
        let document = format!("{}{}", self.set.before, row.context);
        let whole = build(document);
        let n = setting.prompter.n_tokens(&whole)?;
        if n <= setting.length {
            return Ok(whole);
        }
        let tokenizer = setting.prompter.tokenizer();
        let ids = tokenizer.encode(&whole.document, Specials::AsWritten)?;
        let question_ids = setting.prompter.count(&question.ask)?;
        // Text that was cut may take more tokens than were kept: cut more until it fits.
        let mut excess = n - setting.length;
        loop {
            let Some(kept) = ids.len().checked_sub(excess).filter(|kept| *kept >= 2) else {
                let (task, length) = (self.name.clone(), setting.length);
                let needed = n - ids.len() + 2;
                return Err(EvalError::TooShort { task, length, needed });
            };
            let (head, tail) = middle(&ids, kept, question_ids);
            let text = tokenizer.decode(head, true)? + &tokenizer.decode(tail, true)?;
            let sample = build(text);
            let n = setting.prompter.n_tokens(&sample)?;
            if n <= setting.length {
                return Ok(sample);
            }
            excess += n - setting.length;
        }
    }
}

/// `kept` of `ids` without their middle, so that with `behind` further tokens both halves of the
/// prompt are as long.
fn middle(ids: &[u32], kept: usize, behind: usize) -> (&[u32], &[u32]) {
    let head = ((kept + behind) / 2).min(kept);
    let (head, tail) = (head, kept - head);
    (&ids[..head], &ids[ids.len() - tail..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_of_the_prompt_is_cut() {
        let ids: Vec<u32> = (0..10).collect();
        // With 2 tokens behind, 8 in all: 4 at the start, 2 + 2 at the end.
        assert_eq!(middle(&ids, 6, 2), (&ids[..4], &ids[8..]));
        assert_eq!(middle(&ids, 4, 20), (&ids[..4], &ids[10..]));
    }

    #[test]
    fn every_data_set_has_one_place_for_its_input() {
        for set in &SETS {
            assert!(set.after.matches("{input}").count() <= 1, "{}", set.name);
            assert!(!set.before.contains('{'), "{}", set.name);
        }
        let no_input = ["gov_report", "multi_news", "vcsum", "passage_count"];
        let without: Vec<&str> =
            SETS.iter().filter(|set| !set.after.contains("{input}")).map(|set| set.name).collect();
        assert_eq!(without, no_input);
    }
}
