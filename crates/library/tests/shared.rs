//! Documents that machines share, over a real S3 server on this one and a network that fails.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use std::io::Write;

use longview_core::RangeSource;
use longview_library::documents::{
    Documents, Facts, Id, NewDocument, Reading, SessionEntry, SessionKey, Source,
};
use longview_library::shared::{Published, Share, ShareError, ShareKey, SharedSession};
use longview_object_server::{BUCKET, Fault, ObjectServer, Proxy, files_below};

pub(crate) const KEY: &str = "the key of all machines of a test";
/// Bytes of a part here.
pub(crate) const PART: u64 = 128 << 10;
/// Bytes of a session: seven parts, the last one shorter.
pub(crate) const SESSION: usize = 6 * PART as usize + 1000;

/// A folder that is removed at the end of a test.
pub(crate) struct TempFolder(pub(crate) PathBuf);

impl TempFolder {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("longview-share-{}-{n}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A machine: a library of its own, and the way to what all share.
pub(crate) struct Machine {
    pub(crate) documents: Documents,
    pub(crate) share: Share,
    _folder: TempFolder,
}

impl Machine {
    pub(crate) fn new(share: Share) -> Self {
        let folder = TempFolder::new();
        Self {
            documents: Documents::open(&folder.0.join("library")).unwrap(),
            share,
            _folder: folder,
        }
    }

    /// Reads a document to its end, so to say: a session of it with these bytes.
    pub(crate) fn read(&self, text: &str, tokens: &[u32], bytes: &[u8]) -> (Id, SessionEntry) {
        self.read_as(&key(), text, tokens, bytes)
    }

    pub(crate) fn read_as(
        &self,
        key: &SessionKey,
        text: &str,
        tokens: &[u32],
        bytes: &[u8],
    ) -> (Id, SessionEntry) {
        let sources =
            vec![Source { name: "a.txt".into(), kind: "txt".into(), bytes: 3, pages: None }];
        let new = NewDocument { text, name: None, sources };
        let id = self.documents.add(new).unwrap().id;
        let building = self.documents.begin(id, key).unwrap();
        let mut writer = building.writer().unwrap();
        writer.write_all(bytes).unwrap();
        let facts = Facts {
            tokens,
            n_document: tokens.len(),
            context: 4096,
            model: "the/model/here",
            about: "a model",
            preset: "full",
        };
        (id, building.commit(writer, &facts).unwrap().session)
    }

    pub(crate) fn publish(
        &self,
        (id, session): &(Id, SessionEntry),
    ) -> Result<Published, ShareError> {
        self.share.publish(&self.documents, *id, session)
    }

    pub(crate) fn nearest(&self, tokens: &[u32]) -> Result<Option<SharedSession>, ShareError> {
        self.share.nearest(&key(), tokens, 4096, 0)
    }

    /// All bytes of a session, read while they come, then kept.
    pub(crate) fn fetch(&self, session: &SharedSession) -> Result<Vec<u8>, ShareError> {
        let incoming = self.share.fetch(&self.documents, session)?;
        let mut bytes = vec![0; incoming.size() as usize];
        // In pieces that are no parts, as readers of records do.
        for (i, piece) in bytes.chunks_mut(100_001).enumerate() {
            incoming.read_at(i as u64 * 100_001, piece)?;
        }
        incoming.keep(&self.documents, "my/model", "my words")?;
        Ok(bytes)
    }
}

pub(crate) fn key() -> SessionKey {
    SessionKey {
        fingerprint: Id::of(b"a model"),
        kv_type: "f16".into(),
        reading: Reading::Plain,
        policy: "policy = full".into(),
        sparse: None,
    }
}

pub(crate) fn tokens(seed: u32) -> Vec<u32> {
    (0..1500).map(|i| i * 7 + seed).collect()
}

pub(crate) fn bytes(seed: u32) -> Vec<u8> {
    let next = |state: &mut u32| {
        *state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        Some((*state >> 24) as u8)
    };
    std::iter::successors(Some(seed | 1), |s| Some(*s))
        .scan(seed, |state, _| next(state))
        .take(SESSION)
        .collect()
}

pub(crate) fn share(address: std::net::SocketAddr) -> Share {
    share_with(address, KEY)
}

fn share_with(address: std::net::SocketAddr, key: &str) -> Share {
    let key = ShareKey::new(key).unwrap();
    let address_of_bucket = format!("s3://{BUCKET}/some/prefix");
    let environment = ObjectServer::environment(address);
    Share::open_with(&address_of_bucket, &key, &environment).unwrap().with_part_bytes(PART)
}

/// A server, and two machines: one that reaches it through a network that fails, one directly.
pub(crate) fn machines() -> (ObjectServer, Proxy, Machine, Machine) {
    let server = ObjectServer::start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let (far, near) = (Machine::new(share(proxy.address())), Machine::new(share(server.address())));
    (server, proxy, far, near)
}

#[test]
fn what_one_machine_read_another_opens() {
    let (server, _, a, b) = machines();
    let (tokens, content) = (tokens(1), bytes(1));
    assert_eq!(b.nearest(&tokens).unwrap(), None, "nothing is there");
    let read = a.read("The text.", &tokens, &content);
    assert_eq!(a.publish(&read).unwrap(), Published::Sent(SESSION as u64));
    assert_eq!(a.publish(&read).unwrap(), Published::WasThere);

    // A question about it: the prompt goes on where the document ends.
    let mut prompt = tokens.clone();
    prompt.extend([1, 2, 3]);
    let found = b.nearest(&prompt).unwrap().expect("it is there");
    assert_eq!((found.n_common(), found.n_tokens()), (1280, 1500));
    assert_eq!(b.share.nearest(&key(), &prompt, 4096, 1280).unwrap(), None, "as much is known");
    assert_eq!(
        b.share.nearest(&key(), &prompt, 1000, 0).unwrap(),
        None,
        "too long for the context"
    );
    let mut other = key();
    other.fingerprint = Id::of(b"another model");
    assert_eq!(b.share.nearest(&other, &prompt, 4096, 0).unwrap(), None);

    assert_eq!(b.fetch(&found).unwrap(), content);
    let document = b.documents.find("a").unwrap();
    assert_eq!(b.documents.text(document.id).unwrap(), "The text.");
    let session = document.session(&key()).expect("it is kept");
    assert_eq!((session.model.as_str(), session.n_tokens), ("my/model", 1500));
    assert!(session.is_complete());
    assert_eq!(fs::read(b.documents.session_path(session)).unwrap(), content);
    assert_eq!(b.documents.nearest(&key(), &prompt, 4096).unwrap().unwrap().n_common, 1280);

    // By its name and its id, as a person names it; and gone where it is removed.
    let by_name = b.share.find("a").unwrap().expect("by name");
    assert_eq!(b.share.find(&read.0.to_string()).unwrap(), Some(by_name.clone()));
    assert_eq!(b.share.sessions(by_name.id()).unwrap().len(), 1);
    b.share.remove(read.0).unwrap();
    assert_eq!(a.nearest(&prompt).unwrap(), None);
    assert_eq!(a.share.find("a").unwrap(), None);
    let left = files_below(&server.folder());
    assert!(left.iter().all(|file| file.to_string_lossy().contains("/.")), "{left:?}");
}

#[test]
fn the_library_is_a_cache_with_a_quota() {
    let (_server, _, a, b) = machines();
    let all: Vec<_> = (1..=3).map(|n| (tokens(n), bytes(n))).collect();
    for (n, (tokens, content)) in all.iter().enumerate() {
        a.publish(&a.read(&format!("Text {n}."), tokens, content)).unwrap();
    }
    b.documents.set_quota(Some(2 * SESSION as u64 + 10)).unwrap();
    for (tokens, content) in &all {
        let found = b.nearest(tokens).unwrap().expect("it is there");
        assert_eq!(&b.fetch(&found).unwrap(), content);
    }
    assert_eq!(b.documents.usage().unwrap().session_bytes, 2 * SESSION as u64);
    // What went comes again.
    assert!(b.documents.nearest(&key(), &all[0].0, 4096).unwrap().is_none());
    let found = b.nearest(&all[0].0).unwrap().expect("it is there");
    assert_eq!(b.fetch(&found).unwrap(), all[0].1);
    // What the library may not hold is not even asked for.
    b.documents.set_quota(Some(1000)).unwrap();
    assert!(b.share.fetch(&b.documents, &found).is_err());
}

/// Two machines read the same and share it at the same time: what each did, and which of them a
/// third one gets it from.
pub(crate) fn two_builders(share: &Share) -> (Vec<Published>, usize) {
    let builders: Vec<_> = (0..2).map(|_| Machine::new(share.clone())).collect();
    let tokens = tokens(5);
    // What they read differs in bytes, as that of two kinds of devices does.
    let read: Vec<_> =
        builders.iter().zip(1..).map(|(m, n)| m.read("Same.", &tokens, &bytes(n))).collect();
    let sent: Vec<_> = std::thread::scope(|scope| {
        let pairs = builders.iter().zip(&read);
        let work = pairs.map(|(m, read)| scope.spawn(|| m.publish(read).unwrap()));
        work.collect::<Vec<_>>().into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let third = Machine::new(share.clone());
    let found = third.nearest(&tokens).unwrap().expect("it is there");
    let got = third.fetch(&found).unwrap();
    (sent, (1..=2).position(|n| got == bytes(n)).expect("one of them, and all of it"))
}

#[test]
fn of_two_who_read_the_same_one_wins_and_both_are_right() {
    let one_wins = |share: &Share, folder: &Path| {
        let (sent, from) = two_builders(share);
        let is_sent = |sent: &Published| matches!(sent, Published::Sent(_));
        assert_eq!(sent.iter().filter(|sent| is_sent(sent)).count(), 1, "{sent:?}");
        assert!(is_sent(&sent[from]), "the winner's is there: {sent:?}");
        let files = files_below(folder);
        let n_parts = files.iter().filter(|file| file.to_string_lossy().contains("/parts/"));
        assert_eq!(n_parts.count(), 7, "those of the other are gone: {files:?}");
    };
    for _ in 0..4 {
        let folder = TempFolder::new();
        let key = ShareKey::new(KEY).unwrap();
        let share = Share::open_with(folder.0.to_str().unwrap(), &key, &[]).unwrap();
        one_wins(&share.with_part_bytes(PART), &folder.0);
        let server = ObjectServer::start().unwrap();
        one_wins(&self::share(server.address()), &server.folder());
    }
}

#[test]
fn half_an_upload_is_seen_by_nobody() {
    let (server, proxy, a, b) = machines();
    let tokens = tokens(1);
    let read = a.read("The text.", &tokens, &bytes(1));
    // Text, record and name pass, and some parts.
    for after in [1, 4, 6, 9] {
        proxy.set(Fault::CutWrites { after });
        let error = a.publish(&read).unwrap_err();
        assert!(matches!(error, ShareError::Storage { .. }), "{error}");
        assert!(!files_below(&server.folder()).is_empty());
        assert_eq!(b.nearest(&tokens).unwrap(), None, "after {after} writes");
        assert!(a.share.rests(), "it is not asked for a while");
    }
    proxy.set(Fault::None);
    assert_eq!(a.publish(&read).unwrap(), Published::Sent(SESSION as u64));
    let found = b.nearest(&tokens).unwrap().expect("all of it is there");
    assert_eq!(b.fetch(&found).unwrap(), bytes(1));
}

#[test]
fn a_network_that_fails_now_and_then_brings_it_all_the_same() {
    let (_server, proxy, far, near) = machines();
    let (tokens, content) = (tokens(1), bytes(1));
    near.publish(&near.read("The text.", &tokens, &content)).unwrap();
    for fault in [
        Fault::Cut { after: 60_000, times: 3 },
        Fault::Busy { times: 2 },
        Fault::Flip { at: 50_000, times: 1 },
    ] {
        let far = Machine::new(share(proxy.address()));
        proxy.set(fault);
        let found = far.nearest(&tokens).unwrap().expect("it is there");
        assert_eq!(far.fetch(&found).unwrap(), content, "{fault:?}");
        let left = proxy.fault();
        assert!(
            matches!(
                left,
                Fault::Cut { times: 0, .. }
                    | Fault::Busy { times: 0 }
                    | Fault::Flip { times: 0, .. }
            ),
            "it did not happen: {left:?}"
        );
    }
    // And on the way there.
    proxy.set(Fault::Busy { times: 3 });
    let read = far.read("Another text.", &self::tokens(2), &bytes(2));
    assert_eq!(far.publish(&read).unwrap(), Published::Sent(SESSION as u64));
    assert_eq!(proxy.fault(), Fault::Busy { times: 0 });
}

#[test]
fn what_is_not_right_in_the_storage_is_a_miss_and_is_replaced() {
    let (server, _, a, b) = machines();
    let (tokens, content) = (tokens(1), bytes(1));
    let read = a.read("The text.", &tokens, &content);
    a.publish(&read).unwrap();
    let found = b.nearest(&tokens).unwrap().expect("it is there");
    let files = files_below(&server.folder());
    let part = files.iter().find(|file| file.to_string_lossy().contains("/parts/")).unwrap();
    let mut damaged = fs::read(part).unwrap();
    damaged[77] ^= 1;
    fs::write(part, &damaged).unwrap();
    let error = b.fetch(&found).unwrap_err().to_string();
    assert!(error.contains("not as it was written"), "{error}");
    assert!(b.documents.list().unwrap().iter().all(|d| d.sessions.is_empty()), "nothing is kept");
    assert_eq!(b.nearest(&tokens).unwrap(), None, "it is not asked for again");
    // This machine reads the document itself, and what it read takes the place.
    let read = b.read("The text.", &tokens, &bytes(9));
    assert_eq!(b.publish(&read).unwrap(), Published::Sent(SESSION as u64));
    let c = Machine::new(share(server.address()));
    let found = c.nearest(&tokens).unwrap().expect("it is there");
    assert_eq!(c.fetch(&found).unwrap(), bytes(9));
    // A part that is gone is the same.
    let files = files_below(&server.folder());
    fs::remove_file(files.iter().find(|f| f.to_string_lossy().contains("/parts/")).unwrap())
        .unwrap();
    let d = Machine::new(share(server.address()));
    let found = d.nearest(&tokens).unwrap().expect("it is there");
    assert!(d.fetch(&found).unwrap_err().to_string().contains("is not there"));
}

#[test]
fn only_the_right_key_and_scope_see_it() {
    let server = ObjectServer::start().unwrap();
    let all = share(server.address());
    let (alice, bob) = (Machine::new(all.of_scope("alice")), Machine::new(all.of_scope("bob")));
    let tokens = tokens(1);
    let read = alice.read("Her text.", &tokens, &bytes(1));
    alice.publish(&read).unwrap();
    assert!(Machine::new(all.of_scope("alice")).nearest(&tokens).unwrap().is_some());
    let stranger =
        Machine::new(share_with(server.address(), "another key, long enough").of_scope("alice"));
    let nobody = Machine::new(all.clone());
    for other in [&bob, &stranger, &nobody] {
        assert_eq!(other.nearest(&tokens).unwrap(), None);
        assert_eq!(other.share.find("a").unwrap(), None);
        assert_eq!(other.share.document(read.0).unwrap(), None);
        assert_eq!(other.share.sessions(read.0).unwrap(), vec![]);
    }
    // Whoever may write to the storage puts hers where he looks: the tags are not of his key.
    let hers = files_below(&server.folder());
    let his_read = bob.read("His text.", &self::tokens(2), &bytes(2));
    bob.publish(&his_read).unwrap();
    assert!(bob.share.document(his_read.0).unwrap().is_some());
    let mut his = files_below(&server.folder());
    his.retain(|file| !hers.contains(file));
    let of = |files: &[PathBuf], what: &str| {
        files.iter().find(|file| file.to_string_lossy().contains(what)).unwrap().clone()
    };
    fs::copy(of(&hers, "/record"), of(&his, "/record")).unwrap();
    assert_eq!(bob.share.document(his_read.0).unwrap(), None);
    assert!(bob.nearest(&self::tokens(2)).unwrap().is_some());
    fs::copy(of(&hers, "/index/"), of(&his, "/index/")).unwrap();
    assert_eq!(bob.nearest(&self::tokens(2)).unwrap(), None);
    assert_eq!(bob.nearest(&tokens).unwrap(), None);
}

#[test]
fn every_changed_byte_of_a_manifest_is_a_miss() {
    let folder = TempFolder::new();
    let key = ShareKey::new(KEY).unwrap();
    let address = folder.0.to_str().unwrap();
    let share = Share::open_with(address, &key, &[]).unwrap();
    let a = Machine::new(share.clone());
    let tokens = tokens(1);
    a.publish(&a.read("The text.", &tokens, b"some bytes")).unwrap();
    let is_manifest = |file: &&PathBuf| file.to_string_lossy().contains("/index/");
    let files = files_below(&folder.0);
    let manifest: &Path = files.iter().find(is_manifest).unwrap();
    let right = fs::read(manifest).unwrap();
    assert!(a.nearest(&tokens).unwrap().is_some());
    for at in (0..right.len()).step_by(7) {
        let mut bytes = right.clone();
        bytes[at] ^= 1;
        fs::write(manifest, &bytes).unwrap();
        assert_eq!(a.nearest(&tokens).unwrap(), None, "byte {at}");
        fs::write(manifest, &right[..at]).unwrap();
        assert_eq!(a.nearest(&tokens).unwrap(), None, "{at} bytes of it");
    }
    // One that is not right does not keep the right one out.
    let b = Machine::new(share);
    let sent = b.publish(&b.read("The text.", &tokens, b"other bytes")).unwrap();
    assert_eq!(sent, Published::Sent(11));
    assert!(a.nearest(&tokens).unwrap().is_some());
}

#[test]
fn what_is_needed_comes_first_over_a_slow_link() {
    let (_server, proxy, far, near) = machines();
    let (tokens, content) = (tokens(1), bytes(1));
    near.publish(&near.read("The text.", &tokens, &content)).unwrap();
    let found = far.nearest(&tokens).unwrap().expect("it is there");
    // Seven parts in about 2.5 seconds.
    proxy.set(Fault::Slow { bytes_per_s: SESSION as u64 * 2 / 5 });
    let start = Instant::now();
    let incoming = far.share.fetch(&far.documents, &found).unwrap();
    let mut all = vec![0; SESSION];
    let (begin, rest) = all.split_at_mut(1000);
    incoming.read_at(SESSION as u64 - 900, &mut rest[SESSION - 1900..]).unwrap();
    let to_end = start.elapsed();
    incoming.read_at(1000, rest).unwrap();
    let to_all = start.elapsed();
    incoming.read_at(0, begin).unwrap();
    assert!(all == content);
    assert!(to_end < to_all * 2 / 3, "the end in {to_end:?}, all in {to_all:?}");
    // Who does not want it any more does not wait for it.
    let start = Instant::now();
    drop(far.share.fetch(&far.documents, &found).unwrap());
    assert!(start.elapsed() < Duration::from_secs(1));
}

#[test]
fn expired_credentials_and_no_server_are_said_and_not_waited_for() {
    let (server, proxy, far, near) = machines();
    let tokens = tokens(1);
    let read = near.read("The text.", &tokens, &bytes(1));
    near.publish(&read).unwrap();
    let found = near.nearest(&tokens).unwrap().expect("it is there");
    server.set_expired(true);
    for error in [
        near.nearest(&tokens).unwrap_err(),
        near.fetch(&found).unwrap_err(),
        near.publish(&read).unwrap_err(),
    ] {
        let error = error.to_string();
        assert!(error.contains("expired"), "{error}");
        assert!(!error.contains('\n'), "one line: {error}");
    }
    assert!(near.share.rests() && !far.share.rests());
    server.set_expired(false);
    assert!(near.nearest(&tokens).unwrap().is_some(), "as soon as they are right again");
    proxy.set(Fault::Closed);
    let start = Instant::now();
    let error = far.nearest(&tokens).unwrap_err();
    assert!(matches!(error, ShareError::Storage { .. }), "{error}");
    assert!(start.elapsed() < Duration::from_secs(7), "{:?}", start.elapsed());
}
