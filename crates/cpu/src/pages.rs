//! Host memory that buffers share until one of them writes: `fork` of a buffer is pages, not bytes.
//!
//! A buffer is one run of addresses, because kernels read it as one. What may be shared of it is
//! written once to a file in memory (`memfd_create`), and every buffer that has it maps these pages
//! of the file privately: the kernel copies a page of 4 KiB when somebody writes to it, for that
//! buffer alone. So nobody has to ask before a write, and whoever reads sees one buffer as before.
//!
//! The trade-off: memory that was never forked is anonymous and takes huge pages, pages of the file
//! are small unless the system gives files in memory huge ones too. One of the modules that may use
//! `unsafe`. Where it does not exist (not Linux; under the address sanitizer, which does not know
//! of mapped pages) a fork is a copy.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::huge_pages::{PAGE, advise_huge_pages, page_bytes};

/// Mapped runs of a buffer for each span of its elements, beyond which a fork maps it anew as a
/// whole: a process may have some 65,000 runs.
const MAX_RUNS: usize = 8;

/// The file that frozen pages are in, with room for as many as anybody asks for.
pub(crate) struct FrozenPages {
    file: File,
    /// Where the next ones go: a file may be longer than all memory, so no place is used twice.
    end: AtomicU64,
}

impl FrozenPages {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        // SAFETY: the name is a string that ends in a zero; no other memory is passed.
        let fd = unsafe { libc::memfd_create(c"longview rows".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just opened, and nobody else has it.
        let file = unsafe { File::from_raw_fd(fd) };
        Ok(Arc::new(Self { file, end: AtomicU64::new(0) }))
    }
}

/// Pages of the file that no longer change. They are given back with the last buffer that maps some
/// of them.
struct Extent {
    pages: Arc<FrozenPages>,
    range: Range<u64>,
}

impl Drop for Extent {
    fn drop(&mut self) {
        let (fd, start) = (self.pages.file.as_raw_fd(), self.range.start as libc::off_t);
        let len = (self.range.end - self.range.start) as libc::off_t;
        let how = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: a call on a file that is open; no memory is passed. Buffers unmap their pages
        // before they let go of an extent, so nobody sees the hole. A refusal keeps the memory.
        unsafe { libc::fallocate(fd, how, start, len) };
    }
}

/// Bytes of a buffer that are pages of an extent.
#[derive(Clone)]
struct Run {
    /// In the buffer, whole pages.
    range: Range<usize>,
    extent: Arc<Extent>,
    /// In the file.
    at: u64,
}

impl Run {
    /// The part of it that lies in `range`.
    fn part(&self, range: Range<usize>) -> Option<Self> {
        let range = range.start.max(self.range.start)..range.end.min(self.range.end);
        let at = self.at + (range.start.saturating_sub(self.range.start)) as u64;
        (!range.is_empty()).then(|| Self { range, extent: Arc::clone(&self.extent), at })
    }
}

/// Bytes in pages of their own, zero when made, that forks may share.
pub(crate) struct Pages {
    start: NonNull<u8>,
    len: usize,
    /// `len` in whole pages.
    mapped: usize,
    /// What others may have too, in the order of their addresses. A page of it that was written is
    /// this buffer's own, which the kernel knows.
    frozen: Vec<Run>,
    /// Whether huge pages are asked for only where bytes are expected.
    by_need: bool,
}

// SAFETY: the bytes are reached only through `&self` (shared) and `&mut self` (unique) like a
// vector's; pages that buffers share are copied by the kernel before one of them changes.
unsafe impl Send for Pages {}
// SAFETY: as above; there is no interior mutability.
unsafe impl Sync for Pages {}

impl Pages {
    /// `len` zero bytes, or `None` without memory for them or for an empty buffer.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        let mapped = len.checked_next_multiple_of(page_bytes()).filter(|mapped| *mapped > 0)?;
        let (protection, how) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), mapped, protection, how, -1, 0) };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = NonNull::new(start.cast::<u8>())?;
        advise_huge_pages(start.as_ptr(), mapped);
        Some(Self { start, len, mapped, frozen: Vec::new(), by_need: false })
    }

    /// Asks for huge pages where these bytes fill half of one or more, in spans that are in order
    /// and apart. From the first call on there are none elsewhere: a head of a few rows would take
    /// one of 2 MiB, which the system clears first.
    pub(crate) fn expect(&mut self, spans: &[Range<usize>]) {
        self.take_by_need();
        for part in worth_huge(self.start.as_ptr() as usize, self.mapped, spans) {
            self.advise(part, libc::MADV_HUGEPAGE);
        }
    }

    fn take_by_need(&mut self) {
        if !self.by_need {
            self.by_need = true;
            // Where the system gives huge pages without being asked, too.
            self.advise(0..self.mapped, libc::MADV_NOHUGEPAGE);
        }
    }

    /// Says how pages in a part of the mapping are to be made that nobody has touched.
    fn advise(&mut self, part: Range<usize>, how: libc::c_int) {
        assert!(part.end <= self.mapped, "bytes of the mapping");
        // SAFETY: the part lies inside of this buffer's own mapping (checked above); the advice
        // changes no contents, and a refusal (a kernel without huge pages) changes nothing.
        unsafe { libc::madvise(self.start.as_ptr().add(part.start).cast(), part.len(), how) };
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `start` is valid for `len` initialised bytes while `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `bytes`; `&mut self` makes it the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    /// Bytes in pages that another buffer maps too, or did when it was forked.
    pub(crate) fn shared_bytes(&self) -> usize {
        let shared = self.frozen.iter().filter(|run| Arc::strong_count(&run.extent) > 1);
        shared.map(|run| run.range.len()).sum()
    }

    /// A second buffer with the same bytes in the spans `used`, and any others outside of them.
    /// `written` are those of them that may have changed since a fork made this buffer or was made
    /// of it; what no fork has seen yet counts as changed.
    ///
    /// # Errors
    /// Where the kernel has no memory for it; the bytes of this buffer are as they were then.
    pub(crate) fn fork(
        &mut self,
        used: &[Range<usize>],
        written: &[Range<usize>],
        file: &Arc<FrozenPages>,
    ) -> io::Result<Self> {
        self.share(used, written, file)?;
        let lacking = || io::Error::from(io::ErrorKind::OutOfMemory);
        let mut fork = Self::zeroed(self.len).ok_or_else(lacking)?;
        if self.by_need {
            fork.take_by_need();
        }
        for run in &self.frozen {
            fork.map(run)?;
        }
        fork.frozen.clone_from(&self.frozen);
        Ok(fork)
    }

    /// Puts what a fork of these spans would share into the file, so that the fork copies nothing.
    ///
    /// # Errors
    /// As [`Pages::fork`].
    pub(crate) fn share(
        &mut self,
        used: &[Range<usize>],
        written: &[Range<usize>],
        file: &Arc<FrozenPages>,
    ) -> io::Result<()> {
        let used = self.whole_pages(used);
        let mut changed = self.whole_pages(written);
        changed.extend(used.iter().flat_map(|span| self.not_frozen(span.clone())));
        let is_cut_up = self.frozen.len() > MAX_RUNS * used.len().max(1);
        let changed = if is_cut_up { used } else { joined(changed) };
        let fresh = self.freeze(&changed, file)?;
        // Nothing that may fail for want of memory has touched this buffer so far.
        for run in &fresh {
            let mapped = self.map(run);
            mapped.expect("the kernel maps pages in place of as many others");
            put(&mut self.frozen, run);
        }
        Ok(())
    }

    /// Spans as whole pages, in order, joined where they meet.
    fn whole_pages(&self, spans: &[Range<usize>]) -> Vec<Range<usize>> {
        let page = page_bytes();
        let whole = |span: &Range<usize>| {
            let end = span.end.next_multiple_of(page).min(self.mapped);
            span.start / page * page..end
        };
        joined(spans.iter().filter(|span| !span.is_empty()).map(whole).collect())
    }

    /// The parts of `span` that no fork has seen.
    fn not_frozen(&self, span: Range<usize>) -> Vec<Range<usize>> {
        let (mut at, mut parts) = (span.start, Vec::new());
        for run in self.frozen.iter().filter_map(|run| run.part(span.clone())) {
            parts.push(at..run.range.start);
            at = run.range.end;
        }
        parts.push(at..span.end);
        parts.retain(|part| !part.is_empty());
        parts
    }

    /// Writes whole pages of this buffer to the file.
    fn freeze(&self, spans: &[Range<usize>], file: &Arc<FrozenPages>) -> io::Result<Vec<Run>> {
        let mut runs = Vec::with_capacity(spans.len());
        for range in spans {
            let at = file.end.fetch_add(range.len() as u64, Ordering::Relaxed);
            // First, so that what a write leaves behind half way is given back.
            let span = at..at + range.len() as u64;
            let extent = Arc::new(Extent { pages: Arc::clone(file), range: span });
            // SAFETY: whole pages of this buffer, the last one behind `len` too, are mapped and
            // initialised (zeroed by the kernel) while `self` lives.
            let bytes = unsafe {
                let start = self.start.as_ptr().add(range.start);
                std::slice::from_raw_parts(start, range.len())
            };
            file.file.write_all_at(bytes, at)?;
            runs.push(Run { range: range.clone(), extent, at });
        }
        Ok(runs)
    }

    /// Maps pages of the file in place of those that are there.
    fn map(&mut self, run: &Run) -> io::Result<()> {
        assert!(run.range.end <= self.mapped, "pages of the buffer");
        let fd = run.extent.pages.file.as_raw_fd();
        // SAFETY: the range lies inside of this buffer's own mapping (checked above), to which
        // `&mut self` is the only reference. The file is at least as long as the pages, and never
        // gets shorter.
        let mapped = unsafe {
            let start = self.start.as_ptr().add(run.range.start);
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let how = libc::MAP_PRIVATE | libc::MAP_FIXED;
            libc::mmap(start.cast(), run.range.len(), protection, how, fd, run.at as libc::off_t)
        };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(())
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: this buffer's own mapping, to which no reference is left; it is unmapped once.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

/// Spans in order, joined where they meet.
fn joined(mut spans: Vec<Range<usize>>) -> Vec<Range<usize>> {
    spans.sort_by_key(|span| span.start);
    let mut all: Vec<Range<usize>> = Vec::with_capacity(spans.len());
    for span in spans {
        match all.last_mut() {
            Some(last) if span.start <= last.end => last.end = last.end.max(span.end),
            _ => all.push(span),
        }
    }
    all
}

/// Puts a run among others, which lose what lies in it.
fn put(runs: &mut Vec<Run>, new: &Run) {
    let old = std::mem::take(runs);
    for run in &old {
        runs.extend(run.part(0..new.range.start));
        runs.extend(run.part(new.range.end..usize::MAX));
    }
    runs.push(new.clone());
    runs.sort_by_key(|run| run.range.start);
}

/// Of `len` bytes at address `start`, the parts of huge pages that `spans` fill to half or more, as
/// spans of bytes behind it. Neighbours are one. A page that the bytes have in part is one if the
/// buffer that has the rest says the same: those of a sequence lie side by side.
fn worth_huge(start: usize, len: usize, spans: &[Range<usize>]) -> Vec<Range<usize>> {
    let mut pages: Vec<(usize, usize)> = Vec::new();
    for span in spans {
        let (from, to) = (start + span.start, start + span.end.min(len));
        for page in from / PAGE..to.div_ceil(PAGE) {
            let n = to.min((page + 1) * PAGE).saturating_sub(from.max(page * PAGE));
            match pages.last_mut() {
                Some((last, filled)) if *last == page => *filled += n,
                _ => pages.push((page, n)),
            }
        }
    }
    let own = |page: usize| start.max(page * PAGE)..(start + len).min((page + 1) * PAGE);
    pages.retain(|(page, filled)| 2 * filled >= own(*page).len());
    let span = |(page, _): (usize, usize)| own(page).start - start..own(page).end - start;
    joined(pages.into_iter().map(span).collect())
}

#[cfg(test)]
#[expect(clippy::single_range_in_vec_init, reason = "a list of one span is meant")]
mod tests {
    use super::*;
    use crate::huge_pages::LARGE;

    fn filled(n_pages: usize) -> (Pages, Vec<u8>) {
        let page = page_bytes();
        let mut pages = Pages::zeroed(n_pages * page).unwrap();
        let bytes: Vec<u8> = (0..n_pages * page).map(|i| (i / 7) as u8).collect();
        pages.bytes_mut().copy_from_slice(&bytes);
        (pages, bytes)
    }

    /// Bytes that the file takes in memory.
    fn file_bytes(file: &FrozenPages) -> u64 {
        use std::os::unix::fs::MetadataExt;
        file.file.metadata().unwrap().blocks() * 512
    }

    #[test]
    fn a_fork_and_its_origin_write_without_each_other() {
        let (page, file) = (page_bytes(), FrozenPages::new().unwrap());
        let (mut origin, bytes) = filled(8);
        let used = [0..5 * page + 10];
        let mut fork = origin.fork(&used, &used, &file).unwrap();
        assert_eq!(origin.bytes(), bytes);
        assert_eq!(fork.bytes()[..5 * page + 10], bytes[..5 * page + 10]);
        assert!(
            fork.bytes()[6 * page..].iter().all(|b| *b == 0),
            "what is not used is not taken over"
        );
        origin.bytes_mut()[3 * page] = 200;
        fork.bytes_mut()[page + 1] = 201;
        assert_eq!(
            (origin.bytes()[page + 1], fork.bytes()[3 * page]),
            (bytes[page + 1], bytes[3 * page])
        );
        assert_eq!((origin.bytes()[3 * page], fork.bytes()[page + 1]), (200, 201));
        assert_eq!((origin.shared_bytes(), fork.shared_bytes()), (6 * page, 6 * page));
        drop(origin);
        assert_eq!(fork.bytes()[4 * page..5 * page], bytes[4 * page..5 * page]);
        assert_eq!(fork.shared_bytes(), 0);
        drop(fork);
        assert_eq!(file_bytes(&file), 0, "pages that nobody has are given back");
    }

    #[test]
    fn a_fork_of_a_fork_takes_over_what_was_written_since() {
        let (page, file) = (page_bytes(), FrozenPages::new().unwrap());
        let (mut origin, mut bytes) = filled(8);
        let mut first = origin.fork(&[0..4 * page], &[0..4 * page], &file).unwrap();
        let before = file_bytes(&file);
        first.bytes_mut()[3 * page + 5..6 * page].fill(99);
        let mut second = first.fork(&[0..6 * page], &[3 * page + 5..6 * page], &file).unwrap();
        assert_eq!(file_bytes(&file) - before, 3 * page as u64, "the pages that changed alone");
        bytes[3 * page + 5..6 * page].fill(99);
        assert_eq!(first.bytes()[..6 * page], bytes[..6 * page]);
        assert_eq!(second.bytes()[..6 * page], bytes[..6 * page]);
        second.bytes_mut()[0] = 77;
        let mut third = second.fork(&[0..page], &[0..1], &file).unwrap();
        assert_eq!(third.bytes()[..page], second.bytes()[..page]);
        third.bytes_mut()[0] = 78;
        drop((origin, second));
        assert_eq!((first.bytes()[0], third.bytes()[0]), (bytes[0], 78));
    }

    #[test]
    fn a_fork_copies_nothing_of_what_was_shared_before() {
        let (page, file) = (page_bytes(), FrozenPages::new().unwrap());
        let (mut origin, bytes) = filled(8);
        origin.share(&[0..6 * page], &[0..6 * page], &file).unwrap();
        assert_eq!((origin.bytes(), origin.shared_bytes()), (&*bytes, 0));
        assert_eq!(file_bytes(&file), 6 * page as u64);
        origin.bytes_mut()[5 * page] = 200;
        let fork = origin.fork(&[0..6 * page], &[5 * page..6 * page], &file).unwrap();
        // The page that changed is there twice, as nobody has its old bytes any more.
        assert!(file_bytes(&file) <= 7 * page as u64);
        assert_eq!(fork.bytes()[..6 * page], origin.bytes()[..6 * page]);
        drop((origin, fork));
        assert_eq!(file_bytes(&file), 0);
    }

    /// Random writes and forks, against plain vectors.
    #[test]
    fn many_forks_hold_what_copies_would() {
        let (page, file) = (page_bytes(), FrozenPages::new().unwrap());
        let (origin, bytes) = filled(40);
        let mut all = vec![(origin, bytes)];
        let mut state = 12345u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) as usize % below
        };
        let mut written = vec![40 * page];
        for round in 0..300 {
            let i = random(all.len());
            let (pages, copy) = &mut all[i];
            let (start, len) = (random(39 * page), random(3 * page));
            let span = start..(start + len).min(40 * page);
            pages.bytes_mut()[span.clone()].fill(round as u8);
            copy[span].fill(round as u8);
            written[i] = written[i].min(start);
            if round % 3 == 0 {
                let whole = 0..40 * page;
                let fork = pages.fork(&[whole], &[written[i]..40 * page], &file).unwrap();
                written[i] = 40 * page;
                assert!(pages.frozen.len() <= MAX_RUNS + 2, "{}", pages.frozen.len());
                let copy = copy.clone();
                all.push((fork, copy));
                written.push(40 * page);
            }
            if all.len() > 6 {
                let gone = random(all.len());
                all.swap_remove(gone);
                written.swap_remove(gone);
            }
            all.iter().for_each(|(pages, copy)| assert!(pages.bytes() == copy, "round {round}"));
        }
        drop(all);
        assert_eq!(file_bytes(&file), 0);
    }

    #[test]
    fn sizes_beyond_all_memory_and_of_nothing_are_none() {
        assert!(Pages::zeroed(0).is_none());
        assert!(Pages::zeroed(usize::MAX - 100).is_none());
        assert!(Pages::zeroed(isize::MAX as usize).is_none());
    }

    #[test]
    fn huge_pages_are_for_what_fills_half_of_one() {
        let base = 7 * PAGE;
        let of = |spans: &[Range<usize>]| worth_huge(base, 6 * PAGE, spans);
        assert!(of(&[]).is_empty() && of(&[0..LARGE - 1]).is_empty());
        assert_eq!(of(&[0..LARGE]), [0..PAGE]);
        // Two spans fill half of a page together; the next one touches the page behind.
        assert_eq!(of(&[10..LARGE / 2, PAGE - LARGE / 2 - 10..PAGE + 5]), [0..PAGE]);
        assert_eq!(
            of(&[0..2 * PAGE, 2 * PAGE..3 * PAGE + 5, 5 * PAGE..9 * PAGE]),
            [0..3 * PAGE, 5 * PAGE..6 * PAGE]
        );
        // Huge pages lie at their own addresses; neighbours have a part of the first and last.
        let odd = |spans: &[Range<usize>]| worth_huge(base + 4096, 2 * PAGE, spans);
        assert_eq!(odd(&[0..2 * PAGE]), [0..2 * PAGE]);
        assert_eq!(odd(&[0..10, LARGE..PAGE + LARGE]), [PAGE - 4096..2 * PAGE - 4096]);
        assert_eq!(odd(&[2 * PAGE - 3000..2 * PAGE]), [2 * PAGE - 4096..2 * PAGE]);
    }

    /// What the kernel was told of the mapping that has this address, by the flags of its page
    /// list: `hg` for huge pages, `nh` for none. `None` where it does not list them.
    fn told(address: usize) -> Option<Vec<String>> {
        let list = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut is_here = false;
        for line in list.lines() {
            let first = line.split_whitespace().next()?;
            let hex = |text: &str| usize::from_str_radix(text, 16).ok();
            if let Some((from, to)) = first.split_once('-')
                && let (Some(from), Some(to)) = (hex(from), hex(to))
            {
                is_here = (from..to).contains(&address);
            }
            if let (true, Some(flags)) = (is_here, line.strip_prefix("VmFlags:")) {
                return Some(flags.split_whitespace().map(str::to_owned).collect());
            }
        }
        None
    }

    #[test]
    fn bytes_that_are_not_expected_have_small_pages() {
        let mut pages = Pages::zeroed(8 * PAGE).unwrap();
        let start = pages.start.as_ptr() as usize;
        let first = start.next_multiple_of(PAGE) - start;
        let has = |at: usize, flag: &str| told(start + at).map(|all| all.iter().any(|f| f == flag));
        // A kernel without huge pages refuses all advice.
        let lists = has(first, "hg").is_some_and(|is_told| is_told);
        assert!(lists || !std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists());
        pages.expect(&[]);
        assert_eq!(
            (has(first, "hg") == Some(true), has(first, "nh") == Some(true)),
            (false, lists)
        );
        pages.expect(&[first..first + PAGE + 5]);
        for (at, is_huge) in [(first, true), (first + PAGE, false), (first + 3 * PAGE, false)] {
            let want = lists.then_some([is_huge, !is_huge]);
            assert_eq!(has(at, "hg").zip(has(at, "nh")).map(|(hg, nh)| [hg, nh]), want, "{at}");
        }
        pages.bytes_mut()[first + 4 * PAGE] = 3;
        let file = FrozenPages::new().unwrap();
        let fork = pages.fork(&[0..page_bytes()], &[0..page_bytes()], &file).unwrap();
        let behind = fork.start.as_ptr() as usize + 3 * PAGE;
        let is_small = told(behind).map(|all| all.iter().any(|flag| flag == "nh"));
        assert_eq!(is_small, lists.then_some(true), "a fork is as its origin");
    }
}
