//! What the commands of a chat do.

use std::path::Path;

use anyhow::{Result, anyhow, bail};
use longview_core::FileSource;
use longview_engine::CancelToken;
use longview_ops::Backend;
use longview_scheduler::SessionFile;

use super::commands::{self, Command};
use super::source::Source;
use super::{Chat, Next, settings};
use crate::failure::{Interrupted, describe};
use crate::out::{listing, note};
use crate::run::prompt;
use crate::run::report::print_turn;
use crate::run::saved::{self, Note, SavedSession};
use crate::units;

impl<B: Backend> Chat<'_, B> {
    /// Does what a command says. What a command cannot do it says, and changes nothing.
    pub fn act(&mut self, command: Command, source: &mut Source) -> Result<Next> {
        let done = match command {
            Command::Bye => return Ok(Next::Leave),
            // An answer fails for other reasons than a command does.
            Command::Retry => return self.retry().map(|()| Next::Turn),
            Command::Help => {
                listing(commands::help());
                Ok(())
            }
            Command::Stats => {
                self.print_stats();
                Ok(())
            }
            Command::Clear => self.clear(),
            Command::Undo => self.undo(),
            Command::Save(path) => self.save(&path, source),
            Command::Load(path) => self.load(&path),
            Command::Set(change) => self.set(change),
            Command::System(text) => self.set_system(text),
        };
        if let Err(error) = done {
            self.n_asked += 1;
            self.fail(&describe(&error));
        }
        Ok(Next::Turn)
    }

    fn clear(&mut self) -> Result<()> {
        self.talk.turns.clear();
        self.unanswered = None;
        self.settle()?;
        let kept = match self.session.n_tokens() {
            0 => "the chat begins anew".to_owned(),
            n => {
                format!("the chat begins anew; the document's {} tokens stay read", units::count(n))
            }
        };
        note(kept);
        Ok(())
    }

    fn undo(&mut self) -> Result<()> {
        let taken_back = match (self.unanswered.take(), self.talk.turns.pop()) {
            // What has no answer is the last question.
            (Some(question), last) => {
                self.talk.turns.extend(last);
                question
            }
            (None, Some(turn)) => turn.question,
            (None, None) => bail!("/undo: nothing was asked yet"),
        };
        self.settle()?;
        note(format_args!("taken back: {}", beginning(&taken_back)));
        Ok(())
    }

    fn retry(&mut self) -> Result<()> {
        if let Some(question) = self.unanswered.take() {
            return self.ask(question);
        }
        let Some(last) = self.talk.turns.pop() else {
            self.n_asked += 1;
            self.fail("/retry: nothing was asked yet");
            return Ok(());
        };
        self.params.sampling.seed = self.params.sampling.seed.wrapping_add(1);
        if self.params.sampling.temperature == 0.0 {
            note("the temperature is 0, so the answer is the same; /set temp 0.8 varies it");
        }
        let n_turns = self.talk.turns.len();
        self.ask(last.question.clone())?;
        if self.talk.turns.len() == n_turns {
            // The answer that was there is better than none.
            self.talk.turns.push(last);
        }
        Ok(())
    }

    fn save(&mut self, path: &Path, source: &mut Source) -> Result<()> {
        let replaces = std::fs::metadata(path).is_ok();
        if replaces && !may_replace(path, source)? {
            bail!("/save: {} is there already and stays as it is", path.display());
        }
        let file = saved::prepare_as("/save", self.args, path, replaces)?;
        let document = self.document.document();
        let content = Note {
            document: (!document.is_empty()).then(|| document.to_owned()),
            conversation: Some(self.talk.clone()),
        };
        let (engine, session) = (&mut self.engine, &mut self.session);
        let came_from = self.args.session.as_deref();
        saved::write(engine, session, came_from, file, &content, (self.interrupt, false))
    }

    fn load(&mut self, path: &Path) -> Result<()> {
        let saved = SavedSession::open("/load", path)?;
        let cancel = CancelToken::default();
        let guard = self.interrupt.cancel_with(cancel.clone());
        saved.tell_lack("not kept: /save keeps it");
        let restored = saved.restore(self.args, &mut self.engine, None, None, &cancel);
        if guard.is_raised() {
            // Nothing of this chat has changed yet.
            let text = format!("{} is not opened; the chat stays as it was", path.display());
            note(Interrupted(text));
            return self.end_interrupted("");
        }
        drop(guard);
        let (session, text) = restored?;
        let document_ids = if text.document().is_empty() {
            Vec::new()
        } else {
            prompt::encode_document(self.args, &self.engine, &text)?
        };
        self.talk = text.talk().clone();
        (self.session, self.document, self.document_ids) = (session, text, document_ids);
        self.unanswered = None;
        note(format_args!(
            "{}: {} tokens, turns: {}",
            path.display(),
            units::count(self.session.n_tokens()),
            units::count(self.talk.turns.len())
        ));
        Ok(())
    }

    fn set(&mut self, change: Option<(String, String)>) -> Result<()> {
        let Some((name, value)) = change else {
            listing(settings::list(&self.params));
            return Ok(());
        };
        let defaults = self.engine.generation_defaults().clone();
        let said = settings::set(&mut self.params, &defaults, &name, &value);
        note(said.map_err(|reason| anyhow!(reason))?);
        Ok(())
    }

    fn set_system(&mut self, text: Option<String>) -> Result<()> {
        let Some(text) = text else {
            listing(self.talk.system.as_deref().unwrap_or("no system message"));
            return Ok(());
        };
        let new = (!text.is_empty()).then_some(text);
        let before = std::mem::replace(&mut self.talk.system, new);
        // A template may know no system messages.
        let ids = self.encode(Some("?")).and_then(|_| self.encode_document());
        match ids {
            Ok(ids) => self.document_ids = ids,
            Err(error) => {
                self.talk.system = before;
                return Err(error.context("/system: the system message stays as it was"));
            }
        }
        let n_before = self.session.n_tokens();
        self.settle()?;
        let n_lost = n_before.saturating_sub(self.session.n_tokens());
        note(match n_lost {
            0 => "the system message is set".to_owned(),
            n => format!(
                "the system message is set; what comes after it, {} tokens, is read again with \
                 the next question",
                units::count(n)
            ),
        });
        Ok(())
    }

    /// The tokens that every conversation about the document begins with.
    fn encode_document(&self) -> Result<Vec<u32>> {
        let document = self.document.document();
        if document.is_empty() {
            return Ok(Vec::new());
        }
        let text = prompt::PromptText::new(document.to_owned(), String::new(), self.talk.clone());
        prompt::encode_document(self.args, &self.engine, &text)
    }

    fn print_stats(&self) {
        note(format_args!(
            "context  {} of {} tokens, {} of them the document's; turns: {}",
            // The token that was sampled last may have no place.
            units::count(self.session.n_tokens().min(self.engine.options().ctx_size)),
            units::count(self.engine.options().ctx_size),
            units::count(self.document_ids.len().min(self.session.n_tokens())),
            units::count(self.talk.turns.len()),
        ));
        note("of the last turn:");
        print_turn(&**self.engine.backend(), &self.session);
    }
}

/// Whether the session that is at `path` may be replaced; anything else may not.
fn may_replace(path: &Path, source: &mut Source) -> Result<bool> {
    let shown = path.display();
    // Following a link, as writing does.
    let is_session =
        path.is_file() && FileSource::open(path).is_ok_and(|file| SessionFile::open(&file).is_ok());
    if !is_session {
        bail!("/save: {shown} is there already and is no session; choose another name");
    }
    source.confirms(&format!("{shown} is a saved session; replace it?"))
}

/// A question on one line.
fn beginning(text: &str) -> String {
    const MOST: usize = 60;
    let line = text.lines().next().unwrap_or_default();
    let start: String = line.chars().take(MOST).collect();
    if start.len() < text.len() { format!("{start}...") } else { start }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_question_is_named_by_its_beginning() {
        assert_eq!(beginning("Why?"), "Why?");
        assert_eq!(beginning("Why?\nBecause."), "Why?...");
        assert_eq!(beginning(&"x".repeat(99)).len(), 63);
    }
}
