//! Libraries of documents, with several processes and with processes that die.
//!
//! A worker is this very program, started again with `WORK` in its environment.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use longview_library::documents::{
    Documents, DocumentsError, Facts, Finding, Id, NewDocument, Reading, SessionEntry, SessionKey,
    Source,
};

const WORK: &str = "LONGVIEW_TEST_WORK";

/// A folder that is removed at the end of a test.
struct TempFolder(PathBuf);

impl TempFolder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("longview-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        Self(path)
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn key(model: &str) -> SessionKey {
    SessionKey {
        fingerprint: Id::of(model.as_bytes()),
        kv_type: "f16".into(),
        reading: Reading::Plain,
        policy: "policy = full".into(),
        sparse: None,
    }
}

fn source(name: &str) -> Vec<Source> {
    vec![Source { name: name.into(), kind: "txt".into(), bytes: 3, pages: None }]
}

fn add(documents: &Documents, text: &str) -> Id {
    documents.add(NewDocument { text, name: None, sources: source("a.txt") }).unwrap().id
}

/// What stands for a session here: a number, bytes that follow from it, and their hash.
fn content(n: u32, size: usize) -> Vec<u8> {
    let mut bytes = n.to_le_bytes().to_vec();
    bytes.resize(size, n as u8);
    let hash = Id::of(&bytes);
    bytes.extend_from_slice(hash.bytes());
    bytes
}

/// The number in it, if it is whole.
fn number(bytes: &[u8]) -> Option<u32> {
    let (bytes, hash) = bytes.split_at_checked(bytes.len().checked_sub(32)?)?;
    let is_whole = Id::of(bytes).bytes()[..] == *hash;
    is_whole.then(|| u32::from_le_bytes(bytes[..4].try_into().unwrap()))
}

fn save(documents: &Documents, id: Id, key: &SessionKey, n: u32, size: usize) -> SessionEntry {
    let building = documents.begin(id, key).unwrap();
    let mut writer = building.writer().unwrap();
    content(n, size).chunks(4096).for_each(|piece| writer.write_all(piece).unwrap());
    let tokens: Vec<u32> = (0..n).collect();
    building.commit(writer, &facts(&tokens)).unwrap().session
}

fn facts(tokens: &[u32]) -> Facts<'_> {
    let (model, about, preset) = ("models/x", "a model", "full");
    Facts { tokens, n_document: 1 << 20, context: 1 << 20, model, about, preset }
}

/// What is written behind a session counts when it is committed, and who reads the file reads what
/// was there before.
#[test]
fn more_is_written_behind_a_session_that_is_being_read() {
    let temp = TempFolder::new("append");
    let documents = Documents::open(&temp.0).unwrap();
    let id = add(&documents, "a text");
    let building = documents.begin(id, &key("m")).unwrap();
    let mut writer = building.writer().unwrap();
    writer.write_all(b"first").unwrap();
    let tokens: Vec<u32> = (0..600).collect();
    let first = building.commit(writer, &facts(&tokens[..300])).unwrap().session;
    let path = documents.session_path(&first);
    let mut reader = fs::File::open(&path).unwrap();
    // One that is given up, and one that counts.
    building.append_to(&first, 5).unwrap().write_all(b" torn and longer").unwrap();
    assert_eq!(documents.get(id).unwrap().unwrap().sessions[0], first);
    let mut appending = building.append_to(&first, 5).unwrap();
    appending.write_all(b" second").unwrap();
    let second = building.commit_appended(appending, &first, &facts(&tokens)).unwrap().session;
    assert_eq!((second.file, second.n_tokens, second.bytes), (first.file, 600, 12));
    assert_eq!(documents.get(id).unwrap().unwrap().sessions, [second]);
    assert_eq!(fs::read(&path).unwrap(), b"first second");
    let mut bytes = [0; 5];
    reader.read_exact(&mut bytes).unwrap();
    assert_eq!(&bytes, b"first");
    let appending = building.append_to(&first, 12).unwrap();
    documents.remove(id).unwrap();
    let error = building.commit_appended(appending, &first, &facts(&tokens)).unwrap_err();
    assert!(matches!(error, DocumentsError::Removed { .. }), "{error}");
}

/// Starts a worker and waits until it works.
fn worker(work: &str, folder: &Path) -> Child {
    spawn(&mut Command::new(std::env::current_exe().unwrap()), work, folder)
}

