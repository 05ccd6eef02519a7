//! No bit, no length and no lie of a file goes unnoticed.

use longview_core::{DType, RangeSource, SplitMix64};
use longview_scheduler::{
    DamagedPart, FORMAT_VERSION, Fingerprint, KvShape, PolicyOptions, Preset, SchedulerError,
    SessionFile, SessionFileError, SpanMode,
};
use longview_tests::sim::Sim;

use super::support::{Cpu, cpu, fingerprint, layouts, open, prefilled, save};

/// As few rows as a policy needs to have all of its state.
fn tiny(preset: Preset, settings: &[(&str, &str)]) -> (KvShape, PolicyOptions, Vec<u8>) {
    let (policy, sim, file) = tiny_sim(preset, settings);
    (sim.sequence.shape().clone(), policy, file)
}

/// The same with the sequence that the file is of.
fn tiny_sim(preset: Preset, settings: &[(&str, &str)]) -> (PolicyOptions, Sim<Cpu>, Vec<u8>) {
    let shape = KvShape {
        n_layers: 2,
        n_q_heads: 2,
        n_kv_heads: 1,
        head_dim: 4,
        kv_dtype: DType::F16,
        host_rows: longview_scheduler::HostRows::default(),
        capacity: 64,
        scale: 0.5,
        inv_freq: [1.0, 0.1].into(),
        windows: [].into(),
    };
    let mut policy = PolicyOptions::new(preset).with_budget(16);
    for (name, value) in settings {
        policy.set(name, value).expect("a value");
    }
    let mut sim = prefilled(shape, &policy, layouts()[0].1, 24).expect("a prompt");
    (0..5).for_each(|_| sim.decode(2));
    let file = save(&mut sim, &policy);
    (policy, sim, file)
}

/// Presets and settings whose files together have all that a file may have.
fn kinds() -> [(Preset, Vec<(&'static str, &'static str)>); 7] {
    let small = [("window", "4"), ("recent", "2"), ("cluster-tokens", "2")];
    let with = |more: &[_]| [&small[..], more].concat();
    let blocks = [("window", "4"), ("recent", "4"), ("sinks", "2"), ("block-size", "2")];
    let shared = [("window", "4"), ("recent", "2"), ("block-size", "2"), ("layer-step", "2")];
    let adaptive = [("window", "4"), ("recent", "2"), ("rank", "2"), ("lrqk-decode", "adaptive")];
    [
        (Preset::Clusterkv, with(&[])),
        (Preset::Clusterkv, with(&[("two-stage", "2"), ("sinks", "2")])),
        (Preset::Longview, with(&[("rank", "2")])),
        (Preset::Infllm, blocks.to_vec()),
        (Preset::Ktransformers, [&shared[..], &[("token-step", "3")]].concat()),
        (Preset::Lrqk, adaptive.to_vec()),
        (Preset::H2o, vec![("window", "4")]),
    ]
}

fn all() -> Vec<(KvShape, PolicyOptions, Vec<u8>)> {
    kinds().iter().map(|(preset, settings)| tiny(*preset, settings)).collect()
}

fn verify(file: &[u8]) -> Result<(), SessionFileError> {
    let source = file.to_vec();
    SessionFile::open(&source)?.verify(2)
}

