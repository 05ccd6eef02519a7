//! From launches to time.
//!
//! A command takes the longest of three: its bytes of device memory at the share of bandwidth that
//! kernels reach, or at what the threads that run at once have under way (Little's law: bytes under
//! way by latency), if that is less; its bytes over the bus at the share of the link. Loads that
//! wait for each other come on top, and so does the cost of a node. Nothing runs beside anything
//! else.

use super::gpu::{Constants, Gpu, resources};
use super::trace::Trace;
use super::work::Launch;

/// Where the time of a token goes, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Parts {
    pub weights: f64,
    pub attention: f64,
    pub index: f64,
    pub look_up: f64,
    pub fetch: f64,
    pub rest: f64,
    pub nodes: f64,
    pub host: f64,
}

impl Parts {
    pub const NAMES: [&'static str; 8] =
        ["weights", "attention", "index", "look-up", "fetch", "rest", "nodes", "host"];

    pub fn all(&self) -> [f64; 8] {
        let Self { weights, attention, index, look_up, fetch, rest, nodes, host } = *self;
        [weights, attention, index, look_up, fetch, rest, nodes, host]
    }

    pub fn ms(&self) -> f64 {
        self.all().iter().sum()
    }

    fn part_of(&mut self, name: &str) -> &mut f64 {
        let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
        match name {
            _ if begins(&["matvec", "norm_matvec", "tile_product", "tile_layers"]) => {
                &mut self.weights
            }
            _ if begins(&["attend_list", "lse_merge"]) => &mut self.attention,
            _ if begins(&["centroid", "select_clusters"]) => &mut self.index,
            _ if begins(&["look_up_rows", "cluster_rows"]) => &mut self.look_up,
            _ if begins(&["kv_gather"]) => &mut self.fetch,
            _ => &mut self.rest,
        }
    }
}

/// A device and what is assumed about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Model {
    pub gpu: Gpu,
    pub constants: Constants,
}

/// Microseconds of a command, without its node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Time {
    pub us: f64,
    /// Of all threads that the GPU can hold, the share that runs.
    pub occupancy: f64,
    /// What it is that takes longest.
    pub bound: &'static str,
}

impl Model {
    /// Bytes under way in all threads that run at once, and their share of those that fit.
    fn under_way(&self, launch: &Launch) -> (f64, f64) {
        let Some((kernel, grid)) = launch.kernel else { return (f64::INFINITY, 0.0) };
        let facts = kernel.facts();
        let Some(resources) = resources(facts.name, self.gpu.target) else {
            return (f64::INFINITY, 0.0);
        };
        let at_once = self.gpu.blocks_at_once(facts.threads, resources, grid.dynamic_shared);
        let places = f64::from(at_once * self.gpu.n_multiprocessors);
        let threads = places.min(launch.n_blocks as f64) * f64::from(facts.threads);
        let room = f64::from(self.gpu.threads * self.gpu.n_multiprocessors);
        (threads * launch.work.in_flight, threads / room)
    }

    pub fn time(&self, launch: &Launch) -> Time {
        let (gpu, c, work) = (&self.gpu, &self.constants, &launch.work);
        let (under_way, occupancy) = self.under_way(launch);
        let missed = c.misses * work.missed_bytes;
        // What is fetched is written to the device, too.
        let device_bytes = work.device_bytes + missed;
        let link_bytes = work.link_bytes + missed;
        // Bytes in a microsecond are a thousandth of GB/s.
        let bandwidth = 1e3 * c.memory_share * gpu.memory_gbps;
        let times = [
            (device_bytes / bandwidth, "memory"),
            (device_bytes / (under_way / gpu.memory_latency_us).max(1.0), "occupancy"),
            (link_bytes / (1e3 * c.link_share * gpu.link_gbps), "link"),
        ];
        let (us, bound) = times.into_iter().fold((0.0, "-"), |a, b| if b.0 > a.0 { b } else { a });
        let waits = work.chain * gpu.cache_latency_us + work.link_chain * c.link_latency_us;
        let bound = if waits > us { "latency" } else { bound };
        Time { us: us + waits, occupancy, bound }
    }

    fn add(&self, launches: &[Launch], n: f64, parts: &mut Parts) {
        for launch in launches {
            *parts.part_of(launch.name) += n * self.time(launch).us / 1e3;
            parts.nodes += n * self.constants.node_us / 1e3;
        }
    }

    /// A token of a model with `n_layers` layers: that of the trace, and for each layer more one
    /// that recalls, as those of the trace do.
    pub fn token(&self, trace: &Trace, layer: &[Launch], n_layers: usize) -> Parts {
        let mut parts = Parts::default();
        self.add(&trace.launches, 1.0, &mut parts);
        self.add(layer, (n_layers - trace.n_layers) as f64, &mut parts);
        let c = &self.constants;
        parts.host = (trace.waits * c.step_us + trace.nodes_set * c.update_us) / 1e3;
        parts
    }

    /// What a layer's recall would save, in milliseconds, if its rows came while other work is
    /// done: (while the other rows are attended, which takes two nodes more; while anything is
    /// done).
    pub fn hidden(&self, layer: &[Launch]) -> [f64; 2] {
        let us_of = |starts: &str| -> f64 {
            let launches = layer.iter().filter(|launch| launch.name.starts_with(starts));
            launches.map(|launch| self.time(launch).us).sum()
        };
        let (fetch, attention) = (us_of("kv_gather"), us_of("attend_list"));
        let all: f64 = layer.iter().map(|launch| self.time(launch).us).sum();
        let beside = fetch.min(attention) - 2.0 * self.constants.node_us;
        [beside / 1e3, fetch.min(all - fetch) / 1e3]
    }
}
