//! What one layer's query searches, and what it ranks.

use longview_ops::{Backend, Listed, View};

use crate::index::{LayerIndex, LayerProjection};

/// What a layer's query searches.
pub(crate) struct Searched<'a, B: Backend> {
    /// Clusters, blocks or tokens.
    pub index: &'a LayerIndex<B>,
    /// Tokens inside of clusters, where selection has two stages.
    pub tokens: Option<&'a LayerIndex<B>>,
    /// The space in which tokens are compared.
    pub projection: Option<&'a LayerProjection<B>>,
}

/// What the stages of a search share.
pub(crate) struct Scratch<'a, B: Backend> {
    pub scores: &'a mut B::Buffer,
    /// Scores from one KV head to the next.
    pub stride: usize,
    /// Tokens that each KV head may recall.
    pub budgets: &'a [u32],
}

/// What a query ranks: clusters, blocks or tokens.
pub(crate) struct Ranked<'a, B: Backend> {
    pub q: View<'a, B>,
    pub n_tokens: usize,
    pub q_index: usize,
    pub width: usize,
    pub centroids: View<'a, B>,
    pub centroid_sizes: View<'a, B>,
    /// Centroids from one head to the next.
    pub centroid_stride: usize,
    /// Which of the centroids are ranked; else all.
    pub listed: Option<Listed<'a, B>>,
    /// Of what is ranked: entries of the list, if there is one.
    pub n_clusters: View<'a, B>,
}
