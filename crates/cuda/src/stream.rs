//! A stream that collects commands and hands them over together: as a graph where it was given the
//! same kernels, grids and copies before, else one by one.
//!
//! A decode step gives the same commands token after token; only what they point to and their
//! numbers change. The second time a run of commands is seen it becomes a graph; from then on it
//! costs one launch and as many updates of nodes as have other arguments than the last time.

use std::sync::{Arc, Mutex};

use longview_ops::OpResult;

use crate::counters::Tally;
use crate::device::{Device, lock};
use crate::driver::{CopyCall, Driver, DriverResult, Grid, KernelCall, ProductCall, Work};
use crate::kernels::Kernel;

/// Fewer commands cost less one by one.
const LEAST: usize = 8;
/// So many wait at most: the device gets work while the host goes on.
const MOST: usize = 4096;
/// Graphs that are kept, and runs of commands that are remembered. The least used goes first.
const N_GRAPHS: usize = 16;
const N_SEEN: usize = 64;

/// Work in order, some of it not handed over yet.
pub(crate) struct Stream<D: Driver> {
    device: Arc<Device<D>>,
    raw: D::Stream,
    state: Mutex<State<D>>,
}

struct State<D: Driver> {
    waiting: Commands,
    graphs: Vec<Cached<D>>,
    /// Hashes of runs that were seen once, in a ring.
    seen: [u64; N_SEEN],
    n_seen: usize,
    /// Counts up with each use of a graph.
    clock: u64,
}

struct Cached<D: Driver> {
    hash: u64,
    graph: D::Graph,
    /// What it was last launched with.
    commands: Commands,
    used: u64,
}

/// What makes a command the same as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Launch { kernel: Kernel, grid: Grid },
    Copy { bytes: u64, to_host: bool, from_host: bool },
}

/// A run of commands.
#[derive(Debug, Default)]
struct Commands {
    shapes: Vec<Shape>,
    /// Arguments of kernels and addresses of copies, one after the other.
    data: Vec<u8>,
    /// Where each command's data ends.
    ends: Vec<usize>,
}

impl Commands {
    fn len(&self) -> usize {
        self.shapes.len()
    }

    fn clear(&mut self) {
        self.shapes.clear();
        self.data.clear();
        self.ends.clear();
    }

    fn push(&mut self, work: Work<'_>) {
        let shape = match work {
            Work::Launch(KernelCall { kernel, grid, args }) => {
                self.data.extend_from_slice(args);
                Shape::Launch { kernel, grid }
            }
            Work::Copy(CopyCall { to, from, bytes, to_host, from_host }) => {
                self.data.extend_from_slice(bytemuck::bytes_of(&[to, from]));
                Shape::Copy { bytes, to_host, from_host }
            }
        };
        self.shapes.push(shape);
        self.ends.push(self.data.len());
    }

    fn data(&self, i: usize) -> &[u8] {
        let begin = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.data[begin..self.ends[i]]
    }

    fn get(&self, i: usize) -> Work<'_> {
        match self.shapes[i] {
            Shape::Launch { kernel, grid } => {
                Work::Launch(KernelCall { kernel, grid, args: self.data(i) })
            }
            Shape::Copy { bytes, to_host, from_host } => {
                let [to, from] = bytemuck::pod_read_unaligned(self.data(i));
                Work::Copy(CopyCall { to, from, bytes, to_host, from_host })
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = Work<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }

    fn hash(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.shapes.hash(&mut hasher);
        hasher.finish()
    }
}

impl<D: Driver> Stream<D> {
    /// A stream of the device, which can then hand over what waits on it.
    pub fn new(device: &Arc<Device<D>>) -> OpResult<Arc<Self>> {
        let state = State {
            waiting: Commands::default(),
            graphs: Vec::new(),
            seen: [0; N_SEEN],
            n_seen: 0,
            clock: 0,
        };
        let raw = device.told(device.driver.new_stream())?;
        let stream = Self { device: Arc::clone(device), raw, state: Mutex::new(state) };
        let stream = Arc::new(stream);
        device.know(&stream);
        Ok(stream)
    }

    /// Gives it work, to be done after all work before. Whether the device is still there is asked
    /// once by the queue for the whole call, and again at the hand-over.
    ///
    /// # Safety
    /// As for [`Driver::run`]; what the work reads and writes is not freed before
    /// [`Device::hand_over`] was called.
    pub unsafe fn push(&self, work: Work<'_>) -> OpResult<()> {
        let mut state = lock(&self.state);
        state.waiting.push(work);
        if state.waiting.len() < MOST {
            return Ok(());
        }
        self.hand_over_locked(&mut state)
    }

    /// Gives it a product for the vendor's library, which no graph can hold: what waits goes first,
    /// then the call.
    ///
    /// # Safety
    /// As for [`Stream::push`].
    pub unsafe fn multiply(&self, call: &ProductCall) -> OpResult<()> {
        let mut state = lock(&self.state);
        self.hand_over_locked(&mut state)?;
        Tally::add(&self.device.tally.submits, 1);
        // SAFETY: the caller's word.
        self.done(unsafe { self.device.driver.multiply(&self.raw, call) })
    }

