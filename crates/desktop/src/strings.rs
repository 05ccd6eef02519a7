//! What the window says, in English. All of it is here, so that it can be read and translated in
//! one place.

#![expect(missing_docs, reason = "a text says itself what it says")]

use crate::engine::{Attention, FailureKind, ReadPlan, ReadProgress, ReadState};
use crate::figures::{bytes, count, percent, rate, seconds, tokens};

pub const APP: &str = "Longview";

// The list of documents.
pub const DOCUMENTS: &str = "Documents";
pub const OPEN_FILE: &str = "Open a text file";
pub const LIBRARY: &str = "Library";
pub const FIND: &str = "Find a document";
pub const RENAME: &str = "Rename";
pub const NEW_NAME: &str = "New name";
pub const PIN: &str = "Pin";
pub const UNPIN: &str = "Unpin";
pub const DELETE: &str = "Delete";
pub const REALLY_DELETE: &str = "Delete this document?";
pub const DELETE_HELP: &str = "Its text and what was read of it are removed from the library. The \
    file that it came from stays.";
pub const CANCEL: &str = "Cancel";
pub const PINNED: &str = "pinned";
pub const ACTIONS: &str = "More";
pub const OPEN_SAMPLE: &str = "Open the sample";
pub const CLOSE_DOCUMENT: &str = "Close";
pub const NO_DOCUMENTS: &str = "Nothing is open.";
pub const SAMPLE_TITLE: &str = "Sample document";
pub const THEME: &str = "Theme";
pub const THEME_SYSTEM: &str = "System";
pub const THEME_LIGHT: &str = "Light";
pub const THEME_DARK: &str = "Dark";
pub const ENGINE_OPENING: &str = "Starting the engine";
pub const ENGINE_GONE: &str = "The engine is stopped";
pub const SHORTCUTS: &str = "Keyboard shortcuts";
pub const CLOSE: &str = "Close the list";

// A window without a document.
pub const EMPTY_TITLE: &str = "Ask a very long document";
pub const EMPTY_TEXT: &str = "Drop a text file here. It is read once, on this computer, and then \
    answers question after question. Nothing leaves this computer.";

pub const DROP_HERE: &str = "Drop the text here";

// Before and while a document is read.
pub const OPENING: &str = "Opening what was read before";
pub const COUNTING: &str = "Counting tokens";
pub const READ: &str = "Read";
pub const READ_ON: &str = "Continue reading";
pub const PAUSE: &str = "Pause";
pub const RESUME: &str = "Resume";
pub const STOP_READING: &str = "Stop and keep what is read";
pub const PREPARING: &str = "Preparing";
pub const INDEXING: &str = "All is read. Building the index";
pub const PAUSED: &str = "Paused";
pub const STOPPING: &str = "Stopping";
pub const PLAN_HOST: &str = "Keys and values, in host memory";
pub const PLAN_DEVICE: &str = "Weights, index and buffers, on the device";
pub const PLAN_CONTEXT: &str = "Context";
pub const PLAN_TOKENS: &str = "Document";
pub const NOT_READ: &str = "Not read yet";
pub const TEXT_OF_DOCUMENT: &str = "Text of the document";

// Questions and answers.
pub const QUESTIONS: &str = "Questions";
pub const DOCUMENT: &str = "Document";
pub const ANSWERS: &str = "Answers";
pub const RECALL: &str = "Recall";
pub const QUESTION: &str = "Your question";
pub const QUESTION_HINT: &str = "Ask about this document";
pub const ASK: &str = "Ask";
pub const STOP: &str = "Stop";
pub const COPY: &str = "Copy";
pub const ASK_AGAIN: &str = "Ask again";
pub const COMPARE: &str = "Compare with full attention";
pub const EXPORT: &str = "Export";
pub const COPIED: &str = "The answer is on the clipboard.";
pub const TRY_THESE: &str = "Questions that this document answers";
pub const EMBEDDED_NOTE: &str = "The built-in model is small. It finds numbers that a document \
    states in these forms, and knows no others. Start Longview with --model for a larger one.";
