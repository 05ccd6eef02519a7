//! A record that is read in pieces, and its digest.
//!
//! To compute a digest takes about as long as to read bytes and to put them into the host store.
//! So a thread beside does it for records that are long, where there are threads: what is opened
//! from the page cache is then as fast as memory takes it.

use std::io;

use blake3::Hasher;

use super::digest::Digest;

/// Records up to this many bytes are done sooner than a thread begins.
#[cfg(any(test, not(target_arch = "wasm32")))]
const SHORT: u64 = 1 << 20;

/// Reads `len` bytes in pieces of `step`, hands each to `take` with its place, and returns the
/// digest of all.
pub(super) fn read_pieces(
    len: u64,
    step: usize,
    mut read: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    mut take: impl FnMut(u64, &[u8]),
) -> io::Result<Digest> {
    #[cfg(not(target_arch = "wasm32"))]
    if len > SHORT
        && let Some(digest) = beside(len, step, &mut read, &mut take)
    {
        return digest;
    }
    let mut hasher = Hasher::new();
    each(len, step, &mut read, |at, bytes| {
        hasher.update(&bytes);
        take(at, &bytes);
        bytes
    })?;
    Ok(*hasher.finalize().as_bytes())
}

/// Calls `give` with each piece; it returns memory for another one.
fn each(
    len: u64,
    step: usize,
    read: &mut impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    mut give: impl FnMut(u64, Vec<u8>) -> Vec<u8>,
) -> io::Result<()> {
    let (mut at, mut bytes) = (0, Vec::new());
    while at < len {
        let n = (len - at).min(step as u64);
        bytes.resize(n as usize, 0);
        read(at, &mut bytes)?;
        bytes = give(at, bytes);
        at += n;
    }
    Ok(())
}

/// [`read_pieces`] with a thread for the digest; `None` where the system has none, before anything
/// was read.
#[cfg(not(target_arch = "wasm32"))]
fn beside(
    len: u64,
    step: usize,
    read: &mut impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    take: &mut impl FnMut(u64, &[u8]),
) -> Option<io::Result<Digest>> {
    use std::sync::mpsc::channel;

    std::thread::scope(|scope| {
        let (full, pieces) = channel::<Vec<u8>>();
        let (done, free) = channel();
        // Two more than the one that is being read: the thread is at most so far behind.
        (0..2).for_each(|_| drop(done.send(Vec::new())));
        let hashing = std::thread::Builder::new().spawn_scoped(scope, move || {
            let mut hasher = Hasher::new();
            for bytes in pieces {
                hasher.update(&bytes);
                // Nobody waits for memory behind the last piece.
                done.send(bytes).ok();
            }
            *hasher.finalize().as_bytes()
        });
        let hashing = hashing.ok()?;
        let result = each(len, step, read, |at, bytes| {
            take(at, &bytes);
            full.send(bytes).ok();
            free.recv().unwrap_or_default()
        });
        drop(full);
        let digest = hashing.join().expect("to hash bytes never panics");
        Some(result.map(|()| digest))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(len: u64) -> Vec<u8> {
        (0..len).map(|i| (i * i / 251) as u8).collect()
    }

    #[test]
    fn pieces_come_in_order_and_all_of_them_are_in_the_digest() {
        let step = 100_000;
        for len in [0, 1, 100_000, 100_001, SHORT, SHORT + 1, 3 * SHORT + 7] {
            let (all, mut taken) = (bytes(len), Vec::new());
            let read = |at: u64, out: &mut [u8]| {
                out.copy_from_slice(&all[at as usize..][..out.len()]);
                Ok(())
            };
            let digest = read_pieces(len, step, read, |at, piece| {
                assert_eq!(at, taken.len() as u64);
                assert!(piece.len() == step || at + piece.len() as u64 == len);
                taken.extend_from_slice(piece);
            });
            assert!(taken == all, "{len}");
            assert_eq!(digest.unwrap(), *blake3::hash(&all).as_bytes(), "{len}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_ends_the_thread() {
        for len in [SHORT, 2 * SHORT] {
            let mut n_taken = 0;
            let read = |at: u64, _: &mut [u8]| {
                if at < 700_000 { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
            };
            let error = read_pieces(len, 100_000, read, |_, _| n_taken += 1).unwrap_err();
            assert_eq!((error.kind(), n_taken), (io::ErrorKind::UnexpectedEof, 7));
        }
    }
}
