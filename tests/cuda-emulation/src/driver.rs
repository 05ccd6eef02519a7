//! [`Driver`] over the emulated device.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use longview_cuda::{
    CopyCall, DeviceFacts, Driver, DriverError, DriverResult, Grid, Kernel, KernelCall, Memory,
    ProductCall, StartError, Work,
};

use crate::device::{Device, Task};
use crate::graph::{EmulatedGraph, Node};
use crate::library::Library;

/// Addresses are multiples of this, as a real device's are.
const ALIGNMENT: usize = 256;

/// Memory of so many bytes is not written before it is used.
const LARGE: u64 = 64 << 20;

/// What the emulated device is like.
#[derive(Clone, Debug)]
pub struct EmulatedOptions {
    /// Threads of a block, blocks of a grid and lanes of a warp run from the last to the first.
    pub backward: bool,
    /// Threads of the system that large launches are run on.
    pub n_workers: usize,
    /// What [`DeviceFacts`] says: launch code may cut work by it.
    pub n_multiprocessors: u32,
    /// Whether device memory is the host's, as that of a DGX Spark: then nothing is to be copied.
    pub unified_memory: bool,
    /// Device memory in bytes; more than that is out of memory.
    pub memory_bytes: u64,
    /// Without, making a graph fails.
    pub has_graphs: bool,
    /// Calls about graphs that fail although there are graphs.
    pub failing_graphs: Option<FailingGraphs>,
    /// Major and minor. Kernels are those of 7.5 below 8.0 and those of 8.0 from there on, and
    /// launch code chooses by it.
    pub compute_capability: (u32, u32),
    /// Commands given to the first stream after which one is refused for want of memory; the device
    /// that is opened again in its place refuses none.
    pub refused_command: Option<u64>,
    /// Whether there is a library that multiplies, and how.
    pub library: EmulatedLibrary,
    /// Whether kernels run. Else they are given and counted, and leave memory as it is, but that
    /// clusters are made of tokens in sequence, all of one size: for what launch code does with
    /// shapes that are too large to compute. Copies are always done.
    pub runs_kernels: bool,
}

/// Shared memory of a block by compute capability, as the CUDA C++ programming guide's table of
/// technical specifications has it.
fn shared_bytes(compute_capability: (u32, u32)) -> u32 {
    let kib = match compute_capability {
        (7, _) => 64,
        (8, 0 | 7) => 163,
        (8, _) | (12, _) => 99,
        _ => 227,
    };
    kib << 10
}

/// Calls of one kind, by their numbers from 0, that fail for want of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailingGraphs {
    /// Whether a graph was made, updated or launched.
    pub kind: GraphCall,
    /// Which calls of it.
    pub calls: Range<u64>,
}

/// What a driver is asked about graphs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GraphCall {
    /// [`Driver::new_graph`].
    Make,
    /// [`Driver::set_node`].
    Update,
    /// [`Driver::launch_graph`].
    Launch,
}

/// What stands for a vendor's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EmulatedLibrary {
    /// There is none.
    Absent,
    /// It multiplies, for matrices of at least [`LEAST_OUT`] rows.
    Right,
    /// What it computes is wrong.
    Wrong,
}

/// The stream of a backend's own queue, which is made first.
const FIRST: usize = 0;

/// Smaller matrices than of so many rows the emulated library does not take.
pub const LEAST_OUT: u32 = 9;

impl Default for EmulatedOptions {
    fn default() -> Self {
        let n_workers = std::thread::available_parallelism().map_or(1, |n| n.get().min(8));
        Self {
            backward: false,
            n_workers,
            n_multiprocessors: 4,
            unified_memory: false,
            memory_bytes: 4 << 30,
            has_graphs: true,
            failing_graphs: None,
            compute_capability: (8, 0),
            refused_command: None,
            library: EmulatedLibrary::Absent,
            runs_kernels: true,
        }
    }
}

/// A command as a stream was given it.
#[derive(Clone, Debug)]
pub enum Given {
    /// A launch, with the words of its struct of arguments.
    Launch {
        /// The kernel.
        kernel: Kernel,
        /// Its blocks.
        grid: Grid,
        /// Its arguments, the last word filled up with zeros.
        args: Box<[u64]>,
    },
    /// A copy.
    Copy(CopyCall),
}

