//! Session files, as they are and with their digests made right.
//!
//! Every byte of a session is proved by a digest, so that a change anywhere ends at the first
//! check. Somebody who writes a file to do harm computes the digests of it, and so does
//! [`sealed`]: behind it the fields must hold together, or the file must be refused.

use std::sync::{Arc, LazyLock};

use longview_core::DType;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_scheduler::{
    HostRows, KvShape, Policy, SchedulerError, SequenceOptions, SessionFile, restore_sequence,
};
use pollster::block_on;

use crate::outcome::Outcome;

/// Length of the stream, digest, end, of a file of version 1.
const TRAILER_BYTES: usize = 48;

/// Layers of a file are read by both threads.
static DEVICE: LazyLock<Arc<CpuBackend>> = LazyLock::new(|| {
    Arc::new(CpuBackend::new(CpuOptions { threads: 2, isa: None }).expect("a processor"))
});

pub(super) fn run(bytes: &[u8]) -> Outcome {
    let plain = Outcome::of(open(bytes.to_vec()));
    match sealed(bytes) {
        Some(sealed) if sealed != bytes => Outcome::of(open(sealed)),
        _ => plain,
    }
}

/// The model of the files in `tests/fixtures/session`.
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

/// Opens a file as the engine does, of whatever model it says that it is.
fn open(bytes: Vec<u8>) -> Result<(), SchedulerError> {
    let file = SessionFile::open(&bytes)?;
    let (header, shape) = (file.header(), shape());
    header.check(&header.fingerprint, &shape)?;
    let policy = Policy::resolve(&header.policy_options()?, header.context)?;
    let mut file = file.read()?;
    let content = file.content()?;
    let options = SequenceOptions { chunk: 16, tile: 8, ..SequenceOptions::default() };
    let restored = restore_sequence(&DEVICE, shape, policy, options, &mut file);
    let sequence = block_on(restored)?;
    assert_eq!(sequence.n_tokens(), content.tokens.len(), "a token for each row");
    Ok(())
}

/// The file with all digests made right, as its version has them; `None` where it is too short for
/// that.
fn sealed(file: &[u8]) -> Option<Vec<u8>> {
    match file.get(8)? {
        1 => sealed_stream(file),
        _ => sealed_records(file),
    }
}

/// Header, records that lie within the file, directory and trailer, as docs/session-format.md says.
fn sealed_records(file: &[u8]) -> Option<Vec<u8>> {
    let mut file = file.to_vec();
    let header = u32::from_le_bytes(*file.get(12..)?.first_chunk()?) as usize;
    let trailer = file.len().checked_sub(64)?;
    let proof_at = header.checked_sub(32).filter(|_| header <= trailer)?;
    let proof = blake3::hash(&file[..proof_at]);
    file[proof_at..header].copy_from_slice(proof.as_bytes());
    let long = |file: &[u8], at: usize| {
        let bytes = file[at..at + 8].try_into().expect("8 bytes");
        usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(usize::MAX)
    };
    // A directory that lies elsewhere, or that a change made longer, ends where the trailer begins.
    let directory = long(&file, trailer).clamp(header, trailer);
    for entry in (directory..trailer).step_by(80).filter(|entry| entry + 80 <= trailer) {
        let (at, len) = (long(&file, entry + 32), long(&file, entry + 40));
        let Some(record) = at.checked_add(len).and_then(|end| file.get(at..end)) else { continue };
        let digest = *blake3::hash(record).as_bytes();
        file[entry + 48..entry + 80].copy_from_slice(&digest);
    }
    file[trailer..trailer + 8].copy_from_slice(&(directory as u64).to_le_bytes());
    let len = (trailer - directory) as u64;
    file[trailer + 8..trailer + 16].copy_from_slice(&len.to_le_bytes());
    let whole = [&file[..header], &file[directory..trailer + 24]].concat();
    file[trailer + 24..trailer + 56].copy_from_slice(blake3::hash(&whole).as_bytes());
    file[trailer + 56..].copy_from_slice(b"LVS-end\n");
    Some(file)
}

/// Header, blocks, length of the stream and trailer, as docs/session-format-1.md says.
fn sealed_stream(file: &[u8]) -> Option<Vec<u8>> {
    let mut file = file.to_vec();
    let word = |at: usize| Some(u32::from_le_bytes(*file.get(at..)?.first_chunk()?) as usize);
    let (header, block) = (word(12)?, word(16)?.max(1));
    let rest = file.len().checked_sub(header.checked_add(TRAILER_BYTES)?)?;
    let proof_at = header.checked_sub(32)?;
    let n_blocks = rest.div_ceil(block + 32);
    let length = rest.checked_sub(32 * n_blocks)?;
    let proof = blake3::hash(&file[..proof_at]);
    file[proof_at..header].copy_from_slice(proof.as_bytes());
    let stream = file[header..header + length].chunks(block);
    let table: Vec<u8> = stream.flat_map(|block| *blake3::hash(block).as_bytes()).collect();
    file.truncate(header + length);
    let length = (length as u64).to_le_bytes();
    let whole = [&file[..header], &table, &length].concat();
    file.extend([&table[..], &length, blake3::hash(&whole).as_bytes(), b"LVS-end\n"].concat());
    Some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(version: u8) -> Vec<u8> {
        let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/session");
        std::fs::read(format!("{fixtures}/v{version}-tiers.lvs")).unwrap()
    }

    #[test]
    fn a_file_that_is_right_is_not_changed() {
        for version in [1, 2] {
            let fixture = fixture(version);
            assert!(sealed(&fixture) == Some(fixture.clone()), "version {version}");
            assert_eq!(run(&fixture), Outcome::Used);
        }
    }

    #[test]
    fn a_lie_gets_behind_the_digests() {
        let message = |file| open(file).unwrap_err().to_string();
        let mut file = fixture(1);
        let at = file.windows(4).position(|word| word == b"TOKS").unwrap();
        file[at] = b'X';
        assert!(message(file.clone()).contains("damaged"), "{}", message(file));
        let said = message(sealed(&file).unwrap());
        assert!(said.contains("its note is not followed by tokens"), "{said}");
        let mut file = fixture(2);
        // The context, in what the session says of itself: the first record.
        let header = u32::from_le_bytes(*file[12..].first_chunk().unwrap()) as usize;
        file[header + 7] = 0xff;
        assert!(message(file.clone()).contains("damaged"), "{}", message(file));
        let said = message(sealed(&file).unwrap());
        assert!(said.contains("its number of tokens"), "{said}");
    }

    #[test]
    fn what_is_too_short_is_not_sealed() {
        for version in [1, 2] {
            let file = fixture(version);
            for n in [0, 11, 19, 60, 100, 120] {
                assert!(sealed(&file[..n]).is_none(), "{n} bytes of version {version}");
                assert_eq!(run(&file[..n]), Outcome::Refused);
            }
        }
    }
}
