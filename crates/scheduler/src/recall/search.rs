//! What one layer's query searches.

use longview_ops::{Backend, KvView};

use crate::index::{ClusterBounds, LayerIndex, LayerProjection};

/// What a layer's query searches.
pub(crate) struct Searched<'a, B: Backend> {
    /// Clusters, blocks or tokens.
    pub index: &'a LayerIndex<B>,
    /// Tokens inside of clusters, where selection has two stages.
    pub tokens: Option<&'a LayerIndex<B>>,
    /// What clusters are chosen by then.
    pub bounds: Option<&'a ClusterBounds<B>>,
    /// The space in which tokens are compared.
    pub projection: Option<&'a LayerProjection<B>>,
    /// The layer's KV rows, where kernels read them in place and keys have no codes.
    pub rows: Option<KvView<'a, B>>,
}
