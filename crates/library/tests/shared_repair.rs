//! Documents that machines share: what is damaged, removed or left behind there is set right, and
//! costs nobody what is right.

use std::fs::{self, File};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use longview_library::documents::SessionKey;
use longview_library::shared::Published;
use longview_object_server::{ObjectServer, files_below};

use crate::shared::{Machine, SESSION, bytes, key, machines, share, tokens};

/// Files of the storage whose paths have this in them.
fn files(server: &ObjectServer, what: &str) -> Vec<PathBuf> {
    let mut files = files_below(&server.folder());
    files.retain(|file| file.to_string_lossy().contains(what));
    files
}

fn of_policy(n: usize) -> SessionKey {
    SessionKey { policy: format!("policy = {n}"), ..key() }
}

#[test]
fn what_was_removed_and_shared_again_is_found_again() {
    let (_server, _, a, b) = machines();
    let (tokens, content) = (tokens(1), bytes(1));
    let read = a.read("The text.", &tokens, &content);
    a.publish(&read).unwrap();
    let found = b.nearest(&tokens).unwrap().expect("it is there");
    a.share.remove(read.0).unwrap();
    b.fetch(&found).expect_err("its parts are gone");
    assert_eq!(a.publish(&read).unwrap(), Published::Sent(SESSION as u64));
    // Another upload of the same session: what was wrong with the one before says nothing of it.
    let found = b.nearest(&tokens).unwrap().expect("it is there again");
    // Who read it meanwhile leaves what is right in its place.
    let own = b.read("The text.", &tokens, &bytes(9));
    assert_eq!(b.publish(&own).unwrap(), Published::WasThere);
    assert_eq!(Machine::new(b.share.clone()).fetch(&found).unwrap(), content);
}

#[test]
fn a_text_that_is_not_right_is_replaced_by_who_has_it() {
    let (server, _, a, _) = machines();
    let (tokens, content) = (tokens(1), bytes(1));
    a.publish(&a.read("The text.", &tokens, &content)).unwrap();
    let flip = |path: &PathBuf| {
        let mut bytes = fs::read(path).unwrap();
        bytes[3] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let cut = |path: &PathBuf| fs::write(path, "The").unwrap();
    let remove = |path: &PathBuf| fs::remove_file(path).unwrap();
    type Damage<'a> = &'a dyn Fn(&PathBuf);
    let texts: [Damage<'_>; 3] = [&flip, &cut, &remove];
    let records: [Damage<'_>; 2] = [&flip, &remove];
    let ways = texts.map(|damage| ("/text", damage)).into_iter();
    for (what, damage) in ways.chain(records.map(|damage| ("/record", damage))) {
        damage(&files(&server, what)[0]);
        let b = Machine::new(share(server.address()));
        let found = b.nearest(&tokens).unwrap().expect("the session is right");
        b.fetch(&found).expect_err("without the text it cannot be kept");
        // So it is read here, and what is shared with others is right again.
        let read = b.read("The text.", &tokens, &bytes(9));
        assert_eq!(b.publish(&read).unwrap(), Published::WasThere);
        let c = Machine::new(share(server.address()));
        assert_eq!(c.fetch(&found).unwrap(), content, "{what}");
        assert_eq!(c.documents.text(read.0).unwrap(), "The text.");
    }
    // A name that is not right comes back too, and one that another document has stays its own.
    remove(&files(&server, "/names/")[0]);
    let b = Machine::new(share(server.address()));
    assert_eq!(b.share.find("a").unwrap(), None);
    let read = b.read("The text.", &tokens, &content);
    b.publish(&read).unwrap();
    assert_eq!(b.share.find("a").unwrap().expect("by name").id(), read.0);
    let other = Machine::new(share(server.address()));
    let later = other.read("Another text.", &self::tokens(2), &content);
    other.publish(&later).unwrap();
    b.publish(&read).unwrap();
    assert_eq!(b.share.find("a").unwrap().expect("by name").id(), later.0);
}

#[test]
fn parts_of_sessions_beyond_any_number_stay_and_those_of_nobody_go() {
    let (server, _, a, b) = machines();
    let (tokens, n) = (tokens(1), 3);
    let read: Vec<_> = (0..n)
        .map(|i| a.read_as(&of_policy(i), "The text.", &tokens, format!("Bytes {i}.").as_bytes()))
        .collect();
    let (last, first) = read.split_last().unwrap();
    for read in first {
        assert!(matches!(a.publish(read).unwrap(), Published::Sent(_)));
    }
    // Whatever else leads to nothing there: sessions that were not sent, or are gone.
    let pointer = files(&server, "/sessions/").remove(0);
    (0..100).for_each(|i| fs::write(pointer.with_file_name(format!("0.{i}")), "").unwrap());
    // All of it was written two days ago, and so were parts of two uploads that never ended; to
    // one of these something came since.
    let parts = |name: &str| {
        let mut files = files_below(&server.folder());
        files.retain(|file| file.to_string_lossy().contains("/parts/"));
        let upload = files[0].parent().unwrap().with_file_name(name);
        fs::create_dir_all(&upload).unwrap();
        upload
    };
    let (dead, slow) = (parts("00000000"), parts("11111111"));
    for part in [dead.join("0"), dead.join("1"), slow.join("0"), slow.join("1")] {
        fs::write(part, "some bytes").unwrap();
    }
    let two_days_ago = SystemTime::now() - Duration::from_secs(48 * 3600);
    for file in files_below(&server.folder()) {
        if file != slow.join("1") {
            File::options().write(true).open(&file).unwrap().set_modified(two_days_ago).unwrap();
        }
    }
    assert!(matches!(a.publish(last).unwrap(), Published::Sent(_)));
    assert!(!dead.join("0").exists() && !dead.join("1").exists(), "parts of nobody go");
    for i in 0..n {
        let found = b.share.nearest(&of_policy(i), &tokens, 4096, 0).unwrap().expect("it is there");
        let mut came = vec![0; format!("Bytes {i}.").len()];
        let incoming = b.share.fetch(&b.documents, &found).unwrap();
        longview_core::RangeSource::read_at(&incoming, 0, &mut came).unwrap();
        assert_eq!(String::from_utf8(came).unwrap(), format!("Bytes {i}."), "session {i}");
    }
    assert!(slow.join("0").exists(), "an upload that is under way stays");
}