    /// Hands over what waits.
    pub fn hand_over(&self) -> OpResult<()> {
        self.hand_over_locked(&mut lock(&self.state))
    }

    fn hand_over_locked(&self, state: &mut State<D>) -> OpResult<()> {
        if state.waiting.len() == 0 {
            return Ok(());
        }
        let result = self.device.check().and_then(|()| {
            // SAFETY: whoever pushed the work promised it.
            self.done(unsafe { state.run(&self.device, &self.raw) })
        });
        state.waiting.clear();
        result
    }

    /// What a refusal means to a stream: whatever the reason is, the device is lost. Callers were
    /// told that the work would be done, and remember what the device has since then; only who
    /// begins anew, with nothing taken for done, computes right numbers again.
    fn done(&self, result: DriverResult<()>) -> OpResult<()> {
        result.or_else(|error| {
            self.device.lose(&error.to_string());
            self.device.check()
        })
    }

    /// The event stands for all work so far.
    pub fn record(&self, event: &D::Event) -> OpResult<()> {
        self.hand_over()?;
        self.done(self.device.driver.record(&self.raw, event))
    }

    /// Work from now on happens after the event.
    pub fn wait(&self, event: &D::Event) -> OpResult<()> {
        self.hand_over()?;
        self.done(self.device.driver.wait(&self.raw, event))
    }

    /// Waits on the host for all work.
    pub fn synchronize(&self) -> OpResult<()> {
        self.hand_over()?;
        self.done(self.device.driver.synchronize(&self.raw))
    }
}

impl<D: Driver> Drop for Stream<D> {
    fn drop(&mut self) {
        // What was asked for is done; an error is kept by the device.
        let _ = self.hand_over();
    }
}

impl<D: Driver> State<D> {
    /// Hands over the commands that wait.
    ///
    /// # Safety
    /// As for [`Driver::run`], for each command.
    unsafe fn run(&mut self, device: &Device<D>, stream: &D::Stream) -> DriverResult<()> {
        if self.waiting.len() >= LEAST && device.has_graphs() {
            // SAFETY: the caller's word.
            match unsafe { self.run_as_graph(device, stream) } {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // Where it was the context that broke, the commands themselves say so.
                Err(error) => {
                    self.graphs.clear();
                    device.give_up_graphs(&error.to_string());
                }
            }
        }
        Tally::add(&device.tally.submits, self.waiting.len() as u64);
        // SAFETY: the caller's word.
        self.waiting.iter().try_for_each(|work| unsafe { device.driver.run(stream, work) })
    }

    /// Launches the graph of these commands; false where there is none yet.
    ///
    /// # Safety
    /// As for [`Driver::run`], for each command.
    unsafe fn run_as_graph(
        &mut self,
        device: &Device<D>,
        stream: &D::Stream,
    ) -> DriverResult<bool> {
        let hash = self.waiting.hash();
        let is_it = |g: &Cached<D>| g.hash == hash && g.commands.shapes == self.waiting.shapes;
        self.clock += 1;
        let at = match self.graphs.iter().position(is_it) {
            Some(at) => {
                let cached = &mut self.graphs[at];
                for i in (0..self.waiting.len())
                    .filter(|i| self.waiting.data(*i) != cached.commands.data(*i))
                {
                    // SAFETY: the caller's word.
                    unsafe { device.driver.set_node(&mut cached.graph, i, self.waiting.get(i))? };
                    Tally::add(&device.tally.nodes_set, 1);
                }
                cached.commands.data.copy_from_slice(&self.waiting.data);
                at
            }
            None if self.seen.contains(&hash) => {
                let works: Vec<Work<'_>> = self.waiting.iter().collect();
                // SAFETY: the caller's word.
                let graph = unsafe { device.driver.new_graph(&works)? };
                Tally::add(&device.tally.graphs, 1);
                self.keep(hash, graph)
            }
            None => {
                self.seen[self.n_seen % N_SEEN] = hash;
                self.n_seen += 1;
                return Ok(false);
            }
        };
        self.graphs[at].used = self.clock;
        // SAFETY: the nodes are those of the commands, whose safety is the caller's word.
        unsafe { device.driver.launch_graph(stream, &mut self.graphs[at].graph)? };
        Tally::add(&device.tally.submits, 1);
        Ok(true)
    }

    /// Puts a graph of the waiting commands in the place of the least used one.
    fn keep(&mut self, hash: u64, graph: D::Graph) -> usize {
        let commands = Commands {
            shapes: self.waiting.shapes.clone(),
            data: self.waiting.data.clone(),
            ends: self.waiting.ends.clone(),
        };
        let cached = Cached { hash, graph, commands, used: self.clock };
        if self.graphs.len() < N_GRAPHS {
            self.graphs.push(cached);
            return self.graphs.len() - 1;
        }
        let oldest = (0..N_GRAPHS).min_by_key(|i| self.graphs[*i].used).unwrap_or(0);
        self.graphs[oldest] = cached;
        oldest
    }
}
