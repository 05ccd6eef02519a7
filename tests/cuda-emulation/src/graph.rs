//! Graphs: launches that are kept, and given to a stream again and again.

use longview_cuda::{Grid, Kernel, KernelCall, Work};

/// A chain of launches.
#[derive(Debug)]
pub struct EmulatedGraph(pub(crate) Vec<Node>);

/// A launch with its arguments.
#[derive(Debug)]
pub(crate) struct Node {
    kernel: Kernel,
    grid: Grid,
    args: Vec<u8>,
}

impl Node {
    pub fn new(call: &KernelCall<'_>) -> Self {
        let KernelCall { kernel, grid, args } = *call;
        Self { kernel, grid, args: args.to_vec() }
    }

    pub fn work(&self) -> Work<'_> {
        let Self { kernel, grid, args } = self;
        Work::Launch(KernelCall { kernel: *kernel, grid: *grid, args })
    }

    /// Whether a node of a graph may be set to another: what a real device allows, or less.
    pub fn may_become(&self, other: &Self) -> bool {
        (self.kernel, self.grid, self.args.len()) == (other.kernel, other.grid, other.args.len())
    }
}
