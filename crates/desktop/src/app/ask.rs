//! Questions, their answers, and where these stand.

use std::sync::Arc;

use super::App;
use crate::document::{Exchange, Reply};
use crate::engine::{Attention, Command, Question};
use crate::state::{Pane, Side};
use crate::{export, files};

impl App {
    /// Asks what was typed: a new question, or one that was changed.
    pub(super) fn ask(&mut self) {
        let attention = Attention::Budget(self.state.budget);
        let Some(document) = self.state.document() else { return };
        let question = document.draft.trim().to_owned();
        if question.is_empty() || document.read_state().is_none() || document.is_answering() {
            return;
        }
        document.draft = std::mem::take(&mut document.set_aside);
        let exchange = Exchange { question, replies: Vec::new() };
        let n = document.conversation.len();
        let at = document.editing.take().filter(|at| *at < n).unwrap_or(n);
        if at < n {
            document.conversation[at] = exchange;
        } else {
            document.conversation.push(exchange);
        }
        self.ask_in(at, attention);
    }

    /// Asks what the command line says.
    pub(super) fn ask_first(&mut self) {
        let Some(question) = self.asks.take() else { return };
        if let Some(document) = self.state.document() {
            document.draft = question;
            self.ask();
        }
    }

    /// Lets a question be changed where questions are typed, or leaves it as it is.
    pub(super) fn edit(&mut self, at: Option<usize>) {
        let Some(document) = self.state.document() else { return };
        let was_editing = std::mem::replace(&mut document.editing, at).is_some();
        let exchange = at.and_then(|at| document.conversation.get(at));
        match exchange.map(|exchange| exchange.question.clone()) {
            Some(question) => {
                let typed = std::mem::replace(&mut document.draft, question);
                // A question that is half typed comes back behind the one that is changed.
                if !was_editing {
                    document.set_aside = typed;
                }
            }
            None => document.draft = std::mem::take(&mut document.set_aside),
        }
        (self.state.pane, self.state.side) = (Pane::Questions, Side::Answers);
        self.state.focuses_question = true;
    }

    /// Asks the question of an exchange. An answer of the same kind is replaced.
    pub(super) fn ask_in(&mut self, at: usize, attention: Attention) {
        self.asks_again = None;
        let map = self.state.map_place;
        let Some(document) = self.state.document() else { return };
        if document.read_state().is_none() || document.is_answering() {
            return;
        }
        let (id, exchange) = (document.id, document.conversation.get(at));
        let Some(text) = exchange.map(|exchange| exchange.question.clone()) else { return };
        let question = Question { text, attention, map };
        document.history.clear();
        let task = self.send(id, Command::Ask(id, question));
        let Some(exchange) = self.state.document().and_then(|d| d.conversation.get_mut(at)) else {
            return;
        };
        let is_full = attention == Attention::Full;
        let is_same = |reply: &Reply| (reply.attention == Attention::Full) == is_full;
        let before = exchange.replies.iter().position(is_same).map(|i| exchange.replies.remove(i));
        let before = before.filter(|reply| reply.answer.is_some()).map(Box::new);
        let reply = Reply { before, ..Reply::new(attention, task) };
        exchange.replies.insert(if is_full { exchange.replies.len() } else { 0 }, reply);
    }

    pub(super) fn ask_last_again(&mut self) {
        let attention = Attention::Budget(self.state.budget);
        let Some(document) = self.state.document() else { return };
        let Some(last) = document.conversation.len().checked_sub(1) else { return };
        if !document.is_answering() {
            return self.ask_in(last, attention);
        }
        let replies = &document.conversation[last].replies;
        // Full attention has no budget: such an answer is not disturbed.
        if replies.iter().any(|r| r.task.is_some() && r.attention != Attention::Full) {
            let id = document.id;
            self.stop_answer();
            self.asks_again = Some(id);
        }
    }

    pub(super) fn stop_answer(&mut self) {
        self.asks_again = None;
        let Some(document) = self.state.document() else { return };
        let task = document.replies_mut().filter_map(|reply| reply.task).max();
        if let Some(task) = task {
            self.worker.stop(task);
        }
    }

    pub(super) fn show_passage(&mut self, exchange: usize, reply: usize, rank: usize) {
        self.state.pane = Pane::Document;
        let Some(document) = self.state.document() else { return };
        let reply = document.conversation.get(exchange).and_then(|e| e.replies.get(reply));
        let passages = reply.and_then(|reply| reply.answer.as_ref()).map(|a| a.passages.clone());
        document.show_passages(&passages.unwrap_or_default(), rank);
    }

    pub(super) fn next_passage(&mut self) {
        let Some(document) = self.state.document() else { return };
        let marks = std::mem::take(&mut document.marks);
        let next = document.mark.map_or(0, |rank| rank + 1) % marks.len().max(1);
        document.show_passages(&marks, next);
    }

    pub(super) fn export(&mut self) {
        let Some(document) = self.state.document() else { return };
        if document.last_answer().is_none() {
            return;
        }
        let (text, dialogs) = (export::markdown(document), Arc::clone(&self.dialogs));
        let name = export::file_name(&document.title);
        self.outbox.later(move || match dialogs.save(&name) {
            Ok(path) => Some(files::write(&path?, &text)),
            // Among the user's documents, and the window says where.
            Err(no_dialog) => Some(match dialogs.place() {
                Some(folder) => files::write(&export::free_path(&folder, &name), &text),
                None => no_dialog.told(),
            }),
        });
    }
}
