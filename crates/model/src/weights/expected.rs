//! The tensors a config calls for: the one list of names, for the check and for loading.

use crate::config::ModelConfig;

/// The embedding, `[V, D]`.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
/// The norm after the last layer, `[D]`.
pub(crate) const FINAL_NORM: &str = "model.norm.weight";
/// The output projection, `[V, D]`, of an untied model.
pub(crate) const LM_HEAD: &str = "lm_head.weight";

/// A tensor that must be there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpectedTensor {
    /// Its name in the file.
    pub name: String,
    /// `[rows, cols]`, or `[n]` for a vector.
    pub shape: Vec<usize>,
}

impl ExpectedTensor {
    fn new(name: impl Into<String>, shape: &[usize]) -> Self {
        Self { name: name.into(), shape: shape.to_vec() }
    }
}

/// A linear layer's two tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearTensors {
    /// `[n_out, n_in]`.
    pub weight: ExpectedTensor,
    /// `[n_out]`.
    pub bias: Option<ExpectedTensor>,
}

/// The tensors of one decoder layer, by role.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the roles are named as in the published checkpoints")]
pub struct LayerTensors {
    pub input_norm: ExpectedTensor,
    pub q: LinearTensors,
    pub k: LinearTensors,
    pub v: LinearTensors,
    pub q_norm: Option<ExpectedTensor>,
    pub k_norm: Option<ExpectedTensor>,
    pub o: LinearTensors,
    pub post_norm: ExpectedTensor,
    pub gate: LinearTensors,
    pub up: LinearTensors,
    pub down: LinearTensors,
}

impl LayerTensors {
    fn into_list(self) -> Vec<ExpectedTensor> {
        let linears = [self.q, self.k, self.v, self.o, self.gate, self.up, self.down];
        let mut list = vec![self.input_norm, self.post_norm];
        list.extend(self.q_norm);
        list.extend(self.k_norm);
        for linear in linears {
            list.push(linear.weight);
            list.extend(linear.bias);
        }
        list
    }
}

/// The tensors of layer `layer`.
pub fn layer_tensors(config: &ModelConfig, layer: usize) -> LayerTensors {
    let (d, f) = (config.hidden_size, config.intermediate_size);
    let (q_width, kv_width) = (config.q_width(), config.kv_width());
    let named = |part: &str, shape: &[usize]| {
        ExpectedTensor::new(format!("model.layers.{layer}.{part}"), shape)
    };
    let linear = |part: &str, n_out, n_in, bias: bool| LinearTensors {
        weight: named(&format!("{part}.weight"), &[n_out, n_in]),
        bias: bias.then(|| named(&format!("{part}.bias"), &[n_out])),
    };
    let head_norm = |part: &str| config.qk_norm.then(|| named(part, &[config.head_dim]));
    LayerTensors {
        input_norm: named("input_layernorm.weight", &[d]),
        q: linear("self_attn.q_proj", q_width, d, config.qkv_bias),
        k: linear("self_attn.k_proj", kv_width, d, config.qkv_bias),
        v: linear("self_attn.v_proj", kv_width, d, config.qkv_bias),
        q_norm: head_norm("self_attn.q_norm.weight"),
        k_norm: head_norm("self_attn.k_norm.weight"),
        o: linear("self_attn.o_proj", d, q_width, config.o_bias),
        post_norm: named("post_attention_layernorm.weight", &[d]),
        gate: linear("mlp.gate_proj", f, d, config.mlp_bias),
        up: linear("mlp.up_proj", f, d, config.mlp_bias),
        down: linear("mlp.down_proj", d, f, config.mlp_bias),
    }
}

/// Every tensor of the model.
pub fn expected_tensors(config: &ModelConfig) -> Vec<ExpectedTensor> {
    let (d, v) = (config.hidden_size, config.vocab_size);
    let mut list =
        vec![ExpectedTensor::new(EMBEDDING, &[v, d]), ExpectedTensor::new(FINAL_NORM, &[d])];
    if !config.tie_word_embeddings {
        list.push(ExpectedTensor::new(LM_HEAD, &[v, d]));
    }
    list.extend((0..config.n_layers).flat_map(|l| layer_tensors(config, l).into_list()));
    list
}
