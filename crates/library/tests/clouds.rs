//! Documents that machines share over the protocol of Microsoft's storage, against its server for
//! tests: `cargo xtask storage` starts that and says where it is.

use std::io::Write;

use longview_library::shared::{Published, Share, ShareError, ShareKey};

use crate::shared::{KEY, Machine, PART, SESSION, bytes, tokens, two_builders};

/// A storage that `name` in the environment names, or `None`, which is said.
fn storage(name: &str) -> Option<String> {
    let found = std::env::var(name).ok();
    if found.is_none() {
        assert!(std::env::var_os("REQUIRE_CLOUDS").is_none(), "{name} is not set");
        // Not `eprintln`, which tests that pass keep for themselves.
        let _ = writeln!(std::io::stderr(), "NOT RUN: {name} names no storage");
    }
    found
}

fn open(address: &str, key: &str, environment: &[(&str, &str)]) -> Share {
    let environment: Vec<_> =
        environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let key = ShareKey::new(key).unwrap();
    Share::open_with(address, &key, &environment).unwrap().with_part_bytes(PART)
}

/// What every storage has to do; `open` opens it with this key for tags.
fn is_shared(open: &dyn Fn(&str) -> Share) {
    let (a, b) = (Machine::new(open(KEY)), Machine::new(open(KEY)));
    let (tokens, content) = (tokens(1), bytes(1));
    assert_eq!(b.nearest(&tokens).unwrap(), None, "nothing is there");
    let read = a.read("The text.", &tokens, &content);
    assert_eq!(a.publish(&read).unwrap(), Published::Sent(SESSION as u64));
    assert_eq!(a.publish(&read).unwrap(), Published::WasThere);
    let found = b.nearest(&tokens).unwrap().expect("it is there");
    assert_eq!(b.fetch(&found).unwrap(), content);
    let by_name = b.share.find("a").unwrap().expect("by name");
    assert_eq!(b.share.sessions(by_name.id()).unwrap().len(), 1);

    // Who has another key for tags sees nothing of it.
    let stranger = Machine::new(open("another key, long enough"));
    assert_eq!(stranger.nearest(&tokens).unwrap(), None);

    // Removed, it is not there for anybody, and a part that is asked for all the same is missing.
    b.share.remove(read.0).unwrap();
    assert_eq!(a.nearest(&tokens).unwrap(), None);
    let error = Machine::new(open(KEY)).fetch(&found).unwrap_err();
    assert!(error.to_string().contains("is not there"), "{error}");

    // Two who read the same: the manifest is created once, and what is there is of one of them.
    let (sent, from) = two_builders(&open(KEY));
    let n_sent = sent.iter().filter(|sent| matches!(sent, Published::Sent(_))).count();
    assert_eq!(n_sent, 1, "{sent:?}");
    assert!(matches!(sent[from], Published::Sent(_)), "{sent:?}");
}

fn is_refused(share: Share) {
    let machine = Machine::new(share);
    let error = machine.nearest(&tokens(1)).unwrap_err();
    assert!(matches!(error, ShareError::Storage { .. }), "{error}");
    let read = machine.read("The text.", &tokens(1), &bytes(1));
    assert!(matches!(machine.publish(&read), Err(ShareError::Storage { .. })));
}

#[test]
fn microsofts_protocol_carries_documents() {
    let Some(address) = storage("LONGVIEW_TEST_AZURE") else { return };
    let emulator = ("AZURE_STORAGE_USE_EMULATOR", "true");
    is_shared(&|key| open(&address, key, &[emulator]));
    // 64 bytes that are not those of the account.
    let wrong = "AAAA".repeat(21) + "AA==";
    is_refused(open(&address, KEY, &[emulator, ("AZURE_STORAGE_ACCOUNT_KEY", &wrong)]));
    is_refused(open("az://there-is-no-such-container/x", KEY, &[emulator]));
}
