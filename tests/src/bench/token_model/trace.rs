//! The commands of one decoded token, recorded on the emulated device.
//!
//! The launch code is that of a GPU with these multiprocessors and this compute capability, with
//! the shapes and the context of the model; kernels do not run, because a layer of this size would
//! take minutes. So what only executed kernels know is told by [`Sizes`].

use std::ops::ControlFlow;
use std::sync::Arc;

use anyhow::{Context, Error, Result, bail, ensure};
use longview_core::DType;
use longview_core::quant::QuantType;
use longview_cuda::CudaBackend;
use longview_cuda_emulation::{EmulatedDriver, EmulatedOptions, Given};
use longview_engine::{Engine, EngineOptions, GenerationParams, KvResidency, Session};
use longview_model::folder::ModelFolder;
use longview_scheduler::{LayerMode, PolicyOptions};
use pollster::block_on;

use super::work::{Launch, Sizes};
use super::zeros;
use crate::backends;
use crate::bench::random_model::{Dims, RandomFolder};

type Emulated = CudaBackend<EmulatedDriver>;

/// Decoded tokens before those that are recorded: every shape was seen twice then.
const WARM_UP: usize = 9;
/// Tokens that are recorded; the last one is the trace.
const RECORDED: usize = 3;

/// What is run.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The model.
    pub dims: Dims,
    /// Of its matrices; bf16 without.
    pub quantised: Option<QuantType>,
    /// Of rows in the host store.
    pub kv_dtype: DType,
    /// Where rows of layers that recall lie.
    pub kv_residency: KvResidency,
    /// Tokens that are read before.
    pub context: usize,
    /// Tokens read at a time, and rows of a tile of the past.
    pub chunk: usize,
    /// How the model attends.
    pub policy: PolicyOptions,
    /// Tokens that a head attends at most, as the policy has it.
    pub budget: usize,
    /// Tokens of a cluster, as the policy has it.
    pub cluster_tokens: usize,
    /// The emulated device it is recorded on.
    pub device: EmulatedOptions,
}

impl Setup {
    /// The model: random where it is computed. The folder is removed when it is dropped.
    fn model(&self) -> Result<(ModelFolder, RandomFolder)> {
        let is_computed = self.device.runs_kernels;
        match self.quantised {
            Some(ty) if is_computed => {
                let made = RandomFolder::new(&self.dims)?;
                let mut folder = ModelFolder::open(&made.path)?;
                folder.tensors.quantize(&folder.config, ty)?;
                Ok((folder, made))
            }
            Some(ty) => {
                ensure!(ty == QuantType::Q4K, "zeros of {ty}");
                let made = RandomFolder::empty()?;
                let path = made.path.join("model.gguf");
                zeros::write(&self.dims, &path)?;
                Ok((ModelFolder::open(&path)?, made))
            }
            None => {
                let make = if is_computed { RandomFolder::new } else { RandomFolder::zeros };
                let made = make(&self.dims)?;
                Ok((ModelFolder::open(&made.path)?, made))
            }
        }
    }
}

/// A decoded token.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its commands, in order.
    pub launches: Vec<Launch>,
    /// Layers that recall, the last of all.
    pub n_recalling: usize,
    /// Layers that were recorded.
    pub n_layers: usize,
    /// Nodes of graphs that were given other arguments.
    pub nodes_set: f64,
    /// Waits of the host.
    pub waits: f64,
    /// Graphs launched, and commands that were handed over by themselves.
    pub submits: f64,
}

/// A token with several ops in a launch where a kernel makes them at once, and with a launch for
/// each op.
#[derive(Clone, Debug)]
pub struct Traces {
    /// As it is.
    pub fused: Trace,
    /// As it was.
    pub single: Trace,
}

impl Traces {
    /// Runs the model up to decoded tokens.
    ///
    /// # Errors
    /// If there is no emulated device, or the model does not run on it.
    pub fn record(setup: &Setup) -> Result<Self> {
        let (folder, _made) = setup.model()?;
        let backend = backends::cuda_emulated(setup.device.clone()).map_err(Error::msg)?;
        let backend = Arc::new(backend);
        let options = EngineOptions {
            ctx_size: setup.context + 1024,
            chunk_size: setup.chunk,
            tile_rows: 4 * setup.chunk,
            kv_dtype: setup.kv_dtype,
            kv_residency: setup.kv_residency,
            ..EngineOptions::default()
        };
        let mut engine = Engine::load(Arc::clone(&backend), folder, options, &setup.policy)?;
        let mut session = engine.session(&setup.policy)?;
        let vocab = setup.dims.vocab as u32 - 3;
        let prompt: Vec<u32> =
            (0..setup.context as u32).map(|i| 2 + (i % 997 * 31 + i % 13) % vocab).collect();
        let mut go_on = |_| ControlFlow::Continue(());
        block_on(engine.prefill(&mut session, &prompt, &mut go_on))?;
        let fused = Trace::record(&backend, &mut engine, &mut session, setup)?;
        backend.set_fused(false);
        let single = Trace::record(&backend, &mut engine, &mut session, setup)?;
        Ok(Self { fused, single })
    }
}

