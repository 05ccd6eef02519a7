//! The device and the weights on it, which are in memory once however many engines there are.

use std::sync::{Arc, Mutex, PoisonError};

use longview_model::config::ModelConfig;
use longview_model::transformer::{LoadOptions, Model};
use longview_model::weights::TensorSet;
use longview_ops::Backend;

use crate::error::EngineError;

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