#[test]
fn every_bit_is_guarded() {
    let (_, _, mut file) = tiny(Preset::Clusterkv, &[("window", "4"), ("recent", "2")]);
    assert!(verify(&file).is_ok());
    assert!(file.len() < 16 << 10, "{} bytes", file.len());
    for bit in 0..8 * file.len() {
        file[bit / 8] ^= 1 << (bit % 8);
        assert!(verify(&file).is_err(), "bit {bit} of {}", 8 * file.len());
        file[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn every_length_is_guarded() {
    for (_, _, file) in all() {
        for len in 0..file.len() {
            assert!(verify(&file[..len]).is_err(), "{len} of {}", file.len());
        }
    }
}

/// What stands behind a trailer is what an append has left that did not end.
#[test]
fn bytes_behind_the_end_are_known_for_what_they_are() {
    for (_, _, file) in all() {
        let twice = [&file[..], &file[..]].concat();
        let trailers = [&file[..], &file[file.len() - 64..], &file[file.len() - 64..]].concat();
        for (longer, more) in [(twice, file.len()), (trailers, 128)] {
            let opened = SessionFile::open(&longer).expect("the file before");
            assert_eq!(opened.n_torn_bytes(), more as u64);
            assert_eq!(opened.append_at(), Some(file.len() as u64));
            opened.verify(2).expect("the file before");
        }
        for more in (1..100).chain([5000, 300_000]) {
            let longer = [&file[..], &vec![0; more]].concat();
            assert_eq!(SessionFile::open(&longer).expect("a file").n_torn_bytes(), more as u64);
        }
    }
}

#[test]
fn errors_say_what_is_wrong_and_what_to_do() {
    let (_, _, file) = tiny(Preset::Quest, &[("window", "4"), ("recent", "2")]);
    let message = |file: &[u8]| verify(file).unwrap_err().to_string();
    assert!(message(b"").contains("not a Longview session"));
    assert!(message(b"{\"model\": 1}").contains("name a file that --save-session wrote"));
    assert!(message(&file[..file.len() - 1]).contains("not complete: "));
    assert!(message(&file[..11]).contains("not complete: 11 bytes"));
    let changed = |at: usize| {
        let mut file = file.clone();
        file[at] ^= 0x10;
        verify(&file).unwrap_err()
    };
    let newer = changed(8);
    assert!(matches!(newer, SessionFileError::Version { found: 18, .. }), "{newer}");
    assert!(
        newer.to_string().contains("version 18, and this release reads versions 1 to 2:"),
        "{newer}"
    );
    assert!(changed(40).to_string().contains("damaged in its header (bytes 0 to "));
    let tokens = record(&file, 3);
    let error = changed(tokens.start);
    let SessionFileError::Damaged { part: DamagedPart::Record { layer: None, .. }, bytes } = &error
    else {
        panic!("{error}");
    };
    assert_eq!(bytes, &(tokens.start as u64..tokens.end as u64));
    assert!(error.to_string().contains("damaged in its tokens (bytes "), "{error}");
    let rows = changed(record(&file, 17).start + 3).to_string();
    assert!(rows.contains("damaged in keys and values of layer 0 (bytes "), "{rows}");
    assert!(changed(file.len() - 20).to_string().contains("damaged in its directory"));
}

/// The first record of a kind.
fn record(file: &[u8], kind: usize) -> std::ops::Range<usize> {
    let is_of = |entry: &usize| word(file, *entry) == kind;
    let entry = entries(file).find(is_of).expect("a record of this kind");
    long(file, entry + 32)..long(file, entry + 32) + long(file, entry + 40)
}

/// Where the entries of the directory are.
fn entries(file: &[u8]) -> impl Iterator<Item = usize> {
    let trailer = file.len() - 64;
    (long(file, trailer)..trailer).step_by(80)
}

fn long(file: &[u8], at: usize) -> usize {
    u64::from_le_bytes(file[at..at + 8].try_into().expect("8 bytes")) as usize
}

fn word(file: &[u8], at: usize) -> usize {
    u32::from_le_bytes(file[at..at + 4].try_into().expect("4 bytes")) as usize
}

fn header_len(file: &[u8]) -> usize {
    word(file, 12)
}

/// Makes all digests right again, as docs/session-format.md says.
fn seal(file: &mut [u8]) {
    let header = header_len(file);
    let proof = blake3::hash(&file[..header - 32]);
    file[header - 32..header].copy_from_slice(proof.as_bytes());
    let trailer = file.len() - 64;
    for entry in entries(file).collect::<Vec<_>>() {
        let (at, len) = (long(file, entry + 32), long(file, entry + 40));
        // Records that lie elsewhere are a lie of their own.
        let Some(bytes) = at.checked_add(len).and_then(|end| file.get(at..end)) else { continue };
        let digest = *blake3::hash(bytes).as_bytes();
        file[entry + 48..entry + 80].copy_from_slice(&digest);
    }
    let directory = long(file, trailer);
    let whole = [&file[..header], &file[directory..trailer + 24]].concat();
    file[trailer + 24..trailer + 56].copy_from_slice(blake3::hash(&whole).as_bytes());
}

/// A file is sealed as the document says, and nothing else is right.
#[test]
fn the_document_says_how_a_file_is_sealed() {
    for (_, _, file) in all() {
        let mut again = file.clone();
        seal(&mut again);
        assert!(again == file);
    }
}

/// Somebody who knows how digests are made can lie; then the fields must hold together or the file
/// is refused, and nothing panics, nor when what was opened goes on.
#[test]
fn lies_that_are_sealed_are_read_without_a_panic() {
    let mut rng = SplitMix64::new(5);
    let (backend, options) = (cpu(), layouts()[0].1);
    let (mut opened, mut refused, mut went_on) = (0, 0, 0);
    for (preset, settings) in kinds() {
        let (_, sim, file) = tiny_sim(preset, &settings);
        let shape = sim.sequence.shape();
        let (header, trailer) = (header_len(&file), file.len() - 64);
        for _ in 0..1500 {
            let mut lie = file.clone();
            for _ in 0..1 + rng.below(3) {
                // Numbers are most telling where they are small, so most changes are. Half of them
                // are in the directory.
                let from = [header, long(&file, trailer)][rng.below(2)];
                let at = from + rng.below(trailer - from);
                match rng.below(3) {
                    0 => lie[at] ^= 1 << rng.below(8),
                    1 => lie[at] = [0, 1, 2, 0x7f, 0x80, 0xff][rng.below(6)],
                    _ => {
                        let end = trailer.min(at + 8);
                        lie[at..end].fill([0, 0xff][rng.below(2)]);
                    }
                }
            }
            seal(&mut lie);
            match open(&lie, &backend, shape.clone(), None, options) {
                Ok((sequence, _)) => {
                    opened += 1;
                    let twin = sim.twin(&backend, sequence, options).expect("a twin");
                    went_on += usize::from(go_on(twin).is_ok());
                }
                Err(_) => refused += 1,
            }
        }
    }
    assert!(opened > 500 && refused > 500, "{opened} were opened, {refused} refused");
    assert!(went_on > opened / 2, "{went_on} of {opened} went on");
}

/// Steps, a prompt shorter than a window, and a step. Each may fail: of sums that are no numbers
/// there are no factors.
fn go_on(mut sim: Sim<Cpu>) -> Result<(), SchedulerError> {
    (0..2).try_for_each(|_| sim.step(9, 1, SpanMode::Policy))?;
    sim.step(9, 3, SpanMode::Exact { remaining: 0 })?;
    pollster::block_on(sim.sequence.finish_prefill())?;
    sim.step(9, 1, SpanMode::Policy)
}

/// Headers that lie are refused too, or are of another session.
#[test]
fn lies_in_the_header_are_read_without_a_panic() {
    let mut rng = SplitMix64::new(6);
    let backend = cpu();
    let (shape, _, file) = tiny(Preset::Clusterkv, &[("window", "4"), ("recent", "2")]);
    for _ in 0..3000 {
        let mut lie = file.clone();
        let at = 16 + rng.below(header_len(&file) - 48);
        lie[at] = [lie[at] ^ (1 << rng.below(8)), 0, 0xff][rng.below(3)];
        seal(&mut lie);
        let _ = open(&lie, &backend, shape.clone(), None, layouts()[0].1);
    }
}

/// Bytes that change from one read on.
struct Changing<'a> {
    file: &'a [u8],
    reads: std::cell::Cell<usize>,
    after: usize,
}

impl RangeSource for Changing<'_> {
    fn size(&self) -> u64 {
        self.file.len() as u64
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.file.read_at(at, out)?;
        self.reads.set(self.reads.get() + 1);
        if self.reads.get() > self.after {
            out[0] ^= 1;
        }
        Ok(())
    }
}

/// Whatever is read, and whenever it changes: nothing of it is used without a proof.
#[test]
fn a_file_that_changes_while_it_is_read_is_noticed() {
    let (shape, _, file) = tiny(Preset::Clusterkv, &[("window", "4"), ("recent", "2")]);
    let source = Changing { file: &file, reads: 0.into(), after: usize::MAX };
    open(&source, &cpu(), shape.clone(), None, layouts()[0].1).map(drop).expect("a session");
    let reads = source.reads.get();
    for after in 0..reads {
        let source = Changing { file: &file, reads: 0.into(), after };
        let opened = open(&source, &cpu(), shape.clone(), None, layouts()[0].1);
        assert!(opened.is_err(), "read {after} of {reads}");
    }
}

/// A reader that fails says so.
struct Failing(u64);

impl RangeSource for Failing {
    fn size(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _at: u64, _out: &mut [u8]) -> std::io::Result<()> {
        Err(std::io::Error::other("the disk is gone"))
    }
}

#[test]
fn a_source_that_fails_is_named() {
    let error = SessionFile::open(&Failing(5000)).map(drop).unwrap_err().to_string();
    assert_eq!(error, "the session cannot be read (the disk is gone)");
}

#[test]
fn everything_that_differs_is_named_with_what_the_file_was_made_with() {
    let (shape, _, file) = tiny(Preset::Quest, &[("window", "4"), ("recent", "2")]);
    let session = SessionFile::open(&file).expect("a session");
    let check = |change: &dyn Fn(&mut Fingerprint, &mut KvShape)| {
        let (mut fingerprint, mut shape) = (fingerprint(), shape.clone());
        change(&mut fingerprint, &mut shape);
        session.header().check(&fingerprint, &shape).map_err(|error| error.to_string())
    };
    assert_eq!(check(&|_, _| {}), Ok(()));
    let message = |change: &dyn Fn(&mut Fingerprint, &mut KvShape)| check(change).unwrap_err();
    let other = |part: &mut longview_scheduler::FingerprintPart| {
        (part.digest[3], part.about) = (part.digest[3] ^ 1, "another".into());
    };
    let text = message(&|fingerprint, _| other(&mut fingerprint.config));
    assert!(text.contains("\n  model: the session has a config, this run another; "), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    let text = message(&|fingerprint, _| other(&mut fingerprint.weights));
    assert!(text.contains("weights: the session has some weights, this run another"), "{text}");
    let text =
        message(&|fingerprint, _| other(fingerprint.vocabulary.as_mut().expect("a vocabulary")));
    assert!(text.contains("vocabulary: the session has a vocabulary, this run another"), "{text}");
    let text = message(&|fingerprint, _| other(&mut fingerprint.rope));
    assert!(text.contains("positions: the session has no positions, this run another"), "{text}");
    let text = message(&|_, shape| shape.kv_dtype = DType::F32);
    assert!(text.contains("type of keys and values: the session has f16, this run f32"), "{text}");
    assert!(text.contains("--kv-type"), "{text}");
    let text = message(&|fingerprint, shape| {
        other(&mut fingerprint.weights);
        shape.n_layers = 3;
    });
    assert!(text.contains("2 layers, 2 query and 1 KV heads of 4"), "{text}");
    assert_eq!(text.lines().count(), 3, "{text}");
}

#[test]
fn the_header_is_read_without_the_rest() {
    let (_, policy, file) = tiny(Preset::Quest, &[("window", "4"), ("recent", "2")]);
    let session = SessionFile::open(&file).expect("a session");
    let header = session.header();
    assert_eq!((header.n_tokens, header.context, header.kv_dtype), (29, 64, DType::F16));
    assert_eq!(header.policy_options(), Ok(policy));
    let written = Fingerprint { tokenizer: None, ..fingerprint() };
    assert_eq!(header.fingerprint, written, "the vocabulary says what the tokenizer is");
    assert_eq!(header.fingerprint.to_string().len(), 16);
    assert_eq!(FORMAT_VERSION, 2);
}
