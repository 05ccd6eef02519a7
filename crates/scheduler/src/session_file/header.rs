//! What a file was made with: its first part, with a digest of its own.

use std::fmt;

use longview_core::{DType, RangeSource};

use super::block::is_block_size;
use super::digest::{Digest, digest};
use crate::error::{DamagedPart, Difference, SessionFileError};
use crate::layout::KvShape;
use crate::policy::{MAX_CONTEXT, PolicyError, PolicyOptions};

/// The first bytes of a session file. The first is no letter of any text, and line ends show what
/// has mangled it.
pub const SESSION_MAGIC: &[u8; 8] = b"\x89LVS\r\n\x1a\n";
/// The format that this release writes, and the only one that it reads.
pub const FORMAT_VERSION: u32 = 1;
/// Magic, version, length of the header.
const PREFIX_BYTES: usize = 16;
/// The longest header.
const MAX_HEADER_BYTES: usize = 1 << 20;
/// The most layers, heads, or elements of a head.
const MAX_DIMENSION: usize = 1 << 20;

/// One part of what a session depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FingerprintPart {
    /// Tells it from others.
    pub digest: Digest,
    /// What it is, for messages.
    pub about: String,
}

/// What the keys and values of a session depend on, beside its tokens. The scheduler compares; the
/// caller knows what the parts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fingerprint {
    /// The model's dimensions and choices, without positions.
    pub config: FingerprintPart,
    /// The weight files, by what is in them.
    pub weights: FingerprintPart,
    /// The tokenizer, since a session keeps token ids.
    pub tokenizer: FingerprintPart,
    /// Its position embedding as it is used.
    pub rope: FingerprintPart,
}

impl fmt::Display for Fingerprint {
    /// 16 hexadecimal digits over all parts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.parts().map(|(_, part, _)| part.digest);
        digest(all.as_flattened())[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Fingerprint {
    /// Name, part and what to do if it differs, in the order of the file.
    fn parts(&self) -> [(&'static str, &FingerprintPart, &'static str); 4] {
        [
            ("model", &self.config, "name the model that it was made with"),
            ("weights", &self.weights, "name the model that it was made with"),
            ("tokenizer", &self.tokenizer, "use the tokenizer.json that it was made with"),
            ("positions", &self.rope, "use the --rope-scaling that it was made with"),
        ]
    }
}

/// What a file was made with.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionHeader {
    /// Model, tokenizer, positions.
    pub fingerprint: Fingerprint,
    /// How keys and values are stored.
    pub kv_dtype: DType,
    /// Layers of the model, all of which the file has.
    pub n_layers: usize,
    /// Query heads of a layer.
    pub n_q_heads: usize,
    /// KV heads of a layer, which divide the query heads.
    pub n_kv_heads: usize,
    /// Elements of a key, and of a value.
    pub head_dim: usize,
    /// Most tokens of the session when it was saved.
    pub context: usize,
    /// Tokens whose rows the file has; at most `context`.
    pub n_tokens: usize,
    /// What the user said about the policy, as [`PolicyOptions::text`].
    pub options: String,
    /// The policy that came of it, as [`crate::Policy::text`].
    pub policy: String,
}

/// A header and the bytes that it was read from.
pub(super) struct ReadHeader {
    pub header: SessionHeader,
    pub block_bytes: usize,
    pub bytes: Vec<u8>,
}

impl SessionHeader {
    /// The policy that the session was saved under.
    ///
    /// # Errors
    /// If this release does not know it.
    pub fn policy_options(&self) -> Result<PolicyOptions, PolicyError> {
        PolicyOptions::from_text(&self.options)
    }

