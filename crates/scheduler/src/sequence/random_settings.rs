//! Random settings of every preset: each is a policy that plans and runs, or ends with an error
//! whose advice, once followed, works.

use std::sync::Arc;

use longview_core::{DType, LayerId, SplitMix64};
use longview_ops::reference::RefBuffer;
use longview_ops::{Backend, ReferenceBackend, View, ViewMut};
use pollster::block_on;

use super::kv_sequence::Sequence;
use super::options::{HostStoreKind, Placement, SequenceOptions};
use super::plan::KvPlan;
use super::scratch::StepScratch;
use super::step::{SpanMode, Step, StepSpan};
use crate::layout::{HostRows, KvShape, LayerMode, LayerTensors};
use crate::policy::random::{Setting, given_budget};
use crate::policy::{
    HeadBudgets, LayerBudgets, MAX_CONTEXT, Policy, PolicyAdvice, PolicyError, PolicyOptions,
    Preset,
};

type R = ReferenceBackend;

/// Settings of each preset that are resolved and planned, and that take a short prompt and tokens
/// behind it.
const SETTINGS: usize = 10_000;

/// Settings of each preset that run with up to 200 tokens, where a run costs 20 times as much.
const LONG_RUNS: usize = 60;

/// Follows what errors advise until there is a policy: at most one step for each option that was
/// given, and one for the budget, which has a value whether it was given or not.
fn settled(setting: &Setting, options: &mut PolicyOptions) -> Policy {
    let most = options.given().len() + 1;
    let mut messages = Vec::new();
    for _ in 0..=most {
        let error = match Policy::resolve(options, setting.context) {
            Ok(policy) => return policy,
            Err(error) => error,
        };
        let advice = error.advice().unwrap_or_else(|| panic!("{error}: no advice"));
        messages.push(error.to_string());
        assert!(messages[messages.len() - 1].contains("--"), "{messages:?}");
        options.follow(&advice).unwrap_or_else(|e| panic!("{messages:?}: {e}"));
        if let PolicyAdvice::Raise { least, .. } = advice {
            check_least(options, setting.context, least);
        }
    }
    panic!("{:?} {:?}: {messages:#?}", setting.preset, setting.given)
}

/// The budget that was advised does, and so does every larger one.
fn check_least(options: &PolicyOptions, context: usize, least: usize) {
    assert_eq!(given_budget(options), Some(least));
    for tokens in [least, least + 1, least + 7, 2 * least, 3 * least + 1, MAX_CONTEXT] {
        let tokens = tokens.min(MAX_CONTEXT);
        let error = Policy::resolve(&options.clone().with_budget(tokens), context).err();
        let is_small = matches!(error, Some(PolicyError::BudgetTooSmall(_)));
        assert!(!is_small, "{least} was advised, and {tokens}: {error:?}");
    }
}

/// What must hold for every policy.
fn check(policy: &Policy, context: usize) {
    let Policy { sinks, recent, budget, .. } = *policy;
    let tokens = budget.tokens.unwrap_or(MAX_CONTEXT);
    assert!((1..=MAX_CONTEXT).contains(&tokens) && sinks + recent <= tokens, "{policy:?}");
    let ring = policy.ring_rows();
    if policy.index.is_some() {
        assert!(sinks + ring < tokens, "{policy:?}");
    } else if policy.residency.kept().is_some() {
        assert!(ring < tokens, "{policy:?}");
    } else {
        assert!(ring == recent, "{policy:?}");
    }
    let layout = policy.device_layout(context);
    assert!(layout.rows() <= 3 * context, "{layout:?} of {policy:?}");
    assert!(policy.candidates(context) <= context && policy.most_attended() <= 2 * tokens);
    assert!(policy.max_units(context) <= 6 * context + 3, "{policy:?}");
    // A pyramid's first layers have up to twice the mean.
    let deep = KvShape { n_layers: 64, windows: [].into(), ..shape(context) };
    let mut kept = deep.layers().map(|layer| policy.kept(&deep, layer));
    assert!(kept.all(|rows| rows <= 2 * tokens), "{policy:?}");
    assert!(!policy.text().is_empty());
}

/// Tokens that the second layer sees, under every policy.
const WINDOW: usize = 5;

