//! Records that one thread reads, and another one proves.
//!
//! To compute a digest takes about as long as to read bytes and to take them over. So a thread
//! beside does it for files that are long, where there are threads: what is opened from the page
//! cache is then as fast as memory takes it. It goes through a file once, in the order in which
//! records are read, and may be some mebibytes behind: rows wait for it, and it catches up while an
//! index is taken over.

use std::cell::{Cell, RefCell};
use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Builder, Scope, scope};

use blake3::Hasher;

use super::digest::Digest;
use crate::error::SessionFileError;

/// Files up to this many bytes are done sooner than a thread begins.
const SHORT: u64 = 1 << 20;
/// Bytes that were read and are not proved yet, at most, but for a record that is longer.
const BEHIND: usize = 16 << 20;

/// What a record must be, and what to say where it is not.
pub(super) trait Claim: Clone + Send + Sync {
    fn digest(&self) -> Digest;
    fn refuse(&self) -> SessionFileError;
}

/// Bytes of records on their way, in memory that is used again.
struct Piece<C> {
    bytes: Vec<u8>,
    /// Those in use, from the first on.
    len: usize,
    /// Of the record that ends here.
    end: Option<C>,
}

/// Compares records with their digests.
pub(super) struct Proofs<'a, C> {
    way: Way<'a, C>,
    /// Bytes that are not proved yet.
    behind: Cell<usize>,
}

enum Way<'a, C> {
    Here(Box<RefCell<(Hasher, Vec<u8>)>>),
    Beside { full: Sender<Piece<C>>, free: Receiver<Piece<C>>, refused: &'a OnceLock<C> },
}