impl Trace {
    fn record(
        backend: &Emulated,
        engine: &mut Engine<Emulated>,
        session: &mut Session<Emulated>,
        setup: &Setup,
    ) -> Result<Self> {
        generate(engine, session, WARM_UP)?;
        let (before, driver) = (backend.counters(), backend.driver());
        let (result, given) = driver.recorded(|| generate(engine, session, RECORDED));
        result?;
        let after = backend.counters();
        ensure!(after.graphs == before.graphs, "a shape that was not seen before");
        let n_of_token = given.len() / RECORDED;
        let (all, last) = given.split_at(given.len() - n_of_token);
        let is_steady = given.len() == n_of_token * RECORDED
            && all
                .chunks(n_of_token)
                .all(|token| token.iter().zip(last).all(|(a, b)| is_alike(a, b)));
        ensure!(is_steady, "tokens take different commands");
        let mean = |after: u64, before: u64| (after - before) as f64 / RECORDED as f64;
        let is_told = |given: &&Given| name_of(given) == "upload_words";
        let n_told = last.iter().filter(is_told).count().max(1) as f64;
        let sizes = Sizes {
            n_clusters: setup.context as f64 / setup.cluster_tokens as f64,
            budget: setup.budget as f64,
            told_bytes: mean(after.device.bytes_up, before.device.bytes_up) / n_told,
        };
        let modes = session.sequence().layers().iter().map(|layer| layer.mode());
        Ok(Self {
            launches: last.iter().map(|given| Launch::new(driver, given, &sizes)).collect(),
            n_recalling: modes.filter(|mode| *mode == LayerMode::Recall).count(),
            n_layers: setup.dims.n_layers,
            nodes_set: mean(after.nodes_set, before.nodes_set),
            waits: mean(after.device.readbacks, before.device.readbacks),
            submits: mean(after.device.submits, before.device.submits),
        })
    }

    /// The files of the kernels, in order; `copy` for a copy.
    pub fn files(&self) -> Vec<&'static str> {
        let file = |launch: &Launch| launch.kernel.map_or("copy", |(k, _)| k.facts().file);
        self.launches.iter().map(file).collect()
    }

    /// The commands of a layer that recalls: from where its rows are looked up or listed to the
    /// next, so that what only the first of them is told does not count.
    ///
    /// # Errors
    /// If fewer than two layers recall.
    pub fn recalling_layer(&self) -> Result<&[Launch]> {
        let places = self.launches.iter().enumerate();
        let looks_up = |name: &str| name.starts_with("look_up_rows") || name == "cluster_rows";
        let places = places.filter(|(_, launch)| looks_up(launch.name)).map(|(i, _)| i);
        let places: Vec<usize> = places.collect();
        let [.., before, last] = places[..] else {
            bail!("{} layers recall: two are needed to tell one from the other", places.len());
        };
        self.launches.get(before..last).context("no layer")
    }
}

fn generate(
    engine: &mut Engine<Emulated>,
    session: &mut Session<Emulated>,
    n: usize,
) -> Result<()> {
    let params = GenerationParams { max_tokens: Some(n), ignore_eos: true, ..Default::default() };
    block_on(engine.generate(session, &params, &mut |_| ControlFlow::Continue(())))?;
    Ok(())
}

fn name_of(given: &Given) -> &'static str {
    match given {
        Given::Launch { kernel, .. } => kernel.facts().name,
        Given::Copy(_) => "copy",
    }
}

fn is_alike(a: &Given, b: &Given) -> bool {
    match (a, b) {
        (Given::Launch { kernel, grid, .. }, Given::Launch { kernel: k, grid: g, .. }) => {
            (kernel, grid) == (k, g)
        }
        (Given::Copy(a), Given::Copy(b)) => a.bytes == b.bytes,
        _ => false,
    }
}
