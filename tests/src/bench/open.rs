//! A session file of a long document, opened: what a library does with a document that was read
//! another day.
//!
//! Keys and values are injected and weights are random, because the time depends on the number of
//! bytes alone. The file is opened right after it was written, so it comes from the page cache. Run
//! by `cargo xtask bench open`.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use longview_core::{DType, FileSource, RangeSource};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineOptions};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset, SessionFile};
use pollster::block_on;

use super::decode::clusterable;
use super::random_model::{RandomFolder, SMOLLM2_135M};

/// What can be asked for.
pub const USAGE: &str = "[--tokens N] [--policy NAME] [--kv-type f16|q8] [--threads N]";

/// Times that each thing is done: the first opening gets its memory from the system.
const RUNS: usize = 7;
/// Tokens that are read before the others are injected.
const READ: usize = 256;
/// Bytes read at a time where nothing else is done with them.
const PIECE: usize = 1 << 18;

/// What is opened.
pub struct OpenRequest {
    tokens: usize,
    policy: PolicyOptions,
    kv_dtype: DType,
    cpu: CpuOptions,
}

impl OpenRequest {
    /// Reads what follows the program's name.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self> {
        let mut request = Self {
            tokens: 128 << 10,
            policy: PolicyOptions::new(Preset::DEFAULT),
            kv_dtype: DType::Q8,
            cpu: CpuOptions::default(),
        };
        let mut args = args.into_iter().filter(|arg| arg != "--bench");
        while let Some(option) = args.next() {
            let value = args.next().with_context(|| format!("{option} needs a value"))?;
            match (option.as_str(), value.as_str()) {
                ("--tokens", n) => request.tokens = n.parse().context("--tokens")?,
                ("--policy", name) => request.policy = PolicyOptions::new(name.parse()?),
                ("--kv-type", "f16") => request.kv_dtype = DType::F16,
                ("--kv-type", "q8") => request.kv_dtype = DType::Q8,
                ("--threads", n) => request.cpu.threads = n.parse().context("--threads")?,
                _ => bail!("{option} {value}: unknown"),
            }
        }
        Ok(request)
    }
}

/// Writes the session and measures.
pub fn open(request: &OpenRequest, out: &mut dyn Write) -> Result<()> {
    let folder = RandomFolder::new(&SMOLLM2_135M).context("the folder of random weights")?;
    let path = folder.path.join("session.lvs");
    let (ctx_size, kv_dtype) = (request.tokens + 256, request.kv_dtype);
    let options = EngineOptions { ctx_size, kv_dtype, ..EngineOptions::default() };
    let backend = Arc::new(CpuBackend::new(request.cpu)?);
    let model = ModelFolder::open(&folder.path)?;
    let mut engine = Engine::load(backend, model, options, &request.policy)?;
    write_session(&mut engine, request, &path).context("the session file")?;
    let source = FileSource::open(&path)?;
    let bytes = source.size();
    writeln!(
        out,
        "{} tokens in the shape of {}, {kv_dtype} rows, policy {}: {:.2} GB",
        request.tokens,
        SMOLLM2_135M.name,
        request.policy.preset.name(),
        bytes as f64 / 1e9
    )?;
    let mut piece = vec![0; PIECE];
    measure("read, and nothing else", bytes, out, || read(&source, &mut piece, |_| {}))?;
    measure("read and hashed by one thread", bytes, out, || {
        let mut hasher = blake3::Hasher::new();
        read(&source, &mut piece, |bytes| {
            hasher.update(bytes);
        })
    })?;
    let n_threads = engine.backend().host_threads();
    measure("verified", bytes, out, || Ok(SessionFile::open(&source)?.verify(n_threads)?))?;
    measure("opened", bytes, out, || {
        let session = block_on(engine.restore(&source, None))?.session;
        ensure!(session.tokens().len() == request.tokens, "not all of the tokens");
        Ok(session)
    })
}

fn write_session(
    engine: &mut Engine<CpuBackend>,
    request: &OpenRequest,
    path: &Path,
) -> Result<()> {
    let (head_dim, n_vocab) = (SMOLLM2_135M.head_dim, SMOLLM2_135M.vocab);
    let mut session = engine.session(&PolicyOptions::new(Preset::Full))?;
    let ids: Vec<u32> = (0..request.tokens).map(|i| (i % n_vocab) as u32).collect();
    // What indexes learn from a prefill (sums of queries) comes from a real one.
    let (read, injected) = ids.split_at(READ.min(ids.len()));
    block_on(engine.prefill(&mut session, read, &mut |_| ControlFlow::Continue(())))?;
    block_on(session.inject(injected, &mut |layer, head, first, rows| {
        clusterable(head_dim, layer.index() * 64 + head.index(), first, rows);
    }))?;
    block_on(session.set_policy(&request.policy))?;
    let mut file = BufWriter::new(File::create(path)?);
    block_on(engine.save(&mut session, b"", &mut file))?;
    Ok(file.into_inner()?.sync_all()?)
}

fn read(source: &FileSource, piece: &mut [u8], mut take: impl FnMut(&[u8])) -> Result<()> {
    let mut at = 0;
    while at < source.size() {
        let n = (source.size() - at).min(piece.len() as u64) as usize;
        source.read_at(at, &mut piece[..n])?;
        take(&piece[..n]);
        at += n as u64;
    }
    Ok(())
}

/// The best and the median of [`RUNS`]. What a run returns is given up behind the clock's end.
fn measure<T>(
    what: &str,
    bytes: u64,
    out: &mut dyn Write,
    mut run: impl FnMut() -> Result<T>,
) -> Result<()> {
    let mut seconds = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        let made = run()?;
        seconds.push(start.elapsed().as_secs_f64());
        drop(made);
    }
    seconds.sort_by(f64::total_cmp);
    let (best, median) = (seconds[0], seconds[RUNS / 2]);
    let rate = |seconds: f64| bytes as f64 / seconds / 1e9;
    writeln!(
        out,
        "  {what:<30} best {best:.3} s, {:.2} GB/s; median {median:.3} s, {:.2} GB/s",
        rate(best),
        rate(median)
    )?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<OpenRequest> {
        OpenRequest::parse(line.split_whitespace().map(String::from))
    }

    #[test]
    fn a_document_of_128k_tokens_is_opened_unless_another_one_is_asked_for() {
        let usual = parse("--bench").unwrap();
        assert_eq!((usual.tokens, usual.kv_dtype), (131_072, DType::Q8));
        assert_eq!(usual.policy.preset, Preset::DEFAULT);
        let other = parse("--tokens 4096 --policy full --kv-type f16 --threads 1").unwrap();
        assert_eq!((other.tokens, other.kv_dtype, other.cpu.threads), (4096, DType::F16, 1));
        assert_eq!(other.policy.preset, Preset::Full);
        for wrong in ["--tokens", "--tokens few", "--kv-type q4", "--what 1"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
