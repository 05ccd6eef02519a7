//! Numbers in a row: how records are written to memory, and how they are taken from wherever they
//! lie.

use crate::error::SessionFileError;

/// What is wrong where a list is longer than what is left.
const LIST_ENDS: &str = "it ends within a list";

/// A record that is being written.
#[derive(Debug, Default)]
pub(crate) struct FieldWriter(Vec<u8>);

impl FieldWriter {
    /// What was written.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// Adds bytes.
    pub fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Adds a number.
    pub fn u8(&mut self, x: u8) {
        self.0.push(x);
    }

    /// Adds 0 or 1.
    pub fn flag(&mut self, x: bool) {
        self.u8(x.into());
    }

    /// Adds a number.
    pub fn u32(&mut self, x: u32) {
        self.bytes(&x.to_le_bytes());
    }

    /// Adds a number.
    pub fn u64(&mut self, x: usize) {
        self.bytes(&(x as u64).to_le_bytes());
    }

    /// Adds numbers, without their count.
    pub fn u32s(&mut self, values: &[u32]) {
        self.0.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    }

    /// Adds numbers, without their count.
    pub fn f32s(&mut self, values: &[f32]) {
        self.0.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    }

    /// Adds numbers, without their count.
    pub fn f64s(&mut self, values: &[f64]) {
        self.0.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    }

    /// Adds a text behind its length.
    pub fn text(&mut self, text: &str) {
        self.u32(text.len() as u32);
        self.bytes(text.as_bytes());
    }
}

/// Numbers that are taken one after the other. Nothing is allocated that is longer than what is
/// left.
pub(crate) trait Fields {
    /// Bytes that were not taken yet.
    fn left(&self) -> u64;

    /// Takes the next bytes.
    fn take(&mut self, out: &mut [u8]) -> Result<(), SessionFileError>;

    /// Takes the next `N` bytes.
    fn array<const N: usize>(&mut self) -> Result<[u8; N], SessionFileError> {
        let mut bytes = [0; N];
        self.take(&mut bytes)?;
        Ok(bytes)
    }

    /// Takes a number.
    fn u8(&mut self) -> Result<u8, SessionFileError> {
        Ok(self.array::<1>()?[0])
    }

    /// Takes a number that is 0 or 1.
    fn flag(&mut self) -> Result<bool, SessionFileError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(SessionFileError::Inconsistent("a flag is neither 0 nor 1")),
        }
    }

    /// Takes a number.
    fn u32(&mut self) -> Result<u32, SessionFileError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    /// Takes a number that must be at most `most`.
    fn number(&mut self, most: usize, what: &'static str) -> Result<usize, SessionFileError> {
        let number = u64::from_le_bytes(self.array()?);
        let number = usize::try_from(number).ok().filter(|n| *n <= most);
        number.ok_or(SessionFileError::Inconsistent(what))
    }

    /// Takes `n` bytes.
    fn bytes(&mut self, n: usize) -> Result<Vec<u8>, SessionFileError> {
        if n as u64 > self.left() {
            return Err(SessionFileError::Inconsistent(LIST_ENDS));
        }
        let mut bytes = vec![0; n];
        self.take(&mut bytes)?;
        Ok(bytes)
    }

    /// Takes `n` numbers of `N` bytes.
    fn list<const N: usize, T>(
        &mut self,
        n: usize,
        from: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, SessionFileError> {
        if (n as u64).checked_mul(N as u64).is_none_or(|bytes| bytes > self.left()) {
            return Err(SessionFileError::Inconsistent(LIST_ENDS));
        }
        (0..n).map(|_| Ok(from(self.array()?))).collect()
    }

    /// Takes `n` numbers.
    fn u32s(&mut self, n: usize) -> Result<Vec<u32>, SessionFileError> {
        self.list(n, u32::from_le_bytes)
    }

    /// Takes `n` numbers.
    fn f32s(&mut self, n: usize) -> Result<Vec<f32>, SessionFileError> {
        self.list(n, f32::from_le_bytes)
    }

    /// Takes `n` numbers.
    fn f64s(&mut self, n: usize) -> Result<Vec<f64>, SessionFileError> {
        self.list(n, f64::from_le_bytes)
    }

    /// Takes a text behind its length.
    fn text(&mut self) -> Result<String, SessionFileError> {
        let len = self.u32()? as usize;
        let bytes = self.bytes(len)?;
        String::from_utf8(bytes)
            .map_err(|_| SessionFileError::Inconsistent("a text of it is no UTF-8"))
    }
}

