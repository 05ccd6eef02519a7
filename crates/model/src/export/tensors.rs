//! The tensors of a file: names, forms, and the rows that they are made of.

use std::sync::Arc;

use longview_core::LayerId;

use super::error::ExportError;
use super::types::{ExportType, ggml_type};
use crate::arch::{GateUpLayout, QkvLayout};
use crate::config::ModelConfig;
use crate::gguf::{GgmlType, GgufArch};
use crate::source::SharedSource;
use crate::weights::{
    FINAL_NORM, LayerTensors, LinearTensors, RowForm, TensorPart, TensorSet, WeightsError,
    stored_layer_tensors,
};

/// Divisors of frequencies, which files have as a tensor.
pub(super) struct Factors {
    pub(super) name: &'static str,
    pub(super) values: Vec<f64>,
}

/// A tensor that will be written.
pub(super) struct OutTensor {
    pub(super) name: String,
    pub(super) ty: GgmlType,
    /// Rows, then columns; one number for a vector.
    pub(super) shape: Vec<usize>,
    /// Its bytes, made when they are read.
    pub(super) source: SharedSource,
    /// Bytes of a row, or of some values of a vector: reads of whole ones cost least.
    pub(super) row_bytes: usize,
}

impl OutTensor {
    fn of_factors(factors: Factors) -> Self {
        let bytes = factors.values.iter().flat_map(|x| (*x as f32).to_le_bytes());
        let bytes: Vec<u8> = bytes.collect();
        OutTensor {
            name: factors.name.to_owned(),
            ty: GgmlType::F32,
            shape: vec![factors.values.len()],
            row_bytes: bytes.len(),
            source: Arc::new(bytes),
        }
    }
}

/// Every tensor of the file, in the order in which they are written.
pub(super) fn tensors(
    set: &TensorSet,
    config: &ModelConfig,
    arch: &'static GgufArch,
    ty: ExportType,
    factors: Vec<Factors>,
) -> Result<Vec<OutTensor>, ExportError> {
    let mut list = List { set, config, arch, ty, out: Vec::new() };
    list.out.extend(factors.into_iter().map(OutTensor::of_factors));
    let layout = &config.architecture.traits().layout;
    let (d, vocab) = (config.hidden_size, config.vocab_size);
    list.end("token_embd.weight", layout.embedding, [vocab, d])?;
    for layer in 0..config.n_layers as u32 {
        list.layer(layer)?;
    }
    list.norm("output_norm.weight", &TensorPart::of(FINAL_NORM, &[d]), config.norm_plus_one)?;
    if !config.tie_word_embeddings {
        list.end("output.weight", layout.lm_head, [vocab, d])?;
    }
    Ok(list.out)
}

struct List<'a> {
    set: &'a TensorSet,
    config: &'a ModelConfig,
    arch: &'static GgufArch,
    ty: ExportType,
    out: Vec<OutTensor>,
}