    /// Fails unless a session of this fingerprint and shape can go on with the file, with every
    /// part that differs.
    ///
    /// # Errors
    /// [`SessionFileError::Wrong`] or [`SessionFileError::TooLong`].
    pub fn check(
        &self,
        fingerprint: &Fingerprint,
        shape: &KvShape,
    ) -> Result<(), SessionFileError> {
        let parts = self.fingerprint.parts().into_iter().zip(fingerprint.parts());
        let differ = parts.filter(|((_, file, _), (_, here, _))| file.digest != here.digest);
        let mut differences: Vec<Difference> = differ
            .map(|((part, file, fix), (_, here, _))| {
                let (file, here) = (file.about.clone(), here.about.clone());
                // Positions of some models depend on the context.
                let fix = match part {
                    "positions" => format!("{fix}, with --ctx-size {}", self.context),
                    _ => fix.to_owned(),
                };
                Difference { part, file, here, fix }
            })
            .collect();
        let dimensions = |[layers, q, kv, d]: [usize; 4]| {
            format!("{layers} layers, {q} query and {kv} KV heads of {d}")
        };
        let file = [self.n_layers, self.n_q_heads, self.n_kv_heads, self.head_dim];
        let here = [shape.n_layers, shape.n_q_heads, shape.n_kv_heads, shape.head_dim];
        if file != here {
            differences.push(Difference {
                part: "dimensions",
                file: dimensions(file),
                here: dimensions(here),
                fix: "name the model that it was made with".into(),
            });
        }
        if self.kv_dtype != shape.kv_dtype {
            differences.push(Difference {
                part: "type of keys and values",
                file: self.kv_dtype.name().into(),
                here: shape.kv_dtype.name().into(),
                fix: "use the --kv-type that it was made with".into(),
            });
        }
        if !differences.is_empty() {
            return Err(SessionFileError::Wrong(differences));
        }
        let (tokens, capacity) = (self.n_tokens, shape.capacity);
        if tokens > capacity {
            let (saved, needed) = (self.context, tokens + 1);
            return Err(SessionFileError::TooLong { tokens, capacity, saved, needed });
        }
        Ok(())
    }

    /// The header's bytes, for blocks of this size.
    pub(super) fn encode(&self, block_bytes: usize) -> Result<Vec<u8>, SessionFileError> {
        assert!(is_block_size(block_bytes), "a block of {block_bytes} bytes");
        let mut bytes = SESSION_MAGIC.to_vec();
        bytes.extend(FORMAT_VERSION.to_le_bytes());
        bytes.extend([0; 4]);
        let dimensions = [self.n_layers, self.n_q_heads, self.n_kv_heads, self.head_dim];
        let words = [block_bytes as u32, dtype_code(self.kv_dtype)];
        let words = words.into_iter().chain(dimensions.map(|n| n as u32));
        words.for_each(|word| bytes.extend(word.to_le_bytes()));
        for number in [self.context, self.n_tokens] {
            bytes.extend((number as u64).to_le_bytes());
        }
        let parts = self.fingerprint.parts();
        parts.iter().for_each(|(_, part, _)| bytes.extend(part.digest));
        let abouts = parts.map(|(_, part, _)| part.about.as_str());
        for text in abouts.into_iter().chain([self.options.as_str(), self.policy.as_str()]) {
            bytes.extend((text.len() as u32).to_le_bytes());
            bytes.extend(text.as_bytes());
        }
        let len = bytes.len() + 32;
        if len > MAX_HEADER_BYTES {
            let reason = "the descriptions in its header take more than a mebibyte";
            return Err(SessionFileError::Write(std::io::Error::other(reason)));
        }
        bytes[12..16].copy_from_slice(&(len as u32).to_le_bytes());
        let digest = digest(&bytes);
        bytes.extend(digest);
        Ok(bytes)
    }
}

/// Reads and proves the header.
pub(super) fn read(source: &dyn RangeSource) -> Result<ReadHeader, SessionFileError> {
    let size = source.size();
    let mut prefix = [0; PREFIX_BYTES];
    // What is shorter than a session but begins like one was cut.
    let n = size.min(PREFIX_BYTES as u64) as usize;
    source.read_at(0, &mut prefix[..n]).map_err(SessionFileError::Read)?;
    let known = n.min(SESSION_MAGIC.len());
    if n == 0 || prefix[..known] != SESSION_MAGIC[..known] {
        return Err(SessionFileError::NotASession);
    }
    if n < PREFIX_BYTES {
        return Err(SessionFileError::Incomplete { size });
    }
    let word = |at: usize| u32::from_le_bytes(prefix[at..at + 4].try_into().expect("4 bytes"));
    if word(8) != FORMAT_VERSION {
        return Err(SessionFileError::Version { found: word(8), supported: FORMAT_VERSION });
    }
    let len = word(12) as usize;
    let damaged = |len: usize| {
        let (part, bytes) = (DamagedPart::Header, 0..len as u64);
        SessionFileError::Damaged { part, bytes }
    };
    if !(PREFIX_BYTES + 32..=MAX_HEADER_BYTES).contains(&len) {
        return Err(damaged(PREFIX_BYTES));
    }
    if len as u64 > size {
        return Err(SessionFileError::Incomplete { size });
    }
    let mut bytes = vec![0; len];
    source.read_at(0, &mut bytes).map_err(SessionFileError::Read)?;
    let (content, written) = bytes.split_at(len - 32);
    if digest(content) != written {
        return Err(damaged(len));
    }
    let (header, block_bytes) = parse(&content[PREFIX_BYTES..])?;
    Ok(ReadHeader { header, block_bytes, bytes })
}

fn parse(content: &[u8]) -> Result<(SessionHeader, usize), SessionFileError> {
    let mut fields = Fields(content);
    let block_bytes = fields.word()? as usize;
    if !is_block_size(block_bytes) {
        return Err(SessionFileError::Inconsistent("the size of its blocks"));
    }
    let code = fields.word()?;
    let kv_dtype = KV_DTYPES.iter().find(|dtype| dtype_code(**dtype) == code);
    let kv_dtype = *kv_dtype.ok_or(SessionFileError::Inconsistent("the type of its rows"))?;
    let mut dimension = || fields.dimension();
    let [n_layers, n_q_heads] = [dimension()?, dimension()?];
    let [n_kv_heads, head_dim] = [dimension()?, dimension()?];
    if n_q_heads % n_kv_heads != 0 {
        return Err(SessionFileError::Inconsistent("its query heads and KV heads"));
    }
    let [context, n_tokens] = [fields.count()?, fields.count()?];
    if n_tokens > context {
        return Err(SessionFileError::Inconsistent("more tokens than its context"));
    }
    let digests: [Digest; 4] =
        [fields.digest()?, fields.digest()?, fields.digest()?, fields.digest()?];
    let mut parts = Vec::with_capacity(4);
    for digest in digests {
        parts.push(FingerprintPart { digest, about: fields.text()? });
    }
    let [config, weights, tokenizer, rope] = parts.try_into().expect("four parts");
    let fingerprint = Fingerprint { config, weights, tokenizer, rope };
    let (options, policy) = (fields.text()?, fields.text()?);
    if !fields.0.is_empty() {
        return Err(SessionFileError::Inconsistent("its header has more than it should"));
    }
    let header = SessionHeader {
        fingerprint,
        kv_dtype,
        n_layers,
        n_q_heads,
        n_kv_heads,
        head_dim,
        context,
        n_tokens,
        options,
        policy,
    };
    Ok((header, block_bytes))
}

/// Types of rows.
const KV_DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

/// The number that stands for a type in files.
fn dtype_code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::U32 | DType::Q8 => panic!("keys and values are numbers with fractions"),
    }
}

