//! What the host knows of the clusters of one KV head.

use super::shared_bytes::with_its_room;

/// The clusters of one KV head, in the order of their rows in the host store. What describes them
/// to queries is in the index ([`super::LayerIndex::landmarks`]).
#[derive(Debug, Default)]
pub struct HeadIndex {
    /// First row of each cluster.
    pub starts: Vec<u32>,
    /// Rows of each cluster.
    pub sizes: Vec<u32>,
    /// Largest distance of a member's key from the centroid.
    pub radius: Vec<f32>,
    /// Clusters that a step may choose from; empty for all.
    pub open: Vec<bool>,
    /// The cluster of each indexed row, from the first on, which is the token of that number in an
    /// index of tokens; empty unless the index is to keep them.
    pub owners: Vec<u32>,
}

impl HeadIndex {
    /// Keeps the first `n` clusters.
    pub(super) fn truncate(&mut self, n: usize) {
        self.starts.truncate(n);
        self.sizes.truncate(n);
        self.radius.truncate(n);
        self.open.truncate(n);
        self.owners.truncate(self.sizes.iter().map(|size| *size as usize).sum());
    }
}

impl Clone for HeadIndex {
    fn clone(&self) -> Self {
        Self {
            starts: with_its_room(&self.starts),
            sizes: with_its_room(&self.sizes),
            radius: with_its_room(&self.radius),
            open: self.open.clone(),
            owners: with_its_room(&self.owners),
        }
    }
}
