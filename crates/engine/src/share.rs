//! Several engines over one device and one copy of the weights: two parts of a program, each with
//! sessions and buffers of its own, that take turns.

use std::sync::{Arc, Weak};

use longview_model::tokenizer::Tokenizer;
use longview_ops::Backend;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::home::Home;
use crate::options::EngineOptions;

/// Makes engines over the weights of one that is loaded, on any thread. It does not keep the
/// weights: they go with the last engine.
pub struct EngineShare<B: Backend> {
    home: Weak<Home<B>>,
    options: EngineOptions,
    eos_ids: Vec<u32>,
    tokenizer: Option<Tokenizer>,
}

impl<B: Backend> Engine<B> {
    /// What makes further engines over these weights.
    pub fn share(&self) -> EngineShare<B> {
        EngineShare {
            home: Arc::downgrade(&self.home),
            options: self.options.clone(),
            eos_ids: self.eos_ids.clone(),
            tokenizer: self.tokenizer().cloned(),
        }
    }
}

impl<B: Backend> EngineShare<B> {
    /// How the engine was set up whose weights these are.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// An engine over the same weights for steps of up to `max_sequences` sequences and
    /// `max_drafted` drafted tokens, set up as the first one otherwise: what one has read the other
    /// goes on from ([`Engine::fork`]). Its buffers for a step are its own; the weights are in
    /// memory once. It has no chat template. Only one of the engines may compute at a time: whoever
    /// has several lets them take turns.
    ///
    /// `None` if the engine is gone, and the weights with it.
    ///
    /// # Errors
    /// If the device has no memory for the buffers.
    pub fn engine(
        &self,
        max_sequences: usize,
        max_drafted: usize,
    ) -> Result<Option<Engine<B>>, EngineError> {
        let Some(home) = self.home.upgrade() else { return Ok(None) };
        let options = EngineOptions { max_sequences, max_drafted, ..self.options.clone() };
        Engine::over(home, options, self.eos_ids.clone(), self.tokenizer.clone()).map(Some)
    }
}
