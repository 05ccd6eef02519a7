//! Which weights these are, without reading all of them: names, types and shapes of the tensors
//! that the model uses, and samples of each.
//!
//! A tensor of up to 64 KiB counts whole, of a larger one 16 windows of 4 KiB at even distances,
//! the first at its begin and the last at its end. So the digest of a model of 300 tensors reads
//! 20 MB, however large it is, and is the same in a browser that reads runs of bytes. Training
//! changes elements everywhere, so another checkpoint or a merged adapter has another digest. What
//! it does not see is a change of single elements between the windows: it tells models apart, and
//! does not guard against somebody who wants to deceive. How a checkpoint is cut into files does
//! not count.

use std::ops::Range;

use super::error::WeightsError;
use super::expected::expected_tensors;
use super::set::TensorSet;
use crate::config::ModelConfig;

/// Bytes of a window.
const WINDOW: usize = 4 << 10;
/// Windows of a tensor.
const N_WINDOWS: usize = 16;

/// The parts of a tensor of `len` bytes that count for [`TensorSet::digest`].
pub fn sample_windows(len: usize) -> impl Iterator<Item = Range<usize>> {
    let is_small = len <= WINDOW * N_WINDOWS;
    let (n, window) = if is_small { (1, len) } else { (N_WINDOWS, WINDOW) };
    let at = move |i: usize| ((len - window) as u64 * i as u64 / (N_WINDOWS as u64 - 1)) as usize;
    (0..n).map(move |i| at(i)..at(i) + window)
}

impl TensorSet {
    /// A BLAKE3 digest that tells these weights from others: of the tensors that `config` uses, in
    /// the order of their names, name, type, shape and the windows of [`sample_windows`].
    ///
    /// # Errors
    /// If a tensor is missing or of a type that is not read, which [`TensorSet::check`] finds
    /// first.
    pub fn digest(&self, config: &ModelConfig) -> Result<[u8; 32], WeightsError> {
        let mut names: Vec<String> = expected_tensors(config).into_iter().map(|t| t.name).collect();
        names.sort();
        names.dedup();
        let mut hasher = blake3::Hasher::new();
        for name in names {
            let (tensor, dtype) = self.readable(&name)?;
            let number = |n: usize| (n as u64).to_le_bytes();
            for text in [name.as_str(), dtype.name()] {
                hasher.update(&number(text.len())).update(text.as_bytes());
            }
            // Blocks that are made of these values are other weights.
            if let Some(ty) = tensor.quant_type().filter(|_| tensor.is_made()) {
                hasher.update(&number(ty.name().len())).update(ty.name().as_bytes());
            }
            hasher.update(&number(tensor.shape.len()));
            for n in &tensor.shape {
                hasher.update(&number(*n));
            }
            for window in sample_windows(tensor.stored_at.len()) {
                let read = |source| WeightsError::Read { path: self.path.clone(), source };
                let bytes = tensor.stored_at.aligned_runs(&[window], 1).map_err(read)?;
                hasher.update(bytes.as_ref());
            }
        }
        Ok(*hasher.finalize().as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use longview_core::quant::QuantType;

    use super::*;
    use crate::testing::{TempFolder, fixture};

    #[test]
    fn windows_are_even_and_reach_both_ends() {
        let windows = |len: usize| sample_windows(len).collect::<Vec<_>>();
        assert_eq!(windows(0), std::slice::from_ref(&(0..0)));
        assert_eq!(windows(65_536), std::slice::from_ref(&(0..65_536)));
        for len in [65_537, 1 << 20, (3 << 30) + 7] {
            let windows = windows(len);
            assert_eq!((windows.len(), windows[0].start, windows[15].end), (16, 0, len));
            assert!(windows.windows(2).all(|pair| pair[0].end <= pair[1].start), "{windows:?}");
            assert!(windows.iter().all(|window| window.len() == 4096));
        }
    }

    #[test]
    fn other_weights_have_another_digest() {
        let open = |folder: &std::path::Path| {
            let config = ModelConfig::open(&folder.join("config.json")).unwrap();
            TensorSet::open(folder).unwrap().digest(&config).unwrap()
        };
        let (one, other) = (open(&fixture("llama2-mha")), open(&fixture("llama-mqa")));
        assert_eq!(one, open(&fixture("llama2-mha")));
        assert_ne!(one, other);
        let folder = TempFolder::new();
        for file in ["config.json", "model.safetensors"] {
            std::fs::copy(fixture("llama2-mha").join(file), folder.path().join(file)).unwrap();
        }
        let config = ModelConfig::open(&fixture("llama2-mha").join("config.json")).unwrap();
        let mut tensors = TensorSet::open(&fixture("llama2-mha")).unwrap();
        tensors.quantize(&config, QuantType::Q8_0).unwrap();
        assert_ne!(one, tensors.digest(&config).unwrap(), "quantised at load");
        let path = folder.path().join("model.safetensors");
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert_ne!(one, open(folder.path()), "the last bit of the last tensor");
    }
}
