//! What the window shows, and what a person can do to it: the words that views and the app share.

use eframe::egui::ThemePreference;
use longview_library::documents::Id;

use crate::document::{Document, Stage, Target};
use crate::engine::{DocumentId, Failure, ModelInfo, ModelSource, Serve, Serving};
use crate::files::{KeptDocument, Piece, Purpose};
use crate::models::Models;
use crate::settings::Settings;

/// What a person did.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Asks for files to open.
    OpenFile,
    /// Asks for a folder whose texts become one document.
    OpenFolder,
    /// Asks for files to stand behind what a document has.
    AddFiles(DocumentId),
    /// Opens these files as one document, in this order, or adds them to one.
    OpenAsOne(Purpose, Vec<Piece>),
    /// Opens each of these files by itself.
    OpenEach(Vec<Piece>),
    /// Opens the sample document.
    OpenSample,
    /// Opens a document of the library.
    OpenKept(Id),
    /// Calls a document of the library so.
    Rename(Id, String),
    /// Lets what was read of it stay, or not.
    Pin(Id, bool),
    /// Removes what was read of it; its text stays.
    FreeSpace(Id),
    /// Removes it.
    Delete(Id),
    /// Shows a question about the library, or none.
    ShowDialog(Option<Dialog>),
    /// Shows a document.
    Select(DocumentId),
    /// Closes one.
    CloseDocument(DocumentId),
    /// Reads the document that is shown, or what is left of it.
    Read,
    /// Keeps what was read of the document that is shown, which could not be kept before.
    KeepAgain,
    /// Saves settings and conversations, which could not be saved before.
    SaveAgain,
    /// Takes a document out of the line of those that are to be read.
    LeaveLine(DocumentId),
    /// Lets reading wait, or go on.
    Pause(bool),
    /// Ends reading; what was read stays.
    StopReading,
    /// Asks what was typed.
    Ask,
    /// Changes the question of this exchange, or no longer.
    Edit(Option<usize>),
    /// Asks the question of this exchange again.
    AskAgain(usize),
    /// Asks it with all tokens attended.
    Compare(usize),
    /// The budget was changed: the last question is asked again.
    AskLastAgain,
    /// Ends the answer.
    StopAnswer,
    /// Puts a text on the clipboard.
    Copy(String),
    /// Saves the conversation.
    Export,
    /// Shows a passage of an answer: exchange, reply and rank.
    ShowPassage(usize, usize, usize),
    /// Goes to the next passage.
    NextPassage,
    /// Scrolls the document.
    Scroll(Target),
    /// Gives the question the keyboard.
    FocusQuestion,
    /// Shows a part of a narrow window.
    ShowPane(Pane),
    /// Shows something beside the document.
    ShowSide(Side),
    /// Shows the list of shortcuts, or not.
    ShowShortcuts(bool),
    /// Light, dark, or as the system has it.
    Theme(ThemePreference),
    /// Asks the hub what a model is, or looks at one on this computer.
    Look(String),
    /// Ends that look.
    CancelLook,
    /// Asks for a model on this computer: for a folder, or for a file.
    ChooseModel(bool),
    /// Downloads the model that is looked at.
    Pull,
    /// Ends its download.
    CancelPull,
    /// Reads and answers with this model from now on.
    UseModel(ModelSource),
    /// Removes a model of the cache, by its name.
    DeleteModel(String),
    /// Takes what was chosen in the settings.
    Choose(Box<Settings>),
    /// Serves the library to other programs from now on, or no longer.
    Serve(Serve),
    /// Starts an engine in place of one that ended.
    Restart,
    /// Moves aside what is damaged in the library.
    Repair,
    /// Removes a message.
    Dismiss(usize),
}

/// What a narrow window shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pane {
    /// The list of documents.
    List,
    /// The document.
    Document,
    /// Questions and answers.
    Questions,
}

/// What is beside the document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Questions and answers.
    Answers,
    /// What was recalled.
    Recall,
}

/// What stands above the window until it is answered.
#[derive(Clone, Debug, PartialEq)]
pub enum Dialog {
    /// What a document is to be called; the name is being typed.
    Rename(Id, String),
    /// Whether what was read of it is to be removed: its name, and the bytes of that.
    FreeSpace(Id, String, u64),
    /// Whether it is to be removed.
    Delete(Id, String),
    /// Whether a model is to be removed: its name and bytes.
    DeleteModel(String, u64),
    /// In which order files become a document.
    Order(Purpose, Vec<Piece>),
    /// The models.
    Models,
    /// The settings, as they are being changed; whether all are shown.
    Settings(Box<Settings>, bool),
    /// Versions of what runs.
    About,
}

/// The engine as far as the window knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineState {
    /// It is being opened.
    Opening,
    /// It is there.
    Ready(ModelInfo),
    /// It ended.
    Gone,
}

/// A message above the document.
#[derive(Clone, Debug)]
pub struct Notice {
    /// To dismiss it.
    pub id: usize,
    /// What it is about.
    pub failure: Failure,
    /// Whether there is no engine after it.
    pub is_end: bool,
}

/// What the views share and change.
pub struct State {
    /// The engine.
    pub engine: EngineState,
    /// What is open, in the order in which it was opened.
    pub documents: Vec<Document>,
    /// What is in the library, that used last first.
    pub kept: Vec<KeptDocument>,
    /// What is looked for in the list.
    pub wanted: String,
    /// What stands above the window.
    pub dialog: Option<Dialog>,
    /// Documents that are to be read, the next one first.
    pub line: Vec<DocumentId>,
    /// Models, here and at the hub.
    pub models: Models,
    /// What was chosen.
    pub settings: Settings,
    /// Whether the library is served to other programs; `None` where there is none.
    pub serving: Option<Serving>,
    /// Which of the open documents is shown.
    pub current: Option<DocumentId>,
    /// Messages, oldest first.
    pub notices: Vec<Notice>,
    /// Tokens that a step may attend.
    pub budget: usize,
    /// Whether a person chose it.
    pub budget_is_chosen: bool,
    /// The layer and KV head of the map.
    pub map_place: (usize, usize),
    /// What a narrow window shows.
    pub pane: Pane,
    /// What is beside the document.
    pub side: Side,
    /// Whether the list of shortcuts is shown.
    pub shows_shortcuts: bool,
    /// Whether the question is to have the keyboard.
    pub focuses_question: bool,
    /// A short message, and until when it is shown.
    pub toast: Option<(String, f64)>,
}

impl State {
    /// The document that is shown.
    pub fn document(&mut self) -> Option<&mut Document> {
        let current = self.current?;
        self.documents.iter_mut().find(|document| document.id == current)
    }

    /// The model and the device, once they are there.
    pub fn model(&self) -> Option<&ModelInfo> {
        match &self.engine {
            EngineState::Ready(model) => Some(model),
            _ => None,
        }
    }

    /// Whether the engine works on something that the next question has to wait for.
    pub fn is_busy(&self) -> bool {
        self.documents
            .iter()
            .any(|document| matches!(document.stage, Stage::Reading(_)) || document.is_answering())
    }
}