fn shape(capacity: usize) -> KvShape {
    KvShape {
        n_layers: 3,
        n_q_heads: 4,
        n_kv_heads: 2,
        head_dim: 4,
        kv_dtype: DType::F32,
        host_rows: HostRows::default(),
        capacity,
        scale: 0.5,
        inv_freq: vec![1.0, 0.1].into(),
        windows: [None, Some(WINDOW), None].into(),
    }
}

fn layouts() -> [SequenceOptions; 4] {
    let of = |placement, store, device_cache| SequenceOptions {
        placement,
        store,
        device_cache,
        chunk: 16,
        tile: 16,
        overlap: false,
        ..SequenceOptions::default()
    };
    [
        of(Placement::InPlace, HostStoreKind::Auto, false),
        of(Placement::Device, HostStoreKind::Plain, false),
        of(Placement::Device, HostStoreKind::Auto, true),
        SequenceOptions {
            resident_rows: true,
            ..of(Placement::Device, HostStoreKind::Plain, false)
        },
    ]
}

#[test]
fn every_setting_is_a_policy_or_says_what_would_be_one() {
    for (preset, name) in Preset::ALL {
        let mut rng = SplitMix64::new(0x5e77_1465);
        let (mut n_first, mut most_bytes) = (0, 0);
        for _ in 0..SETTINGS {
            let setting = Setting::draw(&mut rng, *preset, MAX_CONTEXT);
            let mut options = setting.options();
            n_first += usize::from(Policy::resolve(&options, setting.context).is_ok());
            let policy = settled(&setting, &mut options);
            check(&policy, setting.context);
            let large = KvShape { n_layers: 128, n_kv_heads: 8, ..shape(setting.context) };
            for layout in layouts() {
                let plan = KvPlan::new(&large, &policy, &layout);
                most_bytes = most_bytes.max(plan.total_bytes());
            }
            let text = options.text();
            assert_eq!(PolicyOptions::from_text(&text).as_ref(), Ok(&options), "{text}");
        }
        assert!(n_first > SETTINGS / 20 && n_first < SETTINGS, "{name}: {n_first} at once");
        assert!(most_bytes < 1 << 60, "{name}: {most_bytes} bytes");
    }
}

/// A sequence and what its steps use.
pub(super) struct Runner {
    pub backend: Arc<R>,
    pub sequence: Sequence<R>,
    scratch: StepScratch<R>,
    rng: SplitMix64,
}

impl Runner {
    pub fn new(policy: Policy, capacity: usize, layout: SequenceOptions) -> Self {
        let backend = Arc::new(R::new());
        let shape = shape(capacity);
        let SequenceOptions { chunk, tile, placement, .. } = layout;
        Self {
            scratch: StepScratch::new(&*backend, &shape, chunk, tile, placement).unwrap(),
            sequence: Sequence::new(&backend, shape, policy, layout).unwrap(),
            backend,
            rng: SplitMix64::new(7),
        }
    }

