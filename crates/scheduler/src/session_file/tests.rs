//! Kept files, whole and changed, read without a model: what is behind the digests must hold
//! together, or the file is refused with the part that does not.

use std::cell::Cell;
use std::io;
use std::path::Path;
use std::sync::Arc;

use longview_core::{DType, LayerId, RangeSource};
use longview_ops::ReferenceBackend;
use pollster::block_on;

use super::digest::digest;
use super::directory::{Key, Kind};
use super::fields::{Fields, SliceFields};
use super::record_file::{RecordFile, RecordWriter};
use super::*;
use crate::error::{DamagedPart, SchedulerError, SessionFileError};
use crate::layout::{HostRows, KvShape};
use crate::policy::{Policy, PolicyOptions, Preset};
use crate::sequence::{Sequence, SequenceOptions};

/// What the kept files show: every field of the format is in one of them.
const NAMES: [&str; 6] = ["clusters", "blocks", "tokens", "kept", "tiers", "narrowed"];

/// Those whose rows an index has moved: `v2-NAME` has them as they lay, `v2-ordered-NAME` in the
/// order of tokens, as this release writes them.
const MOVED: [&str; 2] = ["clusters", "tiers"];

fn kept(name: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/session");
    std::fs::read(folder.join(format!("{name}.lvs"))).unwrap()
}

/// The model of the kept files.
fn shape() -> KvShape {
    KvShape {
        n_layers: 2,
        n_q_heads: 2,
        n_kv_heads: 1,
        head_dim: 4,
        kv_dtype: DType::F16,
        host_rows: HostRows::default(),
        capacity: 48,
        scale: 0.5,
        inv_freq: [1.0, 0.1].into(),
        windows: [].into(),
    }
}

type Opened = (Sequence<ReferenceBackend>, SessionContent);

/// Opens a file as the engine does, of whatever model it says that it is; `policy` in place of its
/// own.
fn open_under(
    source: &dyn RangeSource,
    shape: KvShape,
    policy: Option<&PolicyOptions>,
) -> Result<Opened, SchedulerError> {
    let file = SessionFile::open(source)?;
    let header = file.header();
    header.check(&header.fingerprint, &shape)?;
    let own = header.policy_options()?;
    let policy = Policy::resolve(policy.unwrap_or(&own), header.context)?;
    let mut file = file.read()?;
    assert_eq!(file.header().n_layers, shape.n_layers);
    let content = file.content()?;
    let options = SequenceOptions { chunk: 16, tile: 8, ..SequenceOptions::default() };
    let backend = Arc::new(ReferenceBackend::new());
    let restored = restore_sequence(&backend, shape, policy, options, &mut file);
    Ok((block_on(restored)?, content))
}

fn open(source: &dyn RangeSource) -> Result<Opened, SchedulerError> {
    open_under(source, shape(), None)
}

/// Why a file is refused.
fn refusal(file: &dyn RangeSource) -> String {
    open(file).map(drop).unwrap_err().to_string()
}

/// The reason without the words around it.
fn contradiction(file: &dyn RangeSource) -> &'static str {
    match open(file).map(drop) {
        Err(SchedulerError::Session(SessionFileError::Inconsistent(what))) => what,
        other => panic!("{other:?}"),
    }
}

/// Rows of all heads of a layer, as a store has them.
fn rows(sequence: &Sequence<ReferenceBackend>, layer: usize) -> Vec<u8> {
    let (shape, n) = (sequence.shape(), sequence.n_tokens());
    let mut bytes = vec![0; n * shape.row_bytes()];
    let head = longview_core::HeadId::new(0);
    sequence.store().read_rows(LayerId::new(layer), head, 0..n, &mut bytes);
    bytes
}

#[test]
fn both_versions_of_a_kept_file_are_the_same_session() {
    for name in NAMES {
        let [(one, said), (two, content)] =
            [1, 2].map(|version| open(&kept(&format!("v{version}-{name}"))).unwrap());
        assert_eq!(said, content, "{name}");
        assert_eq!((one.n_tokens(), content.tokens.len()), (25, 25), "{name}");
        assert_eq!(one.policy(), two.policy());
        for layer in [0, 1] {
            assert_eq!(rows(&one, layer), rows(&two, layer), "layer {layer} of {name}");
        }
    }
}

