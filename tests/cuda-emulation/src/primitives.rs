//! Launches the kernels of `kernels/primitives.cu`: what the tests of the emulation compare.

use longview_cuda::{Driver, DriverError, Grid, Memory};

use crate::driver::{EmulatedDriver, EmulatedMemory, EmulatedOptions, EmulatedStream};

/// Threads of a block.
pub const THREADS: usize = 64;

/// The kernels with the arrays that they read and write.
#[derive(Debug)]
pub struct Primitives {
    driver: EmulatedDriver,
    stream: EmulatedStream,
    x: EmulatedMemory,
    halves: EmulatedMemory,
    out: EmulatedMemory,
    words: EmulatedMemory,
}

/// What a kernel wrote.
#[derive(Clone, Debug)]
pub struct Written {
    /// Its floats.
    pub out: Vec<f32>,
    /// Its words.
    pub words: Vec<u32>,
}

/// What the arrays of a kernel begin with; the rest of each is 0.
#[derive(Clone, Copy, Default)]
pub struct Inputs<'a> {
    /// Floats that it reads.
    pub x: &'a [f32],
    /// Halves that it reads, as bits.
    pub halves: &'a [u16],
    /// Words that it reads and writes.
    pub words: &'a [u32],
}

/// Floats and words that a kernel may write.
const N_OUT: usize = 8 * THREADS;

impl Primitives {
    /// On a device of its own.
    pub fn new(options: EmulatedOptions) -> Result<Self, String> {
        let driver = EmulatedDriver::new(options)?;
        let host = |bytes: usize| driver.alloc_host(bytes as u64).map_err(in_words);
        let (x, halves) = (host(THREADS * 4)?, host(1024)?);
        let (out, words) = (host(N_OUT * 4)?, host(N_OUT * 4)?);
        let stream = driver.new_stream().map_err(in_words)?;
        Ok(Self { driver, stream, x, halves, out, words })
    }

    /// Runs `name` on `blocks` blocks.
    pub fn run(
        &mut self,
        name: &str,
        blocks: usize,
        inputs: Inputs<'_>,
    ) -> Result<Written, String> {
        let Inputs { x, halves, words } = inputs;
        fill(&mut self.x, x.iter().flat_map(|v| v.to_ne_bytes()));
        fill(&mut self.halves, halves.iter().flat_map(|v| v.to_ne_bytes()));
        fill(&mut self.out, std::iter::empty());
        fill(&mut self.words, words.iter().flat_map(|v| v.to_ne_bytes()));
        let args = [&self.x, &self.halves, &self.out, &self.words].map(Memory::address);
        let grid = Grid::new([blocks, 1, 1]).with_shared(THREADS as u32 * 4);
        // SAFETY: the arrays are as long as the kernels of the file need, but for the mistakes
        // that leave them on purpose.
        let launched =
            unsafe { self.driver.launch_by_name(&self.stream, name, grid, Box::new(args)) };
        launched.and_then(|()| self.driver.synchronize(&self.stream)).map_err(in_words)?;
        let words = words_of(&self.words);
        let out = words_of(&self.out).into_iter().map(f32::from_bits).collect();
        Ok(Written { out, words })
    }

    /// Runs a mistake by its number; what it wrote, where nothing stopped it.
    pub fn mistake(&mut self, which: u32) -> Result<Vec<u32>, String> {
        let inputs = Inputs { x: &[which as f32], halves: &[0; 512], words: &[] };
        self.run("mistakes", 1, inputs).map(|w| w.words)
    }
}

fn in_words(error: DriverError) -> String {
    error.to_string()
}

/// Puts bytes at the begin, and zeros behind them.
fn fill(memory: &mut EmulatedMemory, bytes: impl Iterator<Item = u8>) {
    let to = memory.host_bytes_mut().unwrap_or_default();
    to.fill(0);
    to.iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
}

fn words_of(memory: &EmulatedMemory) -> Vec<u32> {
    let bytes = memory.host_bytes().unwrap_or_default();
    bytes.chunks_exact(4).map(|b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}
