//! Files of format version 1, kept: what they say must be read for good, and what is written of it
//! must be the same bytes. Whoever changes a byte of the format makes a new version.
//!
//! Nothing is computed between reading and writing, so the bytes are the same on every machine.
//! With `LONGVIEW_WRITE_GOLDEN` set, files that are missing are made first: what was computed into
//! them is that machine's.

use std::path::{Path, PathBuf};

use longview_core::{DType, HeadId, encode_f32};
use longview_scheduler::{KvShape, PolicyOptions, Preset, SaveOptions, SessionFile, save_sequence};
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
    folder.join(format!("v1-{name}.lvs"))
}

fn file(name: &str, policy: &PolicyOptions) -> Vec<u8> {
    let path = path(name);
    if !path.exists() && std::env::var_os("LONGVIEW_WRITE_GOLDEN").is_some() {
        let mut sim = prefilled(shape(), policy, layouts()[0].1, 20).expect("a prompt");
        (20..TOKENS).for_each(|_| sim.decode(1));
        std::fs::write(&path, save(&mut sim, policy)).expect("a file");
    }
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn files_of_version_1_are_read_and_written_to_the_byte() {
    for (name, policy) in policies() {
        let file = file(name, &policy);
        assert!(file.len() < 16 << 10, "{name}: {} bytes", file.len());
        let backend = cpu();
        let (mut sequence, found) =
            open(&file, &backend, shape(), None, layouts()[0].1).expect("a session");
        assert_eq!(found, content(TOKENS), "{name}");
        let (fingerprint, mut again) = (fingerprint(), Vec::new());
        let options = SaveOptions { block_bytes: 512, ..SaveOptions::new(&fingerprint, &policy) };
        block_on(save_sequence(&mut sequence, &options, &found, &mut again)).expect("memory");
        assert!(again == file, "{name}: what is written is not what was read");
        for (l, layer) in sequence.shape().layers().zip(sequence.layers()) {
            let mut rows = vec![0; TOKENS * 16];
            sequence.store().read_rows(l, HeadId(0), 0..TOKENS, &mut rows);
            for (row, position) in rows.chunks_exact(16).zip(&layer.positions[0]) {
                let token = token_data(&shape(), 1, l, *position as usize);
                let want = encode_f32(DType::F16, &[token.k, token.v].concat());
                assert_eq!(row, want, "{name}: layer {l}, token {position}");
            }
        }
    }
}

#[test]
fn the_header_of_version_1_is_where_the_document_says() {
    let (name, policy) = &policies()[0];
    let file = file(name, policy);
    let word = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes"));
    let long = |at: usize| u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes"));
    assert_eq!(&file[..8], b"\x89LVS\r\n\x1a\n");
    assert_eq!((word(8), word(16), word(20)), (1, 512, 1), "version, block, f16");
    assert_eq!([24, 28, 32, 36].map(word), [2, 2, 1, 4], "L, Hq, Hkv, Dh");
    assert_eq!([40, 48].map(long), [48, 25], "context and tokens");
    assert_eq!(file[56..88], fingerprint().config.digest);
    assert_eq!(file[152..184], fingerprint().rope.digest);
    assert_eq!((word(184), &file[188..196]), (8, &b"a config"[..]));
    let header = word(12) as usize;
    assert_eq!(file[header..header + 4], *b"NOTE");
    assert_eq!(file[file.len() - 8..], *b"LVS-end\n");
    let session = SessionFile::open(&file).expect("a session");
    assert!(session.header().policy.starts_with("policy = clusterkv\nindex = clusters of 16, "));
}
