//! Commands that wait to be handed over, as shapes and the data that changes from run to run.
//!
//! Shapes and data lie apart, so that two runs are compared by their shapes as a whole, and a step
//! that records a thousand commands allocates nothing after its first time.

use crate::driver::{CopyCall, Grid, KernelCall, Work};
use crate::kernels::Kernel;

/// What makes a command the same as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Shape {
    Launch { kernel: Kernel, grid: Grid },
    Copy { bytes: u64, to_host: bool, from_host: bool },
}

/// Commands in the order in which a stream was given them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    shapes: Vec<Shape>,
    /// Arguments of kernels and addresses of copies, one after the other.
    data: Vec<u8>,
    /// Where each command's data ends.
    ends: Vec<usize>,
}

impl Commands {
    pub fn len(&self) -> usize {
        self.shapes.len()
    }

    pub fn clear(&mut self) {
        self.shapes.clear();
        self.data.clear();
        self.ends.clear();
    }

    pub fn push(&mut self, work: Work<'_>) {
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

    /// Whether a graph of `other` can become one of these commands.
    pub fn has_shapes_of(&self, other: &Self) -> bool {
        self.shapes == other.shapes
    }

    /// The commands whose arguments or addresses are not those of `other`, which has their shapes.
    pub fn changed_since<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        (0..self.len()).filter(|i| self.data(*i) != other.data(*i))
    }

    /// Takes the arguments and addresses of `other`, which has the same shapes.
    pub fn take_data_of(&mut self, other: &Self) {
        self.data.copy_from_slice(&other.data);
    }

    fn data(&self, i: usize) -> &[u8] {
        let begin = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.data[begin..self.ends[i]]
    }

    pub fn get(&self, i: usize) -> Work<'_> {
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

    pub fn iter(&self) -> impl Iterator<Item = Work<'_>> {
        (0..self.len()).map(|i| self.get(i))
    }

    /// Of the shapes alone, by which runs are looked up.
    pub fn hash(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        self.shapes.hash(&mut hasher);
        hasher.finish()
    }
}
