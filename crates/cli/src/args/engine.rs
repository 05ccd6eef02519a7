//! How the engine computes, apart from the policy.

use anyhow::{Result, bail};
use clap::Args;
use clap::builder::TypedValueParser;
use longview_core::DType;
use longview_cpu::{CpuOptions, Isa};
use longview_cuda::CudaOptions;
use longview_engine::{EngineOptions, KvResidency, MAX_CHUNK_SIZE, PrefillMode};
use longview_ops::Activations;
use longview_scheduler::RecallMode;
use longview_wgpu::{ShaderLevel, WgpuOptions};

use super::names::one_of;
use super::numbers::count;
use crate::device::{self, Device, DeviceChoice, DeviceOptions};
use crate::units;

const KV_TYPES: &[(DType, &str)] =
    &[(DType::F16, "f16"), (DType::BF16, "bf16"), (DType::F32, "f32"), (DType::Q8, "q8")];

const DEVICES: &[(DeviceChoice, &str)] = &[
    (DeviceChoice::Auto, "auto"),
    (DeviceChoice::Cpu, "cpu"),
    (DeviceChoice::Wgpu, "wgpu"),
    (DeviceChoice::Cuda, "cuda"),
];

const SHADER_LEVELS: &[(ShaderLevel, &str)] = &[
    (ShaderLevel::Core, "core"),
    (ShaderLevel::F16, "f16"),
    (ShaderLevel::Subgroups, "subgroups"),
];

/// Ways to read prompts: one, but where several are compared.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefillModes {
    first: PrefillMode,
    others: Vec<PrefillMode>,
}

impl PrefillModes {
    /// Reads one way.
    pub fn one(text: &str) -> Result<Self, String> {
        Ok(Self { first: text.parse()?, others: Vec::new() })
    }

    /// Reads a list of ways between commas, each once.
    #[cfg(feature = "evaluation")]
    pub fn several(text: &str) -> Result<Self, String> {
        let mut words = text.split(',');
        let mut modes = Self::one(words.next().unwrap_or_default())?;
        for word in words {
            let mode = word.parse()?;
            if modes.all().any(|known| known == mode) {
                return Err(format!("'{word}' is given twice"));
            }
            modes.others.push(mode);
        }
        Ok(modes)
    }

    /// The first one, or the only one.
    pub fn first(&self) -> PrefillMode {
        self.first
    }

    /// All of them.
    #[cfg(feature = "evaluation")]
    pub fn all(&self) -> impl Iterator<Item = PrefillMode> {
        std::iter::once(self.first).chain(self.others.iter().copied())
    }
}

/// Which query chooses what a step recalls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recall {
    Exact,
    Speculative,
}

const ACTIVATIONS: &[(Activations, &str)] = &[
    (Activations::Int16, "int16"),
    (Activations::Int8, "int8"),
    (Activations::Bf16, "bf16"),
    (Activations::F32, "f32"),
];

const RECALLS: &[(Recall, &str)] =
    &[(Recall::Exact, "exact"), (Recall::Speculative, "speculative")];

const RESIDENCIES: &[(KvResidency, &str)] =
    &[(KvResidency::Host, "host"), (KvResidency::Device, "device"), (KvResidency::Auto, "auto")];

/// The types in which keys and values can be kept.
pub fn kv_types() -> impl Iterator<Item = DType> {
    KV_TYPES.iter().map(|(dtype, _)| *dtype)
}

/// Options of the engine and its device.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Engine")]
pub struct EngineArgs {
    /// How keys and values are stored: f16, or as in the session of --session, where none is given.
    /// q8: 8 bits in host memory and in the device cache, half of what f16 takes, but for the first
    /// and the most recent tokens.
    #[arg(long, value_name = "TYPE", value_parser = one_of(KV_TYPES))]
    kv_type: Option<DType>,

    /// What products with quantised weights do to activations: int16: round them to 16 bits, 32
    /// with one scale; int8: to 8 bits, which is faster, most of all in prompts, and makes
    /// perplexity about 0.3 % larger; f32: leave them as they are, which is slow. bf16 is for
    /// weights of BF16, whose products do not round otherwise: round to bf16, with which prompts
    /// are read faster on processors with AVX512-BF16; quantised weights as with int16.
    #[arg(long, value_name = "TYPE", default_value = "int16", value_parser = one_of(ACTIVATIONS))]
    pub activations: Activations,

