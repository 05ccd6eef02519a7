//! Launches that wait to be handed over, as shapes and the data that changes from run to run.
//!
//! Shapes and data lie apart, so that two runs are compared by their shapes as a whole, and a step
//! that records a thousand commands allocates nothing after its first time.

use crate::driver::{Grid, KernelCall};
use crate::kernels::Kernel;

/// Bytes of a word of data.
const WORD: usize = size_of::<u64>();

/// What makes a command the same as another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shape {
    kernel: Kernel,
    grid: Grid,
}

/// Commands in the order in which a stream was given them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Commands {
    shapes: Vec<Shape>,
    /// Arguments, one launch's after the other's. Each begins at a word: no document says that a
    /// driver takes arguments from elsewhere.
    data: Vec<u64>,
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

    pub fn push(&mut self, call: KernelCall<'_>) {
        let KernelCall { kernel, grid, args } = call;
        let begin = self.data.len();
        self.data.resize(begin + args.len().div_ceil(WORD), 0);
        let to: &mut [u8] = bytemuck::cast_slice_mut(&mut self.data[begin..]);
        to[..args.len()].copy_from_slice(args);
        self.shapes.push(Shape { kernel, grid });
        self.ends.push(self.data.len());
    }

    /// Whether a graph of `other` can become one of these commands.
    pub fn has_shapes_of(&self, other: &Self) -> bool {
        self.shapes == other.shapes
    }

    /// The commands whose arguments are not those of `other`, which has their shapes.
    pub fn changed_since<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = usize> + 'a {
        (0..self.len()).filter(|i| self.data(*i) != other.data(*i))
    }

    /// Takes the arguments of `other`, which has the same shapes.
    pub fn take_data_of(&mut self, other: &Self) {
        self.data.copy_from_slice(&other.data);
    }

    fn data(&self, i: usize) -> &[u64] {
        let begin = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.data[begin..self.ends[i]]
    }

    pub fn get(&self, i: usize) -> KernelCall<'_> {
        let Shape { kernel, grid } = self.shapes[i];
        let args: &[u8] = bytemuck::cast_slice(self.data(i));
        let n_bytes = kernel.facts().args.size as usize;
        KernelCall { kernel, grid, args: &args[..n_bytes] }
    }

    pub fn iter(&self) -> impl Iterator<Item = KernelCall<'_>> {
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

#[cfg(test)]
mod tests {
    use super::Commands;
    use crate::driver::{Grid, KernelCall};
    use crate::kernels::Kernel;

    /// Whatever comes before it, a command is what it was, and its arguments begin at a word.
    #[test]
    fn arguments_begin_at_words() {
        let mut commands = Commands::default();
        let args_of = |kernel: Kernel| -> Vec<u8> {
            (0..kernel.facts().args.size).map(|i| i as u8 ^ kernel as u8).collect()
        };
        for kernel in Kernel::ALL {
            let args = args_of(*kernel);
            // As it may come from anywhere.
            let odd = [&[0][..], &args].concat();
            commands.push(KernelCall { kernel: *kernel, grid: Grid::over(1, 1), args: &odd[1..] });
        }
        assert_eq!(commands.len(), Kernel::ALL.len());
        for (call, kernel) in commands.iter().zip(Kernel::ALL) {
            assert_eq!(call.kernel, *kernel);
            assert_eq!(call.args, args_of(call.kernel));
            assert!(call.args.as_ptr().cast::<u64>().is_aligned());
        }
    }
}
