//! Graphs of runs of commands that come again: made the second time, then launched as one.
//!
//! From the second time on a run costs one launch and as many updates of nodes as have other
//! arguments than the last time.
//!
//! A graph has launches of kernels alone. A node that copies keeps what the driver knows of the
//! memories that it copies between: on an H100 (driver 580) a launch of a graph ended in a
//! segmentation fault once such a memory was freed, though the node had been given other addresses.
//!
//! A graph may fail for a reason that passes, such as memory that is short while a prompt is read.
//! So a failure is about one run and for a while: the run goes one by one, and its graph is tried
//! again after a pause that doubles with every failure in a row. Who cannot make graphs at all then
//! pays for a vain try at each [`MOST_PAUSE`]th run at most. The device knows how many runs go one
//! by one for this reason, which `Backend::fallback` says.

use std::sync::Arc;

use crate::commands::Commands;
use crate::counters::Tally;
use crate::device::Device;
use crate::driver::{Driver, DriverResult, KernelCall};

/// Graphs that are kept, and runs of commands that are remembered. The least used goes first.
const N_GRAPHS: usize = 32;
const N_SEEN: usize = 128;
/// Runs that failed and are remembered. The first one is forgotten first, and tried again.
const N_FAILED: usize = 64;
/// How often a run goes one by one after its graph failed for the first time, and at most.
const FIRST_PAUSE: u32 = 16;
const MOST_PAUSE: u32 = 1024;

/// The graphs of a stream.
pub(crate) struct Graphs<D: Driver> {
    device: Arc<Device<D>>,
    kept: Vec<Kept<D>>,
    /// Hashes of runs that were seen once, in a ring.
    seen: [u64; N_SEEN],
    n_seen: usize,
    failed: Vec<Failed>,
    /// Counts up with each use of a graph.
    clock: u64,
}

struct Kept<D: Driver> {
    hash: u64,
    graph: D::Graph,
    /// What it was last launched with.
    commands: Commands,
    used: u64,
}

/// A run whose graph failed the last time.
struct Failed {
    hash: u64,
    /// Failures since it last worked.
    n_failures: u32,
    /// How often it still goes one by one before the next try.
    pause: u32,
}

impl<D: Driver> Graphs<D> {
    pub fn new(device: &Arc<Device<D>>) -> Self {
        Self {
            device: Arc::clone(device),
            kept: Vec::new(),
            seen: [0; N_SEEN],
            n_seen: 0,
            failed: Vec::new(),
            clock: 0,
        }
    }

    /// Launches the graph of these commands; false where there is none, or none that works, and the
    /// commands must go one by one.
    ///
    /// # Safety
    /// As for [`Driver::run`], for each command.
    pub unsafe fn run(&mut self, stream: &D::Stream, commands: &Commands) -> bool {
        let hash = commands.hash();
        let failed = self.failed.iter_mut().find(|failed| failed.hash == hash);
        if let Some(failed) = failed.filter(|failed| failed.pause > 0) {
            failed.pause -= 1;
            return false;
        }
        // SAFETY: the caller's word.
        match unsafe { self.try_to_run(stream, commands, hash) } {
            Ok(is_launched) => {
                if is_launched {
                    self.works(hash);
                }
                is_launched
            }
            // Where it was the context that broke, the commands themselves say so.
            Err(error) => {
                self.fails(hash, &error.to_string());
                false
            }
        }
    }