/// What is left of a header's fields.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> Result<&'a [u8], SessionFileError> {
        let ends = SessionFileError::Inconsistent("its header ends within a field");
        let (field, rest) = self.0.split_at_checked(n).ok_or(ends)?;
        self.0 = rest;
        Ok(field)
    }

    fn word(&mut self) -> Result<u32, SessionFileError> {
        Ok(u32::from_le_bytes(self.take(4)?.try_into().expect("4 bytes")))
    }

    fn dimension(&mut self) -> Result<usize, SessionFileError> {
        let n = self.word()? as usize;
        let is_sound = (1..=MAX_DIMENSION).contains(&n);
        is_sound.then_some(n).ok_or(SessionFileError::Inconsistent("its dimensions"))
    }

    fn count(&mut self) -> Result<usize, SessionFileError> {
        let n = u64::from_le_bytes(self.take(8)?.try_into().expect("8 bytes"));
        let n = usize::try_from(n).ok().filter(|n| *n <= MAX_CONTEXT);
        n.ok_or(SessionFileError::Inconsistent("its number of tokens"))
    }

    fn digest(&mut self) -> Result<Digest, SessionFileError> {
        Ok(self.take(32)?.try_into().expect("32 bytes"))
    }

    fn text(&mut self) -> Result<String, SessionFileError> {
        let len = self.word()? as usize;
        let text = std::str::from_utf8(self.take(len)?);
        text.map(str::to_owned)
            .map_err(|_| SessionFileError::Inconsistent("a description in its header is no text"))
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::store::fixture::shape;

    fn part(name: &str) -> FingerprintPart {
        FingerprintPart { digest: digest(name.as_bytes()), about: name.to_owned() }
    }

    fn fingerprint() -> Fingerprint {
        Fingerprint {
            config: part("config"),
            weights: part("weights"),
            tokenizer: part("tokenizer"),
            rope: part("rope"),
        }
    }

    /// Five tokens of the small shape.
    pub fn header() -> SessionHeader {
        SessionHeader {
            fingerprint: fingerprint(),
            kv_dtype: DType::F32,
            n_layers: 2,
            n_q_heads: 4,
            n_kv_heads: 2,
            head_dim: 4,
            context: 8,
            n_tokens: 5,
            options: "policy = full".to_owned(),
            policy: "full".to_owned(),
        }
    }

    fn different(change: impl FnOnce(&mut SessionHeader)) -> Vec<&'static str> {
        let mut changed = header();
        change(&mut changed);
        match changed.check(&fingerprint(), &shape()) {
            Ok(()) => Vec::new(),
            Err(SessionFileError::Wrong(differences)) => {
                differences.iter().map(|difference| difference.part).collect()
            }
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn every_part_that_differs_is_named() {
        assert_eq!(different(|_| {}), [""; 0]);
        assert_eq!(different(|h| h.fingerprint.config = part("other")), ["model"]);
        assert_eq!(different(|h| h.fingerprint.weights = part("other")), ["weights"]);
        assert_eq!(different(|h| h.fingerprint.tokenizer = part("other")), ["tokenizer"]);
        assert_eq!(different(|h| h.fingerprint.rope = part("other")), ["positions"]);
        for change in [
            |h: &mut SessionHeader| h.n_layers = 3,
            |h: &mut SessionHeader| h.n_q_heads = 2,
            |h: &mut SessionHeader| h.n_kv_heads = 4,
            |h: &mut SessionHeader| h.head_dim = 8,
        ] {
            assert_eq!(different(change), ["dimensions"]);
        }
        let several = different(|h| {
            h.kv_dtype = DType::F16;
            h.fingerprint.rope = part("other");
        });
        assert_eq!(several, ["positions", "type of keys and values"]);
    }

    #[test]
    fn tokens_must_fit_and_the_context_need_not_be_the_same() {
        let with = |n_tokens, context| SessionHeader { n_tokens, context, ..header() };
        with(8, 100).check(&fingerprint(), &shape()).unwrap();
        let refused = with(9, 100).check(&fingerprint(), &shape());
        let Err(SessionFileError::TooLong { tokens, capacity, saved, needed }) = refused else {
            panic!("{refused:?}")
        };
        assert_eq!((tokens, capacity, saved, needed), (9, 8, 100, 10));
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for kv_dtype in KV_DTYPES {
            let written = SessionHeader { kv_dtype, ..header() };
            let read = super::read(&written.encode(1024).unwrap()).unwrap();
            assert_eq!((read.header, read.block_bytes), (written, 1024));
        }
    }

    #[test]
    fn numbers_that_no_session_has_are_refused() {
        let refused = |change: fn(&mut SessionHeader)| {
            let mut wrong = header();
            change(&mut wrong);
            match super::read(&wrong.encode(512).unwrap()) {
                Err(SessionFileError::Inconsistent(what)) => what,
                _ => "it was taken",
            }
        };
        assert_eq!(refused(|h| h.n_tokens = 9), "more tokens than its context");
        assert_eq!(refused(|h| h.n_kv_heads = 3), "its query heads and KV heads");
        assert_eq!(refused(|h| h.n_kv_heads = 0), "its dimensions");
        assert_eq!(refused(|h| h.head_dim = MAX_DIMENSION + 1), "its dimensions");
        assert_eq!(refused(|h| h.context = MAX_CONTEXT + 1), "its number of tokens");
    }

    #[test]
    fn what_is_no_session_is_told_from_one_that_was_cut() {
        let sound = header().encode(512).unwrap();
        let of = |bytes: &[u8]| super::read(&bytes.to_vec()).err();
        assert!(matches!(of(b""), Some(SessionFileError::NotASession)));
        assert!(matches!(of(b"GGUF and more"), Some(SessionFileError::NotASession)));
        for n in [1, 8, 15, 16, sound.len() - 1] {
            assert!(matches!(of(&sound[..n]), Some(SessionFileError::Incomplete { .. })), "{n}");
        }
        let mut newer = sound.clone();
        newer[8] = 2;
        let version = of(&newer);
        assert!(matches!(version, Some(SessionFileError::Version { found: 2, supported: 1 })));
    }

    #[test]
    fn the_short_form_of_a_fingerprint_is_of_all_parts() {
        let text = fingerprint().to_string();
        assert_eq!(text.len(), 16);
        for i in 0..4 {
            let mut other = fingerprint();
            let parts =
                [&mut other.config, &mut other.weights, &mut other.tokenizer, &mut other.rope];
            parts.into_iter().nth(i).unwrap().digest[31] ^= 1;
            assert_ne!(other.to_string(), text);
        }
    }
}
