//! What the window says, in English. All of it is here, so that it can be read and translated in
//! one place; what others refuse is in [`crate::refusals`].

#![expect(missing_docs, reason = "a text says itself what it says")]

use longview_scheduler::Preset;

use crate::engine::{Attention, FailureKind, LeftOut, ReadPlan, ReadProgress, ReadState, Served};
use crate::figures::{bytes, count, date, percent, rate, seconds, tokens};
use crate::fit::{Fit, Place, VERDICT_TOKENS, Verdict};

pub const APP: &str = "Longview";

// The list of documents.
pub const DOCUMENTS: &str = "Documents";
pub const OPEN_FILE: &str = "Open files";
pub const OPEN_FOLDER: &str = "Open a folder";
pub const ADD_FILES: &str = "Add files";
pub const LIBRARY: &str = "Library";
pub const FIND: &str = "Find a document";
pub const RENAME: &str = "Rename";
pub const NEW_NAME: &str = "New name";
pub const NAME_TAKEN: &str = "Another document has this name.";
pub const PIN: &str = "Pin";
pub const UNPIN: &str = "Unpin";
pub const FREE_SPACE: &str = "Free its space";
pub const REALLY_FREE: &str = "Remove what was read?";
pub const FREE_HELP: &str = "The text and your questions stay. To be asked again, the document has \
    to be read again.";
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
pub const NOTHING_FOUND: &str = "No document has this name.";
pub const SAMPLE_TITLE: &str = "Sample document";
pub const THEME: &str = "Theme";
pub const THEME_SYSTEM: &str = "System";
pub const THEME_LIGHT: &str = "Light";
pub const THEME_DARK: &str = "Dark";
pub const ENGINE_OPENING: &str = "Starting the engine";
pub const ENGINE_GONE: &str = "The engine is stopped";
pub const SHORTCUTS: &str = "Keyboard shortcuts";
pub const CLOSE: &str = "Close the list";
pub const CLOSE_DIALOG: &str = "Done";

// A window without a document.
pub const EMPTY_TITLE: &str = "Ask a very long document";
pub const EMPTY_TEXT: &str = "Drop a text, PDF, Word, HTML or Markdown file here. It is read once, \
    on this computer, and then answers question after question. Nothing leaves this computer.";

pub const CHOOSE_TITLE: &str = "Choose a document";
pub const CHOOSE_TEXT: &str = "Your documents are in the list. One that was read opens at \
    once. Or drop a text, PDF, Word, HTML or Markdown file here.";

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
pub const PLAN_OWN_PAGES: &str = "Pages";
pub const PLAN_PAGES: &str = "Pages, of 1,800 letters";
pub const PLAN_DISK: &str = "In the library, on the disk";
pub const IN_LINE: &str = "Waits in line";
pub const LEAVE_LINE: &str = "Do not read";
pub const READ_NEXT: &str = "Read when it is free";
pub const PLAN_HOST: &str = "Main memory, for what is read";
pub const PLAN_DEVICE: &str = "Device memory, for the model and its work";
pub const PLAN_CONTEXT: &str = "Context";
pub const PLAN_TOKENS: &str = "Document";
pub const PLAN_TOKENS_HELP: &str = "A token is a word, or a piece of one: what a model reads.";
pub const NOT_READ: &str = "Not read yet";
pub const NOT_IN_LIBRARY: &str = "What was read is not in the library. It is gone when the window \
    closes, or another document is read.";
pub const KEEP_NOW: &str = "Keep it now";
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
pub const COPY_CODE: &str = "Copy the code";
pub const ASK_AGAIN: &str = "Ask again";
pub const COMPARE: &str = "Compare with full attention";
pub const EXPORT: &str = "Export";
pub const COPIED: &str = "It is on the clipboard.";
pub const TRY_THESE: &str = "Questions that this document answers";
pub const EMBEDDED_NOTE: &str = "The built-in model is small. It finds numbers that a document \
    states in the words of these questions, and knows no others. A chat model answers any \
    question.";
pub const EMBEDDED_NOTE_NONE: &str = "The built-in model is small. It finds numbers that are \
    stated as in the sample document, and knows no others. A chat model answers any question.";
