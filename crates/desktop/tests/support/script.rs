//! An engine that does what a test tells it: every step waits until the test lets it happen.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use longview_desktop::engine::{
    Answer, AnswerStep, Attention, ContextMap, DocumentEngine, DocumentId, Failure, FailureKind,
    Finish, LeftOut, Machine, ModelInfo, OpenEngine, Parts, Passage, Question, ReadPlan,
    ReadProgress, ReadState,
};

/// Tokens of a chunk.
const CHUNK: usize = 256;

/// Words of an answer at length.
pub const LONG: usize = 400;

/// What the script answers to a question that asks for Markdown.
pub const MARKDOWN: &str = "\
# The lantern

It hung **above the door** of the *old* `mill`, ~~never~~ always lit:
the keeper says so in [his letter](https://letters.example/7) and in [a file](file:///etc/passwd).

1. first the harbour
   - the quiet one
   - nobody spoke
2. then the church

> He asked twice.
>
> > And once more.

```rust
fn light(hours: u32) -> u32 { hours * 2 } // a line that is longer than an answer is wide
```

| number | day |
|---|---|
| 2003322 | *Monday* |
| 7 | Tuesday |

---

<script>alert(1)</script>

See ![a map](https://maps.example/1.png).
- [x] done";

/// What happens at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// The step is done.
    Go,
    /// The call fails: the device was lost.
    Fail,
    /// The call fails: there is no memory for it.
    OutOfMemory,
    /// The thread panics.
    Panic,
}

/// The test's end: lets steps happen, and sees what was asked.
#[derive(Clone)]
pub struct Script {
    reads: Sender<Then>,
    says: Sender<Then>,
    opened: Arc<AtomicUsize>,
    asked: Arc<Mutex<Vec<Question>>>,
}

impl Script {
    /// A script whose steps wait, and its engine.
    pub fn new() -> (Self, OpenEngine) {
        let ((reads, read), (says, say)) = (channel(), channel());
        let (opened, asked) = (Arc::default(), Arc::default());
        let script = Self { reads, says, opened, asked };
        let seen = script.clone();
        let gates = [Arc::new(Mutex::new(read)), Arc::new(Mutex::new(say))];
        let open: OpenEngine = Arc::new(move || {
            seen.opened.fetch_add(1, Ordering::SeqCst);
            let (gates, asked) = (gates.clone(), Arc::clone(&seen.asked));
            Ok(Box::new(Scripted { gates, asked, text: "".into(), done: 0 }))
        });
        (script, open)
    }

    /// Lets `n` chunks be read.
    pub fn read(&self, n: usize) {
        (0..n).for_each(|_| self.read_then(Then::Go));
    }

    /// Lets `n` words be said.
    pub fn say(&self, n: usize) {
        (0..n).for_each(|_| self.say_then(Then::Go));
    }

    /// What happens at the next chunk.
    pub fn read_then(&self, then: Then) {
        self.reads.send(then).expect("the engine's factory lives as long as the window");
    }

    /// What happens at the next word.
    pub fn say_then(&self, then: Then) {
        self.says.send(then).expect("the engine's factory lives as long as the window");
    }

    /// Questions so far.
    pub fn asked(&self) -> Vec<Question> {
        self.asked.lock().expect("nobody panics with it").clone()
    }

    /// How often an engine was opened.
    pub fn opened(&self) -> usize {
        self.opened.load(Ordering::SeqCst)
    }
}

struct Scripted {
    gates: [Arc<Mutex<Receiver<Then>>>; 2],
    asked: Arc<Mutex<Vec<Question>>>,
    text: Arc<str>,
    done: usize,
}

fn tokens(text: &str) -> usize {
    text.len() / 4
}

impl Scripted {
    fn step(&self, gate: usize) -> Result<(), Failure> {
        // A panic of an engine before must not spread through the lock.
        let gate = self.gates[gate].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let then = gate.recv();
        drop(gate);
        match then {
            Ok(Then::Panic) => panic!("as the script says"),
            Ok(Then::Fail) => {
                let message = "the device was reset".to_owned();
                Err(Failure { kind: FailureKind::DeviceLost, message })
            }
            Ok(Then::OutOfMemory) => {
                let message = "the device has no room for 312.0 MiB more".to_owned();
                Err(Failure { kind: FailureKind::OutOfMemory, message })
            }
            // The test is over.
            Ok(Then::Go) | Err(_) => Ok(()),
        }
    }
}

impl DocumentEngine for Scripted {
    fn model(&self) -> ModelInfo {
        ModelInfo {
            name: "needle".into(),
            device: "cpu, 2 cores of a script".into(),
            is_embedded: true,
            n_layers: 5,
            n_kv_heads: 2,
            machine: Machine {
                device_bytes: Some(16 << 30),
                host_bytes: Some(32 << 30),
                is_unified: false,
            },
        }
    }

    fn plan(&mut self, text: &str) -> Result<ReadPlan, Failure> {
        let tokens = tokens(text);
        if tokens > 100_000 {
            let message = format!("the document has {tokens} tokens, and 100000 are possible");
            return Err(Failure { kind: FailureKind::TooLong, message });
        }
        Ok(ReadPlan {
            tokens,
            context: (tokens + 1024).next_multiple_of(1024).max(4096),
            parts: Parts {
                weights: 5 << 20,
                device_rows: 3 << 20,
                buffers: 1 << 20,
                host_rows: tokens as u64 * 2560,
                host_index: tokens as u64 * 40,
                disk: tokens as u64 * 2560,
            },
            is_unified: false,
            short_of: text.contains("too large").then_some(1 << 20),
            disk_free: text.contains("full disk").then_some(1 << 10),
        })
    }

    fn open(
        &mut self,
        _text: &Arc<str>,
        _file: Option<&Path>,
    ) -> Result<Option<ReadState>, Failure> {
        Ok(None)
    }

    fn read(
        &mut self,
        _document: DocumentId,
        text: &Arc<str>,
        hear: &mut dyn FnMut(ReadProgress) -> ControlFlow<()>,
    ) -> Result<ReadState, Failure> {
        (self.text, self.done) = (Arc::clone(text), 0);
        self.read_on(hear)
    }

    fn read_on(
        &mut self,
        hear: &mut dyn FnMut(ReadProgress) -> ControlFlow<()>,
    ) -> Result<ReadState, Failure> {
        let total = tokens(&self.text);
        while self.done < total {
            self.step(0)?;
            self.done = (self.done + CHUNK).min(total);
            let left_s = (total - self.done) as f64 / 2950.0;
            let progress = ReadProgress { done: self.done, total, tokens_per_s: 2950.0, left_s };
            if hear(progress).is_break() {
                break;
            }
        }
        let seconds = self.done as f64 / 2950.0;
        let not_kept = self.text.contains("cannot be kept").then(|| Failure {
            kind: FailureKind::NotKept,
            message: "Lanterns: takes 312 MiB, and the library may hold 64.0 MiB (0 B of it \
                pinned). Raise \"Limit of the library\" in Settings, Advanced."
                .to_owned(),
        });
        Ok(ReadState { tokens: self.done, total, seconds, was_kept: false, not_kept })
    }

    fn ask(
        &mut self,
        question: &Question,
        hear: &mut dyn FnMut(AnswerStep) -> ControlFlow<()>,
    ) -> Result<Answer, Failure> {
        self.asked.lock().expect("nobody panics with it").push(question.clone());
        let context = self.done + 40;
        let attended = match question.attention {
            Attention::Budget(budget) => budget.min(context),
            Attention::Full => context,
        };
        let map = map(context, attended);
        let short = ["The special ", "magic number ", "is ", "2003322."];
        let words: Vec<&str> = match question.text.as_str() {
            text if text.contains("at length") => short.repeat(LONG / short.len()),
            text if text.contains("in Markdown") => MARKDOWN.split_inclusive(' ').collect(),
            _ => short.to_vec(),
        };
        let (mut text, mut finish) = (String::new(), Finish::End);
        for (i, word) in words.into_iter().enumerate() {
            self.step(1)?;
            text.push_str(word);
            let step = AnswerStep {
                text: word.to_owned(),
                tokens: i + 1,
                tokens_per_s: 410.0,
                hits: 40 + 3 * (i as u64 % 5),
                misses: 60 - 4 * (i as u64 % 7),
                fetched_bytes: 9000 + 700 * (i as u64 % 6),
                map: Some(map.clone()),
            };
            if hear(step).is_break() {
                finish = Finish::Stopped;
                break;
            }
        }
        Ok(Answer {
            text,
            tokens: 4,
            seconds: 0.1,
            tokens_per_s: 410.0,
            attended: Some(attended as f64),
            context,
            hit_rate: Some(0.46),
            fetched_bytes: 42_000,
            left_out: (question.attention != Attention::Full).then_some(LeftOut {
                median: 0.004,
                most: 0.021,
                confidence: 0.95,
            }),
            device_bytes: 3_400_000,
            host_bytes: 10_200_000,
            finish,
            passages: passages(&self.text),
        })
    }
}

/// Sentences with digits: what such an answer rests on.
fn passages(text: &str) -> Vec<Passage> {
    let mut passages = Vec::new();
    let mut start = 0;
    for sentence in text.split_inclusive(". ") {
        let end = start + sentence.trim_end().len();
        if sentence.contains(|c: char| c.is_ascii_digit()) {
            let weight = 0.46 / f64::from(1 << passages.len());
            passages.push(Passage { place: start..end, weight });
        }
        start += sentence.len();
    }
    passages.truncate(4);
    passages
}

fn map(context: usize, attended: usize) -> ContextMap {
    let kind = |i: usize| match i {
        0..16 => 1,
        _ if i + 64 > context => 2,
        _ if i.is_multiple_of((context / attended.max(1)).max(1)) => {
            3 + u8::from(i.is_multiple_of(7))
        }
        _ if i.is_multiple_of(11) => 5,
        _ => 0,
    };
    let kinds: Vec<u8> = (0..context).map(kind).collect();
    let mut counts = [0; 7];
    kinds.iter().for_each(|kind| counts[usize::from(*kind)] += 1);
    ContextMap { cell_tokens: 1, kinds, counts }
}