#[test]
fn only_the_newer_version_is_appended_to() {
    for (name, end) in [("v1-tiers", None), ("v2-tiers", Some(5123))] {
        let bytes = kept(name);
        let file = SessionFile::open(&bytes).unwrap();
        assert_eq!((file.append_at(), file.n_torn_bytes()), (end, 0), "{name}");
        assert_eq!(file.records().is_some(), end.is_some());
        assert_eq!(file.header().n_tokens, 25);
        file.verify(2).unwrap();
    }
}

#[test]
fn another_policy_indexes_the_rows_anew() {
    let full = PolicyOptions::new(Preset::Full);
    for name in ["v1-clusters", "v2-clusters", "v2-kept"] {
        let (sequence, _) = open_under(&kept(name), shape(), Some(&full)).unwrap();
        assert_eq!(sequence.n_tokens(), 25, "{name}");
        assert_eq!(sequence.policy(), &Policy::resolve(&full, 48).unwrap());
    }
}

#[test]
fn rows_of_eight_bits_become_those_of_the_sequence() {
    let bytes = kept("v2-eight-bits");
    let rounded = KvShape { host_rows: HostRows::EightBits, ..shape() };
    let (eight, _) = open_under(&bytes, rounded, None).unwrap();
    let (plain, _) = open_under(&bytes, shape(), None).unwrap();
    assert!(eight.store().rounded().is_some() && plain.store().rounded().is_none());
    assert_eq!(SessionFile::open(&bytes).unwrap().header().kv_type(), DType::Q8);
    // Rows in full that stand beside the codes come last, in either store.
    for layer in [0, 1] {
        assert_eq!(rows(&eight, layer), rows(&plain, layer), "layer {layer}");
    }
    // A file of 16 bits opens with a store that rounds.
    let rounded = KvShape { host_rows: HostRows::EightBits, ..shape() };
    let (sequence, _) = open_under(&kept("v2-clusters"), rounded, None).unwrap();
    assert_eq!(sequence.n_tokens(), 25);
}

/// A source of which a read fails, or of which bytes change after some reads.
struct Unsteady<'a> {
    file: &'a [u8],
    reads: Cell<usize>,
    /// The read from which on it is not as it was.
    from: usize,
    fails: bool,
}

impl<'a> Unsteady<'a> {
    fn new(file: &'a [u8], from: usize, fails: bool) -> Self {
        Self { file, reads: Cell::new(0), from, fails }
    }
}

impl RangeSource for Unsteady<'_> {
    fn size(&self) -> u64 {
        self.file.len() as u64
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let read = self.reads.replace(self.reads.get() + 1);
        self.file.read_at(at, out)?;
        if read < self.from {
            return Ok(());
        }
        out[0] ^= 1;
        if self.fails { Err(io::Error::other("the disk is gone")) } else { Ok(()) }
    }
}

#[test]
fn each_read_may_fail_or_find_other_bytes() {
    for name in ["v1-tiers", "v2-tiers", "v2-eight-bits"] {
        let file = kept(name);
        let whole = Unsteady::new(&file, usize::MAX, false);
        open(&whole).map(drop).unwrap();
        for from in 0..whole.reads.get() {
            let said = refusal(&Unsteady::new(&file, from, true));
            assert_eq!(said, "the session cannot be read (the disk is gone)", "read {from}");
            assert!(open(&Unsteady::new(&file, from, false)).is_err(), "read {from} of {name}");
        }
    }
}

#[test]
fn a_read_behind_the_end_may_fail_too() {
    let torn = [&kept("v2-clusters")[..], &[0; 300]].concat();
    let whole = Unsteady::new(&torn, usize::MAX, false);
    SessionFile::open(&whole).map(drop).unwrap();
    for from in 0..whole.reads.get() {
        let torn = Unsteady::new(&torn, from, true);
        let said = SessionFile::open(&torn).map(drop).unwrap_err().to_string();
        assert_eq!(said, "the session cannot be read (the disk is gone)", "read {from}");
    }
}