pub const READ_FIRST: &str = "Read the document first. Then ask.";
pub const ASK_ONCE_READ: &str = "The document is being read. You can ask when it is read.";
pub const ASK_ONCE_ANSWERED: &str = "An answer is being written. You can ask when it has ended.";
pub const ASK_HINT: &str = "Type a question first.";
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
pub const BUDGET_HELP: &str = "How many tokens (pieces of words) of the document each step of an \
    answer looks at. More is slower and leaves out less. When you change it, the last question is \
    asked again.";
pub const FULL_ATTENTION: &str = "Full attention";
pub const COMPARE_HELP: &str = "Asks the same again, and looks at all of the document in each \
    step. That is slower, and leaves nothing out.";

pub const EDIT: &str = "Edit";
pub const EDITING: &str = "Your question, changed";
pub const LEAVE_EDIT: &str = "Leave it as it was";

// Several files.
pub const ORDER: &str = "Several files";
pub const ORDER_HELP: &str = "As one document they are read in this order. Files that are added \
    later are read alone.";
pub const ORDER_ADD_HELP: &str = "They stand behind what the document has, in this order. What \
    was read of it is not read again.";
pub const OPEN_AS_ONE: &str = "Open as one document";
pub const OPEN_EACH: &str = "Open each by itself";
pub const ADD: &str = "Add";
pub const UP: &str = "Move up";
pub const DOWN: &str = "Move down";
pub const REMOVE: &str = "Remove";

// Models.
pub const MODELS: &str = "Models";
pub const MODEL_NAME: &str = "Name at Hugging Face, folder or GGUF file";
pub const MODEL_HINT: &str = "USER/REPO or USER/REPO:Q4_K_M";
pub const FIND_MODEL: &str = "Find";
pub const DETAILS: &str = "Details";
pub const LOOKING: &str = "Asking Hugging Face";
pub const CANCEL_LOOK: &str = "Stop asking";
pub const CHOOSE_FOLDER: &str = "Choose a folder";
pub const CHOOSE_GGUF: &str = "Choose a GGUF file";
pub const ON_THIS_COMPUTER: &str = "On this computer";
pub const SUGGESTED_MODELS: &str = "Chat models to download";
pub const BUILT_IN: &str = "Built-in model";
pub const BUILT_IN_HELP: &str = "Finds numbers stated as in the sample document";
pub const USE: &str = "Use";
pub const IN_USE: &str = "In use";
pub const DOWNLOAD: &str = "Download";
pub const GO_ON: &str = "Go on with the download";
pub const CANCEL_DOWNLOAD: &str = "Cancel the download";
pub const ENDING: &str = "Ending";
pub const DOWNLOAD_KEPT: &str = "What came is kept: the download goes on from there.";
pub const CHOOSE_MODEL: &str = "Choose a chat model";
pub const USE_BUILT_IN: &str = "Use the built-in model";
pub const NO_PLACE_FOR_MODELS: &str = "There is no place for models. A message above the document \
    says why.";
pub const NO_DIALOG_FOR_MODELS: &str = "No file dialog can be opened here. Type the path of the \
    folder or the GGUF file above, and press Find.";
pub const REALLY_DELETE_MODEL: &str = "Delete this model?";
pub const DELETE_MODEL_HELP: &str = "Its files are removed from this computer, for other programs \
    that use this cache too. It can be downloaded again.";
pub const NETWORK_HELP: &str = "Hugging Face is asked only when you press Find, Details or \
    Download.";

// Settings.
pub const SETTINGS: &str = "Settings";
pub const SAVE: &str = "Save";
pub const ADVANCED: &str = "Advanced";
pub const SCALE: &str = "Size of text and controls";
pub const DEVICE: &str = "Device";
pub const DEVICE_HELP: &str = "Where the model computes. A change starts the engine again.";
pub const DEVICE_NAMES: [&str; 4] =
    ["Automatic", "NVIDIA graphics (CUDA)", "Any graphics (WGSL)", "Processor (CPU)"];
pub const POLICY: &str = "How tokens are chosen";
pub const POLICY_HELP: &str = "A long document has more tokens (pieces of words) than a step can \
    look at. This is how those are chosen that it does look at.";