pub const EMBEDDED_NOTE_NONE: &str = "The built-in model is small. It finds numbers that are \
    stated as in the sample document, and knows no others. Start Longview with --model for a \
    larger one.";
pub const READ_FIRST: &str = "Read the document first. Then ask.";
pub const ASK_SOMETHING: &str = "Ask something about the document. The answer comes with the \
    passages that it rests on.";
pub const WAITING: &str = "Waiting";
pub const READING_QUESTION: &str = "Reading the question";
pub const STOPPED: &str = "Stopped.";
pub const CUT: &str = "Cut off at the longest answer.";
pub const PASSAGES: &str = "Rests on";
pub const SAME_ANSWER: &str = "The same answer.";
pub const OTHER_ANSWER: &str = "Another answer.";
pub const BUDGET: &str = "Budget";
pub const BUDGET_HELP: &str = "Tokens that a step may attend. When you change it, the last \
    question is asked again.";
pub const FULL_ATTENTION: &str = "Full attention";

// What was recalled.
pub const MEMORY: &str = "Keys and values";
pub const ON_DEVICE: &str = "On the device";
pub const IN_HOST: &str = "In host memory";
pub const MAP: &str = "Map of the context";
pub const LAYER: &str = "Layer";
pub const HEAD: &str = "KV head";
pub const MAP_EMPTY: &str =
    "While an answer is written, each cell shows what became of its tokens.";
pub const MAP_KINDS: [&str; 6] = [
    "Left out",
    "First tokens (sinks)",
    "Last tokens (recent)",
    "Chosen, on the device (hit)",
    "Chosen, fetched (miss)",
    "Left out, still on the device",
];
pub const NOTHING_READ: &str = "Nothing is read yet.";

// Messages.
pub const DISMISS: &str = "Dismiss";
pub const START_AGAIN: &str = "Start the engine again";
pub const NOT_TEXT: &str = "is no text in UTF-8. Save it as plain text and open that.";

/// The shortcuts, as the window lists them.
pub const SHORTCUT_LIST: [(&str, &str); 13] = [
    ("Ctrl O", "Open a text file"),
    ("Ctrl R", "Read the document, or continue"),
    ("Ctrl P", "Pause and resume reading"),
    ("Escape", "Stop reading or answering"),
    ("Ctrl L", "Go to the question"),
    ("Enter", "Ask"),
    ("Shift Enter", "Begin a new line in the question"),
    ("Ctrl D", "Compare with full attention"),
    ("Ctrl Shift C", "Copy the last answer"),
    ("Ctrl E", "Export the answers as Markdown"),
    ("F3", "Go to the next passage"),
    ("Page Up, Page Down", "Scroll the document"),
    ("F1", "Show this list"),
];

/// The button with all that can be done with a document.
pub fn more(name: &str) -> String {
    format!("{ACTIONS}: {name}")
}

/// What is known of a document of the library.
pub fn kept(n_tokens: usize, is_pinned: bool) -> String {
    let read = match n_tokens {
        0 => NOT_READ.to_owned(),
        n => format!("{}, kept", tokens(n)),
    };
    if is_pinned { format!("{read}, {PINNED}") } else { read }
}

/// The line under a document's title.
pub fn read_state(state: &ReadState) -> String {
    if state.is_complete() && state.was_kept {
        format!("{} opened in {}, read before", tokens(state.tokens), seconds(state.seconds))
    } else if state.is_complete() {
        format!("{} read in {}", tokens(state.tokens), seconds(state.seconds))
    } else {
        format!("{} of {} read", count(state.tokens), tokens(state.total))
    }
}

/// The same in the list, where there is less room.
pub fn read_state_short(state: &ReadState) -> String {
    if state.is_complete() {
        format!("{}, read", tokens(state.tokens))
    } else {
        format!("{} of {}", count(state.tokens), tokens(state.total))
    }
}