    /// How prompts are read. exact: every token attends to every token before it. sparse: from some
    /// thousand tokens on, tiles of tokens attend to the blocks of 128 tokens that have a share of
    /// their attention, and to the means of all others, which is faster the longer the prompt is;
    /// sparse:THRESHOLD, above 0 and at most 1, says what part of the largest share a block must
    /// have, and less attends more. The last 256 tokens are always read exactly.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "exact",
        value_parser = PrefillModes::one
    )]
    pub prefill: PrefillModes,

    /// Prompt tokens computed at a time: more is faster and takes more memory.
    #[arg(
        long,
        visible_alias = "ubatch-size",
        value_name = "TOKENS",
        default_value_t = EngineOptions::default().chunk_size,
        allow_negative_numbers = true,
        value_parser = count(1..=MAX_CHUNK_SIZE)
    )]
    pub chunk_size: usize,

    /// Which query chooses what a step recalls: exact: its own, at the price of a wait for the
    /// device in every layer; speculative: that of the step before, with one wait a step, and once
    /// more exactly where a query has moved too far. For a device with memory of its own.
    #[arg(
        long,
        value_name = "MODE",
        default_value = "exact",
        value_parser = one_of(RECALLS)
    )]
    pub recall: Recall,

    /// Where keys and values of layers that recall lie, for a device with memory of its own: host:
    /// in the host's memory, from which the device fetches what a step recalls; device: all of them
    /// on the device as well, so that nothing is fetched; auto: device where its memory is known to
    /// hold them with a quarter to spare, else host. Of f16, bf16 and f32 alone (--kv-type)
    /// [default: auto for `run`, else host].
    #[arg(long, value_name = "PLACE", value_parser = one_of(RESIDENCIES))]
    pub kv_residency: Option<KvResidency>,

    /// How near two queries in a row must be for --recall speculative: the least mean cosine of a
    /// KV head, from -1 (never run a step again) to 2 (above 1: always) [default: 0.9].
    #[arg(long, value_name = "COSINE", allow_negative_numbers = true, value_parser = gate)]
    pub recall_gate: Option<f32>,

    /// Where to compute: cuda (NVIDIA GPUs), wgpu (any GPU), cpu, or auto: the first of these that
    /// there is (with --adapter or --shader-level: wgpu).
    #[arg(long, value_name = "NAME", default_value = "auto", value_parser = one_of(DEVICES))]
    pub device: DeviceChoice,

    /// GPU for --device wgpu: its number in `longview doctor` or a part of its name [default: the
    /// fastest].
    #[arg(long, value_name = "GPU")]
    pub adapter: Option<String>,

    /// GPU for --device cuda: its number in `longview doctor` [default: 0].
    #[arg(long, value_name = "N", value_parser = count(0..=1023))]
    pub cuda_device: Option<usize>,

    /// WGSL features that shaders use, for --device wgpu [default: the best that computes right
    /// numbers].
    #[arg(long, alias = "tier", value_name = "NAME", value_parser = one_of(SHADER_LEVELS))]
    pub shader_level: Option<ShaderLevel>,

    /// Plan as if the device had so much memory, as 512MiB or 4GB: what does not fit is refused
    /// before anything is loaded [default: what the device has].
    #[arg(long, value_name = "SIZE", value_parser = device_memory)]
    pub device_memory: Option<u64>,

    /// Threads of the CPU backend; 0: one for each physical core.
    #[arg(
        short,
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true,
        value_parser = count(0..=1024)
    )]
    pub threads: usize,

    /// Vector instructions of the CPU backend [default: the best that the processor has].
    #[arg(long, value_name = "NAME", value_parser = isas())]
    pub isa: Option<Isa>,
}

fn isas() -> impl TypedValueParser<Value = Isa> {
    clap::builder::PossibleValuesParser::new(Isa::ALL.iter().map(|isa| isa.name()))
        .map(|name: String| name.parse::<Isa>().expect("the parser lets known names through"))
}

fn gate(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(gate) if (-1.0..=2.0).contains(&gate) => Ok(gate),
        _ => Err("must be a number from -1 (never run a step again) to 2 (always)".into()),
    }
}