pub const BOUNDS: &str = "Say how sure an answer is";
pub const BOUNDS_HELP: &str = "Tells how much was left out at most, from samples of it in each \
    step. It takes some time, and changes no answer.";
pub const FIRST_BUDGET: &str = "Budget at the start";
pub const FIRST_BUDGET_HELP: &str = "Tokens (pieces of words) that each step of an answer looks \
    at: more is slower and leaves out less.";
pub const DEVICE_LIMIT: &str = "Limit of device memory, in GiB";
pub const DEVICE_LIMIT_HELP: &str = "What does not fit into it is refused before it is read. Model \
    and work have to fit, so less than 1 GiB is of little use.";
pub const DISK_LIMIT: &str = "Limit of the library, in GiB";
pub const DISK_LIMIT_HELP: &str = "Above it, what was read longest ago goes; texts and pinned \
    documents stay.";
pub const NO_LIMIT: &str = "no limit";

// The library for other programs.
pub const SERVE: &str = "Serve this library to other programs";
pub const SERVE_HELP: &str = "Programs on this computer, and nobody else, can list your documents \
    and ask about them, as by OpenAI's API. The switch works at once. To switch it on starts the \
    engine again.";
pub const SERVE_SHARED: &str = "The model is in memory once: this window and other programs take \
    turns at it. What was read of the open document is shared too, until its budget is changed \
    here. Up to four more documents that others ask about stay in memory.";
pub const SERVE_PORT: &str = "Port";
pub const SERVE_KEY: &str = "API key (optional)";
pub const SERVE_NEEDS_KEY: &str = "Every request needs the API key.";
pub const SERVE_STARTING: &str = "Starting when the engine is there";
pub const SERVE_ENDING: &str = "Ending: what runs has two seconds";
pub const SERVE_TRY: &str = "Try it in a terminal:";
pub const COPY_ADDRESS: &str = "Copy the address";
pub const COPY_LINE: &str = "Copy the line";
pub const NO_LIBRARY_TO_SERVE: &str = "There is no library on this computer to serve.";

/// Where other programs find the library.
pub fn served_at(served: &Served) -> String {
    format!("http://{}/v1", served.address)
}

/// The same as a sentence, with what limits a prompt.
pub fn serving(served: &Served) -> String {
    format!(
        "Serving {} at http://{}, up to {}",
        served.model,
        served.address,
        tokens(served.context)
    )
}

/// In the list.
pub fn serving_short(served: &Served) -> String {
    format!("Serving at {}", served.address)
}

// About.
pub const ABOUT: &str = "About";
pub const ABOUT_TEXT: &str = "Reads long documents once, on this computer, and answers questions \
    about them. It asks the network only for models, when you say so, and reports nothing.";
pub const VERSION: &str = "Version";
pub const MODEL: &str = "Model";
pub const LICENSE: &str = "Licence";

// What was recalled.
pub const MEMORY: &str = "Memory";
pub const OVER_TIME: &str = "Over the last answer";
pub const RATE: &str = "Tokens a second";
pub const HIT_RATE: &str = "Chosen tokens that were on the device (hits), in percent";
pub const FETCHED: &str = "Fetched from main memory, in KiB a step";
pub const IN_PLACE: &str = "The device reads main memory itself: nothing is fetched.";
pub const PART_WEIGHTS: &str = "Model (weights)";
pub const PART_ROWS: &str = "Chosen tokens, and the index";
pub const PART_BUFFERS: &str = "Work of a step";
pub const PART_HOST_ROWS: &str = "What is read (keys and values)";
pub const PART_HOST_INDEX: &str = "Index";
pub const PART_SESSION: &str = "What is read";
pub const DEVICE_MEMORY: &str = "Device memory";
pub const HOST_MEMORY: &str = "Main memory";
pub const ONE_MEMORY: &str = "Memory, which the device shares";
pub const DISK: &str = "Disk";
pub const MAP: &str = "Map of the context";
pub const MAP_HELP: &str = "A model looks at the document in several layers, each with several \
    heads. This is what one of them looked at.";
pub const LAYER: &str = "Layer";
pub const HEAD: &str = "Head";
pub const MAP_EMPTY: &str =
    "While an answer is written, each cell shows what became of its tokens.";
