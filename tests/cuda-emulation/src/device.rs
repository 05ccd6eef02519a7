//! The emulated device: streams of work that is done when somebody waits for it.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

use half::{bf16, f16};
use longview_core::DType;
use longview_cuda::{Grid, ProductCall};

use crate::library::{EmulatedKernel, Library, Machine};

/// Launches of fewer threads are run by one machine: another would cost more than it does.
const MANY_THREADS: u64 = 16_384;

/// Work that was given to a stream.
#[derive(Debug)]
pub(crate) enum Task {
    /// Copies bytes between addresses.
    Copy { to: u64, from: u64, bytes: u64 },
    /// Runs a kernel.
    Launch { kernel: &'static EmulatedKernel, grid: Grid, args: Box<[u64]> },
    /// Multiplies in a library's place; every sum is `error` off.
    Multiply { call: ProductCall, error: f32 },
    /// Makes clusters of one size, tokens in sequence, in place of `kmeans_assign`.
    LabelRuns { labels: u64, n_heads: u64, n_points: u64, n_clusters: u64 },
    /// Counts what has each label, in place of `kmeans_update`, which also makes centroids.
    CountLabels { labels: u64, counts: u64, n_heads: u64, n_points: u64, n_clusters: u64 },
    /// The first so many tasks of another stream come first.
    Wait { stream: usize, n_tasks: u64 },
}

impl Task {
    /// What stands in for a kernel that is not run, so that clusters have sizes.
    pub fn stand_in(kernel: &EmulatedKernel, grid: Grid, args: &[u64]) -> Option<Self> {
        // Behind addresses: the numbers of points and of clusters.
        let sizes = |word: u64| (word & u64::from(u32::MAX), word >> 32);
        let [_, y, z] = grid.blocks.map(u64::from);
        match &*kernel.args.name {
            "KmeansAssignArgs" => {
                let (n_points, n_clusters) = sizes(args[6]);
                Some(Self::LabelRuns { labels: args[3], n_heads: y, n_points, n_clusters })
            }
            "KmeansUpdateArgs" => {
                let (n_points, n_clusters) = sizes(args[4]);
                let [labels, counts] = [args[1], args[3]];
                Some(Self::CountLabels { labels, counts, n_heads: z, n_points, n_clusters })
            }
            _ => None,
        }
    }
}

#[derive(Debug, Default)]
struct Stream {
    tasks: VecDeque<Task>,
    n_done: u64,
}

#[derive(Debug, Default)]
struct State {
    streams: Vec<Stream>,
    /// What went wrong; for ever.
    lost: Option<String>,
}

#[derive(Debug)]
pub(crate) struct Device {
    pub library: &'static Library,
    state: Mutex<State>,
    machines: Mutex<Vec<Machine>>,
    n_workers: usize,
    backward: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Device {
    pub fn new(library: &'static Library, n_workers: usize, backward: bool) -> Self {
        Self {
            library,
            state: Mutex::default(),
            machines: Mutex::default(),
            n_workers: n_workers.max(1),
            backward,
        }
    }

    pub fn new_stream(&self) -> usize {
        let mut state = lock(&self.state);
        state.streams.push(Stream::default());
        state.streams.len() - 1
    }

    /// Gives a task to a stream.
    ///
    /// # Safety
    /// Whatever the task reads and writes must be there until the stream has done it.
    pub unsafe fn push(&self, stream: usize, task: Task) -> Result<(), String> {
        let mut state = lock(&self.state);
        state.check()?;
        state.streams[stream].tasks.push_back(task);
        Ok(())
    }

    /// How many tasks a stream was given so far.
    pub fn n_tasks(&self, stream: usize) -> u64 {
        let state = lock(&self.state);
        let stream = &state.streams[stream];
        stream.n_done + stream.tasks.len() as u64
    }

    /// Does the first so many tasks of a stream, and those of others that come before them.
    pub fn finish(&self, stream: usize, n_tasks: u64) -> Result<(), String> {
        let mut state = lock(&self.state);
        self.finish_locked(&mut state, stream, n_tasks)
    }

    /// Does everything.
    pub fn finish_all(&self) -> Result<(), String> {
        let mut state = lock(&self.state);
        for stream in 0..state.streams.len() {
            self.finish_locked(&mut state, stream, u64::MAX)?;
        }
        Ok(())
    }

    fn finish_locked(&self, state: &mut State, stream: usize, n_tasks: u64) -> Result<(), String> {
        state.check()?;
        while state.streams[stream].n_done < n_tasks {
            let Some(task) = state.streams[stream].tasks.pop_front() else { break };
            let result = match task {
                Task::Wait { stream, n_tasks } => self.finish_locked(state, stream, n_tasks),
                task => self.run(&task),
            };
            if let Err(message) = &result {
                state.lost.get_or_insert_with(|| message.clone());
                // What comes after is never done.
                state.streams.iter_mut().for_each(|stream| stream.tasks.clear());
            }
            result?;
            state.streams[stream].n_done += 1;
        }
        Ok(())
    }

    fn run(&self, task: &Task) -> Result<(), String> {
        match task {
            Task::Copy { to, from, bytes } => {
                // SAFETY: whoever gave the task promised that both runs are there.
                unsafe {
                    let (to, from) = (*to as *mut u8, *from as *const u8);
                    std::ptr::copy(from, to, *bytes as usize);
                }
                Ok(())
            }
            Task::Launch { kernel, grid, args } => self.run_grid(kernel, *grid, args),
            Task::Multiply { call, error } => {
                // SAFETY: whoever gave the task promised that the operands are there.
                unsafe { multiply(call, *error) };
                Ok(())
            }
            Task::LabelRuns { labels, n_heads, n_points, n_clusters } => {
                for i in 0..n_heads * n_points {
                    let cluster = i % n_points * n_clusters / n_points;
                    // SAFETY: whoever gave the task promised that the labels are there.
                    unsafe { (*labels as *mut u32).add(i as usize).write(cluster as u32) };
                }
                Ok(())
            }
            Task::CountLabels { labels, counts, n_heads, n_points, n_clusters } => {
                for head in 0..*n_heads {
                    // SAFETY: whoever gave the task promised that both are there.
                    let (labels, counts) = unsafe {
                        let labels = (*labels as *const u32).add((head * n_points) as usize);
                        let counts = (*counts as *mut u32).add((head * n_clusters) as usize);
                        (
                            std::slice::from_raw_parts(labels, *n_points as usize),
                            std::slice::from_raw_parts_mut(counts, *n_clusters as usize),
                        )
                    };
                    counts.fill(0);
                    labels.iter().for_each(|label| counts[*label as usize] += 1);
                }
                Ok(())
            }
            Task::Wait { .. } => Ok(()),
        }
    }

    /// Runs a launch, on several threads of the system where it is large.
    fn run_grid(&self, kernel: &EmulatedKernel, grid: Grid, args: &[u64]) -> Result<(), String> {
        let n_blocks: u64 = grid.blocks.iter().map(|n| u64::from(*n)).product();
        let is_large = n_blocks * u64::from(kernel.threads) >= MANY_THREADS;
        let n_workers = if is_large { self.n_workers.min(n_blocks as usize) } else { 1 };
        let next_block = AtomicU64::new(0);
        let work = || {
            let mut machine = self.machine();
            // SAFETY: whoever gave the task promised that what the kernel uses is there.
            let result = unsafe { machine.run(kernel, grid, args, &next_block, self.backward) };
            lock(&self.machines).push(machine);
            result
        };
        if n_workers == 1 {
            return work();
        }
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..n_workers).map(|_| scope.spawn(work)).collect();
            let mut result = Ok(());
            for worker in workers {
                let panicked = |_| Err("a worker of the emulation panicked".into());
                result = result.and(worker.join().unwrap_or_else(panicked));
            }
            result
        })
    }

    fn machine(&self) -> Machine {
        let machine = lock(&self.machines).pop();
        machine.unwrap_or_else(|| Machine::new(self.library))
    }
}

