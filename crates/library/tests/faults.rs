//! Lines that are cut, hubs that are busy, and servers that change their mind.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use longview_library::{Event, LibraryError, Prefer, Wanted, Watch};

use crate::support::server::{Fault, TestHub, noise, sha256};
use crate::support::{TestCache, add_folder, find, name, pull, pull_told};

const REPO: &str = "org/model";
const WEIGHTS: &str = "model.safetensors";

fn set_up() -> (TestHub, TestCache) {
    let (hub, cache) = (TestHub::start(), TestCache::new());
    add_folder(&hub, REPO);
    (hub, cache)
}

/// The first byte that each request for the weights asked for.
fn ranges(hub: &TestHub) -> Vec<Option<String>> {
    let seen = hub.asked_for(WEIGHTS);
    seen.into_iter().map(|seen| seen.headers.get("range").cloned()).collect()
}

#[track_caller]
fn assert_whole(cache: &TestCache) {
    assert_eq!(fs::read(cache.file(REPO, WEIGHTS)).unwrap(), noise(300_000));
    assert!(cache.names(REPO, "blobs").iter().all(|name| !name.contains("incomplete")));
}

#[test]
fn a_line_that_is_cut_goes_on_where_it_was() {
    let (hub, cache) = set_up();
    hub.faults(WEIGHTS, [Fault::Cut(100_000), Fault::Cut(50_000)]);
    let (found, told) = pull_told(&cache.library(&hub, &[]), REPO);
    found.unwrap();
    let expected = [None, Some("bytes=100000-".to_owned()), Some("bytes=150000-".to_owned())];
    assert_eq!(ranges(&hub), expected);
    let asked = hub.asked_for(WEIGHTS);
    let mark = format!("\"{}\"", sha256(&noise(300_000)));
    assert!(asked[1..].iter().all(|seen| seen.headers.get("if-range") == Some(&mark)));
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[1].starts_with("retry 1: "), "{told:?}");
    assert_whole(&cache);
}

#[test]
fn the_next_download_goes_on_from_a_beginning() {
    let (hub, cache) = set_up();
    let library = cache.library(&hub, &[]);
    hub.faults(WEIGHTS, [Fault::Cut(80_000), Fault::Cut(0), Fault::Cut(0), Fault::Cut(0)]);
    let error = pull(&library, REPO).unwrap_err().to_string();
    assert!(error.contains("model.safetensors: 4 attempts in a row failed"), "{error}");
    assert!(error.contains("the next download goes on from there"), "{error}");
    assert!(find(&library, REPO).is_err() && !cache.file(REPO, WEIGHTS).exists());
    let entry = &library.list().unwrap()[0];
    assert!(entry.missing.is_some() && entry.bytes > 80_000, "{entry:?}");
    let n_before = ranges(&hub).len();
    let (found, told) = pull_told(&cache.library(&hub, &[]), REPO);
    found.unwrap();
    assert_eq!(told, [format!("plan 3 305023 {}", 23 + 5000 + 80_000)]);
    assert_eq!(ranges(&hub)[n_before..], [Some("bytes=80000-".to_owned())]);
    assert_whole(&cache);
}

#[test]
fn a_content_that_changed_meanwhile_begins_again() {
    let (hub, cache) = set_up();
    hub.faults(WEIGHTS, [Fault::Cut(100_000), Fault::NewMark("another")]);
    pull(&cache.library(&hub, &[]), REPO).unwrap();
    let asked = hub.asked_for(WEIGHTS);
    assert!(asked[1].headers.contains_key("if-range"), "{asked:?}");
    assert_whole(&cache);
}

#[test]
fn a_server_without_ranges_sends_all_again() {
    let (hub, cache) = set_up();
    hub.faults(WEIGHTS, [Fault::Cut(100_000), Fault::Whole]);
    pull(&cache.library(&hub, &[]), REPO).unwrap();
    assert_eq!(ranges(&hub).len(), 2);
    assert_whole(&cache);
}

