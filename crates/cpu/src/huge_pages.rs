//! Huge pages for large memory. One of the modules that may use `unsafe`.

/// Bytes of a huge page.
pub(crate) const PAGE: usize = 2 << 20;

/// From here on, huge pages are asked for: a gather of rows from all over a large array else misses
/// the TLB each time. Half a page, so that no more than that is taken in vain.
pub(crate) const LARGE: usize = PAGE / 2;

/// Asks for huge pages in memory that was just allocated and that the caller owns: `len` bytes and
/// [`slack`] more.
#[cfg(target_os = "linux")]
pub(crate) fn advise_huge_pages(start: *mut u8, len: usize) {
    let skip = start.align_offset(4096);
    let pages = if start.align_offset(PAGE) == 0 { len + slack(len) } else { len };
    if len >= LARGE + skip {
        // SAFETY: the range lies inside the memory just allocated; the advice changes no contents,
        // and a refusal (an old kernel) only means small pages.
        unsafe { libc::madvise(start.add(skip).cast(), pages - skip, libc::MADV_HUGEPAGE) };
    }
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn advise_huge_pages(_start: *mut u8, _len: usize) {}

/// Bytes behind `len` large bytes that end their last page, where half of it or more is in use.
pub(crate) fn slack(len: usize) -> usize {
    let rest = len % PAGE;
    if len >= LARGE && rest >= LARGE { PAGE - rest } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_is_half_full_is_taken_whole() {
        assert_eq!([0, LARGE - 1, LARGE, PAGE, PAGE + 1].map(slack), [0, 0, LARGE, 0, 0]);
        assert_eq!([3 * LARGE, 2 * PAGE - 5].map(slack), [LARGE, 5]);
    }
}