/// The device.
#[derive(Debug)]
pub struct EmulatedDriver {
    device: Arc<Device>,
    options: EmulatedOptions,
    facts: DeviceFacts,
    /// Bytes of device memory that exist.
    used: Arc<AtomicU64>,
    launched: Mutex<BTreeMap<&'static str, u64>>,
    /// Copies given to streams.
    n_copies: AtomicU64,
    /// Launches of kernels that read otherwise before compute capability 8.0.
    n_by_capability: AtomicU64,
    /// Commands given to the first stream.
    n_given: AtomicU64,
    /// Calls of each [`GraphCall`].
    n_graph_calls: [AtomicU64; 3],
    /// What streams are given, where somebody wants to know.
    given: Mutex<Option<Vec<Given>>>,
    host_memory: HostMemory,
}

/// Ends of the host memories that exist, by their begins.
type HostMemory = Arc<Mutex<BTreeMap<u64, u64>>>;

impl EmulatedDriver {
    /// Opens it; an error where the kernels were not compiled for this system.
    pub fn new(options: EmulatedOptions) -> Result<Self, String> {
        let library = Library::get()?;
        let facts = DeviceFacts {
            name: "emulated".into(),
            compute_capability: options.compute_capability,
            n_multiprocessors: options.n_multiprocessors,
            unified_memory: options.unified_memory,
            memory_bytes: Some(options.memory_bytes),
            shared_bytes: shared_bytes(options.compute_capability),
        };
        let device = Arc::new(Device::new(library, options.n_workers, options.backward));
        let (used, launched) = (Arc::default(), Mutex::default());
        let n_graph_calls = Default::default();
        let [n_copies, n_by_capability, n_given] = Default::default();
        Ok(Self {
            device,
            options,
            facts,
            used,
            launched,
            n_copies,
            n_by_capability,
            n_given,
            n_graph_calls,
            given: Mutex::default(),
            host_memory: Arc::default(),
        })
    }

    /// Calls `work`, and returns with its result every command that streams were given meanwhile,
    /// in order.
    pub fn recorded<T>(&self, work: impl FnOnce() -> T) -> (T, Vec<Given>) {
        let given = || self.given.lock().unwrap_or_else(PoisonError::into_inner);
        *given() = Some(Vec::new());
        let result = work();
        let commands = given().take();
        (result, commands.unwrap_or_default())
    }

    /// Whether there is host memory of this device at an address.
    pub fn is_host(&self, address: u64) -> bool {
        let memory = self.host_memory.lock().unwrap_or_else(PoisonError::into_inner);
        memory.range(..=address).next_back().is_some_and(|(_, end)| address < *end)
    }

