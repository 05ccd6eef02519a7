//! Documents that machines share over links that are too slow.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use longview_library::shared::{Patience, Published, Share, ShareError, ShareKey};
use longview_object_server::{BUCKET, Fault, ObjectServer, files_below};

use crate::shared::{KEY, Machine, PART, SESSION, bytes, machines, tokens};

/// A machine that waits so long for a part, and twice that with what is tried again.
fn waits(address: SocketAddr, request: Duration) -> Machine {
    let patience = Patience { request, in_all: request * 2 };
    let (key, environment) = (ShareKey::new(KEY).unwrap(), ObjectServer::environment(address));
    let share =
        Share::open_within(&format!("s3://{BUCKET}/some/prefix"), &key, &environment, patience);
    Machine::new(share.unwrap().with_part_bytes(PART))
}

#[test]
fn a_link_that_is_too_slow_is_a_miss() {
    let (_server, proxy, _, near) = machines();
    let (tokens, content) = (tokens(1), bytes(1));
    near.publish(&near.read("The text.", &tokens, &content)).unwrap();
    let far = waits(proxy.address(), Duration::from_millis(300));
    let found = far.nearest(&tokens).unwrap().expect("it is there");
    // Seven parts in 8 seconds, of which each would have to come in 0.3.
    proxy.set(Fault::Slow { bytes_per_s: SESSION as u64 / 8 });
    let start = Instant::now();
    let error = far.fetch(&found).unwrap_err();
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    assert!(error.to_string().contains("imeout"), "{error}");
    assert!(far.share.rests(), "it is not asked for a while");
    assert!(far.documents.list().unwrap().iter().all(|d| d.sessions.is_empty()));
    // It says nothing of what is there: over a better link it comes.
    proxy.set(Fault::None);
    let far = Machine::new(far.share);
    let found = far.nearest(&tokens).unwrap().expect("it is not damaged");
    assert_eq!(far.fetch(&found).unwrap(), content);
}

#[test]
fn a_slow_upload_is_published_whole_or_not_at_all() {
    let (server, proxy, _, near) = machines();
    let (tokens, content) = (tokens(1), bytes(1));
    // Too slow: the text and some parts may be there, and nobody sees them, however late they come.
    let far = waits(proxy.address(), Duration::from_millis(300));
    let read = far.read("The text.", &tokens, &content);
    proxy.set(Fault::SlowWrites { bytes_per_s: SESSION as u64 / 8 });
    let error = far.publish(&read).unwrap_err();
    assert!(matches!(error, ShareError::Storage { .. }), "{error}");
    assert_eq!(near.nearest(&tokens).unwrap(), None);
    proxy.set(Fault::None);
    thread::sleep(Duration::from_secs(1));
    assert!(!files_below(&server.folder()).is_empty(), "something came");
    assert_eq!(near.nearest(&tokens).unwrap(), None);

    // As slow, for who waits as long as it takes.
    let far = waits(proxy.address(), Duration::from_secs(20));
    let read = far.read("The text.", &tokens, &content);
    proxy.set(Fault::SlowWrites { bytes_per_s: SESSION as u64 / 2 });
    let start = Instant::now();
    assert_eq!(far.publish(&read).unwrap(), Published::Sent(SESSION as u64));
    assert!(start.elapsed() > Duration::from_secs(1), "{:?}", start.elapsed());
    let found = near.nearest(&tokens).unwrap().expect("it is there");
    assert_eq!(Machine::new(near.share.clone()).fetch(&found).unwrap(), content);
}

#[test]
fn a_manifest_that_comes_when_nobody_waits_for_it_has_its_parts() {
    let (_server, proxy, _, near) = machines();
    let (tokens, content) = (tokens(1), bytes(1));
    let far = waits(proxy.address(), Duration::from_millis(400));
    let read = far.read("The text.", &tokens, &content);
    proxy.set(Fault::HoldWrites { of: "/index/", by: Duration::from_millis(1500) });
    let error = far.publish(&read).unwrap_err();
    assert!(matches!(error, ShareError::Storage { .. }), "{error}");
    assert_eq!(near.nearest(&tokens).unwrap(), None, "it has not come yet");
    let end = Instant::now() + Duration::from_secs(10);
    let found = loop {
        assert!(Instant::now() < end, "it comes");
        if let Some(found) = near.nearest(&tokens).unwrap() {
            break found;
        }
        thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(near.fetch(&found).unwrap(), content);
    proxy.set(Fault::None);
    assert_eq!(far.publish(&read).unwrap(), Published::WasThere);
}