fn spawn(command: &mut Command, work: &str, folder: &Path) -> Child {
    command.args(["--exact", "documents::worker_process", "--nocapture"]);
    command.env(WORK, format!("{work} {}", folder.display()));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // The test harness writes lines of its own before.
    let (mut byte, stdout) = ([0], child.stdout.as_mut().unwrap());
    while byte != *b"!" {
        stdout.read_exact(&mut byte).unwrap();
    }
    child
}

/// What a worker does; without its variable nothing.
#[test]
fn worker_process() {
    let Ok(work) = std::env::var(WORK) else { return };
    let (work, folder) = work.split_once(' ').unwrap();
    let documents = Documents::open(Path::new(folder)).unwrap();
    let say = || {
        let mut out = std::io::stdout();
        out.write_all(b"!").and_then(|()| out.flush()).unwrap();
    };
    match work {
        "save" => {
            let id = documents.list().unwrap()[0].id;
            let first = documents.list().unwrap()[0].sessions.first().map_or(1, |s| s.n_tokens + 1);
            say();
            for n in first as u32.. {
                save(&documents, id, &key("m"), n, 40_000);
            }
        }
        "hold" => {
            let building = documents.begin(documents.list().unwrap()[0].id, &key("m")).unwrap();
            let mut writer = building.writer().unwrap();
            writer.write_all(b"half").unwrap();
            say();
            thread::sleep(Duration::from_secs(60));
        }
        "full" => {
            say();
            fill(&documents);
        }
        // Adds and removes texts of its own, beside others who do the same.
        name => {
            say();
            for n in 0..20 {
                let id = add(&documents, &format!("{name} {n}"));
                save(&documents, id, &key(name), n, 5000);
                if n % 2 == 1 {
                    documents.remove(id).unwrap();
                }
            }
        }
    }
}

#[test]
fn a_process_that_is_killed_leaves_the_old_or_the_new() {
    let temp = TempFolder::new("kill");
    let documents = Documents::open(&temp.0).unwrap();
    let id = add(&documents, "text");
    // Where a save takes long they are killed later: some have to come as far as a save.
    let most_us = (2 * time_to_save(&documents, &temp.0).as_micros() as u64).max(1 << 14);
    let (mut n_saved, mut random) = (0, 1u64);
    let mut last = documents.get(id).unwrap().unwrap().sessions[0].n_tokens;
    for _ in 0..200 {
        let mut child = worker("save", &temp.0);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        thread::sleep(Duration::from_micros((random >> 34) % most_us));
        child.kill().unwrap();
        child.wait().unwrap();
        let sessions = documents.get(id).unwrap().unwrap().sessions;
        assert!(sessions.len() <= 1);
        let Some(session) = sessions.first() else { continue };
        let bytes = fs::read(documents.session_path(session)).unwrap();
        assert_eq!(bytes.len() as u64, session.bytes);
        assert_eq!(number(&bytes), Some(session.n_tokens as u32), "a session that is torn");
        assert!(session.n_tokens >= last, "an older one came back");
        n_saved += session.n_tokens - last;
        last = session.n_tokens;
    }
    assert!(n_saved >= 20, "only {n_saved} saves ended in 200 processes");
    // What the dead have left is found, and gone after the next save.
    save(&documents, id, &key("m"), last as u32 + 1, 100);
    let checked = documents.check(false, &mut whole).unwrap();
    assert_eq!((checked.n_right, &checked.findings[..]), (2, &[][..]));
    assert_eq!(fs::read_dir(temp.0.join("sessions")).unwrap().count(), 1);
}

/// How long a process takes to its first save, once it has begun.
fn time_to_save(documents: &Documents, folder: &Path) -> Duration {
    let mut child = worker("save", folder);
    let start = Instant::now();
    while documents.list().unwrap()[0].sessions.is_empty() {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing is saved");
        thread::sleep(Duration::from_millis(1));
    }
    let took = start.elapsed();
    child.kill().unwrap();
    child.wait().unwrap();
    took
}

fn whole(path: &Path) -> Result<(), String> {
    number(&fs::read(path).unwrap()).map(drop).ok_or_else(|| "torn".to_owned())
}

