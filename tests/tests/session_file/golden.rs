//! Files of format versions 1 and 2, kept: what they say must be read for good, and what is written
//! of it must be the bytes of version 2. Whoever changes a byte of the format makes a new version.
//!
//! Nothing is computed between reading and writing, so the bytes are the same on every machine.
//! With `LONGVIEW_WRITE_GOLDEN` set, files of version 2 that are missing are made first, of those
//! of version 1; rows of 8 bits are of no such file, and are that machine's. Files whose rows an
//! index has moved are there twice: as the first releases wrote them, with rows where they lay, and
//! with rows in the order of tokens (`v2-ordered-`).

use std::path::{Path, PathBuf};

use longview_core::{DType, HeadId, decode_f32_into, encode_f32};
use longview_scheduler::{
    HostRows, KvShape, PolicyOptions, Preset, SaveOptions, SessionFile, save_sequence,
};
use longview_tests::sim::token_data;
use pollster::block_on;

use super::support::{content, cpu, fingerprint, layouts, open, prefilled, save};

const TOKENS: usize = 25;

fn shape() -> KvShape {
    KvShape {
        n_layers: 2,
        n_q_heads: 2,
        n_kv_heads: 1,
        head_dim: 4,
        kv_dtype: DType::F16,
        host_rows: longview_scheduler::HostRows::default(),
        capacity: 48,
        scale: 0.5,
        inv_freq: [1.0, 0.1].into(),
        windows: [].into(),
    }
}

/// Policies that together have the fields of the format.
fn policies() -> [(&'static str, PolicyOptions); 6] {
    let set = |preset: Preset, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset).with_budget(16);
        let small = [("window", "4"), ("dense-layers", "1")];
        for (name, value) in small.iter().chain(settings) {
            options.set(name, value).expect("a value");
        }
        options
    };
    [
        ("clusters", set(Preset::Clusterkv, &[("recent", "2"), ("residual", "means")])),
        ("blocks", set(Preset::Infllm, &[("recent", "4"), ("sinks", "2"), ("block-size", "2")])),
        (
            "tokens",
            set(Preset::Lrqk, &[("recent", "2"), ("rank", "2"), ("lrqk-decode", "adaptive")]),
        ),
        ("kept", set(Preset::H2o, &[])),
        (
            "tiers",
            set(
                Preset::Clusterkv,
                &[("recent", "2"), ("two-stage", "2"), ("rank", "2"), ("budget-mode", "ada")],
            ),
        ),
        (
            "narrowed",
            set(
                Preset::Ktransformers,
                &[("recent", "2"), ("block-size", "2"), ("preselect", "4"), ("token-step", "2")],
            ),
        ),
    ]
}

fn path(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/session");
    folder.join(format!("{name}.lvs"))
}

