//! What a device is to the backend: memory, streams, events, launches.
//!
//! The one seam between the launch code and what runs it. Everything on a stream happens in the
//! order of the calls and some time later; [`Driver::synchronize`] waits for it. Nothing is said
//! about two streams unless an event says it.
//!
//! Work is given one by one ([`Driver::run`]) or, if it is launches alone, as a graph: a chain of
//! them, launched as one, whose nodes can be given other arguments in between.

use longview_core::DType;

use crate::error::StartError;
use crate::kernels::Kernel;

/// Result of a driver call.
pub type DriverResult<T> = Result<T, DriverError>;

/// A call that a driver refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// No memory of the kind asked for; everything else goes on.
    #[error("out of memory")]
    OutOfMemory,
    /// The context is broken, or in a state that nobody foresaw: every later call may fail.
    #[error("{0}")]
    Lost(String),
}

/// What a device says about itself; constant.
#[derive(Clone, Debug)]
pub struct DeviceFacts {
    /// The product's name.
    pub name: String,
    /// Major and minor.
    pub compute_capability: (u32, u32),
    /// Multiprocessors: what the blocks of a launch are spread over.
    pub n_multiprocessors: u32,
    /// Whether device memory and host memory are the same chips (Jetson, DGX Spark): kernels read
    /// host memory as fast as their own. False for a device with memory of its own, however fast
    /// the link: that of a GH200 has an eighth of the bandwidth of its HBM.
    pub unified_memory: bool,
    /// Memory that may be planned for; `None` where the device does not tell.
    pub memory_bytes: Option<u64>,
    /// Shared memory that a block may have, if its kernel asks for it.
    pub shared_bytes: u32,
}

/// A run of device memory, or of pinned host memory that kernels read and write by its address.
///
/// Dropping it waits for all work of the device that may use it.
pub trait Memory: Send + Sync {
    /// Where it begins, for kernels: a multiple of 256.
    fn address(&self) -> u64;

    /// Number of bytes.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of host memory; `None` for device memory. Work that writes them must be finished.
    fn host_bytes(&self) -> Option<&[u8]>;

    /// As [`Memory::host_bytes`], writable. Work that reads or writes them must be finished.
    fn host_bytes_mut(&mut self) -> Option<&mut [u8]>;
}

/// A byte of a [`Memory`].
#[derive(Debug)]
pub struct Place<'a, M> {
    /// What the place is in; it outlives every copy to or from here.
    pub memory: &'a M,
    /// Bytes from the begin of the memory.
    pub offset: u64,
}

impl<'a, M: Memory> Place<'a, M> {
    /// `offset` bytes into `memory`.
    pub fn new(memory: &'a M, offset: u64) -> Self {
        Self { memory, offset }
    }

    /// Its address, for a copy of `bytes` bytes.
    ///
    /// # Panics
    /// If fewer than `bytes` bytes follow: copies never leave their memory.
    pub fn address_of(&self, bytes: u64) -> u64 {
        let end = self.offset.checked_add(bytes);
        let len = self.memory.len();
        assert!(end.is_some_and(|end| end <= len), "{bytes} bytes at {} of {len}", self.offset);
        self.memory.address() + self.offset
    }
}

/// The blocks of a launch and the shared memory of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// `blockIdx` runs below these.
    pub blocks: [u32; 3],
    /// What `DYNAMIC_SHARED` gets, in bytes.
    pub dynamic_shared: u32,
}

impl Grid {
    /// Blocks in three dimensions.
    ///
    /// # Panics
    /// If there are more than a device takes: 2^31 - 1, then 65,535 and 65,535. A kernel lays its
    /// grid out so that this cannot happen with buffers of fewer than 2^32 elements.
    pub fn new(blocks: [usize; 3]) -> Self {
        const MOST: [usize; 3] = [i32::MAX as usize, 65_535, 65_535];
        assert!(blocks.iter().zip(MOST).all(|(n, most)| *n <= most), "a grid of {blocks:?} blocks");
        Self { blocks: blocks.map(|n| n as u32), dynamic_shared: 0 }
    }

    /// As many blocks of `per_block` items as `n_items` need.
    pub fn over(n_items: usize, per_block: usize) -> Self {
        Self::new([n_items.div_ceil(per_block), 1, 1])
    }

    /// With `bytes` of dynamic shared memory a block.
    pub fn with_shared(self, bytes: u32) -> Self {
        Self { dynamic_shared: bytes, ..self }
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.blocks.contains(&0)
    }
}

/// A launch: which kernel, how often, with what.
#[derive(Clone, Copy, Debug)]
pub struct KernelCall<'a> {
    /// The kernel; its number of threads is part of it.
    pub kernel: Kernel,
    /// Blocks.
    pub grid: Grid,
    /// The bytes of its struct of arguments.
    pub args: &'a [u8],
}

/// A copy between memories of this device, by addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyCall {
    /// Where the bytes go.
    pub to: u64,
    /// Where they come from.
    pub from: u64,
    /// Bytes to copy, at least one.
    pub bytes: u64,
    /// Whether `to` is host memory.
    pub to_host: bool,
    /// Whether `from` is host memory.
    pub from_host: bool,
}

