//! Device buffers: aligned, zeroed, tagged with their data type.
//!
//! Memory comes from `alloc_zeroed` with the alignment that the system allocator gives for free,
//! because only then are large blocks fresh pages of the kernel that cost nothing until they are
//! touched; the start is aligned to a cache line by hand. One of the modules that may use `unsafe`.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ops::Range;
use std::ptr::NonNull;
#[cfg(all(target_os = "linux", not(address_sanitizer)))]
use std::sync::{Arc, OnceLock};

use longview_core::DType;
use longview_ops::{DeviceBuffer, ForkSpans};

use crate::huge_pages::{LARGE, PAGE, advise_huge_pages, slack};
#[cfg(all(target_os = "linux", not(address_sanitizer)))]
use crate::pages::{FrozenPages, Pages};

/// A cache line, and an AVX-512 register.
const LINE: usize = 64;

/// Owned bytes on a cache-line boundary, zeroed when made.
pub(crate) struct AlignedBytes {
    block: *mut u8,
    layout: Layout,
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the bytes are owned, and reached only through `&self` (shared) and `&mut self` (unique)
// like a vector's.
unsafe impl Send for AlignedBytes {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for AlignedBytes {}

impl Default for AlignedBytes {
    fn default() -> Self {
        let start = NonNull::<[u64; 8]>::dangling().cast();
        Self { block: std::ptr::null_mut(), layout: Layout::new::<()>(), start, len: 0 }
    }
}

impl AlignedBytes {
    /// `len` zero bytes, or `None` without memory for them.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        if len == 0 {
            return Some(Self::default());
        }
        // Room to begin at a page of what is large, and to end its last one.
        let (align, slack) = match len {
            LARGE.. => (PAGE, slack(len)),
            _ => (LINE, 0),
        };
        let layout = Layout::from_size_align(len.checked_add(slack + align)?, 16).ok()?;
        // SAFETY: the layout's size is not 0.
        let block = unsafe { alloc_zeroed(layout) };
        let block = NonNull::new(block)?;
        let skip = block.as_ptr().align_offset(align);
        // SAFETY: `skip < align`, and the block has `align` bytes more than `len`.
        let start = unsafe { block.add(skip) };
        advise_huge_pages(start.as_ptr(), len);
        forbid_slack(block, layout.size(), skip, len);
        Some(Self { block: block.as_ptr(), layout, start, len })
    }

    /// Makes room for at least `len` bytes; what was in them is lost when it grows.
    ///
    /// # Panics
    /// Without memory: scratch is small, and an op has no half-way state to return to.
    pub(crate) fn grow(&mut self, len: usize) {
        if len > self.len {
            let bytes = Self::zeroed(len.next_multiple_of(4096));
            *self = bytes.unwrap_or_else(|| panic!("cpu: no memory for {len} bytes of scratch"));
        }
    }
}

impl Drop for AlignedBytes {
    fn drop(&mut self) {
        if !self.block.is_null() {
            // SAFETY: `block` came from `alloc_zeroed` with this layout, and is freed once.
            unsafe { dealloc(self.block, self.layout) }
        }
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes (or dangling and aligned for 0)
        // while `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl AsMut<[u8]> for AlignedBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `as_ref`; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

/// Tells the address sanitizer that the bytes of a block before and behind the `len` in use are out
/// of bounds: it knows of the block alone, and would miss an access that ends in them.
#[cfg(address_sanitizer)]
fn forbid_slack(block: NonNull<u8>, size: usize, skip: usize, len: usize) {
    unsafe extern "C" {
        fn __asan_poison_memory_region(start: *const u8, len: usize);
    }
    let end = skip + len;
    // SAFETY: both ranges lie inside the block, and no reference to them is ever made; freeing the
    // block ends the mark.
    unsafe {
        __asan_poison_memory_region(block.as_ptr(), skip);
        __asan_poison_memory_region(block.as_ptr().add(end), size - end);
    }
}

#[cfg(not(address_sanitizer))]
fn forbid_slack(_block: NonNull<u8>, _size: usize, _skip: usize, _len: usize) {}

/// Where pages are that buffers share; made when the first one is forked.
#[derive(Default)]
pub(crate) struct SharedPages {
    #[cfg(all(target_os = "linux", not(address_sanitizer)))]
    file: OnceLock<Option<Arc<FrozenPages>>>,
}

#[cfg(all(target_os = "linux", not(address_sanitizer)))]
impl SharedPages {
    fn file(&self) -> Option<&Arc<FrozenPages>> {
        self.file.get_or_init(|| FrozenPages::new().ok()).as_ref()
    }
}

/// Where the bytes of a buffer are.
enum Memory {
    Own(AlignedBytes),
    #[cfg(all(target_os = "linux", not(address_sanitizer)))]
    Pages(Pages),
}

impl Memory {
    /// Memory of the host may be forked, and takes pages of its own.
    fn zeroed(len: usize, _is_host: bool) -> Option<Self> {
        #[cfg(all(target_os = "linux", not(address_sanitizer)))]
        if _is_host && len > 0 {
            return Pages::zeroed(len).map(Self::Pages);
        }
        AlignedBytes::zeroed(len).map(Self::Own)
    }
}

/// Memory of the CPU backend.
pub struct CpuBuffer {
    memory: Memory,
    dtype: DType,
    is_host: bool,
}

impl CpuBuffer {
    /// `len` zeros, or `None` without memory for them.
    pub(crate) fn zeroed(dtype: DType, len: usize, is_host: bool) -> Option<Self> {
        let memory = Memory::zeroed(len.checked_mul(dtype.size())?, is_host)?;
        Some(Self { memory, dtype, is_host })
    }

    /// Whether the host may address it ([`longview_ops::Backend::alloc_host`]).
    pub(crate) fn is_host(&self) -> bool {
        self.is_host
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.memory {
            Memory::Own(bytes) => bytes.as_ref(),
            #[cfg(all(target_os = "linux", not(address_sanitizer)))]
            Memory::Pages(pages) => pages.bytes(),
        }
    }

    /// All bytes, writable.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Memory::Own(bytes) => bytes.as_mut(),
            #[cfg(all(target_os = "linux", not(address_sanitizer)))]
            Memory::Pages(pages) => pages.bytes_mut(),
        }
    }