#[test]
fn processes_change_one_library_together() {
    let temp = TempFolder::new("two");
    let documents = Documents::open(&temp.0).unwrap();
    let children: Vec<Child> = ["a", "b", "c"].map(|name| worker(name, &temp.0)).into();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let list = documents.list().unwrap();
    assert_eq!(list.len(), 30, "ten of each stay");
    assert!(list.iter().all(|document| document.sessions.len() == 1));
    let checked = documents.check(false, &mut whole).unwrap();
    assert_eq!((checked.n_right, &checked.findings[..]), (60, &[][..]));
}

#[test]
fn one_session_has_one_writer() {
    let temp = TempFolder::new("hold");
    let documents = Documents::open(&temp.0).unwrap();
    let id = add(&documents, "text");
    let mut child = worker("hold", &temp.0);
    let error = documents.begin(id, &key("m")).unwrap_err();
    assert!(matches!(error, DocumentsError::InUse { .. }), "{error}");
    // Another model may read it at the same time, and what is half written is left alone.
    save(&documents, id, &key("other"), 3, 100);
    let parts = || {
        let entries = fs::read_dir(temp.0.join("sessions")).unwrap();
        let names = entries.map(|entry| entry.unwrap().path());
        names.filter(|path| path.extension().unwrap() == "part").count()
    };
    assert_eq!(parts(), 1);
    child.kill().unwrap();
    child.wait().unwrap();
    let checked = documents.check(false, &mut whole).unwrap();
    assert!(matches!(checked.findings[..], [Finding::Leftover { bytes: 4, .. }]), "{checked:?}");
    drop(documents.begin(id, &key("m")).unwrap());
    assert_eq!(parts(), 0);
}

