//! Session files, as they are and with their digests made right.
//!
//! Every byte of a session is proved by a digest, so that a change anywhere ends at the first
//! check. Somebody who writes a file to do harm computes the digests of it, and so does
//! [`sealed`]: behind it the fields must hold together, or the file must be refused.

use std::sync::{Arc, LazyLock};

use longview_core::DType;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_scheduler::{
    HostRows, KvShape, Policy, SchedulerError, SequenceOptions, SessionContent, SessionFile,
    restore_sequence,
};
use pollster::block_on;

use crate::outcome::Outcome;

/// Length of the stream, digest, end.
const TRAILER_BYTES: usize = 48;

static DEVICE: LazyLock<Arc<CpuBackend>> = LazyLock::new(|| {
    Arc::new(CpuBackend::new(CpuOptions { threads: 1, isa: None }).expect("a processor"))
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
    let mut file = file.verify()?;
    let content = SessionContent::read(&mut file)?;
    let options = SequenceOptions { chunk: 16, tile: 8, ..SequenceOptions::default() };
    let restored = restore_sequence(&DEVICE, shape, policy, options, &mut file);
    let sequence = block_on(restored)?;
    assert_eq!(sequence.n_tokens(), content.tokens.len(), "a token for each row");
    Ok(())
}

/// The file with all digests and the length of the stream made right, as docs/session-format.md
/// says; `None` where it is too short for that.
fn sealed(file: &[u8]) -> Option<Vec<u8>> {
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

    fn fixture() -> Vec<u8> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/session/v1-tiers.lvs");
        std::fs::read(path).unwrap()
    }

    #[test]
    fn a_file_that_is_right_is_not_changed() {
        assert!(sealed(&fixture()) == Some(fixture()));
        assert_eq!(run(&fixture()), Outcome::Used);
    }

    #[test]
    fn a_lie_gets_behind_the_digests() {
        let mut file = fixture();
        let at = file.windows(4).position(|word| word == b"TOKS").unwrap();
        file[at] = b'X';
        let message = |file| open(file).unwrap_err().to_string();
        assert!(message(file.clone()).contains("damaged"), "{}", message(file));
        let message = message(sealed(&file).unwrap());
        assert!(message.contains("its note is not followed by tokens"), "{message}");
    }

    #[test]
    fn what_is_too_short_is_not_sealed() {
        let file = fixture();
        for n in [0, 11, 19, 100, 200] {
            assert!(sealed(&file[..n]).is_none(), "{n} bytes");
            assert_eq!(run(&file[..n]), Outcome::Refused);
        }
    }
}
