//! What a file was made with: its first part, with a digest of its own, and what a session says
//! of itself, which changes when it is appended to.

use std::fmt;

use longview_core::{DType, RangeSource};

use super::digest::{Digest, digest};
use super::fields::{FieldWriter, Fields, SliceFields};
use crate::error::{DamagedPart, Difference, SessionFileError};
use crate::layout::{HostRows, KvShape, PrefillMode};
use crate::policy::{MAX_CONTEXT, PolicyError, PolicyOptions};

/// The first bytes of a session file. The first is no letter of any text, and line ends show what
/// has mangled it.
pub const SESSION_MAGIC: &[u8; 8] = b"\x89LVS\r\n\x1a\n";
/// The format that this release writes. It reads this one and those before.
pub const FORMAT_VERSION: u32 = 2;
/// Magic, version, length of the header.
pub(super) const PREFIX_BYTES: usize = 16;
/// The longest header.
const MAX_HEADER_BYTES: usize = 1 << 20;
/// Says that every token attended to every token before it.
const READ_EXACTLY: u32 = 0;
/// Says that they attended to the blocks that counted; the threshold follows.
const READ_SPARSELY: u32 = 1;
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
    /// The file of the tokenizer, as files of version 1 have it.
    pub tokenizer: Option<FingerprintPart>,
    /// The text of each token, since a session keeps token ids. The same for a tokenizer.json and a
    /// GGUF file of one model.
    pub vocabulary: Option<FingerprintPart>,
    /// Its position embedding as it is used.
    pub rope: FingerprintPart,
}

impl fmt::Display for Fingerprint {
    /// 16 hexadecimal digits over all parts; of tokenizer and vocabulary the first that there is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = self.tokenizer.as_ref().or(self.vocabulary.as_ref());
        let parts = [Some(&self.config), Some(&self.weights), texts, Some(&self.rope)];
        let all: Vec<Digest> = parts.into_iter().flatten().map(|part| part.digest).collect();
        digest(all.as_flattened())[..8].iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The parts of a fingerprint by their numbers in files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
enum PartKind {
    Config = 0,
    Weights = 1,
    Tokenizer = 2,
    Rope = 3,
    Vocabulary = 4,
}

impl PartKind {
    /// Its name in messages, and what to do if it differs.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::Config => ("model", "name the model that it was made with"),
            Self::Weights => ("weights", "name the model that it was made with"),
            Self::Tokenizer => ("tokenizer", "use the tokenizer.json that it was made with"),
            Self::Vocabulary => ("vocabulary", "use the tokenizer that it was made with"),
            Self::Rope => ("positions", "use the --rope-scaling that it was made with"),
        }
    }
}

impl Fingerprint {
    /// In the order of a file.
    fn parts(&self) -> [(PartKind, Option<&FingerprintPart>); 5] {
        [
            (PartKind::Config, Some(&self.config)),
            (PartKind::Weights, Some(&self.weights)),
            (PartKind::Tokenizer, self.tokenizer.as_ref()),
            (PartKind::Vocabulary, self.vocabulary.as_ref()),
            (PartKind::Rope, Some(&self.rope)),
        ]
    }

    /// Where `self`, of a file, and `here` differ, as far as both say it.
    fn differences(&self, here: &Self, context: usize) -> Vec<Difference> {
        let pairs = self.parts().into_iter().zip(here.parts());
        let both = pairs.filter_map(|((kind, file), (_, here))| Some((kind, file?, here?)));
        both.filter(|(_, file, here)| file.digest != here.digest)
            .map(|(kind, file, here)| {
                let (part, fix) = kind.words();
                // Positions of some models depend on the context.
                let fix = match kind {
                    PartKind::Rope => format!("{fix}, with --ctx-size {context}"),
                    _ => fix.to_owned(),
                };
                Difference { part, file: file.about.clone(), here: here.about.clone(), fix }
            })
            .collect()
    }
}

