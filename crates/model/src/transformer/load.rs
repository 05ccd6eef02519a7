//! From checked tensors to weights on a device.

use longview_core::LayerId;
use longview_ops::{Activations, Backend};

use super::Model;
use super::layer::{Layer, LinearWeights};
use super::options::LoadOptions;
use crate::config::ModelConfig;
use crate::rope::RopeTable;
use crate::weights::{
    ExpectedTensor, FINAL_NORM, LinearTensors, LoadError, TensorPart, TensorSet, WeightRows,
    layer_tensors, weight_tensors,
};

impl<B: Backend> Model<B> {
    /// Hands every tensor to `backend`.
    ///
    /// `progress` hears the bytes handed over so far and the bytes in all, after each weight.
    pub fn load(
        backend: &B,
        config: &ModelConfig,
        tensors: &TensorSet,
        options: LoadOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, LoadError> {
        let LoadOptions { planned_context, activations } = options;
        config.check_context(planned_context)?;
        tensors.check(config)?;
        let total = tensors.weight_bytes(config);
        let on_device = tensors.device_bytes(config, &backend.capabilities().quant_types);
        backend.expect_weights(on_device, weight_tensors(config).len());
        let mut loader = Loader { backend, tensors, activations, done: 0, total, progress };
        let layout = &config.architecture.traits().layout;
        let embedding = loader.weight(layout.embedding)?;
        let local = config.local.as_ref();
        let layers = (0..config.n_layers as u32).map(|index| loader.layer(config, LayerId(index)));
        let layers = layers.collect::<Result<_, _>>()?;
        let untied = !config.tie_word_embeddings;
        let lm_head = untied.then(|| loader.weight(layout.lm_head)).transpose()?;
        Ok(Self {
            rope: RopeTable::new(&config.rope, planned_context),
            local_rope: local.map(|local| RopeTable::new(&local.rope, planned_context)),
            planned_context,
            embedding,
            layers,
            final_norm: loader.norm(config, FINAL_NORM)?,
            lm_head,
            config: config.clone(),
        })
    }
}

struct Loader<'a, B: Backend> {
    backend: &'a B,
    tensors: &'a TensorSet,
    activations: Activations,
    done: u64,
    total: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl<B: Backend> Loader<'_, B> {
    fn weight(&mut self, name: &str) -> Result<B::Weight, LoadError> {
        self.hand_over(self.tensors.whole_rows(name)?)
    }

    fn part(&mut self, part: &TensorPart) -> Result<B::Weight, LoadError> {
        self.hand_over(self.tensors.part_rows(part)?)
    }

    fn hand_over(&mut self, rows: WeightRows<'_>) -> Result<B::Weight, LoadError> {
        let bytes = rows.n_bytes() as u64;
        let weight = self.tensors.hand_over(self.backend, rows, self.activations)?;
        self.done += bytes;
        (self.progress)(self.done, self.total);
        Ok(weight)
    }

    /// The weights of a norm as they multiply.
    fn norm(&mut self, config: &ModelConfig, name: &str) -> Result<B::Weight, LoadError> {
        let rows = self.tensors.whole_rows(name)?;
        if !config.norm_plus_one {
            return self.hand_over(rows);
        }
        let weight = self.backend.load_weight(self.tensors.plus_one(name)?)?;
        self.done += rows.n_bytes() as u64;
        (self.progress)(self.done, self.total);
        Ok(weight)
    }

    fn optional_norm(
        &mut self,
        config: &ModelConfig,
        t: Option<ExpectedTensor>,
    ) -> Result<Option<B::Weight>, LoadError> {
        t.map(|tensor| self.norm(config, &tensor.name)).transpose()
    }

    fn linear(&mut self, tensors: LinearTensors) -> Result<LinearWeights<B>, LoadError> {
        let (n_out, n_in) = (tensors.weight.n_rows(), tensors.weight.tensor.shape[1]);
        let weight = self.part(&tensors.weight)?;
        let bias = tensors.bias.map(|bias| self.part(&bias)).transpose()?;
        Ok(LinearWeights { weight, bias, n_in, n_out })
    }

    fn layer(&mut self, config: &ModelConfig, layer: LayerId) -> Result<Layer<B>, LoadError> {
        let tensors = layer_tensors(config, layer);
        Ok(Layer {
            is_local: config.window(layer).is_some(),
            input_norm: self.norm(config, &tensors.input_norm.name)?,
            q: self.linear(tensors.q)?,
            k: self.linear(tensors.k)?,
            v: self.linear(tensors.v)?,
            q_norm: self.optional_norm(config, tensors.q_norm)?,
            k_norm: self.optional_norm(config, tensors.k_norm)?,
            o: self.linear(tensors.o)?,
            o_norm: self.optional_norm(config, tensors.o_norm)?,
            post_norm: self.norm(config, &tensors.post_norm.name)?,
            gate: self.linear(tensors.gate)?,
            up: self.linear(tensors.up)?,
            down: self.linear(tensors.down)?,
            down_norm: self.optional_norm(config, tensors.down_norm)?,
        })
    }
}
