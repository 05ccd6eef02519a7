//! Work on the host that all threads of a backend share, where a document is opened.
//!
//! Large memory has no pages until somebody writes to it. The system clears each one then, and that
//! takes longer than to copy what goes there: so all threads get the pages first.

use std::mem::MaybeUninit;
use std::sync::{Mutex, PoisonError};

use longview_ops::Backend;

/// A part of the work.
pub(crate) type Task<'a> = Box<dyn FnOnce() + Send + 'a>;

/// Bytes of a part of memory: a huge page, so that no two threads wait for the same one.
const PART: usize = 2 << 20;
/// Bytes of the smallest page.
const PAGE: usize = 4096;

/// Does all of it, in any order and perhaps several at once.
pub(crate) fn together<B: Backend>(backend: &B, tasks: Vec<Task<'_>>) {
    let tasks: Vec<_> = tasks.into_iter().map(|task| Mutex::new(Some(task))).collect();
    backend.on_host(tasks.len(), &|i| {
        let task = tasks[i].lock().unwrap_or_else(PoisonError::into_inner).take();
        task.into_iter().for_each(|task| task());
    });
}

/// Adds what gets pages for memory that is about to be overwritten. What was in it may be lost.
pub(crate) fn touch<'a>(memory: &'a mut [u8], tasks: &mut Vec<Task<'a>>) {
    for part in memory.chunks_mut(PART) {
        tasks.push(Box::new(|| part.iter_mut().step_by(PAGE).for_each(|byte| *byte = 0)));
    }
}

/// The same of room for `n` more elements of a list.
pub(crate) fn touch_room<'a, T: Default + Send>(
    list: &'a mut Vec<T>,
    n: usize,
    tasks: &mut Vec<Task<'a>>,
) {
    let room = list.spare_capacity_mut();
    let n = n.min(room.len());
    let (part, page) = (PART / size_of::<T>(), PAGE / size_of::<T>());
    for part in room[..n].chunks_mut(part) {
        tasks.push(Box::new(move || {
            part.iter_mut().step_by(page).for_each(|place| *place = MaybeUninit::new(T::default()));
        }));
    }
}

#[cfg(test)]
mod tests {
    use longview_ops::ReferenceBackend;

    use super::*;

    #[test]
    fn all_tasks_are_done_and_lists_keep_what_they_have() {
        let backend = ReferenceBackend::new();
        let (mut bytes, mut list) = (vec![7u8; 3 * PAGE], Vec::with_capacity(3 * PAGE));
        list.extend([1u32, 2]);
        let mut tasks = Vec::new();
        touch(&mut bytes[PAGE..], &mut tasks);
        touch_room(&mut list, 4 * PAGE, &mut tasks);
        assert_eq!(tasks.len(), 2);
        together(&backend, tasks);
        assert!(bytes[..PAGE] == [7; PAGE]);
        assert_eq!((bytes[PAGE], bytes[2 * PAGE], bytes[PAGE + 1]), (0, 0, 7));
        assert_eq!(list, [1, 2]);
    }
}