#[test]
fn another_part_than_was_asked_for_is_not_taken() {
    let (hub, cache) = set_up();
    let cut = Fault::Cut(100_000);
    hub.faults(WEIGHTS, [cut.clone(), Fault::OtherPart, cut, Fault::Status(416, vec![])]);
    let (result, told) = pull_told(&cache.library(&hub, &[]), REPO);
    assert!(matches!(result, Err(LibraryError::GaveUp { .. })), "four attempts: {result:?}");
    assert!(told[2].contains("other bytes than asked for"), "{told:?}");
    pull(&cache.library(&hub, &[]), REPO).unwrap();
    assert_whole(&cache);
}

#[test]
fn a_beginning_that_is_wrong_is_not_gone_on_from() {
    let (hub, cache) = set_up();
    let blobs = cache.repo(REPO).join("blobs");
    fs::create_dir_all(&blobs).unwrap();
    let part = blobs.join(format!("{}.incomplete", sha256(&noise(300_000))));
    for beginning in [vec![1; 1000], vec![1; 300_000], vec![1; 400_000]] {
        fs::write(&part, beginning).unwrap();
        pull(&cache.library(&hub, &[]), REPO).unwrap();
        assert_whole(&cache);
        fs::remove_file(blobs.join(sha256(&noise(300_000)))).unwrap();
    }
}

#[test]
fn a_wrong_hash_leaves_nothing() {
    let (hub, cache) = set_up();
    hub.faults(WEIGHTS, [Fault::Flipped]);
    let library = cache.library(&hub, &[]);
    let error = pull(&library, REPO).unwrap_err().to_string();
    let hash = sha256(&noise(300_000));
    assert!(error.contains("model.safetensors: has the hash ") && error.contains(&hash), "{error}");
    assert!(cache.names(REPO, "blobs").iter().all(|name| !name.starts_with(&hash)));
    assert!(cache.names(REPO, "snapshots").is_empty() && find(&library, REPO).is_err());
    hub.faults("config.json", [Fault::Flipped]);
    fs::remove_dir_all(cache.repo(REPO)).unwrap();
    let error = pull(&library, REPO).unwrap_err().to_string();
    assert!(error.contains("config.json: has the hash "), "{error}");
    pull(&library, REPO).unwrap();
    assert_whole(&cache);
}

#[test]
fn lengths_that_are_wrong_are_noticed() {
    let (hub, cache) = set_up();
    hub.faults(WEIGHTS, [Fault::Short(200_000), Fault::Longer]);
    let (found, told) = pull_told(&cache.library(&hub, &[]), REPO);
    found.unwrap();
    assert!(told[1].contains("the connection was cut"), "{told:?}");
    assert!(told[2].contains("more bytes than the hub listed"), "{told:?}");
    assert_whole(&cache);
}

#[test]
fn a_busy_hub_is_waited_for() {
    let (hub, cache) = set_up();
    let wait = |seconds: &str| Fault::Status(429, vec![("Retry-After", seconds.to_owned())]);
    hub.list_faults([wait("0"), Fault::Status(503, vec![])]);
    hub.faults(WEIGHTS, [wait("1"), Fault::Status(500, vec![]), Fault::Status(502, vec![])]);
    let start = Instant::now();
    let (found, told) = pull_told(&cache.library(&hub, &[]), REPO);
    found.unwrap();
    assert!(start.elapsed() >= Duration::from_secs(1), "{:?}", start.elapsed());
    let retries: Vec<_> = told.iter().filter(|line| line.starts_with("retry")).collect();
    assert_eq!(retries.len(), 5, "{told:?}");
    assert!(retries[0].contains("answers with status 429"), "{told:?}");
    hub.list_faults([wait("86400")]);
    let error = pull(&cache.library(&hub, &[]), REPO).unwrap_err().to_string();
    assert!(error.contains("a pause of 86400 s") && error.contains("set HF_TOKEN"), "{error}");
    hub.list_faults(vec![Fault::Status(500, vec![]); 4]);
    let error = pull(&cache.library(&hub, &[]), REPO).unwrap_err().to_string();
    assert!(error.contains("the list of its files: 4 attempts"), "{error}");
}

