//! A model on a device, ready for sessions.

use std::sync::{Arc, OnceLock};

use longview_model::chat::ChatTemplate;
use longview_model::config::ModelConfig;
use longview_model::folder::ModelFolder;
use longview_model::generation::GenerationDefaults;
use longview_model::tokenizer::Tokenizer;
use longview_model::transformer::{Model, Workspace};
use longview_ops::Backend;
use longview_scheduler::{
    Fingerprint, KvPlan, KvShape, PolicyOptions, SequenceOptions, StepScratch, check_draft,
};

use crate::error::EngineError;
use crate::fit::Fit;
use crate::home::Home;
use crate::memory::{Memory, MemoryPlan};
use crate::options::{EngineOptions, KvResidency};
use crate::output::Choices;
use crate::plan::{plan, settled, shape_of, step_size};
use crate::policy::resolve_policy;

/// A context that is worth advising.
const SHORT_CONTEXT: usize = 256;

/// A model on a device with the buffers of its steps.
pub struct Engine<B: Backend> {
    pub(crate) backend: Arc<B>,
    pub(crate) model: Arc<Model<B>>,
    pub(crate) workspace: Workspace<B>,
    pub(crate) scratch: StepScratch<B>,
    pub(crate) options: EngineOptions,
    pub(crate) ids: Vec<u32>,
    pub(crate) choices: Choices<B>,
    pub(crate) eos_ids: Vec<u32>,
    /// The device and the weights, with other engines over them.
    pub(crate) home: Arc<Home<B>>,
    tokenizer: Option<Tokenizer>,
    chat: Option<ChatTemplate>,
    generation: GenerationDefaults,
    /// Made when a session is first saved or opened.
    fingerprint: OnceLock<Fingerprint>,
}

impl<B: Backend> Engine<B> {
    /// The bytes that `folder` and one session under `policy` take on this kind of device.
    pub fn plan(
        backend: &B,
        folder: &ModelFolder,
        options: &EngineOptions,
        policy: &PolicyOptions,
    ) -> Result<MemoryPlan, EngineError> {
        plan(backend, folder, options, policy)
    }

    /// Fails if `memory` does not hold `folder` and one session under `policy`, with the numbers
    /// and the options that would help. A host whose memory nobody knows says so when it is
    /// allocated.
    ///
    /// # Errors
    /// [`EngineError::Memory`], [`EngineError::DeviceMemory`] or [`EngineError::HostMemory`];
    /// options that cannot work together.
    pub fn check_memory(
        backend: &B,
        folder: &ModelFolder,
        options: &EngineOptions,
        policy: &PolicyOptions,
        memory: Memory,
    ) -> Result<MemoryPlan, EngineError> {
        let plan = Self::plan(backend, folder, options, policy)?;
        match plan.shortage(memory) {
            None => Ok(plan),
            Some(shortage) => {
                let (unified, memory) = (plan.unified, memory.with_room());
                let fit = Fit { backend, folder, options, policy, memory, unified };
                Err(plan.error(shortage, fit.advice(SHORT_CONTEXT)))
            }
        }
    }

    /// Loads a model. Memory is planned first and refused with numbers if it does not suffice.
    pub fn load(
        backend: Arc<B>,
        folder: ModelFolder,
        options: EngineOptions,
        policy: &PolicyOptions,
    ) -> Result<Self, EngineError> {
        Self::load_with(backend, folder, options, policy, &mut |_, _| {})
    }

