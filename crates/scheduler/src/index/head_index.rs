//! What the host knows of the clusters of one KV head.

use super::cluster_groups::Members;
use super::shared_bytes::{SharedBytes, with_its_room};

/// The clusters of one KV head, in the order of their rows in the host store.
#[derive(Debug, Default)]
pub struct HeadIndex {
    /// First row of each cluster.
    pub starts: Vec<u32>,
    /// Rows of each cluster.
    pub sizes: Vec<u32>,
    /// Largest distance of a member's key from the centroid.
    pub radius: Vec<f32>,
    /// `[clusters, width]` in the KV data type, or codes.
    pub centroids: SharedBytes,
    /// Clusters that a step may choose from; empty for all.
    pub open: Vec<bool>,
    /// `[clusters, 2, width]` in the KV data type: centroid and mean value, a KV row that stands
    /// for the cluster; empty unless the index is to keep them.
    pub pairs: SharedBytes,
    /// The cluster of each indexed row, from the first on, which is the token of that number in an
    /// index of tokens; empty unless the index is to keep them.
    pub owners: Vec<u32>,
}

impl HeadIndex {
    pub(super) fn members(&self) -> Members<'_> {
        Members { sizes: &self.sizes, pairs: &self.pairs }
    }
    /// Keeps the first `n` clusters, each of which `row_bytes` describe.
    pub(super) fn truncate(&mut self, n: usize, row_bytes: usize) {
        self.starts.truncate(n);
        self.sizes.truncate(n);
        self.radius.truncate(n);
        self.open.truncate(n);
        self.centroids.truncate(n * row_bytes);
        self.pairs.truncate(2 * n * row_bytes);
        self.owners.truncate(self.sizes.iter().map(|size| *size as usize).sum());
    }

    /// Lets copies that are made from now on share what is large.
    pub(super) fn share(&mut self) {
        self.centroids.share();
        self.pairs.share();
    }
}

impl Clone for HeadIndex {
    fn clone(&self) -> Self {
        Self {
            starts: with_its_room(&self.starts),
            sizes: with_its_room(&self.sizes),
            radius: with_its_room(&self.radius),
            centroids: self.centroids.clone(),
            open: self.open.clone(),
            pairs: self.pairs.clone(),
            owners: with_its_room(&self.owners),
        }
    }
}
