//! Plain weights that become blocks while they are read, so that a model of 16 bits runs in 4 or 8.

use std::sync::Arc;

use longview_core::quant::QuantType;

use super::error::WeightsError;
use super::expected::weight_tensors;
use super::made::{MadeRows, RowForm};
use super::set::TensorSet;
use crate::config::ModelConfig;

impl TensorSet {
    /// From now on the matrices of `config` are handed over as blocks: of `ty`, or of a type near
    /// to it where llama.cpp takes that one too: embedding and output of 4 and 5 bits have 6 (a
    /// row of them decides about a token), and rows that are no whole blocks of 256 have blocks
    /// of 32.
    ///
    /// # Errors
    /// If a matrix is quantised already, or has rows that are no whole blocks of 32.
    pub fn quantize(&mut self, config: &ModelConfig, ty: QuantType) -> Result<(), WeightsError> {
        let layout = &config.architecture.traits().layout;
        for expected in weight_tensors(config) {
            let &[n_rows, n_cols] = &*expected.shape else { continue };
            let name = expected.name;
            let is_end = name == layout.embedding || name == layout.lm_head;
            let path = self.path.clone();
            let Some(tensor) = self.get_mut(&name) else { continue };
            if let Some(found) = tensor.quant_type() {
                if tensor.is_made() {
                    continue;
                }
                return Err(WeightsError::Quantised { path, name, ty: found });
            }
            let Some(dtype) = tensor.dtype else { continue };
            let Some(ty) = block_type(ty, is_end, n_cols) else {
                return Err(WeightsError::NoBlocks { path, name, n_cols });
            };
            let (stored, form) = (tensor.stored_at.clone(), RowForm::Blocks(ty));
            let (order, offset) = (None, 0.0);
            let rows = MadeRows { stored, dtype, form, n_rows, n_cols, order, offset };
            *tensor = tensor.clone().with_made_blocks(ty, Arc::new(rows));
        }
        Ok(())
    }
}

/// The type of a matrix in a model of `ty`, if one fits; `is_end`: it is the embedding or the
/// output.
pub(crate) fn block_type(ty: QuantType, is_end: bool, n_cols: usize) -> Option<QuantType> {
    fitting(if is_end { of_ends(ty) } else { ty }, n_cols)
}

/// The type of embedding and output beside layers of `ty`.
fn of_ends(ty: QuantType) -> QuantType {
    match ty {
        QuantType::Q8_0 | QuantType::Q6K => ty,
        _ => QuantType::Q6K,
    }
}

/// `ty`, or what takes its place where rows are no whole blocks of it.
fn fitting(ty: QuantType, n_cols: usize) -> Option<QuantType> {
    let smaller = match ty {
        QuantType::Q4K => QuantType::Q5_0,
        QuantType::Q5K => QuantType::Q5_1,
        QuantType::Q6K => QuantType::Q8_0,
        _ => ty,
    };
    [ty, smaller].into_iter().find(|ty| n_cols > 0 && n_cols.is_multiple_of(ty.block_len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::ModelFolder;
    use crate::testing::fixture;

    #[test]
    fn types_follow_what_a_row_allows() {
        assert_eq!(fitting(QuantType::Q4K, 1024), Some(QuantType::Q4K));
        assert_eq!(fitting(QuantType::Q4K, 576), Some(QuantType::Q5_0));
        assert_eq!(fitting(QuantType::Q6K, 576), Some(QuantType::Q8_0));
        assert_eq!(fitting(QuantType::Q8_0, 48), None);
        assert_eq!(of_ends(QuantType::Q4_0), QuantType::Q6K);
    }

    #[test]
    fn matrices_of_a_folder_become_blocks_once() {
        let mut folder = ModelFolder::open(&fixture("llama2-mha")).unwrap();
        let plain = folder.tensors.weight_bytes(&folder.config);
        for _ in 0..2 {
            folder.tensors.quantize(&folder.config, QuantType::Q8_0).unwrap();
        }
        let small = folder.tensors.device_bytes(&folder.config, &QuantType::ALL);
        assert!(100 * small < 54 * plain, "{small} of {plain} bytes of f16");
        assert_eq!(folder.tensors.device_bytes(&folder.config, &[]), plain);
    }
}
