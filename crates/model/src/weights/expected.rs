//! The tensors a config calls for: the one list of names, for the check and for loading.

use std::ops::Range;

use longview_core::LayerId;

use super::part::{ExpectedTensor, TensorPart, halves_of_neighbours, strided};
use crate::arch::{GateUpLayout, Layout, QkvLayout, RotaryPairs};
use crate::config::ModelConfig;

/// The norm after the last layer, `[D]`.
pub(crate) const FINAL_NORM: &str = "model.norm.weight";

/// A linear layer's two weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinearTensors {
    /// `[n_out, n_in]`.
    pub weight: TensorPart,
    /// `[n_out]`.
    pub bias: Option<TensorPart>,
}

/// The tensors of one decoder layer, by role.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the roles are explained in `arch::Layout`")]
pub struct LayerTensors {
    pub input_norm: ExpectedTensor,
    pub q: LinearTensors,
    pub k: LinearTensors,
    pub v: LinearTensors,
    pub q_norm: Option<ExpectedTensor>,
    pub k_norm: Option<ExpectedTensor>,
    pub o: LinearTensors,
    pub o_norm: Option<ExpectedTensor>,
    pub post_norm: ExpectedTensor,
    pub gate: LinearTensors,
    pub up: LinearTensors,
    pub down: LinearTensors,
    pub down_norm: Option<ExpectedTensor>,
}

impl LayerTensors {
    /// One entry for each weight: a tensor that holds several is there as often.
    fn into_list(self) -> Vec<ExpectedTensor> {
        let linears = [self.q, self.k, self.v, self.o, self.gate, self.up, self.down];
        let mut list = vec![self.input_norm, self.post_norm];
        let norms = [self.q_norm, self.k_norm, self.o_norm, self.down_norm];
        list.extend(norms.into_iter().flatten());
        for linear in linears {
            list.push(linear.weight.tensor);
            list.extend(linear.bias.map(|bias| bias.tensor));
        }
        list
    }
}

/// Names and shapes of one layer's tensors.
struct LayerNames<'a> {
    config: &'a ModelConfig,
    layout: &'static Layout,
    layer: LayerId,
    /// Rows stay in the order of the file: the order takes a list as long as the weight is wide.
    names_only: bool,
}

impl LayerNames<'_> {
    fn tensor(&self, part: &str, shape: &[usize]) -> ExpectedTensor {
        ExpectedTensor::new(format!("model.layers.{}.{part}", self.layer), shape)
    }

    /// A norm of the residual stream, or of what is added to it.
    fn norm(&self, part: &str) -> ExpectedTensor {
        self.tensor(&format!("{part}.weight"), &[self.config.hidden_size])
    }

    /// A norm over each head.
    fn head_norm(&self, part: &str) -> Option<ExpectedTensor> {
        let shape = &[self.config.head_dim];
        self.config.qk_norm.then(|| self.tensor(part, shape))
    }

    /// The whole of a linear layer of its own.
    fn linear(&self, part: &str, n_out: usize, n_in: usize, bias: bool) -> LinearTensors {
        LinearTensors {
            weight: TensorPart::whole(self.tensor(&format!("{part}.weight"), &[n_out, n_in])),
            bias: bias.then(|| TensorPart::whole(self.tensor(&format!("{part}.bias"), &[n_out]))),
        }
    }

    /// `rows` of a linear layer, of its weight as of its bias.
    fn rows(stored: &LinearTensors, rows: Vec<Range<usize>>) -> LinearTensors {
        let of = |part: &TensorPart| TensorPart { rows: rows.clone(), ..part.clone() };
        LinearTensors { weight: of(&stored.weight), bias: stored.bias.as_ref().map(of) }
    }

    fn qkv(&self) -> [LinearTensors; 3] {
        let config = self.config;
        let (d, bias) = (config.hidden_size, config.qkv_bias);
        let (q, kv) = (config.q_width(), config.kv_width());
        let [q, k, v] = match self.layout.qkv {
            QkvLayout::Apart(parts) => {
                let widths = [q, kv, kv];
                std::array::from_fn(|i| self.linear(parts[i], widths[i], d, bias))
            }
            QkvLayout::Stacked(part) => {
                let all = self.linear(part, q + 2 * kv, d, bias);
                let ranges = [0..q, q..q + kv, q + kv..q + 2 * kv];
                ranges.map(|range| Self::rows(&all, vec![range]))
            }
            QkvLayout::ByKvHead(part) => {
                let all = self.linear(part, q + 2 * kv, d, bias);
                let (g, dh, n) = (config.group_size(), config.head_dim, config.n_kv_heads);
                let runs = [(0, g * dh), (g * dh, dh), (g * dh + dh, dh)];
                runs.map(|(first, len)| Self::rows(&all, strided(first, len, (g + 2) * dh, n)))
            }
        };
        [self.rotated(q), self.rotated(k), v]
    }

    /// q or k with its rows in the order in which the `rope` op takes them.
    fn rotated(&self, linear: LinearTensors) -> LinearTensors {
        if self.names_only || self.layout.pairs == RotaryPairs::Halves {
            return linear;
        }
        let (head_dim, rotary_dim) = (self.config.head_dim, self.config.rope.rotary_dim);
        let rows = linear.weight.rows.clone();
        Self::rows(&linear, halves_of_neighbours(rows, head_dim, rotary_dim))
    }

    fn gate_up(&self) -> [LinearTensors; 2] {
        let (d, f) = (self.config.hidden_size, self.config.intermediate_size);
        let bias = self.config.mlp_bias;
        match self.layout.gate_up {
            GateUpLayout::Apart(parts) => parts.map(|part| self.linear(part, f, d, bias)),
            GateUpLayout::Stacked(part) => {
                let all = self.linear(part, 2 * f, d, bias);
                [0..f, f..2 * f].map(|range| Self::rows(&all, vec![range]))
            }
        }
    }
}

