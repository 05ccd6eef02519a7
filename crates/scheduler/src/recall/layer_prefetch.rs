//! Layer prefetch (InfiniGen): what a layer recalls is selected one layer ahead, by its query as
//! the input of the layer before predicts it.
//!
//! Inputs of neighbouring layers are near, because each layer adds little to the residual stream,
//! so the layer's own norm and projection of the input before give nearly its query. The selection
//! is there before the layer before attends, and the layer itself does not wait for it. A layer
//! whose predicted query nobody hands over, as the first one's, selects by its own.

/// Whether a layer's selection was made ahead, and for which step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LayerPrefetch {
    /// The tokens that the sequence had.
    selected_at: Option<usize>,
}

impl LayerPrefetch {
    /// The selection for the step of token `n_tokens` was made.
    pub fn note(&mut self, n_tokens: usize) {
        self.selected_at = Some(n_tokens);
    }

    /// Whether it was made for the step of token `n_tokens`; it serves one step.
    pub fn take(&mut self, n_tokens: usize) -> bool {
        self.selected_at.take() == Some(n_tokens)
    }

    /// Rows or buffers changed: the selection serves no step.
    pub fn forget(&mut self) {
        self.selected_at = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_selection_made_ahead_serves_its_own_step_once() {
        let mut prefetch = LayerPrefetch::default();
        assert!(!prefetch.take(0));
        prefetch.note(7);
        assert!(prefetch.take(7));
        assert!(!prefetch.take(7), "used");
        prefetch.note(8);
        assert!(!prefetch.take(9), "of another step");
        assert!(!prefetch.take(8), "and gone");
        prefetch.note(9);
        prefetch.forget();
        assert!(!prefetch.take(9));
    }
}