    /// The names of the kernels that were launched so far.
    pub fn launched(&self) -> BTreeSet<&'static str> {
        self.launches().into_keys().collect()
    }

    /// How often each kernel was launched so far, by its name.
    pub fn launches(&self) -> BTreeMap<&'static str, u64> {
        self.launched.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Copies that streams were given so far.
    pub fn n_copies(&self) -> u64 {
        self.n_copies.load(Ordering::Relaxed)
    }

    /// How many kernels were launched so far whose files read otherwise before compute capability
    /// 8.0. Whatever launches none of them is the same on all devices.
    pub fn n_by_capability(&self) -> u64 {
        self.n_by_capability.load(Ordering::Relaxed)
    }

    /// Gives a kernel to a stream by its name; for kernels that only tests have.
    ///
    /// # Safety
    /// As for [`Driver::run`]; the arguments are the words of the kernel's struct.
    pub unsafe fn launch_by_name(
        &self,
        stream: &EmulatedStream,
        name: &str,
        grid: Grid,
        args: Box<[u64]>,
    ) -> DriverResult<()> {
        let task = self.task(name, grid, args)?;
        // SAFETY: the caller's word; memory does all work before it goes.
        told(unsafe { self.device.push(stream.0, task) })
    }

    fn task(&self, name: &str, grid: Grid, args: Box<[u64]>) -> DriverResult<Task> {
        let capability @ (major, minor) = self.options.compute_capability;
        let kernel = self.device.library.kernel(name, capability);
        let absent = || format!("{name} was not compiled as C++ for {major}.{minor}");
        let kernel = told(kernel.ok_or_else(absent))?;
        let by_capability = u64::from(kernel.is_by_capability());
        self.n_by_capability.fetch_add(by_capability, Ordering::Relaxed);
        let (expected, given) = (kernel.args.size as usize, size_of_val(&*args));
        if given != expected.next_multiple_of(8) {
            return told(Err(format!("{name} takes {expected} bytes of arguments, not {given}")));
        }
        let mut launched = self.launched.lock().unwrap_or_else(PoisonError::into_inner);
        *launched.entry(&kernel.name).or_default() += 1;
        drop(launched);
        Ok(Task::Launch { kernel, grid, args })
    }

    /// Commands that the first stream was given.
    pub fn n_given(&self) -> u64 {
        self.n_given.load(Ordering::Relaxed)
    }

    /// Refuses the command that is to be refused. Of the first stream alone, because only one
    /// thread gives it commands: which of them come between those of another depends on the time
    /// things take.
    fn count_command(&self, stream: &EmulatedStream) -> DriverResult<()> {
        if stream.0 != FIRST {
            return Ok(());
        }
        let n = self.n_given.fetch_add(1, Ordering::Relaxed);
        if self.options.refused_command == Some(n) { Err(DriverError::OutOfMemory) } else { Ok(()) }
    }

    /// Gives a kernel or a copy to a stream.
    ///
    /// # Safety
    /// As for [`Driver::run`].
    unsafe fn give(&self, stream: &EmulatedStream, work: Work<'_>) -> DriverResult<()> {
        if let Some(given) = &mut *self.given.lock().unwrap_or_else(PoisonError::into_inner) {
            given.push(match work {
                Work::Copy(call) => Given::Copy(call),
                Work::Launch(call) => Given::Launch {
                    kernel: call.kernel,
                    grid: call.grid,
                    args: words_of(call.args),
                },
            });
        }
        let task = match work {
            Work::Copy(CopyCall { to, from, bytes, .. }) => {
                self.n_copies.fetch_add(1, Ordering::Relaxed);
                Task::Copy { to, from, bytes }
            }
            Work::Launch(call) => {
                self.task(call.kernel.facts().name, call.grid, words_of(call.args))?
            }
        };
        let task = match task {
            Task::Launch { kernel, grid, args } if !self.options.runs_kernels => {
                match Task::stand_in(kernel, grid, &args) {
                    Some(task) => task,
                    None => return Ok(()),
                }
            }
            task => task,
        };
        // SAFETY: the caller's word; memory does all work before it goes.
        told(unsafe { self.device.push(stream.0, task) })
    }

    /// Refuses the calls about graphs that are to fail.
    fn count_graph_call(&self, kind: GraphCall) -> DriverResult<()> {
        let n = self.n_graph_calls[kind as usize].fetch_add(1, Ordering::Relaxed);
        let failing = self.options.failing_graphs.as_ref().filter(|failing| failing.kind == kind);
        if failing.is_some_and(|failing| failing.calls.contains(&n)) {
            return Err(DriverError::OutOfMemory);
        }
        Ok(())
    }

    fn memory(&self, bytes: u64, is_host: bool) -> DriverResult<EmulatedMemory> {
        let used = if is_host { None } else { Some(Arc::clone(&self.used)) };
        if let Some(used) = &used {
            let before = used.fetch_add(bytes, Ordering::Relaxed);
            if before.saturating_add(bytes) > self.options.memory_bytes {
                used.fetch_sub(bytes, Ordering::Relaxed);
                return Err(DriverError::OutOfMemory);
            }
        }
        let host = is_host.then(|| Arc::clone(&self.host_memory));
        EmulatedMemory::new(&self.device, bytes, used, host).ok_or(DriverError::OutOfMemory)
    }
}