/// The tensors that `layer` is made of, by role.
pub fn layer_tensors(config: &ModelConfig, layer: LayerId) -> LayerTensors {
    of_layer(config, layer, false)
}

/// The same with the rows of q and k in the order of the file.
pub(crate) fn stored_layer_tensors(config: &ModelConfig, layer: LayerId) -> LayerTensors {
    of_layer(config, layer, true)
}

fn of_layer(config: &ModelConfig, layer: LayerId, names_only: bool) -> LayerTensors {
    let layout = &config.architecture.traits().layout;
    let names = LayerNames { config, layout, layer, names_only };
    let (d, f) = (config.hidden_size, config.intermediate_size);
    let [q, k, v] = names.qkv();
    let [gate, up] = names.gate_up();
    LayerTensors {
        input_norm: names.norm(layout.input_norm),
        q,
        k,
        v,
        q_norm: names.head_norm("self_attn.q_norm.weight"),
        k_norm: names.head_norm("self_attn.k_norm.weight"),
        o: names.linear(layout.o, d, config.q_width(), config.o_bias),
        o_norm: layout.o_norm.map(|part| names.norm(part)),
        post_norm: names.norm(layout.post_norm),
        gate,
        up,
        down: names.linear(layout.down, d, f, config.mlp_bias),
        down_norm: layout.down_norm.map(|part| names.norm(part)),
    }
}

/// The tensor of every weight of the model: one that holds several is there as often.
pub(crate) fn weight_tensors(config: &ModelConfig) -> Vec<ExpectedTensor> {
    let (d, v) = (config.hidden_size, config.vocab_size);
    let layout = &config.architecture.traits().layout;
    let mut list =
        vec![ExpectedTensor::new(layout.embedding, &[v, d]), ExpectedTensor::new(FINAL_NORM, &[d])];
    if !config.tie_word_embeddings {
        list.push(ExpectedTensor::new(layout.lm_head, &[v, d]));
    }
    list.extend(
        (0..config.n_layers as u32).flat_map(|l| of_layer(config, LayerId(l), true).into_list()),
    );
    list
}

/// Every tensor of the model, sorted by name.
pub fn expected_tensors(config: &ModelConfig) -> Vec<ExpectedTensor> {
    let mut list = weight_tensors(config);
    list.sort_by(|a, b| a.name.cmp(&b.name));
    list.dedup();
    list
}