#[test]
fn rows_of_a_file_are_one_session_in_either_order() {
    for name in MOVED {
        let [old, new] =
            ["v2-", "v2-ordered-"].map(|form| open(&kept(&format!("{form}{name}"))).unwrap());
        assert_eq!(old.1, new.1, "{name}");
        for layer in [0, 1] {
            assert!(rows(&old.0, layer) == rows(&new.0, layer), "layer {layer} of {name}");
            let layer = LayerId::new(layer);
            assert_eq!(old.0.places(layer), new.0.places(layer), "{name}");
            let [old, new] = [&old.0, &new.0].map(|s| block_on(s.layer_record(layer)).unwrap());
            assert_eq!(old, new, "{layer:?} of {name}");
        }
        assert!(new.0.places(LayerId::new(1)).permuted_to > 0, "{name}");
        // Who takes no index needs none of its order.
        let full = PolicyOptions::new(Preset::Full);
        let file = kept(&format!("v2-ordered-{name}"));
        let (all, _) = open_under(&file, shape(), Some(&full)).unwrap();
        assert_eq!(all.places(LayerId::new(1)).permuted_to, 0);
    }
}

/// What is written of a kept file is that file, and what it has is not written again behind it.
#[test]
fn what_was_read_is_written_as_it_was_and_appended_to() {
    for name in NAMES {
        let kept = kept(&format!("v2-{name}"));
        let saved = SessionFile::open(&kept).unwrap();
        let policy = saved.header().policy_options().unwrap();
        let fingerprint = saved.header().fingerprint.clone();
        let options = SaveOptions { segment_rows: 20, ..SaveOptions::new(&fingerprint, &policy) };
        let save = |file: &[u8]| {
            let ((mut sequence, content), mut out) = (open(&file).unwrap(), Vec::new());
            block_on(save_sequence(&mut sequence, &options, &content, &mut out)).unwrap();
            (sequence, content, out)
        };
        // Moved rows come in the order of tokens, and of those of two stages tokens of the KV type
        // have become codes; both stay so.
        let is_moved = MOVED.contains(&name);
        let file = if is_moved { save(&kept).2 } else { kept.clone() };
        assert_eq!(file == kept, !is_moved);
        if is_moved {
            assert!(file == self::kept(&format!("v2-ordered-{name}")), "{name}");
            let (mut sequence, content) = open(&kept).unwrap();
            let (old, mut none) = (SessionFile::open(&kept).unwrap(), Vec::new());
            let appended = append_sequence(&mut sequence, &options, &content, &old, &mut none);
            assert!(!block_on(appended).unwrap() && none.is_empty(), "{name} in its old order");
        }
        let (mut sequence, content, out) = save(&file);
        assert!(out == file, "{name}");
        let opened = SessionFile::open(&file).unwrap();
        // A note that is one byte longer, and all else as it was.
        let content = SessionContent { note: b"another".to_vec(), ..content };
        let mut more = Vec::new();
        let appended = append_sequence(&mut sequence, &options, &content, &opened, &mut more);
        assert!(block_on(appended).unwrap(), "{name}");
        assert!(more.len() < file.len(), "{} of {} bytes of {name}", more.len(), file.len());
        let longer = [&file[..], &more].concat();
        let whole = SessionFile::open(&longer).unwrap();
        assert_eq!((whole.n_torn_bytes(), whole.append_at()), (0, Some(longer.len() as u64)));
        assert_eq!(whole.records().unwrap().n_used_bytes(), file.len() as u64 + 1, "{name}");
        let (again, said) = open(&longer).unwrap();
        assert_eq!(said, content);
        assert_eq!(rows(&again, 1), rows(&sequence, 1));
    }
}

/// A kept file of version 2 with other records; all digests are right.
fn rewritten(name: &str, change: impl FnOnce(&mut Vec<(Key, Vec<u8>)>)) -> Vec<u8> {
    let bytes = kept(name);
    let file = RecordFile::open(&bytes, header::read(&bytes).unwrap()).unwrap();
    let entries = file.directory.entries.iter();
    let mut records: Vec<_> =
        entries.map(|entry| (entry.key.clone(), file.record(entry).unwrap())).collect();
    change(&mut records);
    let mut out = Vec::new();
    let header = file.header.encode().unwrap();
    let mut writer = RecordWriter::new(&mut out, header).unwrap();
    for (key, bytes) in records {
        writer.record(key, &bytes).unwrap();
    }
    writer.finish().unwrap();
    out
}