/// Host memory that stands for either kind, exactly as long as asked for.
#[derive(Debug)]
pub struct EmulatedMemory {
    memory: NonNull<u8>,
    bytes: u64,
    /// What the system gave, and how it was asked for.
    raw: NonNull<u8>,
    layout: Layout,
    /// The device memory that it counts as; `None` for host memory.
    used: Option<Arc<AtomicU64>>,
    /// Where host memory is listed.
    host: Option<HostMemory>,
    device: Arc<Device>,
}

// SAFETY: plain bytes, owned; who may use them when is the contract of the driver.
unsafe impl Send for EmulatedMemory {}
// SAFETY: as above.
unsafe impl Sync for EmulatedMemory {}

impl EmulatedMemory {
    fn new(
        device: &Arc<Device>,
        bytes: u64,
        used: Option<Arc<AtomicU64>>,
        host: Option<HostMemory>,
    ) -> Option<Self> {
        let bytes = bytes.max(1);
        // The system has zeros at once, and no memory behind them until it is written, unless it
        // is asked for an alignment: then they are written.
        let (room, alignment) = if bytes < LARGE { (0, ALIGNMENT) } else { (ALIGNMENT, 16) };
        let layout = Layout::from_size_align(bytes as usize + room, alignment).ok()?;
        // SAFETY: the layout is not empty.
        let raw = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        let ahead = raw.as_ptr().align_offset(ALIGNMENT);
        // SAFETY: the next aligned byte is less than an alignment away, and there is room for it.
        let memory = unsafe { raw.add(ahead) };
        if let Some(host) = &host {
            let begin = memory.as_ptr() as u64;
            let mut host = host.lock().unwrap_or_else(PoisonError::into_inner);
            host.insert(begin, begin + bytes);
        }
        Some(Self { memory, bytes, raw, layout, used, host, device: Arc::clone(device) })
    }
}

impl Drop for EmulatedMemory {
    fn drop(&mut self) {
        // A lost device does nothing any more.
        let _ = self.device.finish_all();
        if let Some(used) = &self.used {
            used.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        if let Some(host) = &self.host {
            let mut host = host.lock().unwrap_or_else(PoisonError::into_inner);
            host.remove(&(self.memory.as_ptr() as u64));
        }
        // SAFETY: made with this layout; all work that may use it is done.
        unsafe { dealloc(self.raw.as_ptr(), self.layout) };
    }
}

impl Memory for EmulatedMemory {
    fn address(&self) -> u64 {
        self.memory.as_ptr() as u64
    }

    fn len(&self) -> u64 {
        self.bytes
    }

    fn host_bytes(&self) -> Option<&[u8]> {
        if self.used.is_some() {
            return None;
        }
        // SAFETY: zeroed when made; work that writes it is finished, as the caller promises.
        Some(unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.bytes as usize) })
    }

    fn host_bytes_mut(&mut self) -> Option<&mut [u8]> {
        if self.used.is_some() {
            return None;
        }
        // SAFETY: as above, and nobody else on the host has it.
        Some(unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.bytes as usize) })
    }
}

/// A stream, by its number.
#[derive(Debug)]
pub struct EmulatedStream(usize);

/// The first tasks of a stream.
#[derive(Debug, Default)]
pub struct EmulatedEvent {
    stream: AtomicU64,
    n_tasks: AtomicU64,
}

impl EmulatedEvent {
    fn get(&self) -> (usize, u64) {
        (self.stream.load(Ordering::Acquire) as usize, self.n_tasks.load(Ordering::Acquire))
    }
}

/// Arguments as words, the last filled up with zeros.
fn words_of(args: &[u8]) -> Box<[u64]> {
    let word = |chunk: &[u8]| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        u64::from_ne_bytes(word)
    };
    args.chunks(8).map(word).collect()
}

fn told<T>(result: Result<T, String>) -> DriverResult<T> {
    result.map_err(DriverError::Lost)
}

impl Driver for EmulatedDriver {
    const NAME: &'static str = "cuda-emulated";

    type Memory = EmulatedMemory;
    type Stream = EmulatedStream;
    type Event = EmulatedEvent;
    type Graph = EmulatedGraph;

    fn facts(&self) -> &DeviceFacts {
        &self.facts
    }