fn read(name: &str) -> Vec<u8> {
    let path = path(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn write_missing(name: &str, make: impl FnOnce() -> Vec<u8>) {
    let path = path(name);
    if !path.exists() && std::env::var_os("LONGVIEW_WRITE_GOLDEN").is_some() {
        std::fs::write(&path, make()).expect("a file");
    }
}

/// What is written of a file; its rows are checked on the way.
fn rewritten(name: &str, file: &[u8], policy: &PolicyOptions, shape: &KvShape) -> Vec<u8> {
    assert!(file.len() < 16 << 10, "{name}: {} bytes", file.len());
    let (mut sequence, found) =
        open(&file, &cpu(), shape.clone(), None, layouts()[0].1).expect("a session");
    assert_eq!(found, content(TOKENS), "{name}");
    for (l, layer) in sequence.shape().layers().zip(sequence.layers()) {
        let mut rows = vec![0; TOKENS * 16];
        sequence.store().read_rows(l, HeadId(0), 0..TOKENS, &mut rows);
        for (row, position) in rows.chunks_exact(16).zip(&layer.positions[0]) {
            let token = token_data(shape, 1, l, *position as usize);
            let numbers = [token.k, token.v].concat();
            if shape.host_rows == HostRows::Plain {
                assert_eq!(row, encode_f32(DType::F16, &numbers), "{name}: {l}, token {position}");
            }
            let mut read = vec![0.0; 8];
            decode_f32_into(DType::F16, row, &mut read);
            let off = read.iter().zip(&numbers).map(|(x, want)| (x - want).abs());
            assert!(off.fold(0.0, f32::max) < 0.02, "{name}: layer {l}, token {position}");
        }
    }
    let (fingerprint, mut again) = (fingerprint(), Vec::new());
    let options = SaveOptions { segment_rows: 20, ..SaveOptions::new(&fingerprint, policy) };
    block_on(save_sequence(&mut sequence, &options, &found, &mut again)).expect("memory");
    again
}

/// Kept files with rows that an index has moved.
const MOVED: [&str; 3] = ["clusters", "tiers", "eight-bits"];

/// A kept file of version 2 as it is written now. Where rows were moved that is not how the first
/// releases wrote it, and its index of tokens has become codes if it has one.
fn as_now(name: &str, policy: &PolicyOptions, shape: &KvShape) -> Vec<u8> {
    let kept = read(&format!("v2-{name}"));
    if !MOVED.contains(&name) {
        return kept;
    }
    let ordered = format!("v2-ordered-{name}");
    let now = rewritten(name, &kept, policy, shape);
    write_missing(&ordered, || now.clone());
    assert!(now != kept && now == read(&ordered), "{name}: other bytes than ever");
    now
}

#[test]
fn files_of_version_1_are_read_and_become_those_of_version_2() {
    for (name, policy) in policies() {
        let old = read(&format!("v1-{name}"));
        assert_eq!(old[8], 1, "{name}");
        let new = rewritten(name, &old, &policy, &shape());
        write_missing(&format!("v2-{name}"), || new.clone());
        assert!(new == as_now(name, &policy, &shape()), "{name}: other bytes than ever");
    }
}

#[test]
fn files_of_version_2_are_read_and_written_to_the_byte() {
    for (name, policy) in policies() {
        let file = as_now(name, &policy, &shape());
        assert_eq!(file[8], 2, "{name}");
        assert!(rewritten(name, &file, &policy, &shape()) == file, "{name}");
    }
}

#[test]
fn rows_of_8_bits_are_read_and_written_to_the_byte() {
    let (_, policy) = policies().into_iter().next().expect("clusters");
    let shape = KvShape { host_rows: HostRows::EightBits, ..shape() };
    let made = || {
        let sim = prefilled(shape.clone(), &policy, layouts()[0].1, 20);
        let mut sim = sim.expect("a prompt");
        (20..TOKENS).for_each(|_| sim.decode(1));
        save(&mut sim, &policy)
    };
    write_missing("v2-eight-bits", made);
    let file = as_now("eight-bits", &policy, &shape);
    assert!(rewritten("eight bits", &file, &policy, &shape) == file);
}

#[test]
fn the_header_of_version_1_is_where_the_document_says() {
    let file = read("v1-clusters");
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    assert_eq!(&file[..8], b"\x89LVS\r\n\x1a\n");
    assert_eq!((word(8), word(16), word(20)), (1, 512, 1), "version, block, f16");
    assert_eq!([24, 28, 32, 36].map(word), [2, 2, 1, 4], "L, Hq, Hkv, Dh");
    assert_eq!([40, 48].map(long), [48, 25], "context and tokens");
    let digest = blake3::hash(b"a config");
    assert_eq!(&file[56..88], digest.as_bytes());
    assert_eq!(file[152..184], fingerprint().rope.digest);
    assert_eq!((word(184), &file[188..196]), (8, &b"a config"[..]));
    let header = word(12) as usize;
    assert_eq!(file[header..header + 4], *b"NOTE");
    assert_eq!(file[file.len() - 8..], *b"LVS-end\n");
    let session = SessionFile::open(&file).expect("a session");
    assert!(session.header().policy.starts_with("policy = clusterkv\nindex = clusters of 16, "));
}

/// What docs/session-format.md says of header, trailer and directory, by hand.
#[test]
fn a_file_of_version_2_is_made_as_the_document_says() {
    // The first layer attends everything. The order of the second one's rows has another kind where
    // it is that of the index alone.
    is_made_as_documented("v2-clusters", &[1, 2, 3, 4, 17, 17, 19, 20, 16, 17, 17, 19, 20, 21]);
    let ordered = [1, 2, 3, 4, 17, 17, 19, 20, 23, 17, 17, 19, 20, 21];
    is_made_as_documented("v2-ordered-clusters", &ordered);
}

fn is_made_as_documented(name: &str, kinds: &[u32]) {
    let file = read(name);
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    assert_eq!(&file[..8], b"\x89LVS\r\n\x1a\n");
    assert_eq!((word(8), word(16), word(20)), (2, 1, 1), "version, f16, rows of f16");
    assert_eq!([24, 28, 32, 36].map(word), [2, 2, 1, 4], "L, Hq, Hkv, Dh");
    assert_eq!((word(40), word(44)), (4, 0), "config, weights, vocabulary, positions");
    assert_eq!(&file[48..80], blake3::hash(b"a config").as_bytes());
    assert_eq!((word(80), &file[84..92]), (8, &b"a config"[..]));
    let header = word(12) as usize;
    assert_eq!(&file[header - 32..header], blake3::hash(&file[..header - 32]).as_bytes());
    let trailer = file.len() - 64;
    let (at, len) = (long(trailer) as usize, long(trailer + 8) as usize);
    assert_eq!((at + len, long(trailer + 16)), (trailer, 1), "written once");
    assert_eq!(&file[trailer + 56..], b"LVS-end\n");
    let whole = [&file[..header], &file[at..trailer + 24]].concat();
    assert_eq!(&file[trailer + 24..trailer + 56], blake3::hash(&whole).as_bytes());
    let mut end = header;
    for entry in (at..trailer).step_by(80) {
        let (offset, bytes) = (long(entry + 32) as usize, long(entry + 40) as usize);
        assert_eq!(offset, end, "records follow each other");
        end = offset + bytes;
        let digest = blake3::hash(&file[offset..end]);
        assert_eq!(&file[entry + 48..entry + 80], digest.as_bytes());
    }
    assert_eq!(end, at);
    let found: Vec<u32> = (at..trailer).step_by(80).map(word).collect();
    assert_eq!(found, kinds, "{name}");
}