/// A header, a hole as long as wanted, and a trailer by which all of the hole is the directory.
struct Holed {
    header: Vec<u8>,
    hole: u64,
}

impl Holed {
    fn trailer(&self) -> [u8; 64] {
        let mut trailer = [0; 64];
        trailer[..8].copy_from_slice(&(self.header.len() as u64).to_le_bytes());
        trailer[8..16].copy_from_slice(&self.hole.to_le_bytes());
        trailer[56..].copy_from_slice(b"LVS-end\n");
        trailer
    }
}

impl RangeSource for Holed {
    fn size(&self) -> u64 {
        self.header.len() as u64 + self.hole + 64
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        let (start, trailer) = (self.header.len() as u64, self.trailer());
        for (at, to) in (at..).zip(out) {
            *to = match (self.header.get(at as usize), at.checked_sub(start + self.hole)) {
                (Some(byte), _) => *byte,
                (None, Some(at)) => trailer[at as usize],
                (None, None) => 0,
            };
        }
        Ok(())
    }
}

/// A hole costs nothing on a disk, so a file may be longer than any memory.
#[test]
fn a_directory_sizes_no_allocation_by_what_nobody_proved() {
    let file = kept("v2-clusters");
    let header = file[..u32::from_le_bytes(*file[12..].first_chunk().unwrap()) as usize].to_vec();
    for hole in [80 << 40, (1 << 30) + 80, 81] {
        let file = Holed { header: header.clone(), hole };
        assert_eq!(contradiction(&file), "the length of its directory", "{hole}");
    }
    let small = refusal(&Holed { header, hole: 160 });
    assert!(small.contains("damaged in its directory"), "{small}");
}

/// A file that only one thread may read.
struct Alone<'a>(&'a Vec<u8>);

impl RangeSource for Alone<'_> {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.0.read_at(at, out)
    }
}

#[test]
fn a_session_is_the_same_whether_one_thread_opens_it_or_two() {
    for name in NAMES {
        let file = kept(&format!("v2-{name}"));
        let [one, two] = &[open(&Alone(&file)).unwrap().0, open(&file).unwrap().0];
        assert_eq!(one.n_tokens(), two.n_tokens());
        for layer in [0, 1] {
            assert!(rows(one, layer) == rows(two, layer), "layer {layer} of {name}");
            let layer = LayerId::new(layer);
            assert_eq!(one.places(layer), two.places(layer), "{name}");
            let [one, two] = [one, two].map(|s| block_on(s.layer_record(layer)).unwrap());
            assert_eq!(one, two, "{layer:?} of {name}");
        }
    }
}

/// Threads are done with layers in any order. Whatever that is, a record is refused with the words
/// that one thread has for it.
#[test]
fn two_threads_refuse_what_one_refuses() {
    let ordered = MOVED.map(|name| format!("v2-ordered-{name}"));
    for name in NAMES.map(|name| format!("v2-{name}")).into_iter().chain(ordered) {
        let mut kept = kept(&name);
        let file = RecordFile::open(&kept, header::read(&kept).unwrap()).unwrap();
        let entries: Vec<_> = file.directory.entries.iter().map(|entry| entry.bytes()).collect();
        drop(file);
        for bytes in entries {
            let step = (bytes.end - bytes.start).div_ceil(24).max(1) as usize;
            for at in bytes.step_by(step).map(|at| at as usize) {
                let bit = 1 << (at % 8);
                kept[at] ^= bit;
                let (one, two) = (refusal(&Alone(&kept)), refusal(&kept));
                kept[at] ^= bit;
                assert_eq!(one, two, "byte {at} of {name}");
                assert!(one.contains("damaged in "), "{one}");
            }
        }
    }
}

/// The first record of a kind.
fn first(records: &mut [(Key, Vec<u8>)], kind: Kind) -> &mut (Key, Vec<u8>) {
    records.iter_mut().find(|(key, _)| key.kind == kind).expect("a record of this kind")
}