/// The product, and an answer of the workspace: it is filled, so nobody may need what was there.
///
/// # Safety
/// The operands must be there, as [`ProductCall`] says.
unsafe fn multiply(call: &ProductCall, error: f32) {
    let (n_rows, n_out) = (call.n_rows as usize, call.n_out as usize);
    let width = call.width as usize;
    let widen = |bits: u16| match call.dtype {
        DType::F16 => f16::from_bits(bits).to_f32(),
        _ => bf16::from_bits(bits).to_f32(),
    };
    assert!([call.x, call.weight, call.workspace].iter().all(|at| at.is_multiple_of(256)));
    assert!(call.out.is_multiple_of(16) && width.is_multiple_of(8), "{call:?}");
    // SAFETY: the caller's word.
    let (x, w, out) = unsafe {
        (call.workspace as *mut u8).write_bytes(0xff, call.workspace_bytes as usize);
        (
            std::slice::from_raw_parts(call.x as *const u16, n_rows * width),
            std::slice::from_raw_parts(call.weight as *const u16, n_out * width),
            std::slice::from_raw_parts_mut(call.out as *mut f32, n_rows * n_out),
        )
    };
    let rows = x.chunks_exact(width).zip(out.chunks_exact_mut(n_out));
    for (x, out) in rows {
        let x: Vec<f32> = x.iter().map(|bits| widen(*bits)).collect();
        for (w, out) in w.chunks_exact(width).zip(out) {
            let sum: f32 = w.iter().zip(&x).map(|(w, x)| widen(*w) * x).sum();
            *out = sum + error + if call.accumulate { *out } else { 0.0 };
        }
    }
}

impl State {
    fn check(&self) -> Result<(), String> {
        self.lost.clone().map_or(Ok(()), Err)
    }
}
