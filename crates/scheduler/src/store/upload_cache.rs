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

#[cfg(test)]
mod tests {
    use longview_ops::ReferenceBackend;

    use super::super::fixture::read_words;
    use super::*;

    /// Overwrites all of the device's copy, so that a later test sees which words came again.
    fn mark(backend: &ReferenceBackend, lists: &mut UploadCache<ReferenceBackend>) {
        let view = lists.all_mut();
        let nines = vec![9u32; view.len];
        backend.write(view, bytemuck::cast_slice(&nines)).unwrap();
    }

    #[test]
    fn a_list_goes_to_its_own_place() {
        let backend = ReferenceBackend::new();
        let mut lists = UploadCache::new(&backend, 3, 4, "test").unwrap();
        lists.put(&backend, 1, &[5, 6, 7, 8]).unwrap();
        lists.put(&backend, 2, &[4]).unwrap();
        let want = [0, 0, 0, 0, 5, 6, 7, 8, 4, 0, 0, 0];
        assert_eq!(read_words(&backend, lists.all()), want);
        assert_eq!(read_words(&backend, lists.part(5, 3)), [6, 7, 8]);
    }

    #[test]
    fn only_words_from_the_first_that_differs_on_are_written() {
        let backend = ReferenceBackend::new();
        let mut lists = UploadCache::new(&backend, 2, 4, "test").unwrap();
        lists.put(&backend, 0, &[1, 2, 3]).unwrap();
        lists.put(&backend, 1, &[1, 2, 3, 4]).unwrap();
        mark(&backend, &mut lists);
        // The same again: nothing is written.
        lists.put(&backend, 0, &[1, 2, 3]).unwrap();
        assert_eq!(read_words(&backend, lists.all()), [9; 8]);
        // The second of four differs: the third, which does not, is written with it.
        lists.put(&backend, 1, &[1, 5, 3, 4]).unwrap();
        assert_eq!(read_words(&backend, lists.all()), [9, 9, 9, 9, 9, 5, 3, 4]);
        // A longer list that begins alike: the new words alone.
        lists.put(&backend, 0, &[1, 2, 3, 6]).unwrap();
        assert_eq!(read_words(&backend, lists.all()), [9, 9, 9, 6, 9, 5, 3, 4]);
    }

    #[test]
    fn what_follows_a_shorter_list_is_unknown() {
        let backend = ReferenceBackend::new();
        let mut lists = UploadCache::new(&backend, 1, 4, "test").unwrap();
        lists.put(&backend, 0, &[1, 2, 3]).unwrap();
        lists.put(&backend, 0, &[1]).unwrap();
        // The device adds two rows of its own.
        backend.write(lists.all_mut(), bytemuck::cast_slice(&[1u32, 7, 8, 0])).unwrap();
        lists.put(&backend, 0, &[1, 2, 3]).unwrap();
        assert_eq!(read_words(&backend, lists.all()), [1, 2, 3, 0]);
        lists.put(&backend, 0, &[]).unwrap();
        mark(&backend, &mut lists);
        lists.put(&backend, 0, &[1, 2]).unwrap();
        assert_eq!(read_words(&backend, lists.all()), [1, 2, 9, 9]);
    }

    /// A list of zeros is not taken for one that is there because memory begins at zero.
    #[test]
    fn a_new_list_knows_no_word() {
        let backend = ReferenceBackend::new();
        let mut lists = UploadCache::new(&backend, 1, 3, "test").unwrap();
        mark(&backend, &mut lists);
        lists.put(&backend, 0, &[0, 0]).unwrap();
        assert_eq!(read_words(&backend, lists.all()), [0, 0, 9]);
    }
}
