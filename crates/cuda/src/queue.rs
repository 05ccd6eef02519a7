//! A queue: one stream of the device, with the host memory that its copies go through and the
//! device memory that ops use between two launches.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use longview_ops::OpResult;

use crate::args::{Address, KernelArgs};
use crate::counters::Tally;
use crate::device::{Counted, Device};
use crate::driver::{Driver, Grid, KernelCall, Memory, Place, ProductCall};
use crate::kernels::Kernel;
use crate::lock::lock;
use crate::staging::{Downloads, Part, Uploads};
use crate::stream::Stream;

pub(crate) struct Queue<D: Driver> {
    device: Arc<Device<D>>,
    stream: Arc<Stream<D>>,
    uploads: Mutex<Uploads<D>>,
    downloads: Mutex<Downloads<D>>,
    scratch: Mutex<Option<Counted<D>>>,
    /// What other queues wait for this one with.
    event: Mutex<Option<D::Event>>,
}

impl<D: Driver> Queue<D> {
    pub fn new(device: &Arc<Device<D>>) -> OpResult<Self> {
        Ok(Self::on(device, Stream::new(device)?))
    }

    fn on(device: &Arc<Device<D>>, stream: Arc<Stream<D>>) -> Self {
        Self {
            device: Arc::clone(device),
            stream,
            uploads: Mutex::default(),
            downloads: Mutex::default(),
            scratch: Mutex::default(),
            event: Mutex::default(),
        }
    }

    /// A second queue, whose work happens after all that was given to this one so far. Where the
    /// device gives no stream it is lost; the queue then only says so.
    pub fn fork(&self) -> Self {
        self.ordered_fork().unwrap_or_else(|error| {
            self.device.lose(&error.to_string());
            Self::on(&self.device, Arc::clone(&self.stream))
        })
    }

    fn ordered_fork(&self) -> OpResult<Self> {
        let fork = Self::new(&self.device)?;
        fork.after(self)?;
        Ok(fork)
    }

    /// What comes from now on happens after all that `other` was given so far.
    pub fn after(&self, other: &Self) -> OpResult<()> {
        self.device.check()?;
        let mut event = lock(&other.event);
        if event.is_none() {
            *event = Some(self.device.told(self.device.driver.new_event())?);
        }
        let Some(event) = event.as_ref() else { return Ok(()) };
        // A wait is for what was recorded last when it was asked for: one event serves always.
        other.stream.record(event)?;
        self.stream.wait(event)
    }

    /// Launches a kernel; none of no blocks. The descriptor was checked before: addresses are those
    /// of views, and views lie in their buffers.
    pub fn launch<A: KernelArgs>(&self, kernel: Kernel, grid: Grid, args: &A) -> OpResult<()> {
        self.device.check()?;
        debug_assert_eq!(kernel.facts().args, A::LAYOUT, "{kernel:?} takes another struct");
        if grid.is_empty() {
            return Ok(());
        }
        Tally::add(&self.device.tally.dispatches, 1);
        let call = KernelCall { kernel, grid, args: bytemuck::bytes_of(args) };
        // SAFETY: addresses come from views and weights that a descriptor's check found to lie in
        // their buffers, and kernels keep to the sizes beside them; memory hands over and waits
        // for work before it is freed.
        unsafe { self.stream.push(call) }.map(|_| ())
    }

    /// Has the vendor's library make a product that it takes; see [`Queue::launch`] for addresses.
    pub fn multiply(&self, call: &ProductCall) -> OpResult<()> {
        self.device.check()?;
        Tally::add(&self.device.tally.dispatches, 1);
        // SAFETY: addresses come from a checked descriptor and from scratch of this queue, whose
        // memory waits for work before it is freed.
        unsafe { self.stream.multiply(call) }
    }

    /// Calls `launches` with device memory of at least `n_bytes` that holds anything. Nobody else
    /// on this queue gets it in between, and work on a stream is in order: so one serves all ops.
    /// It has its size after warm-up.
    pub fn with_scratch(
        &self,
        n_bytes: u64,
        launches: impl FnOnce(Address) -> OpResult<()>,
    ) -> OpResult<()> {
        let mut scratch = lock(&self.scratch);
        if scratch.as_ref().is_none_or(|has| has.memory.len() < n_bytes) {
            *scratch = None;
            let n_bytes = n_bytes.max(4096).next_power_of_two();
            *scratch = Some(self.device.alloc(n_bytes, "scratch")?);
        }
        let address = scratch.as_ref().map_or(0, |has| has.memory.address());
        launches(Address(address))
    }

    /// Puts `n_bytes` bytes to `to`, in order with the ops; `fill` writes any range of them.
    pub fn upload(
        &self,
        to: Place<'_, D::Memory>,
        n_bytes: usize,
        fill: impl FnMut(Range<usize>, &mut [u8]),
    ) -> OpResult<()> {
        self.device.check()?;
        Tally::add(&self.device.tally.bytes_up, n_bytes as u64);
        lock(&self.uploads).run(&self.device, &self.stream, to, n_bytes, fill)
    }

    /// Reads all parts back, with one wait if they are not very large.
    pub fn download(&self, parts: &mut [Part<'_, '_, D>]) -> OpResult<()> {
        self.device.check()?;
        let n_bytes: usize = parts.iter().map(|part| part.out.len()).sum();
        let n_given = lock(&self.uploads).n_given();
        lock(&self.downloads).run(&self.device, &self.stream, parts)?;
        // The stream was waited for: what the host tells next lies where it lay in the last step.
        lock(&self.uploads).begin_anew(n_given);
        Tally::add(&self.device.tally.readbacks, 1);
        Tally::add(&self.device.tally.bytes_down, n_bytes as u64);
        Ok(())
    }

    /// Lets the device begin with what it was given.
    pub fn submit(&self) -> OpResult<()> {
        self.device.check()?;
        self.stream.hand_over()
    }

    /// Waits until all work on this queue is done.
    pub fn synchronize(&self) -> OpResult<()> {
        let n_given = lock(&self.uploads).n_given();
        self.stream.synchronize()?;
        lock(&self.uploads).begin_anew(n_given);
        Ok(())
    }
}
