//! The vectors of an index's units: kernels read them, and so does the host.
//!
//! Where kernels read memory of the host there is one copy, which both read: with codes of tokens
//! and means of clusters an index takes half as many bytes as keys and values of 8 bits do. A
//! device with memory of its own can be lost, and reading from it waits for it: there the host has
//! a copy.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use longview_core::DType;
use longview_ops::{Backend, DeviceBuffer, ForkSpans, OpResult, View, ViewMut};

use super::kernel_memory::{alloc, unit_spans};
use super::shared_bytes::SharedBytes;

/// How many vectors there may be, and what they are.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub n_heads: usize,
    /// Vectors of a head, at most.
    pub capacity: usize,
    /// Numbers of a vector.
    pub width: usize,
    pub dtype: DType,
    /// What the buffer is called.
    pub label: &'static str,
}

impl Room {
    fn bytes(&self) -> usize {
        self.width * self.dtype.size()
    }

    /// Elements of some vectors of a head.
    fn elements(&self, h: usize, units: Range<usize>) -> Range<usize> {
        let at = |unit: usize| (h * self.capacity + unit) * self.width;
        at(units.start)..at(units.end)
    }
}

/// The vectors of all heads' units, in their order.
pub(super) struct UnitVectors<B: Backend> {
    room: Room,
    /// `[Hkv, capacity, width]`.
    buffer: B::Buffer,
    /// What the host has of each head, where it does not read the buffer. Forks share it until one
    /// of them changes it.
    copies: Option<Arc<Vec<SharedBytes>>>,
}

/// The vectors of one head, as the host reads them.
pub struct HeadVectors<'a> {
    bytes: HeadBytes<'a>,
    unit_bytes: usize,
}

enum HeadBytes<'a> {
    /// What kernels read.
    Same(&'a [u8]),
    Copy(&'a SharedBytes),
}

impl<'a> HeadVectors<'a> {
    /// Those of some units, which must be there.
    pub fn get(&self, units: Range<usize>) -> Cow<'a, [u8]> {
        let bytes = units.start * self.unit_bytes..units.end * self.unit_bytes;
        match self.bytes {
            HeadBytes::Same(all) => Cow::Borrowed(&all[bytes]),
            HeadBytes::Copy(all) => all.get(bytes),
        }
    }
}

impl<B: Backend> UnitVectors<B> {
    /// None yet.
    pub fn new(backend: &B, room: Room) -> OpResult<Self> {
        let len = room.n_heads * room.capacity * room.width;
        let buffer = alloc(backend, room.dtype, len, room.label)?;
        let copy = |_| SharedBytes::with_capacity(room.capacity * room.bytes());
        let has_copies = backend.host_bytes(&buffer).is_none();
        let copies = has_copies.then(|| Arc::new((0..room.n_heads).map(copy).collect()));
        Ok(Self { room, buffer, copies })
    }

    /// Adds vectors of head `h` behind those of its first `n_before` units.
    pub fn append(
        &mut self,
        backend: &B,
        (h, n_before): (usize, usize),
        bytes: &[u8],
    ) -> OpResult<()> {
        if let Some(copies) = &mut self.copies {
            Arc::make_mut(copies)[h].own().extend_from_slice(bytes);
        }
        self.write(backend, (h, n_before), bytes)
    }

    /// The same of bytes that a copy takes over, where they are owned.
    pub fn adopt(
        &mut self,
        backend: &B,
        (h, n_before): (usize, usize),
        bytes: Cow<'_, [u8]>,
    ) -> OpResult<()> {
        self.write(backend, (h, n_before), &bytes)?;
        if let Some(copies) = &mut self.copies {
            Arc::make_mut(copies)[h].adopt(bytes.into_owned());
        }
        Ok(())
    }

    fn write(&mut self, backend: &B, (h, first): (usize, usize), bytes: &[u8]) -> OpResult<()> {
        let n = bytes.len() / self.room.bytes().max(1);
        let to = self.room.elements(h, first..first + n);
        backend.write(ViewMut::part(&mut self.buffer, to.start, to.len()), bytes)
    }

