//! A stream that collects commands and hands them over together: as a graph where it was given the
//! same kernels, grids and copies before, else one by one.
//!
//! A decode step gives the same commands token after token; only what they point to and their
//! numbers change. Which runs become graphs is the business of [`Graphs`].

use std::sync::{Arc, Mutex, Weak};

use longview_ops::OpResult;

use crate::commands::Commands;
use crate::counters::Tally;
use crate::device::{Device, Waiting};
use crate::driver::{CopyCall, Driver, DriverResult, KernelCall, ProductCall, Work};
use crate::graphs::Graphs;
use crate::lock::lock;

/// Fewer commands cost less one by one.
const LEAST: usize = 8;
/// So many wait at most: the device begins with a step while the host records the rest of it.
const MOST: usize = 128;

/// Work in order, some of it not handed over yet.
pub(crate) struct Stream<D: Driver> {
    device: Arc<Device<D>>,
    raw: D::Stream,
    state: Mutex<State<D>>,
}

struct State<D: Driver> {
    waiting: Commands,
    graphs: Graphs<D>,
    /// Commands so far.
    n_pushed: u64,
}

/// A command, by its number on its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

impl Ticket {
    /// Of no command.
    pub const NONE: Self = Self(0);
}

impl<D: Driver> Stream<D> {
    /// A stream of the device, which can then hand over what waits on it.
    pub fn new(device: &Arc<Device<D>>) -> OpResult<Arc<Self>> {
        let (waiting, graphs) = (Commands::default(), Graphs::new(device));
        let state = State { waiting, graphs, n_pushed: 0 };
        let raw = device.told(device.driver.new_stream())?;
        let stream = Self { device: Arc::clone(device), raw, state: Mutex::new(state) };
        let stream = Arc::new(stream);
        let weak: Weak<Self> = Arc::downgrade(&stream);
        device.know(weak);
        Ok(stream)
    }

    /// Gives it a launch, to be done after all work before. Whether the device is still there is
    /// asked once by the queue for the whole call, and again at the hand-over.
    ///
    /// # Safety
    /// As for [`Driver::run`]; what the kernel reads and writes is not freed before
    /// [`Device::hand_over`] was called.
    pub unsafe fn push(&self, call: KernelCall<'_>) -> OpResult<Ticket> {
        let mut state = lock(&self.state);
        state.waiting.push(call);
        state.n_pushed += 1;
        let ticket = Ticket(state.n_pushed);
        if state.waiting.len() >= MOST {
            self.hand_over_locked(&mut state)?;
        }
        Ok(ticket)
    }

    /// Calls `change` if a command is the last one that the stream was given and still waits, so
    /// that what it reads may change; returns whether.
    pub fn while_last(
        &self,
        ticket: Ticket,
        change: impl FnOnce() -> OpResult<()>,
    ) -> OpResult<bool> {
        let state = lock(&self.state);
        if state.waiting.len() == 0 || Ticket(state.n_pushed) != ticket {
            return Ok(false);
        }
        change()?;
        Ok(true)
    }

    /// Gives it a copy, which no graph holds (see [`Graphs`]): what waits goes first, then the
    /// copy.
    ///
    /// # Safety
    /// As for [`Stream::push`].
    pub unsafe fn copy(&self, call: CopyCall) -> OpResult<()> {
        let mut state = lock(&self.state);
        self.hand_over_locked(&mut state)?;
        self.device.check()?;
        Tally::add(&self.device.tally.submits, 1);
        // SAFETY: the caller's word.
        self.done(unsafe { self.device.driver.run(&self.raw, Work::Copy(call)) })
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

impl<D: Driver> Waiting for Stream<D> {
    fn hand_over_now(&self) {
        let _ = self.hand_over();
    }
}

impl<D: Driver> Drop for Stream<D> {
    fn drop(&mut self) {
        // What was asked for is done.
        self.hand_over_now();
    }
}

impl<D: Driver> State<D> {
    /// Hands over the commands that wait.
    ///
    /// # Safety
    /// As for [`Driver::run`], for each command.
    unsafe fn run(&mut self, device: &Device<D>, stream: &D::Stream) -> DriverResult<()> {
        // SAFETY: the caller's word.
        if self.waiting.len() >= LEAST && unsafe { self.graphs.run(stream, &self.waiting) } {
            return Ok(());
        }
        Tally::add(&device.tally.submits, self.waiting.len() as u64);
        let mut calls = self.waiting.iter().map(Work::Launch);
        // SAFETY: the caller's word.
        calls.try_for_each(|work| unsafe { device.driver.run(stream, work) })
    }
}
