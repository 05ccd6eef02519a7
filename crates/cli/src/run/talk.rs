//! What was said in a chat: kept beside the session, because tokens alone do not say who spoke.

use longview_model::chat::ChatMessage;
use longview_model::document::first_turn;
use serde::{Deserialize, Serialize};

/// A question and its answer.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct Turn {
    /// What the user said.
    pub question: String,
    /// What the model said, as far as it came.
    pub answer: String,
}

/// A conversation, without the document that it is about.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct Talk {
    /// The system message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<String>,
    /// Oldest first.
    #[serde(default)]
    pub turns: Vec<Turn>,
}

impl Talk {
    /// All messages for the chat template, and `question` as the last one if there is one. The
    /// first question comes with the document.
    pub fn messages(&self, document: &str, question: Option<&str>) -> Vec<ChatMessage> {
        let mut messages: Vec<ChatMessage> =
            self.system.iter().map(|text| ChatMessage::new("system", text.as_str())).collect();
        let asked = self.turns.iter().map(|turn| (turn.question.as_str(), Some(&turn.answer)));
        let asked = asked.chain(question.map(|question| (question, None)));
        for (i, (question, answer)) in asked.enumerate() {
            let text =
                if i == 0 { first_turn(document, question, true) } else { question.to_owned() };
            messages.push(ChatMessage::new("user", text));
            messages.extend(answer.map(|answer| ChatMessage::new("assistant", answer.as_str())));
        }
        messages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_document_comes_with_the_first_question_alone() {
        let turn = |question: &str, answer: &str| Turn {
            question: question.into(),
            answer: answer.into(),
        };
        let mut talk = Talk { system: Some("Be brief.".into()), turns: vec![] };
        let said = |talk: &Talk, document: &str| -> Vec<String> {
            let messages = talk.messages(document, Some("Why?"));
            messages.into_iter().map(|m| format!("{}: {}", m.role, m.content)).collect()
        };
        assert_eq!(said(&talk, "Doc."), ["system: Be brief.", "user: Doc.\n\nWhy?"]);
        assert_eq!(said(&talk, ""), ["system: Be brief.", "user: Why?"]);
        talk.turns = vec![turn("Who?", "Anna.")];
        let expected =
            ["system: Be brief.", "user: Doc.\n\nWho?", "assistant: Anna.", "user: Why?"];
        assert_eq!(said(&talk, "Doc."), expected);
        assert_eq!(talk.messages("Doc.", None).len(), 3);
    }
}