    fn reopen(&self) -> Result<Self, StartError> {
        let options = EmulatedOptions { refused_command: None, ..self.options.clone() };
        Self::new(options).map_err(|reason| StartError::Device { reason })
    }

    fn alloc(&self, bytes: u64) -> DriverResult<EmulatedMemory> {
        self.memory(bytes.max(1), false)
    }

    fn alloc_host(&self, bytes: u64) -> DriverResult<EmulatedMemory> {
        self.memory(bytes.max(1), true)
    }

    fn new_stream(&self) -> DriverResult<EmulatedStream> {
        Ok(EmulatedStream(self.device.new_stream()))
    }

    fn new_event(&self) -> DriverResult<EmulatedEvent> {
        Ok(EmulatedEvent::default())
    }

    unsafe fn run(&self, stream: &EmulatedStream, work: Work<'_>) -> DriverResult<()> {
        self.count_command(stream)?;
        // SAFETY: the caller's word.
        unsafe { self.give(stream, work) }
    }

    unsafe fn new_graph(&self, calls: &[KernelCall<'_>]) -> DriverResult<EmulatedGraph> {
        if !self.options.has_graphs {
            return told(Err("graphs are not there".into()));
        }
        self.count_graph_call(GraphCall::Make)?;
        Ok(EmulatedGraph(calls.iter().map(Node::new).collect()))
    }

    unsafe fn set_node(
        &self,
        graph: &mut EmulatedGraph,
        i: usize,
        call: KernelCall<'_>,
    ) -> DriverResult<()> {
        self.count_graph_call(GraphCall::Update)?;
        let node = Node::new(&call);
        if !graph.0[i].may_become(&node) {
            return told(Err(format!("node {i} of a graph cannot become another command")));
        }
        graph.0[i] = node;
        Ok(())
    }

    unsafe fn launch_graph(
        &self,
        stream: &EmulatedStream,
        graph: &mut EmulatedGraph,
    ) -> DriverResult<()> {
        self.count_graph_call(GraphCall::Launch)?;
        // All of it or nothing, as on a real device: what is refused is refused before the begin.
        graph.0.iter().try_for_each(|_| self.count_command(stream))?;
        // SAFETY: the caller's word.
        graph.0.iter().try_for_each(|node| unsafe { self.give(stream, node.work()) })
    }

    fn library(&self) -> Result<(), String> {
        match self.options.library {
            EmulatedLibrary::Absent => Err("this emulated device has none".into()),
            EmulatedLibrary::Right | EmulatedLibrary::Wrong => Ok(()),
        }
    }

    fn takes_product(&self, call: &ProductCall) -> bool {
        self.library().is_ok() && call.n_out >= LEAST_OUT
    }

    unsafe fn multiply(&self, stream: &EmulatedStream, call: &ProductCall) -> DriverResult<()> {
        self.count_command(stream)?;
        let error = if self.options.library == EmulatedLibrary::Wrong { 0.5 } else { 0.0 };
        if !self.options.runs_kernels {
            return Ok(());
        }
        let task = Task::Multiply { call: *call, error };
        // SAFETY: the caller's word; memory does all work before it goes.
        told(unsafe { self.device.push(stream.0, task) })
    }

    fn record(&self, stream: &EmulatedStream, event: &EmulatedEvent) -> DriverResult<()> {
        event.stream.store(stream.0 as u64, Ordering::Release);
        event.n_tasks.store(self.device.n_tasks(stream.0), Ordering::Release);
        Ok(())
    }

    fn wait(&self, stream: &EmulatedStream, event: &EmulatedEvent) -> DriverResult<()> {
        let (other, n_tasks) = event.get();
        if other == stream.0 {
            return Ok(());
        }
        let task = Task::Wait { stream: other, n_tasks };
        // SAFETY: the task touches no memory.
        told(unsafe { self.device.push(stream.0, task) })
    }

    fn synchronize_event(&self, event: &EmulatedEvent) -> DriverResult<()> {
        let (stream, n_tasks) = event.get();
        told(self.device.finish(stream, n_tasks))
    }

    fn synchronize(&self, stream: &EmulatedStream) -> DriverResult<()> {
        told(self.device.finish(stream.0, u64::MAX))
    }
}
