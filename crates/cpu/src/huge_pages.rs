//! Huge pages for large memory, and how it goes back. One of the modules that may use `unsafe`.

/// Bytes of a huge page.
pub(crate) const PAGE: usize = 2 << 20;

/// From here on, huge pages are asked for: a gather of rows from all over a large array else misses
/// the TLB each time. Half a page, so that no more than that is taken in vain.
pub(crate) const LARGE: usize = PAGE / 2;

/// Asks for huge pages in memory that was just allocated and that the caller owns: `len` bytes and
/// [`slack`] more.
#[cfg(target_os = "linux")]
pub(crate) fn advise_huge_pages(start: *mut u8, len: usize) {
    // 4 KiB on x86-64; ARM has systems with 16 and 64, which refuse an address between two pages.
    let skip = start.align_offset(page_bytes());
    let pages = if start.align_offset(PAGE) == 0 { len + slack(len) } else { len };
    if len >= LARGE + skip {
        // SAFETY: the range lies inside the memory just allocated; the advice changes no contents,
        // and a refusal (an old kernel) only means small pages.
        unsafe { libc::madvise(start.add(skip).cast(), pages - skip, libc::MADV_HUGEPAGE) };
    }
}

/// Bytes of a page as the system maps them.
#[cfg(target_os = "linux")]
pub(crate) fn page_bytes() -> usize {
    // SAFETY: a question about the system; no memory is passed.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).ok().filter(|bytes| bytes.is_power_of_two()).unwrap_or(4096)
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn advise_huge_pages(_start: *mut u8, _len: usize) {}

/// Lets blocks of 256 KiB and more go back to the system when they are freed. Linux' C library
/// keeps them otherwise: with every larger block that is freed it takes more sizes from its heaps,
/// up to 32 MiB, and a heap gives back only what is free at its end. For the start of a program;
/// other C libraries are left as they are.
pub fn return_large_memory() {
    // SAFETY: a number for the allocator; no memory is passed.
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10);
    }
}

/// Bytes behind `len` large bytes that end their last page, where half of it or more is in use.
pub(crate) fn slack(len: usize) -> usize {
    let rest = len % PAGE;
    if len >= LARGE && rest >= LARGE { PAGE - rest } else { 0 }
}

/// What the system gave when huge pages were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HugePages {
    /// Bytes that were asked for.
    pub asked: u64,
    /// Bytes of these that lie in huge pages.
    pub granted: u64,
    /// The system's setting for memory of a process: `always`, `madvise` or `never`.
    pub setting: Option<String>,
    /// Its setting for memory that sequences share after a fork: `always`, `advise`, `never` and
    /// others.
    pub shared_setting: Option<String>,
}

/// Takes some memory as large buffers do, writes to it, and looks at its pages. `None` where the
/// system does not tell: elsewhere than on Linux, or without memory to spare.
pub fn huge_pages() -> Option<HugePages> {
    const ASKED: usize = 8 * PAGE;
    let setting = |file: &str| {
        let path = format!("/sys/kernel/mm/transparent_hugepage/{file}");
        std::fs::read_to_string(path).ok().as_deref().and_then(chosen)
    };
    let before = huge_bytes()?;
    let layout = std::alloc::Layout::from_size_align(ASKED, PAGE).ok()?;
    // SAFETY: the layout has a size.
    let start = unsafe { std::alloc::alloc(layout) };
    if start.is_null() {
        return None;
    }
    advise_huge_pages(start, ASKED);
    // SAFETY: the memory was just allocated, all of it.
    unsafe { start.write_bytes(1, ASKED) };
    // The compiler may not know what the bytes are for.
    std::hint::black_box(start);
    let after = huge_bytes();
    // SAFETY: allocated above with this layout, and nobody has it any more.
    unsafe { std::alloc::dealloc(start, layout) };
    let granted = after?.saturating_sub(before).min(ASKED as u64);
    let (setting, shared_setting) = (setting("enabled"), setting("shmem_enabled"));
    Some(HugePages { asked: ASKED as u64, granted, setting, shared_setting })
}

/// Bytes of this process in huge pages, other than those of files.
fn huge_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let kilobytes = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:"))?;
    let kilobytes: u64 = kilobytes.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// The value in brackets of a file that lists all: `always [madvise] never`.
fn chosen(list: &str) -> Option<String> {
    let (_, rest) = list.split_once('[')?;
    rest.split_once(']').map(|(value, _)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_is_the_value_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(chosen("always"), None);
    }

    /// What the system gives follows from what it says, where it tells both.
    #[cfg(target_os = "linux")]
    #[test]
    fn pages_that_are_refused_are_not_counted() {
        let tells = std::path::Path::new("/proc/self/smaps_rollup").exists();
        let found = huge_pages();
        assert_eq!(found.is_some(), tells);
        let Some(pages) = found else { return };
        assert_eq!(pages.asked, 16 << 20);
        assert!(pages.granted <= pages.asked && pages.granted.is_multiple_of(PAGE as u64));
        if pages.setting.as_deref() == Some("never") {
            assert_eq!(pages.granted, 0);
        }
    }

    #[test]
    fn a_page_that_is_half_full_is_taken_whole() {
        assert_eq!([0, LARGE - 1, LARGE, PAGE, PAGE + 1].map(slack), [0, 0, LARGE, 0, 0]);
        assert_eq!([3 * LARGE, 2 * PAGE - 5].map(slack), [LARGE, 5]);
    }
}
