//! Several engines over one device and one copy of the weights: two parts of a program, each with
//! sessions and buffers of its own, that take turns.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use longview_model::config::ModelConfig;
use longview_model::tokenizer::Tokenizer;
use longview_model::transformer::{LoadOptions, Model};
use longview_model::weights::TensorSet;
use longview_ops::Backend;

use crate::engine::Engine;
use crate::error::EngineError;
use crate::options::EngineOptions;

/// A device with the weights of a model on it.
type Loaded<B> = (Arc<B>, Arc<Model<B>>);

/// What engines have together.
pub(crate) struct Home<B: Backend> {
    now: Mutex<Loaded<B>>,
    /// Where the weights come from, for a device that was lost.
    tensors: TensorSet,
}

impl<B: Backend> Home<B> {
    pub(crate) fn new(backend: &Arc<B>, model: &Arc<Model<B>>, tensors: TensorSet) -> Self {
        Self { now: Mutex::new((Arc::clone(backend), Arc::clone(model))), tensors }
    }

    pub(crate) fn tensors(&self) -> &TensorSet {
        &self.tensors
    }

    /// The device and the model that whoever loaded last has loaded.
    pub(crate) fn now(&self) -> Loaded<B> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// A device that is not lost, with the model on it: what another engine has opened again, or
    /// opened again here.
    pub(crate) async fn revived(
        &self,
        config: &ModelConfig,
        load: LoadOptions,
    ) -> Result<Loaded<B>, EngineError> {
        let (lost, model) = self.now();
        if !lost.is_lost() {
            return Ok((lost, model));
        }
        let backend = Arc::new(lost.reopen().await?);
        let model = Model::load(&*backend, config, &self.tensors, load, &mut |_, _| {})?;
        let loaded = (backend, Arc::new(model));
        *self.now.lock().unwrap_or_else(PoisonError::into_inner) = loaded.clone();
        Ok(loaded)
    }
}

/// Makes engines over the weights of one that is loaded, on any thread. It does not keep the
/// weights: they go with the last engine.
pub struct EngineShare<B: Backend> {
    home: Weak<Home<B>>,
    options: EngineOptions,
    eos_ids: Vec<u32>,
    tokenizer: Option<Tokenizer>,
}

impl<B: Backend> EngineShare<B> {
    pub(crate) fn new(
        home: &Arc<Home<B>>,
        options: EngineOptions,
        eos_ids: Vec<u32>,
        tokenizer: Option<Tokenizer>,
    ) -> Self {
        Self { home: Arc::downgrade(home), options, eos_ids, tokenizer }
    }

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