    /// A buffer of host memory that shares pages with this one; `None` where that cannot be, or the
    /// system refuses.
    pub(crate) fn fork(&mut self, _spans: &ForkSpans<'_>, _shared: &SharedPages) -> Option<Self> {
        #[cfg(all(target_os = "linux", not(address_sanitizer)))]
        if let Memory::Pages(pages) = &mut self.memory {
            let [used, written] = span_bytes(_spans, self.dtype);
            let fork = pages.fork(&used, &written, _shared.file()?).ok()?;
            let (memory, is_host) = (Memory::Pages(fork), self.is_host);
            return Some(Self { memory, dtype: self.dtype, is_host });
        }
        None
    }

    /// Puts what a fork would share into pages that it can share. `false` where that cannot be, or
    /// the system refuses.
    pub(crate) fn share(&mut self, _spans: &ForkSpans<'_>, _shared: &SharedPages) -> bool {
        #[cfg(all(target_os = "linux", not(address_sanitizer)))]
        if let (Memory::Pages(pages), Some(file)) = (&mut self.memory, _shared.file()) {
            let [used, written] = span_bytes(_spans, self.dtype);
            return pages.share(&used, &written, file).is_ok();
        }
        false
    }

    /// Elements of host memory that will be written soon: huge pages are for these alone from now
    /// on.
    pub(crate) fn expect(&mut self, _spans: &[Range<usize>]) {
        #[cfg(all(target_os = "linux", not(address_sanitizer)))]
        if let Memory::Pages(pages) = &mut self.memory {
            let bytes = |span: &Range<usize>| byte_span(span, self.dtype);
            pages.expect(&_spans.iter().map(bytes).collect::<Vec<_>>());
        }
    }

    /// Bytes that other buffers have too.
    pub(crate) fn shared_bytes(&self) -> usize {
        match &self.memory {
            Memory::Own(_) => 0,
            #[cfg(all(target_os = "linux", not(address_sanitizer)))]
            Memory::Pages(pages) => pages.shared_bytes(),
        }
    }

    /// All elements; `E` must be the Rust type of the data type, which descriptors check.
    pub(crate) fn elements<E: bytemuck::Pod>(&self) -> &[E] {
        debug_assert_eq!(size_of::<E>(), self.dtype.size());
        bytemuck::cast_slice(self.bytes())
    }

    /// All elements, writable.
    pub(crate) fn elements_mut<E: bytemuck::Pod>(&mut self) -> &mut [E] {
        debug_assert_eq!(size_of::<E>(), self.dtype.size());
        bytemuck::cast_slice_mut(self.bytes_mut())
    }
}

/// The bytes of spans of elements: those in use, and those that were written.
#[cfg(all(target_os = "linux", not(address_sanitizer)))]
fn span_bytes(spans: &ForkSpans<'_>, dtype: DType) -> [Vec<Range<usize>>; 2] {
    let bytes = |span: &Range<usize>| byte_span(span, dtype);
    [spans.used, spans.written].map(|spans| spans.iter().map(bytes).collect())
}

#[cfg(all(target_os = "linux", not(address_sanitizer)))]
fn byte_span(span: &Range<usize>, dtype: DType) -> Range<usize> {
    span.start * dtype.size()..span.end * dtype.size()
}

impl DeviceBuffer for CpuBuffer {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn len(&self) -> usize {
        self.bytes().len() / self.dtype.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_start_on_cache_lines_and_hold_zeros() {
        for len in [1, 63, 64, 65, 4096, 10 << 20] {
            let bytes = AlignedBytes::zeroed(len).unwrap();
            assert_eq!(bytes.as_ref().as_ptr() as usize % LINE, 0);
            assert_eq!(bytes.as_ref().len(), len);
            assert!(bytes.as_ref().iter().all(|b| *b == 0));
        }
    }

    #[test]
    fn a_size_beyond_all_memory_is_none() {
        assert!(AlignedBytes::zeroed(usize::MAX - 100).is_none());
        assert!(AlignedBytes::zeroed(isize::MAX as usize).is_none());
        assert!(CpuBuffer::zeroed(DType::F32, usize::MAX / 2, false).is_none());
    }

    #[test]
    fn a_capacity_far_beyond_memory_costs_nothing_until_touched() {
        let bytes = AlignedBytes::zeroed(4 << 30).unwrap();
        assert_eq!(bytes.as_ref()[(4 << 30) - 1], 0);
    }
}