#[test]
fn damaged_and_foreign_files_are_set_aside() {
    let temp = TempFolder::new("damaged");
    let documents = Documents::open(&temp.0).unwrap();
    let ids: Vec<Id> = ["one", "two", "three"].iter().map(|t| add(&documents, t)).collect();
    let files: Vec<PathBuf> = ids
        .iter()
        .map(|id| documents.session_path(&save(&documents, *id, &key("m"), 9, 1000)))
        .collect();
    let mut bytes = fs::read(&files[0]).unwrap();
    bytes[500] ^= 1;
    fs::write(&files[0], bytes).unwrap();
    fs::remove_file(&files[1]).unwrap();
    fs::write(temp.0.join("texts").join(format!("{}.txt", ids[2])), "another text").unwrap();
    fs::write(temp.0.join("sessions").join(format!("{}.lvs", Id::of(b"lost"))), "lost").unwrap();
    let found = documents.check(false, &mut whole).unwrap();
    let kinds: Vec<&str> = found
        .findings
        .iter()
        .map(|finding| match finding {
            Finding::Text { .. } => "text",
            Finding::Session { what, .. } if what.contains("gone") => "gone",
            Finding::Session { .. } => "session",
            Finding::UnlistedSession { .. } => "unlisted",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["session", "gone", "text", "unlisted"]);
    assert!(!found.repaired && documents.text(ids[2]).is_err());
    documents.check(true, &mut whole).unwrap();
    let after = documents.check(false, &mut whole).unwrap();
    assert_eq!((after.n_right, &after.findings[..]), (2, &[][..]), "two texts");
    assert_eq!(fs::read_dir(temp.0.join("damaged")).unwrap().count(), 4, "nothing is deleted");
}

#[test]
fn a_lost_manifest_is_made_of_what_is_there() {
    let temp = TempFolder::new("lost");
    let documents = Documents::open(&temp.0).unwrap();
    let (a, b) = (add(&documents, "one"), add(&documents, "two"));
    fs::write(temp.0.join("manifest.json"), "{").unwrap();
    let error = documents.list().unwrap_err().to_string();
    assert!(error.contains("kv check --repair"), "{error}");
    documents.check(true, &mut whole).unwrap();
    let mut names: Vec<(Id, String)> =
        documents.list().unwrap().into_iter().map(|d| (d.id, d.name)).collect();
    names.sort_by_key(|(id, _)| *id != a);
    assert_eq!(names[0], (a, "a".to_owned()), "the manifest before has it");
    assert_eq!(names[1], (b, format!("recovered-{}", b.short())), "its text says so");
}

/// The manifest that a later program writes: a field more, and a higher version.
fn make_newer(folder: &Path, readable_from: u32) {
    let path = folder.join("manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let list = text.trim_end().split_once("\"library\":").unwrap().1;
    let list = list[..list.len() - 1].replace(
        "\"version\":1,\"readable_from\":1,",
        &format!("\"version\":7,\"readable_from\":{readable_from},\"shelves\":[\"a\"],"),
    );
    let hash = Id::of(list.as_bytes());
    fs::write(path, format!("{{\"blake3\":\"{hash}\",\"library\":{list}}}\n")).unwrap();
}

#[test]
fn a_newer_library_is_read_and_not_changed() {
    let temp = TempFolder::new("newer");
    let documents = Documents::open(&temp.0).unwrap();
    let id = add(&documents, "text");
    save(&documents, id, &key("m"), 600, 1000);
    make_newer(&temp.0, 1);
    let before = fs::read(temp.0.join("manifest.json")).unwrap();
    let documents = Documents::open(&temp.0).unwrap();
    assert!(documents.is_read_only().unwrap());
    let document = documents.find("a").unwrap();
    assert!(whole(&documents.session_path(&document.sessions[0])).is_ok());
    assert_eq!(documents.text(id).unwrap(), "text");
    documents.touch(id, None).unwrap();
    let sources = source("b.txt");
    let refused = [
        documents.remove(id).map(drop),
        documents.rename(id, "b").map(drop),
        documents.begin(id, &key("m")).map(drop),
        documents.add(NewDocument { text: "more", name: None, sources }).map(drop),
    ];
    for result in refused {
        assert!(matches!(result, Err(DocumentsError::ReadOnly { version: 7, .. })), "{result:?}");
    }
    assert_eq!(fs::read(temp.0.join("manifest.json")).unwrap(), before);
    fs::write(temp.0.join("manifest.json"), String::from_utf8(before).unwrap().replace('7', "8"))
        .unwrap();
    assert!(matches!(documents.list(), Err(DocumentsError::Damaged { .. })));
}

#[test]
fn what_was_used_longest_ago_goes_first() {
    let temp = TempFolder::new("quota");
    let documents = Documents::open(&temp.0).unwrap();
    let ids: Vec<Id> = ["one", "two", "three", "four"].iter().map(|t| add(&documents, t)).collect();
    for id in &ids[..3] {
        save(&documents, *id, &key("m"), 1, 968);
    }
    documents.set_pinned(ids[1], true).unwrap();
    documents
        .touch(ids[0], documents.get(ids[0]).unwrap().unwrap().sessions.first().map(|s| s.file))
        .unwrap();
    assert!(documents.set_quota(Some(3000)).unwrap().is_empty());
    save(&documents, ids[3], &key("m"), 1, 968);
    let left = |id: Id| documents.get(id).unwrap().unwrap().sessions.len();
    assert_eq!(ids.iter().map(|id| left(*id)).collect::<Vec<_>>(), [1, 1, 0, 1]);
    assert_eq!(documents.text(ids[2]).unwrap(), "three", "the text stays");
    let document = documents.get(ids[3]).unwrap().unwrap();
    documents.check_room(&document, 2000).unwrap();
    let error = documents.check_room(&document, 2001).unwrap_err();
    assert!(matches!(error, DocumentsError::OverQuota { pinned_bytes: 1000, .. }), "{error}");
    assert_eq!(documents.set_quota(Some(1500)).unwrap().len(), 2);
    let usage = documents.usage().unwrap();
    assert_eq!((usage.session_bytes, usage.quota_bytes), (1000, Some(1500)));
}

#[test]
fn the_nearest_session_is_found_without_opening_one() {
    let temp = TempFolder::new("nearest");
    let documents = Documents::open(&temp.0).unwrap();
    let (short, long) = (add(&documents, "short"), add(&documents, "long"));
    save(&documents, short, &key("m"), 600, 100);
    save(&documents, long, &key("m"), 2000, 100);
    let tokens: Vec<u32> = (0..1100).chain([7; 500]).collect();
    let nearest = documents.nearest(&key("m"), &tokens, 2000).unwrap().unwrap();
    assert_eq!((nearest.document.id, nearest.n_common), (long, 1024));
    let nearest = documents.nearest(&key("m"), &tokens, 1999).unwrap().unwrap();
    assert_eq!((nearest.document.id, nearest.n_common), (short, 512));
    assert!(documents.nearest(&key("other"), &tokens, 2000).unwrap().is_none());
    assert!(documents.nearest(&key("m"), &[7; 600], 2000).unwrap().is_none());
    let q8 = SessionKey { kv_type: "q8".into(), ..key("m") };
    assert!(documents.nearest(&q8, &tokens, 2000).unwrap().is_none());
    let sparse = SessionKey { sparse: Some("sparse:0.5".into()), ..key("m") };
    assert!(documents.nearest(&sparse, &tokens, 2000).unwrap().is_none());
}

/// No disk is filled here: a limit on the size of files makes the system refuse in the same places.
#[test]
#[cfg(unix)]
fn a_full_disk_leaves_what_was_there() {
    let temp = TempFolder::new("full");
    let documents = Documents::open(&temp.0).unwrap();
    let id = add(&documents, "text");
    let before = save(&documents, id, &key("m"), 5, 1000);
    // 64 blocks are 32 or 64 KiB, by the shell.
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$0\" \"$@\""]);
    let mut child = spawn(command.arg(std::env::current_exe().unwrap()), "full", &temp.0);
    assert!(child.wait().unwrap().success());
    let document = documents.get(id).unwrap().unwrap();
    assert_eq!(document.sessions, std::slice::from_ref(&before));
    assert!(whole(&documents.session_path(&before)).is_ok());
    assert_eq!(fs::read_dir(temp.0.join("sessions")).unwrap().count(), 1);
    let error = documents.check_room(&document, u64::MAX).unwrap_err();
    assert!(matches!(error, DocumentsError::NoSpace { .. }), "{error}");
}