pub const MAP_KINDS: [&str; 7] = [
    "Left out",
    "First tokens (sinks)",
    "Last tokens (recent)",
    "Chosen, on the device (hit)",
    "Chosen, fetched (miss)",
    "Left out, still on the device",
    "Samples of what is left out",
];
pub const NOTHING_READ: &str = "Nothing is read yet.";

// Messages.
pub const DISMISS: &str = "Dismiss";
pub const DISMISS_ALL: &str = "Dismiss all messages";
pub const START_AGAIN: &str = "Start the engine again";
pub const TRY_AGAIN: &str = "Try again";
pub const REPAIR: &str = "Repair the library";
pub const REPAIRED: &str = "The library is repaired.";
pub const NO_DIALOG: &str = "This system has no file dialog: neither a desktop portal nor zenity \
    answers.";
pub const NOT_TEXT: &str = "is no text in UTF-8, nor in another encoding. Save it as plain text \
    and open that.";
pub const SESSION_WITHOUT_TEXT: &str = "holds no text of a document. Open the document itself.";
pub const EMPTY_FILE: &str = "is empty. Choose a file with text in it.";
pub const EMPTY_FOLDER: &str = "holds no text: txt, md, html, pdf or docx.";

/// The shortcuts, as the window lists them.
pub const SHORTCUT_LIST: [(&str, &str); 15] = [
    ("Ctrl O", "Open files"),
    ("Ctrl M", "Models"),
    ("Ctrl ,", "Settings"),
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

/// A document of several files.
pub fn title_of(titles: &[&str]) -> String {
    match titles {
        [] => String::new(),
        [one] => (*one).to_owned(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

/// Another file with what an open document has.
pub fn same_text(file: &str, open: &str) -> String {
    format!("{file} has the same text as {open}, which is open.")
}

pub fn too_many_files(found: usize, most: usize) -> String {
    format!("holds {} texts, and {} can be opened at once.", count(found), count(most))
}

/// A session's model, in few words.
pub fn model_of_session(words: &str) -> String {
    let path = std::path::Path::new(words);
    let name = path.is_absolute().then(|| path.file_name()).flatten();
    name.map_or(words.to_owned(), |name| name.to_string_lossy().into_owned())
}

pub fn locked(file: &str) -> String {
    format!("Another program downloads {file}; it is waited for.")
}

pub fn model_here(name: &str) -> String {
    format!("{name} is on this computer.")
}

pub fn in_line(place: usize) -> String {
    match place {
        0 => format!("{IN_LINE}, next"),
        n => format!("{IN_LINE}, place {}", n + 1),
    }
}

pub fn file_of_order(place: usize, title: &str) -> String {
    format!("{}. {title}", place + 1)
}

/// A verdict, with the number that decides.
pub fn verdict(verdict: &Verdict) -> String {
    let place = match verdict.place {
        Place::Memory => "memory",
        Place::Device => "device memory",
        Place::Host => "main memory",
    };
    let (needed, available) = (bytes(verdict.needed), bytes(verdict.available));
    match verdict.fit {
        Fit::Yes => format!("Fits: {needed} of {available} {place}"),
        Fit::Tight => format!("Tight: {needed} of {available} {place}"),
        Fit::No => format!("Does not fit: {needed} needed, {available} of {place}"),
        Fit::Unknown => format!("Needs {needed} of {place}"),
    }
}

pub fn verdict_help() -> String {
    format!(
        "The model, and what it keeps in memory of a document of {}. The memory is what was free \
         when the device was opened.",
        tokens(VERDICT_TOKENS as usize)
    )
}

pub fn offer(n_files: usize, size: u64, present: u64, license: Option<&str>) -> String {
    let files = if n_files == 1 { "1 file".to_owned() } else { format!("{n_files} files") };
    let license = license.unwrap_or("not stated");
    let here =
        if present > 0 { format!(", {} here already", bytes(present)) } else { String::new() };
    format!("{}, {files}{here}. Licence: {license}.", bytes(size))
}

pub fn suggested(size: u64, license: &str) -> String {
    format!("about {}, {license}", bytes(size))
}

pub fn pulling(done: u64, size: u64, speed: u64) -> String {
    let speed = if speed > 0 { format!(", {}/s", bytes(speed)) } else { String::new() };
    format!("{} of {}{speed}", bytes(done), bytes(size))
}

/// A size as the window shows it.
pub fn size(n: u64) -> String {
    bytes(n)
}

/// What was left out at most, and how sure that is.
pub fn left_out(left_out: &LeftOut) -> String {
    let most = percent(left_out.most);
    if left_out.confidence < 1.0 {
        return format!(
            "At most {most} of the attention was left out, in 99 of 100 choices, with {} \
             confidence.",
            percent(left_out.confidence)
        );
    }
    format!("At most {most} of the attention was left out, for certain, in 99 of 100 choices.")
}

/// The button with all that can be done with a document.
pub fn more(name: &str) -> String {
    format!("{ACTIONS}: {name}")
}

/// The library, and what it takes on the disk.
pub fn library(size: u64) -> String {
    if size == 0 { LIBRARY.to_owned() } else { format!("{LIBRARY}, {}", bytes(size)) }
}

/// What was read of a document of the library, and what that takes.
pub fn kept(n_tokens: usize, size: u64) -> String {
    match n_tokens {
        0 => NOT_READ.to_owned(),
        n => format!("{}, {}", tokens(n), bytes(size)),
    }
}

/// Who read it, and when it was used last.
pub fn kept_by(model: Option<&str>, used_unix_s: u64, is_pinned: bool) -> String {
    // The publisher of a model is on its page; here is little room.
    let model = model.map(|name| name.rsplit('/').next().unwrap_or(name).to_owned());
    let parts = [Some(date(used_unix_s)), is_pinned.then(|| PINNED.to_owned()), model];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
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

pub fn plan_disk_short_of(needed: u64, free: u64) -> String {
    format!(
        "About {} are needed on the disk, and {} are free: it can be read and asked, and is not \
         kept.",
        bytes(needed),
        bytes(free)
    )
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
        return format!("Looked at all {} in each step.", tokens(context));
    }
    format!(
        "Looked at {} of {} a step ({share}); {} left out.",
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

/// Where settings are that could not be understood.
pub fn settings_aside(path: &str) -> String {
    format!("What was there is kept in {path}")
}

pub fn exported(path: &str) -> String {
    format!("Saved as {path}.")
}

pub fn device_share(device: u64, host: u64) -> String {
    format!(
        "As of the last answer. The device holds {} of what main memory does.",
        percent(device as f64 / host.max(1) as f64)
    )
}

pub fn hits(rate: f64) -> String {
    format!("{} of the chosen tokens were on the device.", percent(rate))
}

/// A choice of tokens: its name, and what it does.
pub fn policy(preset: Preset) -> (&'static str, &'static str) {
    match preset {
        Preset::Longview => (
            "Longview",
            "Finds what matters for each word of the answer, token by token, and counts the rest \
             by its averages. Right for most documents.",
        ),
        Preset::Clusterkv => (
            "Groups (ClusterKV)",
            "Puts tokens that are alike into groups, and looks at the groups that fit best.",
        ),
        Preset::Quest => (
            "Pages (Quest)",
            "Cuts the document into small pages, and looks at the pages that fit best.",
        ),
        Preset::StreamingLlm => (
            "Beginning and end (StreamingLLM)",
            "Looks at the first and the last tokens alone. What stands between is not found: it \
             shows what choosing is good for.",
        ),
        Preset::Full => (
            "Everything (full attention)",
            "Looks at all tokens in each step: the slowest, and leaves nothing out.",
        ),
        other => (other.name(), other.info().description),
    }
}

/// The map in words; counts are by the number of a token's place.
pub fn map_summary(layer: usize, head: usize, counts: &[usize; 7], cell: usize) -> String {
    let attended: usize = [1, 2, 3, 4, 6].iter().map(|kind| counts[*kind]).sum();
    let all: usize = counts.iter().sum();
    let one = if cell == 1 { "one token".to_owned() } else { tokens(cell) };
    format!(
        "Layer {layer}, head {head}: the last step looked at {} of {}. A cell is {one}.",
        count(attended),
        tokens(all)
    )
}

/// A message of another part of the program as a sentence of the window. Names and paths in front
/// stay as they are, and numbers of errors, which say nothing to a reader, go.
pub fn sentence(message: &str) -> String {
    let message = without_number(message);
    let message = message.as_str();
    let mut letters = message.chars();
    let first = message.split(' ').next().unwrap_or_default();
    let is_word = first.chars().all(|letter| letter.is_ascii_lowercase());
    let mut sentence = match letters.next() {
        Some(letter) if is_word => format!("{}{}", letter.to_ascii_uppercase(), letters.as_str()),
        _ => message.to_owned(),
    };
    if sentence.ends_with(|end: char| end.is_alphanumeric() || end == ')') {
        sentence.push('.');
    }
    sentence
}

/// The words of the system without ` (os error 2)`.
fn without_number(message: &str) -> String {
    let Some((before, rest)) = message.split_once(" (os error ") else { return message.to_owned() };
    match rest.split_once(')') {
        Some((number, after)) if number.parse::<i32>().is_ok() => format!("{before}{after}"),
        _ => message.to_owned(),
    }
}

/// What a failure means, and what to do about it.
pub fn failure(kind: FailureKind) -> (&'static str, &'static str) {
    match kind {
        FailureKind::EngineStopped => (
            "The engine stopped",
            "Your questions and answers are still here. Start the engine again to go on; the \
             document is then read again.",
        ),
        FailureKind::NoDevice => (
            "This device cannot be used",
            "Choose another one in the settings. Automatic takes the best that there is.",
        ),
        FailureKind::DeviceLost => (
            "The device was lost",
            "Ask again: the device is opened anew, and the document is still there.",
        ),
        FailureKind::OutOfMemory => (
            "Out of memory",
            "Choose a shorter document or a smaller model, close other programs, or raise the \
             limit of device memory in Settings, Advanced, if you have set one.",
        ),
        FailureKind::TooLong => {
            ("The document is too long for this model", "Choose a shorter one.")
        }
        FailureKind::Model => (
            "This model cannot be used",
            "Choose another one: a model that Models suggests, a Hugging Face folder in \
             safetensors, or a GGUF file.",
        ),
        FailureKind::NotKept => (
            "The library has a problem",
            "What is open can be asked about. What is not kept has to be read again at the next \
             start.",
        ),
        FailureKind::NoLibrary => {
            ("Documents are not kept", "They can be read and asked until the window is closed.")
        }
        FailureKind::Damaged => (
            "The library is damaged",
            "To repair it moves what is damaged aside and keeps all else. If a document is gone \
             then, open the file again that it came from.",
        ),
        FailureKind::NotSaved => (
            "Settings and questions cannot be saved",
            "They are there until the window is closed. Look whether the disk is full, and whether \
             Longview may write to that folder. Then try again.",
        ),
        FailureKind::Settings => {
            ("The settings could not be understood", "They are as at the first start.")
        }
        FailureKind::NoModels => {
            ("Models cannot be downloaded", "Mend that, and start Longview again. All else works.")
        }
        FailureKind::NoDialog => (
            "No file can be chosen here",
            "Drop files or a folder onto this window, or name them when you start it: \
             longview-desktop FILE.",
        ),
        FailureKind::PortTaken => (
            "The library is not served",
            "Choose another port in the settings, or end that program, and switch it on again.",
        ),
        FailureKind::NotServed => (
            "The library is not served",
            "Look at port and key in the settings, and switch it on again.",
        ),
        FailureKind::File => ("The file cannot be used", ""),
        FailureKind::BadInput => ("This does not work", ""),
        FailureKind::Other => ("Something failed", "Try again."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_sentences() {
        assert_eq!(sentence("the device has no room"), "The device has no room.");
        assert_eq!(sentence("a/b.txt: is no text."), "a/b.txt: is no text.");
        assert_eq!(sentence("cuda: no driver (libcuda)"), "cuda: no driver (libcuda).");
        assert_eq!(sentence("a.txt: No such file (os error 2)"), "a.txt: No such file.");
        assert_eq!(sentence("a.txt: no (os error x)"), "a.txt: no (os error x).");
        assert_eq!(sentence(""), "");
    }
}