/// A file in which the first record of a kind is another one.
fn changed(name: &str, kind: Kind, change: impl FnOnce(&mut Key, &mut Vec<u8>)) -> Vec<u8> {
    rewritten(name, |records| {
        let (key, bytes) = first(records, kind);
        change(key, bytes);
    })
}

#[test]
fn records_that_are_written_again_are_the_same_session() {
    for name in NAMES {
        let name = format!("v2-{name}");
        assert!(rewritten(&name, |_| {}) == kept(&name), "{name}");
    }
}

#[test]
fn what_can_be_done_without_is() {
    let optional = [Kind::Note, Kind::Last, Kind::State];
    for kind in optional {
        let file = rewritten("v2-clusters", |records| records.retain(|(key, _)| key.kind != kind));
        let (sequence, content) = open(&file).unwrap();
        assert_eq!(sequence.n_tokens(), 25);
        assert_eq!(content.note.is_empty(), kind == Kind::Note);
        assert_eq!(content.logits.is_empty(), kind == Kind::Last);
    }
    let unknown = changed("v2-clusters", Kind::State, |key, _| key.format = 1);
    assert_eq!(open(&unknown).unwrap().0.n_tokens(), 25, "a state of a later release");
}

#[test]
fn what_cannot_be_done_without_is_named() {
    let without = |kind: Kind| {
        contradiction(&rewritten("v2-tiers", |all| all.retain(|(key, _)| key.kind != kind)))
    };
    assert_eq!(without(Kind::Session), "it does not say what it holds");
    assert_eq!(without(Kind::Tokens), "its tokens");
    assert_eq!(without(Kind::Rows), "rows of a layer");
    assert_eq!(without(Kind::Recorded), "what was recorded of queries");
    let twice = |kind: Kind| {
        contradiction(&rewritten("v2-tiers", |records| {
            let record = first(records, kind).clone();
            records.push(record);
        }))
    };
    for kind in [Kind::Session, Kind::Note, Kind::Last, Kind::Recorded, Kind::State] {
        assert_eq!(twice(kind), "two records of what there is once", "{kind:?}");
    }
    assert_eq!(twice(Kind::Tokens), "its tokens");
    assert_eq!(twice(Kind::Rows), "rows of a layer");
    assert_eq!(twice(Kind::Places), "the order of rows");
}

#[test]
fn records_that_are_longer_or_shorter_than_they_say_are_refused() {
    for kind in [Kind::Session, Kind::Last, Kind::Recorded, Kind::State, Kind::Index] {
        let longer = changed("v2-tiers", kind, |_, bytes| bytes.push(0));
        assert_eq!(contradiction(&longer), "a record has more than it should", "{kind:?}");
        let shorter = changed("v2-tiers", kind, |_, bytes| bytes.truncate(bytes.len() - 1));
        let said = contradiction(&shorter);
        assert!(said.starts_with("it ends within a "), "{kind:?}: {said}");
    }
    for kind in [Kind::Rows, Kind::Places] {
        for n in [1, 16, 400] {
            let shorter = changed("v2-tiers", kind, |_, bytes| {
                bytes.truncate(bytes.len().saturating_sub(n));
            });
            let said = contradiction(&shorter);
            assert_eq!(said, "the length of a record of rows", "{kind:?} without {n} bytes");
        }
    }
}

/// An append may cut a record: the rows behind are there and are not of the session.
#[test]
fn rows_behind_those_that_are_used_are_skipped() {
    let row_bytes = shape().row_bytes();
    let longer = changed("v2-clusters", Kind::Rows, |_, bytes| {
        bytes.extend(vec![0xff; 2 * row_bytes]);
    });
    let [(as_it_was, _), (longer, _)] = [kept("v2-clusters"), longer].map(|f| open(&f).unwrap());
    assert_eq!(rows(&longer, 0), rows(&as_it_was, 0));
}