    /// Launches the graph, or makes it first if it is time to; false where there is none yet.
    ///
    /// # Safety
    /// As for [`Driver::run`], for each command.
    unsafe fn try_to_run(
        &mut self,
        stream: &D::Stream,
        commands: &Commands,
        hash: u64,
    ) -> DriverResult<bool> {
        self.clock += 1;
        let is_it = |kept: &Kept<D>| kept.hash == hash && kept.commands.has_shapes_of(commands);
        let at = match self.kept.iter().position(is_it) {
            Some(at) => {
                // SAFETY: the caller's word.
                unsafe { self.update(at, commands)? };
                at
            }
            None if self.seen.contains(&hash) => {
                let calls: Vec<KernelCall<'_>> = commands.iter().collect();
                // SAFETY: the caller's word.
                let graph = unsafe { self.device.driver.new_graph(&calls)? };
                Tally::add(&self.device.tally.graphs, 1);
                self.keep(hash, graph, commands)
            }
            None => {
                self.seen[self.n_seen % N_SEEN] = hash;
                self.n_seen += 1;
                return Ok(false);
            }
        };
        let kept = &mut self.kept[at];
        kept.used = self.clock;
        // SAFETY: the nodes are those of the commands, whose safety is the caller's word.
        unsafe { self.device.driver.launch_graph(stream, &mut kept.graph)? };
        Tally::add(&self.device.tally.submits, 1);
        Ok(true)
    }

    /// Gives a graph the arguments of these commands.
    ///
    /// # Safety
    /// As for [`Driver::set_node`], for each command.
    unsafe fn update(&mut self, at: usize, commands: &Commands) -> DriverResult<()> {
        let Kept { graph, commands: held, .. } = &mut self.kept[at];
        for i in commands.changed_since(held) {
            // SAFETY: the caller's word.
            unsafe { self.device.driver.set_node(graph, i, commands.get(i))? };
            Tally::add(&self.device.tally.nodes_set, 1);
        }
        held.take_data_of(commands);
        Ok(())
    }

    /// Puts a graph of the commands in the place of the least used one.
    fn keep(&mut self, hash: u64, graph: D::Graph, commands: &Commands) -> usize {
        let kept = Kept { hash, graph, commands: commands.clone(), used: self.clock };
        if self.kept.len() < N_GRAPHS {
            self.kept.push(kept);
            return self.kept.len() - 1;
        }
        let oldest = (0..N_GRAPHS).min_by_key(|i| self.kept[*i].used).unwrap_or(0);
        self.kept[oldest] = kept;
        oldest
    }

    /// The graph of a run was launched: earlier failures count no more.
    fn works(&mut self, hash: u64) {
        if let Some(at) = self.failed.iter().position(|failed| failed.hash == hash) {
            self.failed.remove(at);
            self.device.graph_fallback.ended();
        }
    }

    /// The graph of a run could not be made, updated or launched. It goes, because nobody knows
    /// which of its nodes are new.
    fn fails(&mut self, hash: u64, reason: &str) {
        self.kept.retain(|kept| kept.hash != hash);
        Tally::add(&self.device.tally.graph_failures, 1);
        let failed = self.failed.iter_mut().find(|failed| failed.hash == hash);
        if let Some(failed) = failed {
            failed.n_failures += 1;
            failed.pause = pause_after(failed.n_failures);
            self.device.graph_fallback.goes_on(reason);
            return;
        }
        if self.failed.len() == N_FAILED {
            self.failed.remove(0);
            self.device.graph_fallback.ended();
        }
        self.failed.push(Failed { hash, n_failures: 1, pause: pause_after(1) });
        self.device.graph_fallback.begins(reason);
    }
}

impl<D: Driver> Drop for Graphs<D> {
    fn drop(&mut self) {
        self.failed.iter().for_each(|_| self.device.graph_fallback.ended());
    }
}

/// How often a run goes one by one after its n-th failure in a row.
fn pause_after(n_failures: u32) -> u32 {
    let doublings = (n_failures - 1).min((MOST_PAUSE / FIRST_PAUSE).ilog2());
    FIRST_PAUSE << doublings
}

#[cfg(test)]
mod tests {
    use super::{FIRST_PAUSE, MOST_PAUSE, pause_after};

    #[test]
    fn pauses_double_up_to_a_bound() {
        let pauses: Vec<u32> = (1..=9).map(pause_after).collect();
        assert_eq!(pauses, [16, 32, 64, 128, 256, 512, 1024, 1024, 1024]);
        assert_eq!((pause_after(1), pause_after(u32::MAX)), (FIRST_PAUSE, MOST_PAUSE));
    }
}