/// A record in memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct SliceFields<'a>(pub &'a [u8]);

impl SliceFields<'_> {
    /// Nothing may be left.
    pub fn end(&self) -> Result<(), SessionFileError> {
        if self.0.is_empty() {
            return Ok(());
        }
        Err(SessionFileError::Inconsistent("a record has more than it should"))
    }
}

impl<'a> SliceFields<'a> {
    /// Takes `n` bytes where they lie.
    pub fn slice(&mut self, n: usize) -> Result<&'a [u8], SessionFileError> {
        self.part(n, LIST_ENDS)
    }

    /// The next `n` bytes; what to say where there are fewer.
    fn part(&mut self, n: usize, ends: &'static str) -> Result<&'a [u8], SessionFileError> {
        let ends = SessionFileError::Inconsistent(ends);
        let (now, rest) = self.0.split_at_checked(n).ok_or(ends)?;
        self.0 = rest;
        Ok(now)
    }
}

impl Fields for SliceFields<'_> {
    fn left(&self) -> u64 {
        self.0.len() as u64
    }

    fn take(&mut self, out: &mut [u8]) -> Result<(), SessionFileError> {
        out.copy_from_slice(self.part(out.len(), "it ends within a field")?);
        Ok(())
    }

    /// All at once: number by number, each asks whether there is one more.
    fn list<const N: usize, T>(
        &mut self,
        n: usize,
        from: impl Fn([u8; N]) -> T,
    ) -> Result<Vec<T>, SessionFileError> {
        let bytes = self.part(n.saturating_mul(N), LIST_ENDS)?;
        let (numbers, _) = bytes.as_chunks::<N>();
        Ok(numbers.iter().map(|bytes| from(*bytes)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<T>(result: Result<T, SessionFileError>) -> String {
        match result {
            Err(SessionFileError::Inconsistent(what)) => what.to_owned(),
            Err(other) => other.to_string(),
            Ok(_) => "it was taken".to_owned(),
        }
    }

    #[test]
    fn fields_come_back_in_their_order() {
        let mut out = FieldWriter::default();
        out.bytes(b"NAME");
        out.flag(true);
        out.u64(77);
        out.u32s(&[1, u32::MAX]);
        out.f32s(&[0.5, -2.0]);
        out.f64s(&[0.1]);
        out.text("é");
        out.bytes(&[9, 8, 7]);
        let bytes = out.into_bytes();
        let mut file = SliceFields(&bytes);
        assert_eq!(file.left(), 4 + 1 + 8 + 8 + 8 + 8 + 6 + 3);
        assert_eq!(file.array().unwrap(), *b"NAME");
        assert!(file.flag().unwrap());
        assert_eq!(file.number(77, "a number").unwrap(), 77);
        assert_eq!((file.u32().unwrap(), file.u32s(1).unwrap()), (1, vec![u32::MAX]));
        assert_eq!(file.f32s(2).unwrap(), [0.5, -2.0]);
        assert_eq!(file.f64s(1).unwrap(), [0.1]);
        assert_eq!(file.text().unwrap(), "é");
        assert_eq!(said(file.end()), "a record has more than it should");
        assert_eq!(file.bytes(3).unwrap(), vec![9, 8, 7]);
        file.end().unwrap();
    }

    #[test]
    fn fields_that_say_what_they_must_not_are_refused() {
        let mut out = FieldWriter::default();
        out.u64(8);
        out.u8(2);
        out.u32(1);
        out.u8(0xff);
        let bytes = out.into_bytes();
        assert_eq!(said(SliceFields(&bytes).number(7, "too many")), "too many");
        assert_eq!(said(SliceFields(&bytes[8..]).flag()), "a flag is neither 0 nor 1");
        assert_eq!(said(SliceFields(&bytes[9..]).text()), "a text of it is no UTF-8");
    }

    #[test]
    fn a_list_that_is_longer_than_the_record_is_refused_before_it_is_allocated() {
        let bytes = [0; 15];
        let ends = "it ends within a list";
        assert_eq!(said(SliceFields(&bytes).bytes(16)), ends);
        assert_eq!(said(SliceFields(&bytes).u32s(4)), ends);
        assert_eq!(said(SliceFields(&bytes).f64s(usize::MAX)), ends);
        assert_eq!(SliceFields(&bytes).f32s(3).unwrap(), [0.0; 3]);
        assert_eq!(said(SliceFields(&bytes[..3]).u32()), "it ends within a field");
    }
}
