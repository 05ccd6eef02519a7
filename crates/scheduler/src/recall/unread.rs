//! What a step left unread of a layer's clusters follows from these.

use longview_ops::Backend;

use super::selector::Selector;
use crate::index::LayerIndex;
use crate::layout::SelectionId;

/// The clusters of a layer, and what was selected of them for one token.
pub(crate) struct Unread<'a, B: Backend> {
    pub clusters: &'a LayerIndex<B>,
    pub selector: &'a Selector<B>,
    pub selection: SelectionId,
}