#[test]
fn rows_have_a_type_and_a_place_that_the_sequence_has() {
    let other = changed("v2-clusters", Kind::Rows, |key, _| key.format = 0);
    assert_eq!(contradiction(&other), "the type of its rows");
    let newer = changed("v2-clusters", Kind::Rows, |key, _| key.format = 4);
    assert!(refusal(&newer).contains("17"), "{}", refusal(&newer));
    let behind = changed("v2-eight-bits", Kind::ExactRows, |key, _| {
        (key.span.start, key.span.end) = (key.span.start + 40, key.span.end + 40);
    });
    assert_eq!(contradiction(&behind), "rows of a layer");
}

#[test]
fn an_order_of_rows_has_each_token_once() {
    let forms = [("v2-clusters", Kind::Places), ("v2-ordered-clusters", Kind::Order)];
    for (name, kind) in forms {
        let twice = changed(name, kind, |_, bytes| {
            let (first, second) = bytes.split_at_mut(4);
            second[..4].copy_from_slice(first);
        });
        assert_eq!(contradiction(&twice), "a token has no row, or two");
        let gap = changed(name, kind, |key, _| key.span.start = 1);
        assert_eq!(contradiction(&gap), "the order of rows");
        let many = changed(name, kind, |key, bytes| {
            key.span.end = 26;
            bytes.resize(26 * 4, 0);
        });
        assert_eq!(contradiction(&many), "the order of rows", "more rows than tokens");
    }
    let both = rewritten("v2-ordered-clusters", |records| {
        let (key, bytes) = first(records, Kind::Order).clone();
        records.push((Key { kind: Kind::Places, ..key }, bytes));
    });
    assert_eq!(contradiction(&both), "the order of rows", "rows lie in one order");
}

#[test]
fn an_index_is_of_the_rows_that_it_says() {
    for kind in [Kind::Index, Kind::TokenIndex] {
        let name = if kind == Kind::Index { "v2-clusters" } else { "v2-tiers" };
        for change in [
            |key: &mut Key, _: &mut Vec<u8>| key.span.start += 1,
            |key: &mut Key, _: &mut Vec<u8>| key.span.end += 1,
            |key: &mut Key, _: &mut Vec<u8>| key.span.end = key.span.start,
        ] {
            assert_eq!(contradiction(&changed(name, kind, change)), "the rows of an index");
        }
    }
}