/// A size that a device may have.
fn device_memory(text: &str) -> Result<u64, String> {
    let bytes = units::parse_bytes(text)?;
    if (1 << 10..=1 << 50).contains(&bytes) {
        Ok(bytes)
    } else {
        Err("must be a size from 1KiB to 1024TiB".to_owned())
    }
}

impl EngineArgs {
    /// Starts the device.
    pub fn device(&self) -> Result<Device> {
        if self.recall == Recall::Exact && self.recall_gate.is_some() {
            bail!("--recall-gate has no meaning for --recall exact: use --recall speculative");
        }
        self.check_residency()?;
        self.check_device_options()?;
        let options = DeviceOptions {
            cpu: CpuOptions { threads: self.threads, isa: self.isa },
            wgpu: WgpuOptions {
                adapter: self.adapter.clone(),
                shader_level: self.shader_level,
                ..WgpuOptions::default()
            },
            cuda: CudaOptions { device: self.cuda_device, ..CudaOptions::default() },
        };
        device::open(self.device, &options)
    }

    /// Fails for rows on the device with what leaves them on the host.
    fn check_residency(&self) -> Result<()> {
        if self.kv_residency != Some(KvResidency::Device) {
            return Ok(());
        }
        if self.recall == Recall::Speculative {
            bail!(
                "--recall speculative has no meaning for --kv-residency device, which fetches \
                 nothing: use --recall exact, or --kv-residency host"
            );
        }
        if self.kv_type() == DType::Q8 {
            bail!(
                "--kv-residency device has no meaning for --kv-type q8, whose rows stay on the \
                 host: use --kv-type f16, or --kv-residency host"
            );
        }
        Ok(())
    }

    /// Fails for an option that names a GPU of another device: it would be dropped in silence.
    fn check_device_options(&self) -> Result<()> {
        use DeviceChoice::{Auto, Cuda, Wgpu};
        let given: [(&str, bool, &[DeviceChoice], &str); 3] = [
            ("--cuda-device", self.cuda_device.is_some(), &[Cuda], "cuda"),
            ("--adapter", self.adapter.is_some(), &[Wgpu, Auto], "wgpu"),
            ("--shader-level", self.shader_level.is_some(), &[Wgpu, Auto], "wgpu"),
        ];
        for (option, is_given, devices, wanted) in given {
            if is_given && !devices.contains(&self.device) {
                let found = DEVICES.iter().find(|(device, _)| *device == self.device);
                let name = found.map_or("this", |(_, name)| name);
                bail!("{option} has no meaning for --device {name}: use --device {wanted}");
            }
        }
        Ok(())
    }

    /// Which query chooses, as results files record it: as on the command line, without the
    /// option's name.
    #[cfg(feature = "evaluation")]
    pub fn recall_text(&self) -> String {
        let (_, name) = RECALLS.iter().find(|(recall, _)| *recall == self.recall).expect("named");
        match self.recall_mode() {
            RecallMode::Exact => (*name).to_owned(),
            RecallMode::Speculative { gate } => format!("{name} --recall-gate {gate}"),
        }
    }

    fn recall_mode(&self) -> RecallMode {
        match self.recall {
            Recall::Exact => RecallMode::Exact,
            Recall::Speculative => RecallMode::Speculative {
                gate: self.recall_gate.unwrap_or(RecallMode::DEFAULT_GATE),
            },
        }
    }

    /// How keys and values are stored.
    pub fn kv_type(&self) -> DType {
        self.kv_type.unwrap_or(DType::F16)
    }

    /// The same, in a session that was saved with `saved`.
    pub fn kv_type_of_session(&self, saved: Option<DType>) -> DType {
        self.kv_type.or(saved).unwrap_or(DType::F16)
    }

    /// The engine's options for a context of `ctx_size` tokens.
    pub fn options(&self, ctx_size: usize) -> EngineOptions {
        EngineOptions {
            ctx_size,
            chunk_size: self.chunk_size,
            prefill: self.prefill.first(),
            kv_dtype: self.kv_type(),
            recall: self.recall_mode(),
            kv_residency: self.kv_residency.unwrap_or_default(),
            device_memory: self.device_memory,
            activations: self.activations,
            ..EngineOptions::default()
        }
    }
}