/// What a file was made with.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionHeader {
    /// Model, tokenizer, positions.
    pub fingerprint: Fingerprint,
    /// How keys and values are stored, or the recent ones where others are rounded.
    pub kv_dtype: DType,
    /// Whether rows are rounded, but for the first and the most recent ones.
    pub host_rows: HostRows,
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
    /// How its tokens were read.
    pub prefill: PrefillMode,
    /// What the user said about the policy, as [`PolicyOptions::text`].
    pub options: String,
    /// The policy that came of it, as [`crate::Policy::text`].
    pub policy: String,
}

impl SessionHeader {
    /// The policy that the session was saved under.
    ///
    /// # Errors
    /// If this release does not know it.
    pub fn policy_options(&self) -> Result<PolicyOptions, PolicyError> {
        PolicyOptions::from_text(&self.options)
    }

    /// The type in which most keys and values are stored.
    pub fn kv_type(&self) -> DType {
        match self.host_rows {
            HostRows::Plain => self.kv_dtype,
            HostRows::EightBits => DType::Q8,
        }
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
        let mut differences = self.fingerprint.differences(fingerprint, self.context);
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

    /// The first part of a file, which never changes.
    pub(super) fn encode(&self) -> Result<Vec<u8>, SessionFileError> {
        let mut out = FieldWriter::default();
        out.bytes(SESSION_MAGIC);
        out.u32(FORMAT_VERSION);
        out.u32(0);
        out.u32(dtype_code(self.kv_dtype));
        out.u32(rows_code(self.host_rows, self.kv_dtype));
        let dimensions = [self.n_layers, self.n_q_heads, self.n_kv_heads, self.head_dim];
        dimensions.into_iter().for_each(|n| out.u32(n as u32));
        // The file of the tokenizer says less than the vocabulary, and is not the same in GGUF.
        let parts = self.fingerprint.parts();
        let has_vocabulary = self.fingerprint.vocabulary.is_some();
        let is_written = |kind: PartKind| kind != PartKind::Tokenizer || !has_vocabulary;
        let parts = parts.into_iter().filter_map(|(kind, part)| Some((kind, part?)));
        let parts: Vec<_> = parts.filter(|(kind, _)| is_written(*kind)).collect();
        out.u32(parts.len() as u32);
        for (kind, part) in parts {
            out.u32(kind as u32);
            out.bytes(&part.digest);
            out.text(&part.about);
        }
        let mut bytes = out.into_bytes();
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

    /// What may change when a file is appended to.
    pub(super) fn encode_session(&self) -> Vec<u8> {
        let mut out = FieldWriter::default();
        out.u64(self.context);
        out.u64(self.n_tokens);
        match self.prefill {
            PrefillMode::Exact => out.u32(READ_EXACTLY),
            PrefillMode::Sparse { threshold } => {
                out.u32(READ_SPARSELY);
                out.u32(threshold.to_bits());
            }
        }
        out.text(&self.options);
        out.text(&self.policy);
        out.into_bytes()
    }

    /// Takes what [`SessionHeader::encode_session`] wrote.
    pub(super) fn take_session(&mut self, bytes: &[u8]) -> Result<(), SessionFileError> {
        let mut fields = SliceFields(bytes);
        (self.context, self.n_tokens) = lengths(&mut fields)?;
        self.prefill = match fields.u32()? {
            READ_EXACTLY => PrefillMode::Exact,
            READ_SPARSELY => {
                let read = PrefillMode::sparse(f32::from_bits(fields.u32()?));
                read.map_err(|_| SessionFileError::Inconsistent("how it was read"))?
            }
            how => return Err(SessionFileError::UnknownReading { how }),
        };
        (self.options, self.policy) = (fields.text()?, fields.text()?);
        fields.end()
    }
}

/// The first bytes of a file of any version, proved.
pub(super) struct FirstBytes {
    pub version: u32,
    /// All of the header, its digest included.
    pub bytes: Vec<u8>,
}

impl FirstBytes {
    /// The fields of the header.
    pub fn fields(&self) -> SliceFields<'_> {
        SliceFields(&self.bytes[PREFIX_BYTES..self.bytes.len() - 32])
    }
}

/// Reads and proves the header.
pub(super) fn read(source: &dyn RangeSource) -> Result<FirstBytes, SessionFileError> {
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
    let version = word(8);
    if !(1..=FORMAT_VERSION).contains(&version) {
        return Err(SessionFileError::Version { found: version, supported: FORMAT_VERSION });
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
    Ok(FirstBytes { version, bytes })
}

/// The header of a file of version 2, without what [`SessionHeader::take_session`] takes.
pub(super) fn parse(mut fields: SliceFields<'_>) -> Result<SessionHeader, SessionFileError> {
    let kv_dtype = row_type(&mut fields)?;
    let host_rows = match fields.u32()? {
        code if code == dtype_code(kv_dtype) => HostRows::Plain,
        Q8_CODE => HostRows::EightBits,
        _ => return Err(SessionFileError::Inconsistent(ROW_TYPE)),
    };
    let [n_layers, n_q_heads, n_kv_heads, head_dim] = dimensions(&mut fields)?;
    let mut parts: [Option<FingerprintPart>; 5] = Default::default();
    for _ in 0..fields.u32()? {
        let kind = fields.u32()? as usize;
        let part = FingerprintPart { digest: fields.array()?, about: fields.text()? };
        // A part that this release does not know cannot be compared: whoever wrote it said
        // something that this release does not use.
        if let Some(place) = parts.get_mut(kind) {
            *place = Some(part);
        }
    }
    fields.end()?;
    let [config, weights, tokenizer, rope, vocabulary] = parts;
    let (Some(config), Some(weights), Some(rope)) = (config, weights, rope) else {
        return Err(SessionFileError::Inconsistent("what it was made with"));
    };
    let fingerprint = Fingerprint { config, weights, tokenizer, vocabulary, rope };
    Ok(SessionHeader {
        fingerprint,
        kv_dtype,
        host_rows,
        n_layers,
        n_q_heads,
        n_kv_heads,
        head_dim,
        context: 0,
        n_tokens: 0,
        prefill: PrefillMode::Exact,
        options: String::new(),
        policy: String::new(),
    })
}

/// The error of a row type.
const ROW_TYPE: &str = "the type of its rows";
/// Types of rows in memory.
const KV_DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];
/// The number of rows of 8 bits in files ([`longview_core::kv8`]).
pub(super) const Q8_CODE: u32 = 3;

/// The number that stands for a type in files.
pub(super) fn dtype_code(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::BF16 => 2,
        DType::Q8 => Q8_CODE,
        DType::U32 | DType::I8 => panic!("keys and values are numbers with fractions"),
    }
}