/// In the worker: a session, a text and a manifest that are too large.
fn fill(documents: &Documents) {
    let id = documents.list().unwrap()[0].id;
    let building = documents.begin(id, &key("m")).unwrap();
    let mut writer = building.writer().unwrap();
    let error = writer.write_all(&vec![1; 1 << 20]).unwrap_err();
    let said = writer.space_error().expect("it is known why").to_string();
    assert!(said.contains("no room"), "{error}: {said}");
    drop(writer);
    let new = |text, name| NewDocument { text, name, sources: source("a.txt") };
    let error = documents.add(new(&"long ".repeat(1 << 17), None)).unwrap_err();
    assert!(matches!(error, DocumentsError::NoSpace { .. }), "{error}");
    let tokens: Vec<u32> = (0..1 << 20).collect();
    let mut writer = building.writer().unwrap();
    writer.write_all(&content(6, 1000)).unwrap();
    let error = building.commit(writer, &facts(&tokens)).unwrap_err();
    assert!(matches!(error, DocumentsError::NoSpace { .. }), "{error}");
}

#[test]
fn names_are_for_people_alone() {
    let temp = TempFolder::new("names");
    let documents = Documents::open(&temp.0).unwrap();
    let add = |text: &str, name: Option<&str>, file: &str| {
        documents.add(NewDocument { text, name, sources: source(file) })
    };
    assert_eq!(add("1", None, "../../etc/passwd.txt").unwrap().name, "passwd");
    assert_eq!(add("2", None, "passwd.md").unwrap().name, "passwd-2");
    assert_eq!(add("3", Some("CON"), "x").unwrap().name, "CON");
    assert_eq!(add("1", None, "other.txt").unwrap().name, "passwd", "it is the same text");
    assert!(matches!(add("4", Some("CON"), "x"), Err(DocumentsError::NameTaken { .. })));
    for bad in ["", " x", "-m", "a\nb"] {
        assert!(matches!(add("4", Some(bad), "x"), Err(DocumentsError::BadName { .. })), "{bad}");
    }
    assert!(matches!(add(" \n", None, "x"), Err(DocumentsError::EmptyText { .. })));
    let con = documents.find("CON").unwrap();
    assert_eq!(documents.find(&con.id.to_string()[..8]).unwrap().id, con.id);
    let error = documents.find("passw").unwrap_err().to_string();
    assert!(error.contains("did you mean passwd or passwd-2"), "{error}");
    documents.rename(con.id, "nul.txt").unwrap();
    let error = documents.rename(con.id, "passwd").unwrap_err();
    assert!(matches!(error, DocumentsError::NameTaken { .. }), "{error}");
    assert_eq!(documents.remove(con.id).unwrap().n_files, 1);
    assert_eq!(documents.list().unwrap().len(), 2);
}
