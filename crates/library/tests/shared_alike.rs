//! Documents that machines share: many of them, or many sessions of one, that begin alike.

use std::fs;

use longview_library::documents::SessionKey;
use longview_library::shared::Published;
use longview_object_server::{ObjectServer, files_below};

use crate::shared::{Machine, key, share};

/// Sessions that are looked at for one prompt.
const MOST: u32 = 4;
/// More than that.
const N: u32 = 7;

fn machine() -> (ObjectServer, Machine) {
    let server = ObjectServer::start().unwrap();
    let machine = Machine::new(share(server.address()).with_most_alike(MOST as usize));
    (server, machine)
}

/// Tokens of a document: `n_preface` that all have, then its own.
fn tokens(n_preface: u32, i: u32) -> Vec<u32> {
    (0..n_preface).chain((0..900).map(|at| 100_000 + i * 1000 + at)).collect()
}

#[test]
fn documents_with_one_preface_are_all_found() {
    for n_preface in [300, 600, 3000] {
        let (_server, a) = machine();
        for i in 0..N {
            let read = a.read(&format!("Text {i}."), &tokens(n_preface, i), &i.to_le_bytes());
            assert!(matches!(a.publish(&read).unwrap(), Published::Sent(_)));
        }
        for i in 0..N {
            let mut prompt = tokens(n_preface, i);
            prompt.extend(0..40);
            let found = a.share.nearest(&key(), &prompt, 8192, 0).unwrap();
            let found = found.unwrap_or_else(|| panic!("{i} of preface {n_preface} is there"));
            let n_whole = (n_preface as usize + 900) / 256 * 256;
            assert_eq!(found.n_common(), n_whole, "{i} of preface {n_preface}");
        }
        // A prompt with the preface alone finds any of them.
        let prompt: Vec<u32> = (0..n_preface).chain(7_000_000..7_000_900).collect();
        let found = a.share.nearest(&key(), &prompt, 8192, 0).unwrap().expect("one of them");
        assert_eq!(found.n_common(), n_preface as usize / 256 * 256);
    }
}

#[test]
fn one_document_under_many_policies_is_found_under_each() {
    let (_server, a) = machine();
    let of_policy = |i| SessionKey { policy: format!("policy = {i}"), ..key() };
    let tokens = tokens(600, 1);
    for i in 0..N {
        a.publish(&a.read_as(&of_policy(i), "The text.", &tokens, &i.to_le_bytes())).unwrap();
    }
    for i in 0..N {
        let found = a.share.nearest(&of_policy(i), &tokens, 4096, 0).unwrap().expect("it is there");
        assert_eq!(found.key(), &of_policy(i));
    }
    // Rows are the same under a policy that nobody has used.
    let found = a.share.nearest(&of_policy(N), &tokens, 4096, 0).unwrap().expect("any of them");
    assert_eq!(found.n_common(), 1280);
}

#[test]
fn what_has_no_marks_is_found_and_gets_them() {
    let (server, a) = machine();
    let read: Vec<_> =
        (0..N).map(|i| a.read(&format!("Text {i}."), &tokens(600, i), &i.to_le_bytes())).collect();
    let marks = || {
        let mut files = files_below(&server.folder());
        files.retain(|file| file.to_string_lossy().contains("/prefixes/"));
        files
    };
    // As versions wrote it that knew none.
    let without_marks = || marks().iter().for_each(|mark| fs::remove_file(mark).unwrap());
    let is_found = |i: u32| {
        let found = a.share.nearest(&key(), &tokens(600, i), 4096, 0).unwrap();
        found.is_some_and(|found| found.n_common() == 1280)
    };
    for (i, read) in (0..MOST).zip(&read) {
        a.publish(read).unwrap();
        without_marks();
        assert!(is_found(i), "{i}");
    }
    assert!((0..MOST).all(is_found));
    for read in &read[MOST as usize..] {
        a.publish(read).unwrap();
        without_marks();
    }
    let n_found = (0..N).filter(|i| is_found(*i)).count();
    assert_eq!(n_found, MOST as usize, "as many as are looked at");
    for read in &read {
        assert_eq!(a.publish(read).unwrap(), Published::WasThere);
    }
    assert!((0..N).all(is_found), "who has them built again marks them");
    // Those of a session that is gone lead nowhere, and removed with it they are not there.
    let n_marks = marks().len();
    a.share.remove(read[0].0).unwrap();
    assert_eq!(marks().len(), n_marks - n_marks / N as usize);
    assert!(!is_found(0) && (1..N).all(is_found));
}