/// Calls `read`, which reads some records of a file of `len` bytes through the proofs that it gets:
/// what is made of them must not be used unless this succeeds. A record that is not what it must be
/// is the error, whatever `read` made of it.
pub(super) fn proved<C: Claim, T, E: From<SessionFileError>>(
    len: u64,
    read: impl FnOnce(&Proofs<'_, C>) -> Result<T, E>,
) -> Result<T, E> {
    if len <= SHORT || cfg!(target_arch = "wasm32") {
        return read(&Proofs::here());
    }
    let refused = OnceLock::new();
    // The thread has proved all that was read when the scope ends.
    let result = scope(|scope| {
        let proofs = Proofs::beside(scope, &refused).unwrap_or_else(|_| Proofs::here());
        read(&proofs)
    });
    match refused.into_inner() {
        Some(claim) => Err(claim.refuse().into()),
        None => result,
    }
}

impl<'a, C: Claim> Proofs<'a, C> {
    /// Of records that are proved by the thread that reads them.
    pub fn here() -> Self {
        Self { way: Way::Here(Default::default()), behind: Cell::new(0) }
    }

    fn beside<'scope>(
        scope: &'scope Scope<'scope, '_>,
        refused: &'a OnceLock<C>,
    ) -> io::Result<Self>
    where
        C: 'scope,
        'a: 'scope,
    {
        let (full, pieces) = channel::<Piece<C>>();
        let (done, free) = channel();
        Builder::new().spawn_scoped(scope, move || {
            let mut hasher = Hasher::new();
            for piece in pieces {
                hasher.update(&piece.bytes[..piece.len]);
                if let Some(claim) = &piece.end
                    && end(&mut hasher) != claim.digest()
                {
                    // The first one is told.
                    refused.get_or_init(|| claim.clone());
                }
                // Nobody waits for memory behind the last piece.
                done.send(piece).ok();
            }
        })?;
        Ok(Self { way: Way::Beside { full, free, refused }, behind: Cell::new(0) })
    }

    /// Reads the next `len` bytes of a record, calls `take` with them, and proves them; `end` is
    /// what the record must be where it ends here.
    pub fn piece<T>(
        &self,
        len: usize,
        end: Option<&C>,
        read: impl FnOnce(&mut [u8]) -> io::Result<()>,
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T, SessionFileError> {
        match &self.way {
            Way::Here(state) => {
                let (hasher, bytes) = &mut *state.borrow_mut();
                let bytes = sized(bytes, len);
                read(bytes).map_err(SessionFileError::Read)?;
                hasher.update(bytes);
                let taken = take(bytes);
                match end.filter(|claim| self::end(hasher) != claim.digest()) {
                    Some(claim) => Err(claim.refuse()),
                    None => Ok(taken),
                }
            }
            Way::Beside { full, free, refused } => {
                let mut bytes = self.room(free, len);
                let in_use = sized(&mut bytes, len);
                read(in_use).map_err(SessionFileError::Read)?;
                let taken = take(in_use);
                self.behind.set(self.behind.get() + len);
                full.send(Piece { bytes, len, end: end.cloned() }).ok();
                match refused.get() {
                    Some(claim) => Err(claim.refuse()),
                    None => Ok(taken),
                }
            }
        }
    }

    /// Memory for `len` bytes, when not too many are behind.
    fn room(&self, free: &Receiver<Piece<C>>, len: usize) -> Vec<u8> {
        let mut room = Vec::new();
        loop {
            let behind = self.behind.get();
            let waits = behind > 0 && behind + len > BEHIND;
            // A thread that is gone gives nothing back.
            let piece = if waits { free.recv().ok() } else { free.try_recv().ok() };
            let Some(piece) = piece else { return room };
            self.behind.set(behind - piece.len);
            if piece.bytes.len() > room.len() {
                room = piece.bytes;
            }
        }
    }
}

/// Ends a record; the next one begins.
fn end(hasher: &mut Hasher) -> Digest {
    let digest = *hasher.finalize().as_bytes();
    hasher.reset();
    digest
}

/// The first `len` of these bytes, or as many new ones.
fn sized(bytes: &mut Vec<u8>, len: usize) -> &mut [u8] {
    if bytes.len() < len {
        *bytes = vec![0; len];
    }
    &mut bytes[..len]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record, by its number.
    #[derive(Clone, Debug)]
    struct Record(usize, Digest);

    impl Claim for Record {
        fn digest(&self) -> Digest {
            self.1
        }

        fn refuse(&self) -> SessionFileError {
            SessionFileError::Inconsistent(["first", "second", "third"][self.0])
        }
    }

    const STEP: usize = 100_000;

    fn bytes(len: usize, seed: usize) -> Vec<u8> {
        (0..len).map(|i| (i * i / 251 + seed) as u8).collect()
    }

    /// Records of these bytes, proved piece by piece: what was taken of each.
    fn read(file_len: u64, all: &[Vec<u8>], what: &[Record]) -> Result<Vec<Vec<u8>>, String> {
        let read = |proofs: &Proofs<'_, Record>| {
            let mut taken = Vec::new();
            for (record, bytes) in what.iter().zip(all) {
                let mut own = Vec::new();
                while own.len() < bytes.len() {
                    let rest = &bytes[own.len()..];
                    let len = rest.len().min(STEP);
                    let copy = |out: &mut [u8]| {
                        out.copy_from_slice(&rest[..len]);
                        Ok(())
                    };
                    let end = (len == rest.len()).then_some(record);
                    proofs.piece(len, end, copy, |piece| own.extend_from_slice(piece))?;
                }
                taken.push(own);
            }
            Ok::<_, SessionFileError>(taken)
        };
        proved(file_len, read).map_err(|error| error.to_string())
    }

    fn records(all: &[Vec<u8>]) -> Vec<Record> {
        let digest = |bytes: &Vec<u8>| *blake3::hash(bytes).as_bytes();
        all.iter().enumerate().map(|(i, bytes)| Record(i, digest(bytes))).collect()
    }

    /// Short files are proved by one thread, long ones by two.
    const FILES: [u64; 2] = [SHORT, SHORT + 1];

    #[test]
    fn one_thread_and_two_take_and_prove_the_same() {
        for lens in [[1, 2, 3], [STEP, STEP + 1, 7 * STEP], [3 * STEP - 1, 1, 2 * BEHIND]] {
            let all = lens.map(|len| bytes(len, len));
            for file in FILES {
                assert!(read(file, &all, &records(&all)) == Ok(all.to_vec()), "{lens:?}");
            }
        }
    }

    #[test]
    fn the_first_record_that_is_damaged_is_told() {
        let all = [4 * STEP, 5 * STEP, 6 * STEP].map(|len| bytes(len, 1));
        let whole = records(&all);
        for file in FILES {
            for (first, last) in [(0, 0), (0, 2), (1, 2), (2, 2)] {
                let mut what = whole.clone();
                (first..=last).for_each(|i| what[i].1[5] ^= 1);
                let name = ["first", "second", "third"][first];
                let error = read(file, &all, &what).unwrap_err();
                assert!(error.contains(name), "{error}");
            }
        }
    }

    /// What is made of a record that is damaged may be an error too, or that of a later one.
    #[test]
    fn damage_goes_before_other_errors() {
        let bytes = bytes(3 * STEP, 2);
        for file in FILES {
            for (damage, want) in [(1, "first"), (0, "parsed")] {
                let mut record = Record(0, *blake3::hash(&bytes).as_bytes());
                record.1[0] ^= damage;
                let copy = |out: &mut [u8]| {
                    out.copy_from_slice(&bytes);
                    Ok(())
                };
                let parse = |_: &[u8]| Err(SessionFileError::Inconsistent("parsed"));
                let read = |proofs: &Proofs<'_, Record>| -> Result<(), SessionFileError> {
                    proofs.piece(bytes.len(), Some(&record), copy, parse)?
                };
                let error = proved(file, read).unwrap_err().to_string();
                assert!(error.contains(want), "{error}");
            }
        }
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_ends_the_thread() {
        for file in FILES {
            let mut n_taken = 0;
            let error = proved(file, |proofs: &Proofs<'_, Record>| {
                for n in 0.. {
                    let fails = |_: &mut [u8]| match n {
                        0..7 => Ok(()),
                        _ => Err(io::ErrorKind::UnexpectedEof.into()),
                    };
                    proofs.piece(STEP, None, fails, |_| n_taken += 1)?;
                }
                Ok::<_, SessionFileError>(())
            });
            let Err(SessionFileError::Read(error)) = error else { panic!("{error:?}") };
            assert_eq!((error.kind(), n_taken), (io::ErrorKind::UnexpectedEof, 7));
        }
    }
}