/// The number of the type of most rows.
pub(super) fn rows_code(host_rows: HostRows, kv_dtype: DType) -> u32 {
    match host_rows {
        HostRows::Plain => dtype_code(kv_dtype),
        HostRows::EightBits => Q8_CODE,
    }
}

/// Takes the type of rows in memory.
pub(super) fn row_type(fields: &mut impl Fields) -> Result<DType, SessionFileError> {
    let code = fields.u32()?;
    let found = KV_DTYPES.iter().find(|dtype| dtype_code(**dtype) == code);
    found.copied().ok_or(SessionFileError::Inconsistent(ROW_TYPE))
}

/// Takes layers, query heads, KV heads, head width.
pub(super) fn dimensions(fields: &mut impl Fields) -> Result<[usize; 4], SessionFileError> {
    let mut dimensions = [0; 4];
    for dimension in &mut dimensions {
        *dimension = fields.u32()? as usize;
        if !(1..=MAX_DIMENSION).contains(dimension) {
            return Err(SessionFileError::Inconsistent("its dimensions"));
        }
    }
    if !dimensions[1].is_multiple_of(dimensions[2]) {
        return Err(SessionFileError::Inconsistent("its query heads and KV heads"));
    }
    Ok(dimensions)
}

/// Takes context and tokens.
pub(super) fn lengths(fields: &mut impl Fields) -> Result<(usize, usize), SessionFileError> {
    const TOKENS: &str = "its number of tokens";
    let (context, n) = (fields.number(MAX_CONTEXT, TOKENS)?, fields.number(MAX_CONTEXT, TOKENS)?);
    if n > context {
        return Err(SessionFileError::Inconsistent("more tokens than its context"));
    }
    Ok((context, n))
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
            tokenizer: Some(part("tokenizer")),
            vocabulary: Some(part("vocabulary")),
            rope: part("rope"),
        }
    }

    /// Five tokens of the small shape.
    pub fn header() -> SessionHeader {
        SessionHeader {
            fingerprint: fingerprint(),
            kv_dtype: DType::F32,
            host_rows: HostRows::Plain,
            n_layers: 2,
            n_q_heads: 4,
            n_kv_heads: 2,
            head_dim: 4,
            context: 8,
            n_tokens: 5,
            prefill: PrefillMode::Exact,
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
        let other = || Some(part("other"));
        assert_eq!(different(|h| h.fingerprint.tokenizer = other()), ["tokenizer"]);
        assert_eq!(different(|h| h.fingerprint.vocabulary = other()), ["vocabulary"]);
        assert_eq!(different(|h| h.fingerprint.vocabulary = None), [""; 0], "a file of version 1");
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

    fn reread(header: &SessionHeader) -> Result<SessionHeader, SessionFileError> {
        let mut found = super::parse(super::read(&header.encode()?)?.fields())?;
        found.take_session(&header.encode_session())?;
        Ok(found)
    }

    #[test]
    fn a_header_is_read_as_it_was_written() {
        for kv_dtype in KV_DTYPES {
            for host_rows in [HostRows::Plain, HostRows::EightBits] {
                let mut written = SessionHeader { kv_dtype, host_rows, ..header() };
                let read = reread(&written).unwrap();
                written.fingerprint.tokenizer = None;
                assert_eq!(read, written, "the vocabulary says what the tokenizer is");
            }
        }
        let mut without = header();
        (without.fingerprint.tokenizer, without.fingerprint.vocabulary) = (None, None);
        assert_eq!(reread(&without).unwrap(), without);
    }

    #[test]
    fn numbers_that_no_session_has_are_refused() {
        let refused = |change: fn(&mut SessionHeader)| {
            let mut wrong = header();
            change(&mut wrong);
            match reread(&wrong) {
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
    fn a_text_that_was_read_in_an_unknown_way_is_refused() {
        let mut bytes = header().encode_session();
        bytes[16] = 7;
        let refused = header().take_session(&bytes);
        assert!(matches!(refused, Err(SessionFileError::UnknownReading { how: 7 })), "{refused:?}");
    }

    #[test]
    fn what_is_no_session_is_told_from_one_that_was_cut() {
        let sound = header().encode().unwrap();
        let of = |bytes: &[u8]| super::read(&bytes.to_vec()).err();
        assert!(matches!(of(b""), Some(SessionFileError::NotASession)));
        assert!(matches!(of(b"GGUF and more"), Some(SessionFileError::NotASession)));
        for n in [1, 8, 15, 16, sound.len() - 1] {
            assert!(matches!(of(&sound[..n]), Some(SessionFileError::Incomplete { .. })), "{n}");
        }
        let mut newer = sound.clone();
        newer[8] = 3;
        let version = of(&newer);
        assert!(matches!(version, Some(SessionFileError::Version { found: 3, supported: 2 })));
    }

    #[test]
    fn the_short_form_of_a_fingerprint_is_of_all_parts() {
        let text = fingerprint().to_string();
        assert_eq!(text.len(), 16);
        for i in 0..4 {
            let mut other = fingerprint();
            let tokenizer = other.tokenizer.as_mut().unwrap();
            let parts = [&mut other.config, &mut other.weights, tokenizer, &mut other.rope];
            parts.into_iter().nth(i).unwrap().digest[31] ^= 1;
            assert_ne!(other.to_string(), text);
        }
    }
}