impl CopyCall {
    /// A copy from place to place.
    ///
    /// # Panics
    /// If it would leave one of the memories.
    pub fn new<M: Memory>(to: &Place<'_, M>, from: &Place<'_, M>, bytes: u64) -> Self {
        Self {
            to: to.address_of(bytes),
            from: from.address_of(bytes),
            bytes,
            to_host: to.memory.host_bytes().is_some(),
            from_host: from.memory.host_bytes().is_some(),
        }
    }
}

/// What a stream can be given.
#[derive(Clone, Copy, Debug)]
pub enum Work<'a> {
    /// A launch of a kernel.
    Launch(KernelCall<'a>),
    /// A copy, of at least one byte.
    Copy(CopyCall),
}

/// A product that a vendor's library makes: `out = x W^T`, or added to what `out` holds. x and W
/// begin at 256 bytes and their rows at 16, `out` begins at 16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProductCall {
    /// `[n_rows, width]` of `dtype`.
    pub x: u64,
    /// `[n_out, width]` of `dtype`.
    pub weight: u64,
    /// F32 `[n_rows, n_out]`.
    pub out: u64,
    /// Rows of x.
    pub n_rows: u32,
    /// Rows of W.
    pub n_out: u32,
    /// Elements of a row, all of them to be multiplied.
    pub width: u32,
    /// F16 or BF16.
    pub dtype: DType,
    /// Whether the product is added.
    pub accumulate: bool,
    /// Device memory that the library may use, at 256 bytes.
    pub workspace: u64,
    /// How much of it.
    pub workspace_bytes: u64,
}

/// A device, real or emulated.
pub trait Driver: Sized + Send + Sync + 'static {
    /// The backend's name on command lines and in reports.
    const NAME: &'static str;

    /// Device or host memory.
    type Memory: Memory;
    /// Work in order.
    type Stream: Send + Sync;
    /// A point in the work of a stream.
    type Event: Send + Sync;
    /// A chain of work that is launched as one. Dropping it waits for its launches.
    type Graph: Send;

    /// What the device says about itself.
    fn facts(&self) -> &DeviceFacts;

    /// The same device again, after it was lost. Memory, streams and events of the old one are
    /// gone.
    fn reopen(&self) -> Result<Self, StartError>;

    /// `bytes` zeros of device memory, there for every stream when this returns.
    fn alloc(&self, bytes: u64) -> DriverResult<Self::Memory>;

    /// `bytes` zeros of pinned host memory that kernels reach by its address and the host reads as
    /// fast as any (not write-combined).
    fn alloc_host(&self, bytes: u64) -> DriverResult<Self::Memory>;

    /// A stream that waits for no other.
    fn new_stream(&self) -> DriverResult<Self::Stream>;

    /// An event; recorded again and again, so that none is made in a step.
    fn new_event(&self) -> DriverResult<Self::Event>;

    /// Gives a kernel or a copy to a stream. Arguments are copied before this returns.
    ///
    /// # Safety
    /// Addresses must point into memory of this device, and what the work reads and writes from
    /// there must lie in it. The host leaves both alone until it has waited.
    unsafe fn run(&self, stream: &Self::Stream, work: Work<'_>) -> DriverResult<()>;

    /// A graph of launches, each after the one before.
    ///
    /// # Safety
    /// As for [`Driver::run`], whenever it is launched.
    unsafe fn new_graph(&self, calls: &[KernelCall<'_>]) -> DriverResult<Self::Graph>;

    /// Gives node `i` of a graph other arguments, for launches from now on. Kernel and grid stay.
    ///
    /// # Safety
    /// As for [`Driver::run`], whenever the graph is launched.
    unsafe fn set_node(
        &self,
        graph: &mut Self::Graph,
        i: usize,
        call: KernelCall<'_>,
    ) -> DriverResult<()>;

    /// Gives a graph to a stream: all of its launches, in order.
    ///
    /// # Safety
    /// As for [`Driver::run`], for each of its nodes.
    unsafe fn launch_graph(
        &self,
        stream: &Self::Stream,
        graph: &mut Self::Graph,
    ) -> DriverResult<()>;

    /// Whether a vendor's library multiplies matrices on this device, or why none does.
    fn library(&self) -> Result<(), String> {
        Err("there is none for this device".into())
    }

    /// Whether the library makes such a product; its rows of x and its workspace need not be there.
    fn takes_product(&self, _call: &ProductCall) -> bool {
        false
    }

    /// Gives a product that [`Driver::takes_product`] to a stream.
    ///
    /// # Safety
    /// As for [`Driver::run`].
    unsafe fn multiply(&self, _stream: &Self::Stream, _call: &ProductCall) -> DriverResult<()> {
        Err(DriverError::Lost("a product for a library that is not there".into()))
    }

    /// The event stands for all work on the stream so far.
    fn record(&self, stream: &Self::Stream, event: &Self::Event) -> DriverResult<()>;

    /// Work on the stream from now on happens after the event.
    fn wait(&self, stream: &Self::Stream, event: &Self::Event) -> DriverResult<()>;

    /// Waits on the host for the event.
    fn synchronize_event(&self, event: &Self::Event) -> DriverResult<()>;

    /// Waits on the host for all work on the stream.
    fn synchronize(&self, stream: &Self::Stream) -> DriverResult<()>;
}