#[test]
fn an_address_that_is_too_old_is_asked_for_anew() {
    let (hub, cache) = set_up();
    hub.faults(WEIGHTS, [Fault::Cut(10), Fault::Status(403, vec![])]);
    pull(&cache.library(&hub, &[]), REPO).unwrap();
    assert_whole(&cache);
}

#[test]
fn silence_counts_as_a_cut() {
    let (hub, cache) = set_up();
    hub.faults(WEIGHTS, [Fault::Hang(1000)]);
    let start = Instant::now();
    let (found, told) = pull_told(&cache.library(&hub, &[]), REPO);
    found.unwrap();
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(told[1].starts_with("retry 1: "), "{told:?}");
    assert_whole(&cache);
}

#[test]
fn an_answer_that_is_no_list_is_refused() {
    let (hub, cache) = set_up();
    hub.list_faults([Fault::Flipped]);
    let error = pull(&cache.library(&hub, &[]), REPO).unwrap_err().to_string();
    assert!(error.contains("something that is no list of files; is HF_ENDPOINT"), "{error}");
}

#[test]
fn a_cancelled_download_ends_within_a_second_and_is_kept() {
    for fault in [Fault::Slow(20_000, Duration::from_millis(200)), Fault::Hang(40_000)] {
        let (hub, cache) = set_up();
        hub.faults(WEIGHTS, [fault]);
        let library = cache.library(&hub, &[]);
        let cancelled = AtomicBool::new(false);
        let reached = AtomicBool::new(false);
        let ended = thread::scope(|scope| {
            let pulling = scope.spawn(|| {
                let mut note = |event: Event<'_>| {
                    if let Event::Progress { done_bytes, .. } = event {
                        reached.fetch_or(done_bytes >= 20_000 + 5023, Ordering::Relaxed);
                    }
                };
                let (name, is_cancelled) = (name(REPO), || cancelled.load(Ordering::Relaxed));
                let wanted = Wanted { name: &name, file: None, prefer: Prefer::Safetensors };
                let mut watch = Watch { on_event: &mut note, is_cancelled: &is_cancelled };
                library.pull(&wanted, &mut watch).map(drop)
            });
            while !reached.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(2));
            }
            cancelled.store(true, Ordering::Relaxed);
            let start = Instant::now();
            let result = pulling.join().unwrap();
            assert!(matches!(result, Err(LibraryError::Cancelled)), "{result:?}");
            start.elapsed()
        });
        assert!(ended < Duration::from_secs(1), "{ended:?}");
        pull(&library, REPO).unwrap();
        assert!(ranges(&hub)[1].is_some(), "it goes on from what was kept");
        assert_whole(&cache);
    }
}

#[test]
fn a_disk_that_is_too_small_is_noticed_before_anything_is_written() {
    let (hub, cache) = set_up();
    hub.lie(REPO, WEIGHTS, |file| file.listed_size = Some(1 << 60));
    let (result, told) = pull_told(&cache.library(&hub, &[]), REPO);
    let error = result.unwrap_err().to_string();
    assert!(error.contains("no room: 1048576.0 TiB are needed and "), "{error}");
    assert!(error.contains("set HF_HOME to a folder elsewhere"), "{error}");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(cache.all().is_empty() && hub.seen().len() == 1);
}

#[test]
fn a_cache_that_cannot_be_written_is_named() {
    let (hub, cache) = set_up();
    fs::write(cache.path().join("hub"), "a file").unwrap();
    let error = pull(&cache.library(&hub, &[]), REPO).unwrap_err().to_string();
    assert!(error.contains("blobs: cannot be created ("), "{error}");
}