    fn random(&mut self, n: usize) -> RefBuffer {
        let values: Vec<f32> = (0..n).map(|_| self.rng.next_normal()).collect();
        let mut buffer = self.backend.alloc(DType::F32, n, "test").unwrap();
        self.backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(&values)).unwrap();
        buffer
    }

    /// One step of `len` random tokens; its attention, layer by layer, is of finite numbers.
    pub fn step(&mut self, len: usize, mode: SpanMode) -> Vec<f32> {
        let shape = self.sequence.shape().clone();
        let KvShape { n_q_heads: hq, n_kv_heads: hkv, head_dim: d, .. } = shape;
        let inputs: Vec<_> = shape
            .layers()
            .map(|_| [hq, hkv, hkv, hq].map(|heads| self.random(len * heads * d)))
            .collect();
        let spans =
            &mut [StepSpan { sequence: &mut self.sequence, start: 0, len, mode, is_read: true }];
        let mut step = Step { spans, scratch: &mut self.scratch };
        let mut attended = Vec::new();
        step.check().unwrap();
        for (layer, [q, k, v, out]) in shape.layers().zip(inputs) {
            let next = LayerId(layer.0 + 1);
            if next.index() < shape.n_layers && step.wants_prefetch(next) {
                block_on(step.prefetch(next, View::all(&q))).unwrap();
            }
            let mut out = out;
            let (q, k, v) = (View::all(&q), View::all(&k), View::all(&v));
            let tensors = LayerTensors { q, k, v, out: ViewMut::all(&mut out) };
            block_on(step.attend(layer, tensors)).unwrap();
            let mut values = vec![0.0f32; len * hq * d];
            let bytes = bytemuck::cast_slice_mut(&mut values);
            block_on(self.backend.read(View::all(&out), bytes)).unwrap();
            assert!(values.iter().all(|x| x.is_finite()), "layer {layer}: {values:?}");
            attended.extend(values);
        }
        step.finish();
        let mut parts = self.sequence.writeback_parts();
        if !parts.is_empty() {
            block_on(self.backend.read_all(&mut parts)).unwrap();
        }
        drop(parts);
        let _ = self.sequence.finish_writeback();
        attended
    }

    /// Reads a prompt of `n` random tokens; returns what [`Runner::step`] does, chunk by chunk.
    pub fn prefill(&mut self, n: usize) -> Vec<f32> {
        let chunk = self.sequence.options.chunk;
        let (mut left, mut attended) = (n, Vec::new());
        while left > 0 {
            let len = left.min(chunk);
            left -= len;
            attended.extend(self.step(len, SpanMode::Exact { remaining: left }));
        }
        block_on(self.sequence.finish_prefill()).unwrap();
        attended
    }

    /// No head attended more than its budget in the last step, apart from what it drew.
    fn check_attended(&self) {
        let (policy, shape) = (self.sequence.policy(), self.sequence.shape());
        let Some(budget) = policy.budget.tokens else { return };
        let mut last = self.sequence.stats().attended_last.clone();
        for (layer, heads) in shape.layers().zip(last.chunks_mut(shape.n_kv_heads)) {
            for (head, attended) in shape.heads().zip(heads) {
                *attended -= self.sequence.drawn_tokens(layer, head).len() as u32;
            }
        }
        let n_tokens = self.sequence.n_tokens();
        let is_even = policy.budget.layers == LayerBudgets::Uniform;
        let is_uniform = is_even && policy.budget.heads == HeadBudgets::Uniform;
        // Layers and heads that keep less than a window attend it whole before they choose again,
        // and each one's share is rounded.
        let window = policy.residency.kept().map_or(0, |kept| kept.window);
        let share = if is_uniform { budget } else { budget + window + 1 };
        let mut sum = 0;
        for (layer, heads) in shape.layers().zip(last.chunks(shape.n_kv_heads)) {
            match policy.layer_mode(shape, layer) {
                LayerMode::Dense => continue,
                LayerMode::Local => {
                    let window = n_tokens.min(WINDOW);
                    assert!(heads.iter().all(|n| *n as usize == window), "{heads:?}");
                    continue;
                }
                LayerMode::Window | LayerMode::Recall | LayerMode::Kept => {}
            }
            assert!(heads.iter().all(|n| *n as usize <= n_tokens), "{heads:?} of {n_tokens}");
            let attended: usize = heads.iter().map(|n| *n as usize).sum();
            if is_uniform {
                assert!(heads.iter().all(|n| *n as usize <= budget), "{heads:?} of {budget}");
            } else if is_even {
                assert!(attended <= share * heads.len(), "{heads:?} of {budget}");
            }
            sum += attended;
        }
        assert!(sum <= share * last.len(), "{sum} of {budget} each");
    }
}

/// Runs `n` settings of each preset with contexts of up to `most` tokens.
fn run_settings(n: usize, most: usize) {
    for (preset, name) in Preset::ALL {
        let mut rng = SplitMix64::new(0x0a77_e4d5 ^ most as u64);
        for i in 0..n {
            let setting = Setting::draw(&mut rng, *preset, most);
            let (n_prompt, n_steps) = (1 + rng.below(setting.context), rng.below(12));
            let mut options = setting.options();
            let policy = settled(&setting, &mut options);
            let run = || {
                let mut runner = Runner::new(policy, setting.context, layouts()[i % 4]);
                runner.prefill(n_prompt);
                for _ in 0..n_steps.min(setting.context - n_prompt) {
                    runner.step(1, SpanMode::Policy);
                    runner.check_attended();
                }
            };
            let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
            let of = [i % 4, setting.context, n_prompt, n_steps];
            assert!(result.is_ok(), "{name}, {of:?}:\n{}", options.text());
        }
    }
}

#[test]
fn settings_run_from_prompt_to_tokens_within_their_budget() {
    run_settings(SETTINGS, 24);
}

#[test]
fn settings_of_longer_contexts_run_too() {
    run_settings(LONG_RUNS, 200);
}