#[test]
fn a_record_that_was_changed_is_named_with_its_layer() {
    let mut file = kept("v2-tiers");
    let (at, kind) = {
        let opened = SessionFile::open(&file).unwrap();
        let entry = opened.records().unwrap().directory.of(Kind::Rows, Some(LayerId::new(1)));
        let entry = entry.last().unwrap();
        (entry.at as usize, entry.key.kind)
    };
    file[at + 5] ^= 1;
    let said = match SessionFile::open(&file).unwrap().verify(2) {
        Err(SessionFileError::Damaged { part: DamagedPart::Record { what, layer }, bytes }) => {
            assert_eq!(bytes.start, at as u64);
            (what, layer)
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(said, (kind.about(), Some(1)));
    assert!(refusal(&file).contains("damaged in keys and values of layer 1 (bytes "));
}

#[test]
fn an_append_that_did_not_end_is_skipped_however_long() {
    let file = kept("v2-clusters");
    let piece = 1 << 18;
    // The last trailer lies in the last piece, across two pieces, or far before.
    for more in [1, 63, 64, 300, piece - 4, piece, piece + 3, 3 * piece] {
        let torn = [&file[..], &vec![0; more]].concat();
        let opened = SessionFile::open(&torn).unwrap();
        assert_eq!(opened.n_torn_bytes(), more as u64);
        assert_eq!(opened.append_at(), Some(file.len() as u64));
    }
    // Words that look like an end, and are none: more than are tried hide the file.
    let ends = |n: usize| [&file[..], &b"LVS-end\n".repeat(n), b"!"].concat();
    assert_eq!(SessionFile::open(&ends(63)).unwrap().n_torn_bytes(), 63 * 8 + 1);
    assert!(matches!(SessionFile::open(&ends(64)), Err(SessionFileError::Incomplete { .. })));
    let none = [&file[..file.len() - 1], &[0; 100]].concat();
    assert!(matches!(SessionFile::open(&none), Err(SessionFileError::Incomplete { .. })));
    // Where the last one is damaged, it is named.
    let mut damaged = file;
    let n = damaged.len();
    damaged[n - 20] ^= 1;
    let Err(SessionFileError::Damaged { part: DamagedPart::Table, bytes }) =
        SessionFile::open(&damaged).map(drop)
    else {
        panic!("it was opened")
    };
    assert_eq!(bytes.end, n as u64);
}

#[test]
fn a_directory_lies_between_header_and_trailer() {
    let file = kept("v2-clusters");
    let trailer = file.len() - 64;
    for (at, number) in [(0, 5_u64), (0, u64::MAX), (8, 0), (8, u64::MAX)] {
        let mut lie = file.clone();
        lie[trailer + at..][..8].copy_from_slice(&number.to_le_bytes());
        assert!(matches!(SessionFile::open(&lie), Err(SessionFileError::Incomplete { .. })));
    }
    // A record that is the header itself, with a right digest.
    let opened = header::read(&file).unwrap();
    let (mut out, header) = (Vec::new(), opened.bytes.clone());
    let mut writer = RecordWriter::new(&mut out, header.clone()).unwrap();
    writer.keep(super::directory::Entry {
        key: Key::whole(Kind::Note),
        at: 0,
        len: header.len() as u64,
        digest: digest(&header),
    });
    writer.finish().unwrap();
    assert_eq!(contradiction(&out), "a record that begins in the header");
}

/// A file of version 1 with another stream; all digests are right.
fn streamed(name: &str, change: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let file = kept(name);
    let word = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().unwrap()) as usize;
    let (header, block) = (word(12), word(16));
    let length = u64::from_le_bytes(*file[file.len() - 48..].first_chunk().unwrap()) as usize;
    let mut stream = file[header..header + length].to_vec();
    change(&mut stream);
    sealed(file[..header].to_vec(), &stream, block)
}

/// Header, blocks, table and trailer, as docs/session-format-1.md says.
fn sealed(mut header: Vec<u8>, stream: &[u8], block: usize) -> Vec<u8> {
    let n = header.len() - 32;
    let proof = digest(&header[..n]);
    header[n..].copy_from_slice(&proof);
    let table: Vec<u8> = stream.chunks(block.max(1)).flat_map(digest).collect();
    let length = (stream.len() as u64).to_le_bytes();
    let whole = digest(&[&header, &table, &length[..]].concat());
    [&header[..], stream, &table, &length, &whole, b"LVS-end\n"].concat()
}

/// A file of version 1 with other bytes from byte `at` of its header on.
fn headed(at: usize, bytes: &[u8]) -> Vec<u8> {
    let file = kept("v1-clusters");
    let header = u32::from_le_bytes(*file[12..].first_chunk().unwrap()) as usize;
    let mut lie = file.clone();
    lie[at..at + bytes.len()].copy_from_slice(bytes);
    let length = u64::from_le_bytes(*file[file.len() - 48..].first_chunk().unwrap()) as usize;
    let block = u32::from_le_bytes(*lie[16..].first_chunk().unwrap()) as usize;
    sealed(lie[..header].to_vec(), &file[header..header + length], block)
}

/// Where a word stands in a stream, the last time.
fn place(stream: &[u8], word: &[u8; 4]) -> usize {
    stream.windows(4).rposition(|four| four == word).expect("it is there")
}

#[test]
fn a_stream_that_is_sealed_again_is_the_same_file() {
    for name in NAMES {
        let name = format!("v1-{name}");
        assert!(streamed(&name, |_| {}) == kept(&name), "{name}");
    }
    assert!(headed(8, &[1]) == kept("v1-clusters"));
}

#[test]
fn sections_of_a_stream_stand_in_their_order() {
    for (word, said) in [
        (b"NOTE", "it does not begin with a note"),
        (b"TOKS", "its note is not followed by tokens"),
        (b"LAYR", "a layer does not begin where it should"),
        (b"DONE", "its layers are not followed by its end"),
    ] {
        let lie = streamed("v1-tiers", |stream| {
            let at = place(stream, word);
            stream[at] = b'?';
        });
        assert_eq!(contradiction(&lie), said);
    }
    let more = streamed("v1-tiers", |stream| stream.push(0));
    assert_eq!(contradiction(&more), "it has more than a session should");
    for n in [1, 4, 40, 1000] {
        let less = streamed("v1-tiers", |stream| stream.truncate(stream.len() - n));
        let said = contradiction(&less);
        assert!(said.starts_with("it") && said.contains(" ends within a "), "{n}: {said}");
    }
}

#[test]
fn numbers_of_a_stream_are_those_of_a_session() {
    let number = |word: &[u8; 4], behind: usize, name: &str| {
        contradiction(&streamed(name, |stream| {
            let at = place(stream, word) + behind;
            stream[at..at + 8].fill(0xff);
        }))
    };
    assert_eq!(number(b"NOTE", 4, "v1-tiers"), "it ends within a list", "a note of 16 EiB");
    assert_eq!(number(b"LAYR", 4, "v1-tiers"), "more rows out of order than tokens");
    // Behind the tokens: whether one is owed, that one, and the number of logits.
    assert_eq!(number(b"TOKS", 4 + 25 * 4 + 5, "v1-tiers"), "its number of logits");
    assert_eq!(number(b"TOKS", 4 + 25 * 4, "v1-tiers"), "a flag is neither 0 nor 1");
}

/// Every byte of what a layer has behind its rows, one at a time: refused or harmless.
#[test]
fn no_byte_of_a_layer_makes_a_reader_panic() {
    let (mut opened, mut refused) = (0, 0);
    for name in NAMES {
        let name = format!("v1-{name}");
        let mut end = 0;
        streamed(&name, |stream| end = stream.len());
        for at in (end.saturating_sub(900)..end).step_by(3) {
            for byte in [0, 1, 3, 0xff] {
                match open(&streamed(&name, |stream| stream[at] = byte)) {
                    Ok(_) => opened += 1,
                    Err(_) => refused += 1,
                }
            }
        }
    }
    assert!(opened > 500 && refused > 500, "{opened} were opened, {refused} refused");
}

#[test]
fn headers_of_version_1_have_blocks_and_dimensions_that_there_are() {
    for size in [0_u32, 256, 1000, 1 << 21] {
        assert_eq!(contradiction(&headed(16, &size.to_le_bytes())), "the size of its blocks");
    }
    assert_eq!(contradiction(&headed(20, &[9])), "the type of its rows");
    assert_eq!(contradiction(&headed(24, &[0])), "its dimensions");
    let mut fields = SliceFields(&kept("v1-clusters")[20..][..20]);
    let [dtype, layers, q, kv, width] = [(); 5].map(|()| fields.u32().unwrap());
    assert_eq!([dtype, layers, q, kv, width], [1, 2, 2, 1, 4], "what stands there");
    assert_eq!(contradiction(&headed(32, &[3])), "its query heads and KV heads");
}

#[test]
fn trailers_of_version_1_say_how_long_the_file_is() {
    let file = kept("v1-clusters");
    let trailer = file.len() - 48;
    let incomplete = |file: &[u8]| {
        let file = file.to_vec();
        matches!(SessionFile::open(&file), Err(SessionFileError::Incomplete { .. }))
    };
    let header = u32::from_le_bytes(*file[12..].first_chunk().unwrap()) as usize;
    assert!(incomplete(&file[..header + 47]) && incomplete(&file[..header + 48]));
    assert!(incomplete(&file[..file.len() - 1]));
    for length in [0, 1, u64::MAX, u64::MAX / 32] {
        let mut lie = file.clone();
        lie[trailer..trailer + 8].copy_from_slice(&length.to_le_bytes());
        assert!(incomplete(&lie), "{length}");
    }
    let part = |at: usize| {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        match SessionFile::open(&damaged).map(|file| file.verify(2)) {
            Ok(Err(SessionFileError::Damaged { part, .. }))
            | Err(SessionFileError::Damaged { part, .. }) => part,
            other => panic!("{:?}", other.map(drop)),
        }
    };
    assert_eq!(part(trailer - 1), DamagedPart::Table);
    assert_eq!(part(trailer + 10), DamagedPart::Table);
    assert_eq!(part(header), DamagedPart::Block(0));
    assert_eq!(part(header - 1), DamagedPart::Header);
}
