//! How long the window's thread takes for a frame while an answer streams.

use std::time::{Duration, Instant};

use longview_desktop::strings;

use crate::support::Setup;
use crate::support::script::{LONG, Script};

/// Of a frame, update and tessellation: half of what 60 frames a second leave.
const RELEASE: Duration = Duration::from_millis(8);
/// The same where nothing of the toolkit is optimised and other tests run beside.
const DEBUG: Duration = Duration::from_millis(200);

#[test]
fn a_frame_is_short_while_an_answer_streams_beside_a_book() {
    let (script, open) = Script::new();
    let book = "The harbour was quiet, and nobody spoke of the lantern. ".repeat(7000);
    let file = std::env::temp_dir().join(format!("longview-book-{}.txt", std::process::id()));
    std::fs::write(&file, &book).unwrap();
    let mut setup = Setup::new(open);
    setup.files = vec![file.clone()];
    let mut window = setup.window();
    window.click(strings::READ);
    script.read(book.len() / 4 / 256 + 1);
    window.wait_for_part("read in");
    window.type_question("Tell me at length");
    window.click(strings::ASK);
    let [mut took, mut worked] = [(); 2].map(|()| Vec::with_capacity(LONG));
    for _ in 0..LONG - 1 {
        script.say(1);
        // The screen asks for a frame some time after the token.
        std::thread::sleep(Duration::from_millis(2));
        let (begin, work) = (Instant::now(), processor_time());
        window.0.step();
        let shapes = window.0.output().shapes.clone();
        let drawn = window.0.ctx.tessellate(shapes, 1.0);
        took.push(begin.elapsed());
        worked.push(processor_time().saturating_sub(work));
        assert!(!drawn.is_empty());
    }
    took.sort_unstable();
    worked.sort_unstable();
    let (median, p99) = (took[took.len() / 2], worked[worked.len() * 99 / 100]);
    println!("update and tessellation: median {median:?}, p99 {p99:?} of {} frames", took.len());
    let bound = if cfg!(debug_assertions) { DEBUG } else { RELEASE };
    // Whoever runs beside may hold up one frame, but not most of them.
    assert!(p99 <= bound && median <= bound, "p99 {p99:?}, median {median:?}, above {bound:?}");
    std::fs::remove_file(file).unwrap();
}

/// The time for which this thread has computed.
#[cfg(unix)]
fn processor_time() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// The time, where threads have no clock of their own that is easily read.
#[cfg(not(unix))]
fn processor_time() -> Duration {
    static BEGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    BEGIN.elapsed()
}
