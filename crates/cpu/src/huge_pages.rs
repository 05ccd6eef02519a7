//! Huge pages for large memory. One of the modules that may use `unsafe`.

/// From here on, huge pages are asked for: a gather of rows from all over gigabytes else misses the
/// TLB each time.
#[cfg(target_os = "linux")]
const HUGE: usize = 8 << 20;

/// Asks for huge pages in memory that was just allocated and that the caller owns.
#[cfg(target_os = "linux")]
pub(crate) fn advise_huge_pages(start: *mut u8, len: usize) {
    let skip = start.align_offset(4096);
    if len >= HUGE + skip {
        // SAFETY: the range lies inside the memory just allocated; the advice changes no contents,
        // and a refusal (an old kernel) only means small pages.
        unsafe { libc::madvise(start.add(skip).cast(), len - skip, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn advise_huge_pages(_start: *mut u8, _len: usize) {}