    /// The vectors of a head, for the host. Where it reads what kernels do, it waits for these, so
    /// who reads several vectors asks once.
    pub fn of_head(&self, backend: &B, h: usize) -> HeadVectors<'_> {
        let unit_bytes = self.room.bytes();
        if let Some(copies) = &self.copies {
            return HeadVectors { bytes: HeadBytes::Copy(&copies[h]), unit_bytes };
        }
        let all = backend.host_bytes(&self.buffer).expect("asked when it was made");
        let head_bytes = self.room.capacity * unit_bytes;
        let bytes = HeadBytes::Same(&all[h * head_bytes..(h + 1) * head_bytes]);
        HeadVectors { bytes, unit_bytes }
    }

    /// Vectors of some of a head's units, which must be there.
    pub fn get(&self, backend: &B, h: usize, units: Range<usize>) -> Cow<'_, [u8]> {
        self.of_head(backend, h).get(units)
    }

    /// Keeps those of the first `n` units of head `h`.
    pub fn truncate(&mut self, h: usize, n: usize) {
        let bytes = n * self.room.bytes();
        if let Some(copies) = self.copies.as_mut().filter(|copies| copies[h].len() > bytes) {
            Arc::make_mut(copies)[h].truncate(bytes);
        }
    }

    /// Moves to a fresh device after `lost`, with so many units of each head.
    pub fn move_to(&mut self, (lost, fresh): (&B, &B), n_units: &[usize]) -> OpResult<()> {
        let mut moved = Self::new(fresh, self.room)?;
        // What forks share on the host stays shared.
        let keeps_copies = self.copies.is_some() && moved.copies.is_some();
        if keeps_copies {
            moved.copies.clone_from(&self.copies);
        }
        for (h, n) in n_units.iter().enumerate() {
            let bytes = self.get(lost, h, 0..*n);
            if keeps_copies {
                moved.truncate(h, *n);
                moved.write(fresh, (h, 0), &bytes)?;
            } else {
                moved.append(fresh, (h, 0), &bytes)?;
            }
        }
        *self = moved;
        Ok(())
    }

    /// A second set of the same vectors, of so many units of each head; each is changed without the
    /// other. They share what can be shared: `unchanged` first units of each head are as they were
    /// when these were forked last.
    pub fn fork(&mut self, backend: &B, n_units: &[usize], unchanged: &[usize]) -> OpResult<Self> {
        // What others share is as it was when they began to.
        let copies = self.copies.as_mut().and_then(Arc::get_mut);
        copies.into_iter().flatten().for_each(SharedBytes::share);
        let room = self.room;
        let spans = |first: &[usize]| unit_spans((first, n_units), (room.capacity, room.width));
        let (used, written) = (spans(&vec![0; n_units.len()]), spans(unchanged));
        let spans = ForkSpans { used: &used, written: &written };
        if let Some(buffer) = backend.fork_host(&mut self.buffer, spans, room.label)? {
            return Ok(Self { room, buffer, copies: self.copies.clone() });
        }
        let buffer = backend.alloc(room.dtype, self.buffer.len(), room.label)?;
        let mut fork = Self { room, buffer, copies: self.copies.clone() };
        for (h, n) in n_units.iter().enumerate() {
            fork.write(backend, (h, 0), &self.get(backend, h, 0..*n))?;
        }
        Ok(fork)
    }

    /// `[Hkv, capacity, width]` on the device.
    pub fn all(&self) -> View<'_, B> {
        View::all(&self.buffer)
    }

    /// What kernels read.
    pub fn buffer(&self) -> &B::Buffer {
        &self.buffer
    }

    /// Bytes of a vector.
    pub fn unit_bytes(&self) -> usize {
        self.room.bytes()
    }

    /// What a number is.
    pub fn dtype(&self) -> DType {
        self.room.dtype
    }

    /// Whether the host has a copy of its own.
    #[cfg(test)]
    pub fn has_copies(&self) -> bool {
        self.copies.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{R, floats};
    use super::*;
    use crate::store::fixture::separate_device;

    /// Two heads of up to four vectors of two numbers.
    const ROOM: Room =
        Room { n_heads: 2, capacity: 4, width: 2, dtype: DType::F32, label: "vectors" };

    fn bytes(numbers: &[f32]) -> &[u8] {
        bytemuck::cast_slice(numbers)
    }

    /// Three vectors of head 0 and one of head 1.
    fn some(backend: &R) -> UnitVectors<R> {
        let mut vectors = UnitVectors::new(backend, ROOM).unwrap();
        vectors.append(backend, (0, 0), bytes(&[1.0, 2.0, 3.0, 4.0])).unwrap();
        vectors.append(backend, (0, 2), bytes(&[5.0, 6.0])).unwrap();
        vectors.adopt(backend, (1, 0), bytes(&[7.0, 8.0]).into()).unwrap();
        vectors
    }

    const ALL: [f32; 16] =
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 7.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0];

    /// Both kinds of devices, and whether the host has a copy of what is on them.
    fn devices() -> [(R, bool); 2] {
        [(R::new(), false), (separate_device(), true)]
    }

    #[test]
    fn host_and_kernels_read_the_same_vectors() {
        for (backend, has_copies) in devices() {
            let vectors = some(&backend);
            assert_eq!(vectors.copies.is_some(), has_copies);
            assert_eq!(floats(&backend, vectors.all()), ALL);
            assert_eq!(*vectors.get(&backend, 0, 1..3), *bytes(&[3.0, 4.0, 5.0, 6.0]));
            assert_eq!(*vectors.get(&backend, 1, 0..1), *bytes(&[7.0, 8.0]));
            assert!(vectors.get(&backend, 1, 1..1).is_empty());
        }
    }

    #[test]
    fn what_is_cut_gives_way_to_what_comes() {
        for (backend, _) in devices() {
            let mut vectors = some(&backend);
            vectors.truncate(0, 1);
            vectors.truncate(1, 4);
            vectors.append(&backend, (0, 1), bytes(&[9.0, 10.0])).unwrap();
            assert_eq!(*vectors.get(&backend, 0, 0..2), *bytes(&[1.0, 2.0, 9.0, 10.0]));
            assert_eq!(*vectors.get(&backend, 1, 0..1), *bytes(&[7.0, 8.0]));
        }
    }

    #[test]
    fn forks_are_changed_without_each_other() {
        for (backend, _) in devices() {
            let mut vectors = some(&backend);
            let mut fork = vectors.fork(&backend, &[3, 1], &[0, 0]).unwrap();
            fork.truncate(0, 2);
            fork.append(&backend, (0, 2), bytes(&[9.0, 10.0])).unwrap();
            vectors.append(&backend, (1, 1), bytes(&[11.0, 12.0])).unwrap();
            assert_eq!(*vectors.get(&backend, 0, 0..3), *bytes(&ALL[..6]));
            assert_eq!(*vectors.get(&backend, 1, 0..2), *bytes(&[7.0, 8.0, 11.0, 12.0]));
            assert_eq!(*fork.get(&backend, 0, 0..3), *bytes(&[1.0, 2.0, 3.0, 4.0, 9.0, 10.0]));
            assert_eq!(
                floats(&backend, fork.all())[..10],
                [1.0, 2.0, 3.0, 4.0, 9.0, 10.0, 0.0, 0.0, 7.0, 8.0]
            );
        }
    }

    #[test]
    fn forks_share_the_hosts_copy_after_a_lost_device_too() {
        let (lost, fresh) = (separate_device(), separate_device());
        let mut vectors = some(&lost);
        let mut fork = vectors.fork(&lost, &[3, 1], &[0, 0]).unwrap();
        for vectors in [&mut vectors, &mut fork] {
            vectors.move_to((&lost, &fresh), &[3, 1]).unwrap();
            assert_eq!(floats(&fresh, vectors.all()), ALL);
        }
        let [own, forks] = [&vectors, &fork].map(|v| v.get(&fresh, 0, 0..3).as_ptr());
        assert_eq!(own, forks);
    }

    /// Also to a device of the other kind.
    #[test]
    fn vectors_move_to_a_fresh_device() {
        for (lost, _) in devices() {
            for (fresh, has_copies) in devices() {
                let mut vectors = some(&lost);
                vectors.move_to((&lost, &fresh), &[2, 1]).unwrap();
                assert_eq!((vectors.copies.is_some(), fresh.allocations()), (has_copies, 1));
                assert_eq!(*vectors.get(&fresh, 0, 0..2), *bytes(&ALL[..4]));
                assert_eq!(floats(&fresh, vectors.all())[8..10], [7.0, 8.0]);
                vectors.append(&fresh, (0, 2), bytes(&[9.0, 10.0])).unwrap();
                assert_eq!(*vectors.get(&fresh, 0, 2..3), *bytes(&[9.0, 10.0]));
            }
        }
    }
}
