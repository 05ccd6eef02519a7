//! Indexes of keys: what stands for clusters, blocks and tokens, how it is made, and what prefill
//! records for it.

mod cluster_bounds;
mod cluster_groups;
mod cluster_parts;
mod device_owners;
mod halfway;
mod head_index;
mod importance;
mod job_queue;
mod kernel_memory;
mod kmeans_job;
mod kmeans_worker;
mod layer_index;
mod layer_projection;
mod low_rank_decode;
mod observation;
pub mod projection;
mod prompt_keys;
mod recorded;
mod records;
mod shared_bytes;
#[cfg(test)]
mod testing;
mod unit_vectors;

pub(crate) use cluster_bounds::ClusterBounds;
#[cfg(test)]
pub(crate) use cluster_groups::GROUP_CLUSTERS;
pub(crate) use cluster_groups::{HeadGroups, PART_CLUSTERS, group_bytes, group_clusters};
pub(crate) use cluster_parts::{ClusterParts, part_bytes};
pub(crate) use device_owners::{DeviceGroups, owner_bytes};
pub use head_index::HeadIndex;
pub(crate) use importance::{AddedQueries, RecordedQueries};
pub use kmeans_job::{ClusterJob, ClusterTask, HeadClusters, TaskKind};
pub use kmeans_worker::ClusterWorker;
pub use layer_index::LayerIndex;
pub(crate) use layer_projection::LayerProjection;
pub(crate) use low_rank_decode::{DecodeStep, LowRankDecode};
pub(crate) use observation::{Observation, Observer, Observers};
pub(crate) use prompt_keys::PromptKeys;
pub use recorded::Recorded;
pub(crate) use recorded::{EarlierPlaces, RecordedChunk};
pub(crate) use records::{
    ClustersRecord, IndexRecord, LowRankRecord, ProjectionRecord, QueriesRecord,
};
pub use unit_vectors::HeadVectors;
