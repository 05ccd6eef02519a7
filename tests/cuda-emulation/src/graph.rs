//! Graphs: works that are kept, and given to a stream again and again.

use longview_cuda::{CopyCall, Grid, Kernel, KernelCall, Work};

/// A chain of works.
#[derive(Debug)]
pub struct EmulatedGraph(pub(crate) Vec<Node>);

/// A work with its arguments.
#[derive(Debug)]
pub(crate) enum Node {
    Launch { kernel: Kernel, grid: Grid, args: Vec<u8> },
    Copy(CopyCall),
}

impl Node {
    pub fn new(work: &Work<'_>) -> Self {
        match *work {
            Work::Launch(KernelCall { kernel, grid, args }) => {
                Self::Launch { kernel, grid, args: args.to_vec() }
            }
            Work::Copy(call) => Self::Copy(call),
        }
    }

    pub fn work(&self) -> Work<'_> {
        match self {
            Self::Launch { kernel, grid, args } => {
                Work::Launch(KernelCall { kernel: *kernel, grid: *grid, args })
            }
            Self::Copy(call) => Work::Copy(*call),
        }
    }

    /// Whether a node of a graph may be set to another: what a real device allows, or less.
    pub fn may_become(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Launch { kernel, grid, args }, Self::Launch { kernel: k, grid: g, args: a }) => {
                (kernel, grid, args.len()) == (k, g, a.len())
            }
            (Self::Copy(a), Self::Copy(b)) => {
                (a.bytes, a.to_host, a.from_host) == (b.bytes, b.to_host, b.from_host)
            }
            _ => false,
        }
    }
}
