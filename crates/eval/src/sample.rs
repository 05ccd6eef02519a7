//! What a task asks: one document and questions about it, as text.

use crate::score::Metric;

/// One document and its questions, as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// What is read first, up to where the first word of a question stands.
    pub document: String,
    /// The questions; each follows the document directly.
    pub questions: Vec<Question>,
    /// Whether the model's chat template is put around document and question.
    pub chat: bool,
}

/// A question about a document.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Question {
    /// What follows the document.
    pub ask: String,
    /// How the answer begins: part of the prompt, behind the chat template's mark.
    pub lead: String,
    /// What would be right; metrics say whether one or all are wanted.
    pub references: Vec<String>,
    /// Most tokens of the answer.
    pub max_new: usize,
    /// Texts that end the answer.
    pub stop: Vec<String>,
    /// How an answer is scored.
    pub metric: Metric,
    /// Where the answer lies, 0 for the start of the document, of tasks with one needle.
    pub depth: Option<f64>,
}