    /// [`Engine::load`] that says how far it is: bytes of weights handed over, and all of them.
    pub fn load_with(
        backend: Arc<B>,
        mut folder: ModelFolder,
        options: EngineOptions,
        policy: &PolicyOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, EngineError> {
        if let Some(rope) = options.rope {
            rope.apply(&mut folder.config);
        }
        let memory = options.device_memory.or(backend.capabilities().memory_bytes);
        let memory = Memory { device: memory, host: None };
        let options = settled(&*backend, &folder, &options, policy);
        Self::check_memory(&backend, &folder, &options, policy, memory)?;
        let config = &folder.config;
        let model = Model::load(&*backend, config, &folder.tensors, options.load(), progress)?;
        let (model, eos_ids) = (Arc::new(model), folder.eos_token_ids());
        let home = Arc::new(Home::new(&backend, &model, folder.tensors));
        let engine = Self::over(home, options, eos_ids, folder.tokenizer)?;
        Ok(Self { chat: folder.chat, generation: folder.generation, ..engine })
    }

    /// Opens a lost device again and loads the model anew; nothing happens if none is lost. Every
    /// call that computes does this first. Sessions follow when they are used next: what they need
    /// lies in host memory.
    ///
    /// # Errors
    /// If the device cannot be opened, or the weights cannot be read again.
    pub async fn revive(&mut self) -> Result<(), EngineError> {
        if !self.backend.is_lost() {
            return Ok(());
        }
        let config = self.model.config().clone();
        let (backend, model) = self.home.revived(&config, self.options.load()).await?;
        (self.workspace, self.scratch, self.choices) =
            step_buffers(&backend, &config, &self.options)?;
        self.model = model;
        self.backend = backend;
        Ok(())
    }

    /// An engine over a device and a model that are loaded, with buffers for steps of its own.
    pub(crate) fn over(
        home: Arc<Home<B>>,
        options: EngineOptions,
        eos_ids: Vec<u32>,
        tokenizer: Option<Tokenizer>,
    ) -> Result<Self, EngineError> {
        let (backend, model) = home.now();
        let (workspace, scratch, choices) = step_buffers(&backend, model.config(), &options)?;
        Ok(Self {
            workspace,
            scratch,
            ids: Vec::with_capacity(step_size(&options).0),
            choices,
            eos_ids,
            home,
            tokenizer,
            chat: None,
            generation: GenerationDefaults::default(),
            fingerprint: OnceLock::new(),
            backend,
            model,
            options,
        })
    }

    /// The dimensions of sessions.
    pub(crate) fn shape(&self) -> KvShape {
        shape_of(self.model.config(), &self.options)
    }

    /// How sessions are laid out.
    pub(crate) fn layout(&self) -> SequenceOptions {
        self.options.sequence_options(self.backend.capabilities())
    }

    /// What the keys and values of sessions depend on: model, weights, tokenizer and positions. The
    /// same on every machine. The first call reads samples of the weights, some 64 KiB of each
    /// tensor: [`digest`](longview_model::weights::TensorSet::digest) says which, and what they do
    /// not see.
    ///
    /// # Errors
    /// If the weights cannot be read.
    pub fn fingerprint(&self) -> Result<&Fingerprint, EngineError> {
        if let Some(known) = self.fingerprint.get() {
            return Ok(known);
        }
        let (config, tokenizer) = (self.model.config(), self.tokenizer());
        let made = crate::fingerprint::fingerprint(
            config,
            self.home.tensors(),
            tokenizer,
            self.options.ctx_size,
        )?;
        Ok(self.fingerprint.get_or_init(|| made))
    }

    /// Bytes of keys, values and index that a session under `policy` takes.
    pub fn kv_plan(&self, policy: &PolicyOptions) -> Result<KvPlan, EngineError> {
        self.kv_plan_of(policy, self.options.ctx_size)
    }

    /// As [`Engine::kv_plan`], of a session that has `n_tokens` tokens. Its room for more has
    /// addresses in the host's memory, and takes none.
    pub fn kv_plan_of(
        &self,
        policy: &PolicyOptions,
        n_tokens: usize,
    ) -> Result<KvPlan, EngineError> {
        let (config, context) = (self.model.config(), self.options.ctx_size);
        let (_, policy) = resolve_policy(policy, config.n_layers, context)?;
        let sequence = self.options.sequence_options(self.backend.capabilities());
        let capacity = n_tokens.clamp(1, context);
        let shape = KvShape { capacity, ..shape_of(config, &self.options) };
        Ok(KvPlan::new(&shape, &policy, &sequence))
    }

    /// Fails where sessions under `policy` cannot take a token back, so that none is drafted.
    ///
    /// # Errors
    /// The reason, with the policy's name; options that cannot work together.
    pub fn check_draft(&self, policy: &PolicyOptions) -> Result<(), EngineError> {
        let (config, context) = (self.model.config(), self.options.ctx_size);
        let (_, policy) = resolve_policy(policy, config.n_layers, context)?;
        let (_, host_rows) = self.options.rows();
        Ok(check_draft(&policy, self.options.recall, host_rows)?)
    }

    /// The device.
    pub fn backend(&self) -> &Arc<B> {
        &self.backend
    }

    /// The model on the device: its config, and what it computes.
    pub fn model(&self) -> &Model<B> {
        &self.model
    }

    /// How the engine was set up.
    pub fn options(&self) -> &EngineOptions {
        &self.options
    }

    /// Where rows of sessions lie that are made from now on, and of those whose policy changes:
    /// [`KvResidency::Host`] or [`KvResidency::Device`]. (`Auto` is decided at load; here it is
    /// `Host`.)
    pub fn set_kv_residency(&mut self, kv_residency: KvResidency) {
        self.options.kv_residency = kv_residency;
    }

    /// The tokenizer, if the model came with one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.tokenizer.as_ref()
    }

    /// The chat template, if the model came with one.
    pub fn chat(&self) -> Option<&ChatTemplate> {
        self.chat.as_ref()
    }

    /// How the model's authors would sample.
    pub fn generation_defaults(&self) -> &GenerationDefaults {
        &self.generation
    }

    /// Tokens that end an answer.
    pub fn eos_ids(&self) -> &[u32] {
        &self.eos_ids
    }
}

/// What steps compute in.
type StepBuffers<B> = (Workspace<B>, StepScratch<B>, Choices<B>);

/// Buffers for the largest step.
fn step_buffers<B: Backend>(
    backend: &Arc<B>,
    config: &ModelConfig,
    options: &EngineOptions,
) -> Result<StepBuffers<B>, EngineError> {
    let backend = &**backend;
    let (tokens, rows) = step_size(options);
    let shape = shape_of(config, options);
    let SequenceOptions { placement, tile, .. } = options.sequence_options(backend.capabilities());
    Ok((
        Workspace::new(backend, config, tokens, rows)?,
        StepScratch::new(backend, &shape, tokens, tile, placement)?,
        Choices::new(backend, rows)?,
    ))
}