impl List<'_> {
    fn layer(&mut self, layer: u32) -> Result<(), ExportError> {
        let layout = &self.config.architecture.traits().layout;
        let parts = stored_layer_tensors(self.config, LayerId(layer));
        self.norms(layer, &parts)?;
        let LayerTensors { q, k, v, o, gate, up, down, .. } = parts;
        if let QkvLayout::Stacked(_) = layout.qkv {
            self.linear(layer, "attn_qkv", &whole(&q))?;
        } else {
            self.linear(layer, "attn_q", &q)?;
            self.linear(layer, "attn_k", &k)?;
            self.linear(layer, "attn_v", &v)?;
        }
        self.linear(layer, "attn_output", &o)?;
        if let GateUpLayout::Stacked(_) = layout.gate_up {
            self.linear(layer, "ffn_up", &whole(&gate))?;
        } else {
            self.linear(layer, "ffn_gate", &gate)?;
            self.linear(layer, "ffn_up", &up)?;
        }
        self.linear(layer, "ffn_down", &down)
    }

    fn norms(&mut self, layer: u32, parts: &LayerTensors) -> Result<(), ExportError> {
        let all = [
            ("attn_norm", Some(&parts.input_norm)),
            ("attn_q_norm", parts.q_norm.as_ref()),
            ("attn_k_norm", parts.k_norm.as_ref()),
            ("post_attention_norm", parts.o_norm.as_ref()),
            ("ffn_norm", Some(&parts.post_norm)),
            ("post_ffw_norm", parts.down_norm.as_ref()),
        ];
        for (part, tensor) in all {
            let Some(tensor) = tensor else { continue };
            let part = format!("blk.{layer}.{part}.weight");
            let rows = TensorPart::of(&tensor.name, &tensor.shape);
            self.norm(&part, &rows, self.config.norm_plus_one)?;
        }
        Ok(())
    }

    /// A norm, with the 1 that some checkpoints leave out.
    fn norm(&mut self, name: &str, part: &TensorPart, plus_one: bool) -> Result<(), ExportError> {
        let offset = if plus_one { 1.0 } else { 0.0 };
        self.add(name.to_owned(), part, RowForm::F32, &|row| row, offset)
    }

    /// Embedding or output.
    fn end(&mut self, name: &str, stored: &str, shape: [usize; 2]) -> Result<(), ExportError> {
        let part = TensorPart::of(stored, &shape);
        let form = self.matrix_form(&part, true)?;
        self.add(name.to_owned(), &part, form, &|row| row, 0.0)
    }

    fn linear(
        &mut self,
        layer: u32,
        part: &str,
        linear: &LinearTensors,
    ) -> Result<(), ExportError> {
        let head_dim = self.config.head_dim;
        let is_rotated = self.arch.interleaved && matches!(part, "attn_q" | "attn_k");
        let order = |row: usize| if is_rotated { neighbours(row, head_dim) } else { row };
        let form = self.matrix_form(&linear.weight, false)?;
        self.add(format!("blk.{layer}.{part}.weight"), &linear.weight, form, &order, 0.0)?;
        let Some(bias) = &linear.bias else { return Ok(()) };
        self.add(format!("blk.{layer}.{part}.bias"), bias, RowForm::F32, &order, 0.0)
    }

    fn matrix_form(&self, part: &TensorPart, is_end: bool) -> Result<RowForm, WeightsError> {
        let n_cols = part.tensor.shape.last().copied().unwrap_or(0);
        self.ty.form(is_end, n_cols).ok_or_else(|| WeightsError::NoBlocks {
            path: self.set.path().to_owned(),
            name: part.tensor.name.clone(),
            n_cols,
        })
    }

    fn add(
        &mut self,
        name: String,
        part: &TensorPart,
        form: RowForm,
        order: &dyn Fn(usize) -> usize,
        offset: f32,
    ) -> Result<(), ExportError> {
        let rows = self.set.made_rows(part, form, order, offset)?;
        let mut shape = part.tensor.shape.clone();
        shape[0] = part.n_rows();
        let (ty, row_bytes) = (ggml_type(form), rows.row_bytes());
        self.out.push(OutTensor { name, ty, shape, source: Arc::new(rows), row_bytes });
        Ok(())
    }
}

/// All rows of the tensor that a part is of.
fn whole(linear: &LinearTensors) -> LinearTensors {
    let of = |part: &TensorPart| TensorPart::of(&part.tensor.name, &part.tensor.shape);
    LinearTensors { weight: of(&linear.weight), bias: linear.bias.as_ref().map(of) }
}

/// Which row of a head of Hugging Face, whose halves rotate against each other, is row `row` of a
/// file, where neighbours do.
fn neighbours(row: usize, head_dim: usize) -> usize {
    let at = row % head_dim;
    row - at + at % 2 * (head_dim / 2) + at / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_become_neighbours() {
        let rows: Vec<usize> = (0..12).map(|row| neighbours(row, 6)).collect();
        assert_eq!(rows, [0, 3, 1, 4, 2, 5, 6, 9, 7, 10, 8, 11]);
    }
}