pub fn plan_short(plan: &ReadPlan) -> String {
    format!("{}, not read yet", tokens(plan.tokens))
}

pub fn plan_tokens(plan: &ReadPlan) -> String {
    tokens(plan.tokens)
}

pub fn plan_context(plan: &ReadPlan) -> String {
    format!("{}, with room for questions", tokens(plan.context))
}

pub fn plan_short_of(available: u64) -> String {
    format!("This does not fit: {} are free.", bytes(available))
}

pub fn progress(progress: &ReadProgress) -> String {
    format!(
        "{} of {}, {} tokens/s, {} left",
        count(progress.done),
        tokens(progress.total),
        rate(progress.tokens_per_s),
        seconds(progress.left_s)
    )
}

pub fn progress_short(progress: &ReadProgress) -> String {
    format!("Reading, {}", percent(progress.done as f64 / progress.total.max(1) as f64))
}

pub fn attention(attention: Attention) -> String {
    match attention {
        Attention::Budget(budget) => format!("Budget {}", count(budget)),
        Attention::Full => FULL_ATTENTION.to_owned(),
    }
}

/// What was attended of how much, and what was left out.
pub fn attended(attended: f64, context: usize) -> String {
    let attended = (attended.round() as usize).min(context);
    let share = percent(attended as f64 / context.max(1) as f64);
    if attended == context {
        return format!("Attended all {} in each step.", tokens(context));
    }
    format!(
        "Attended {} of {} in a step ({share}); {} left out.",
        count(attended),
        tokens(context),
        count(context - attended)
    )
}

pub fn answer_figures(n_tokens: usize, tokens_per_s: f64) -> String {
    format!("{} at {} tokens/s", tokens(n_tokens), rate(tokens_per_s))
}

pub fn budget_value(budget: usize) -> String {
    tokens(budget)
}

pub fn passage(rank: usize, quote: &str, weight: f64) -> String {
    format!("Passage {rank}, {}: {quote}", percent(weight))
}

pub fn exported(path: &str) -> String {
    format!("Saved as {path}.")
}

pub fn device_share(device: u64, host: u64) -> String {
    format!(
        "As of the last answer. The device holds {} of what the host does.",
        percent(device as f64 / host.max(1) as f64)
    )
}

pub fn hits(rate: f64) -> String {
    format!("{} of the recalled rows were on the device.", percent(rate))
}

/// The map in words; counts are by the number of a token's place.
pub fn map_summary(layer: usize, head: usize, counts: &[usize; 6], cell: usize) -> String {
    let attended: usize = counts[1..5].iter().sum();
    let all: usize = counts.iter().sum();
    let one = if cell == 1 { "one token".to_owned() } else { tokens(cell) };
    format!(
        "Layer {layer}, KV head {head}: the last step attends {} of {}. A cell is {one}.",
        count(attended),
        tokens(all)
    )
}

/// What a failure means, and what to do about it.
pub fn failure(kind: FailureKind) -> (&'static str, &'static str) {
    match kind {
        FailureKind::EngineStopped => (
            "The engine stopped",
            "Your questions and answers are still here. Start the engine again to go on; the \
             document is then read again.",
        ),
        FailureKind::DeviceLost => (
            "The device was lost",
            "Ask again: the device is opened anew, and the document is still there.",
        ),
        FailureKind::OutOfMemory => {
            ("Out of memory", "Choose a shorter document, or close other programs.")
        }
        FailureKind::TooLong => {
            ("The document is too long for this model", "Choose a shorter one.")
        }
        FailureKind::Model => (
            "This model cannot be used",
            "Use a Hugging Face folder in safetensors, or a GGUF file, of a supported model.",
        ),
        FailureKind::NotKept => (
            "The library has a problem",
            "What is open can be asked about. It may have to be read again at the next start.",
        ),
        FailureKind::File => ("The file cannot be used", ""),
        FailureKind::BadInput => ("This does not work", ""),
        FailureKind::Other => ("Something failed", "Try again."),
    }
}
