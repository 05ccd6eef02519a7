//! Lists of words on the device, with a copy on the host that says what is there already: only
//! what differs is written. From one layer of a step to the next, most lists stay as they are.

use longview_core::DType;
use longview_ops::{Backend, OpResult, View, ViewMut};

/// Lists of up to `stride` words each.
pub(crate) struct UploadCache<B: Backend> {
    buffer: B::Buffer,
    stride: usize,
    words: Vec<u32>,
    /// How many words of each list are known to be on the device.
    known: Vec<usize>,
}

impl<B: Backend> UploadCache<B> {
    /// Empty lists.
    pub fn new(backend: &B, n_lists: usize, stride: usize, label: &str) -> OpResult<Self> {
        Ok(Self {
            buffer: backend.alloc(DType::U32, n_lists * stride, label)?,
            stride,
            words: vec![0; n_lists * stride],
            known: vec![0; n_lists],
        })
    }

    /// Puts words to the begin of a list. What follows them there is unknown from now on: the
    /// device may write it.
    pub fn put(&mut self, backend: &B, list: usize, words: &[u32]) -> OpResult<()> {
        let at = list * self.stride;
        let known = &self.words[at..at + self.known[list]];
        let same = words.iter().zip(known).take_while(|(new, old)| new == old).count();
        self.known[list] = same;
        let rest = &words[same..];
        if !rest.is_empty() {
            let view = ViewMut::part(&mut self.buffer, at + same, rest.len());
            backend.write(view, bytemuck::cast_slice(rest))?;
            self.words[at + same..at + words.len()].copy_from_slice(rest);
        }
        self.known[list] = words.len();
        Ok(())
    }

    /// Words from `first` on of the first list.
    pub fn part(&self, first: usize, len: usize) -> View<'_, B> {
        View::part(&self.buffer, first, len)
    }

    /// All lists.
    pub fn all(&self) -> View<'_, B> {
        View::all(&self.buffer)
    }

    /// All lists, for the device to write behind what was put.
    pub fn all_mut(&mut self) -> ViewMut<'_, B> {
        ViewMut::all(&mut self.buffer)
    }
}
