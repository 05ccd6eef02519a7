//! A scheduler without a model: random queries, keys and values, and the truth beside it.
//!
//! [`Sim`] keeps every key and value that it ever gave to a sequence, by token position, so that a
//! test can ask whether the scheduler attended the right rows and got the right sum.

use std::sync::Arc;

use longview_core::{DType, HeadId, LayerId, SplitMix64, decode_f32};
use longview_ops::{Backend, OpResult, View, ViewMut};
use longview_scheduler::{
    KvShape, LayerIndex, LayerTensors, Policy, PolicyOptions, SchedulerError, Sequence,
    SequenceOptions, SpanMode, Step, StepScratch, StepSpan, StepVerdict,
};
use pollster::block_on;

/// Queries, keys and values of one token in one layer: `[Hq, Dh]`, `[Hkv, Dh]`, `[Hkv, Dh]`.
#[derive(Clone, Debug)]
pub struct TokenData {
    /// Queries.
    pub q: Vec<f32>,
    /// Keys.
    pub k: Vec<f32>,
    /// Values.
    pub v: Vec<f32>,
}

/// A key and a value that stand for so many tokens.
#[derive(Clone, Debug)]
pub struct Term {
    /// The key.
    pub key: Vec<f64>,
    /// The value.
    pub value: Vec<f64>,
    /// How many tokens.
    pub weight: f64,
}

impl TokenData {
    /// The queries as the layer before would predict them: near, and other ones.
    pub fn predicted(&self) -> Vec<f32> {
        let other = self.v.iter().cycle();
        self.q.iter().zip(other).map(|(q, other)| 0.9 * q + 0.7 * other).collect()
    }
}

/// A sequence under test with its truth.
pub struct Sim<B: Backend> {
    /// The device.
    pub backend: Arc<B>,
    /// The sequence.
    pub sequence: Sequence<B>,
    /// `truth[layer][position]`.
    pub truth: Vec<Vec<TokenData>>,
    /// The last step's attention `[layer][T * Hq * Dh]`.
    pub out: Vec<Vec<f32>>,
    /// Reads that the simulation itself made, to look at results.
    pub own_readbacks: u64,
    scratch: StepScratch<B>,
    options: SequenceOptions,
}

/// A shape for quick tests: GQA with two query heads a KV head, f32 rows.
pub fn small_shape(capacity: usize) -> KvShape {
    KvShape {
        n_layers: 2,
        n_q_heads: 4,
        n_kv_heads: 2,
        head_dim: 8,
        kv_dtype: DType::F32,
        host_rows: longview_scheduler::HostRows::default(),
        capacity,
        scale: 0.6,
        inv_freq: [1.0, 0.3, 0.1, 0.03].into(),
        windows: [].into(),
    }
}

/// Random data of one token, the same for the same seed, layer and position. Keys gather around
/// eight directions, as the keys of real models do.
pub fn token_data(shape: &KvShape, seed: u64, layer: LayerId, position: usize) -> TokenData {
    let mut rng =
        SplitMix64::new(seed ^ (u64::from(layer.0) << 48) ^ (position as u64).wrapping_mul(0x9E37));
    let mut normal =
        |n: usize, scale: f32| (0..n).map(|_| rng.next_normal() * scale).collect::<Vec<_>>();
    let (q, noise) = (
        normal(shape.n_q_heads * shape.head_dim, 1.5),
        normal(shape.n_kv_heads * shape.head_dim, 0.3),
    );
    let v = normal(shape.n_kv_heads * shape.head_dim, 1.0);
    let mut direction = SplitMix64::new(seed ^ 77 ^ (rng.below(8) as u64) << 8);
    let k = noise.iter().map(|x| x + 2.0 * direction.next_normal()).collect();
    TokenData { q, k, v }
}

impl<B: Backend> Sim<B> {
    /// What describes the units of a head of `index` to queries, `[units, width]`.
    pub fn landmarks(&self, index: &LayerIndex<B>, head: HeadId) -> Vec<f32> {
        let bytes = index.landmarks(&self.backend, head.index());
        let bytes = bytes.get(0..index.heads()[head].sizes.len());
        decode_f32(self.sequence.shape().kv_dtype, &bytes)
    }

    /// An empty sequence on `backend`.
    pub fn new(
        backend: &Arc<B>,
        shape: KvShape,
        policy: &PolicyOptions,
        options: SequenceOptions,
    ) -> Result<Self, SchedulerError> {
        let policy = Policy::resolve(policy, shape.capacity)?;
        let scratch = scratch(backend, &shape, &options)?;
        Ok(Self {
            backend: Arc::clone(backend),
            truth: vec![Vec::new(); shape.n_layers],
            out: vec![Vec::new(); shape.n_layers],
            own_readbacks: 0,
            sequence: Sequence::new(backend, shape, policy, options)?,
            scratch,
            options,
        })
    }

    /// The same simulation around another sequence, such as this one saved and opened again.
    pub fn twin<C: Backend>(
        &self,
        backend: &Arc<C>,
        sequence: Sequence<C>,
        options: SequenceOptions,
    ) -> Result<Sim<C>, SchedulerError> {
        Ok(Sim {
            backend: Arc::clone(backend),
            scratch: scratch(backend, sequence.shape(), &options)?,
            truth: self.truth.clone(),
            out: vec![Vec::new(); self.out.len()],
            own_readbacks: 0,
            sequence,
            options,
        })
    }

    /// Goes on with another backend after the device was lost.
    pub fn move_to(&mut self, backend: &Arc<B>) -> Result<(), SchedulerError> {
        self.backend = Arc::clone(backend);
        self.scratch = scratch(backend, self.sequence.shape(), &self.options)?;
        self.sequence.recover(backend)
    }

    /// Every KV head of every layer.
    pub fn heads(&self) -> Vec<(LayerId, HeadId)> {
        let shape = self.sequence.shape();
        shape.layers().flat_map(|layer| shape.heads().map(move |head| (layer, head))).collect()
    }

    /// Tokens so far.
    pub fn n_tokens(&self) -> usize {
        self.sequence.n_tokens()
    }

    /// Adds tokens by exact prefill in chunks, without ending the prefill.
    pub fn prefill(&mut self, seed: u64, n_tokens: usize) {
        let mut left = n_tokens;
        while left > 0 {
            let len = left.min(self.options.chunk);
            left -= len;
            self.step(seed, len, SpanMode::Exact { remaining: left }).expect("prefill");
        }
        block_on(self.sequence.finish_prefill()).expect("prefill");
    }

    /// Adds one token through the policy.
    pub fn decode(&mut self, seed: u64) {
        self.step(seed, 1, SpanMode::Policy).expect("decode");
    }

    /// One step of `len` tokens with data of `seed`, and once more if it does not stand.
    pub fn step(&mut self, seed: u64, len: usize, mode: SpanMode) -> Result<(), SchedulerError> {
        let shape = self.sequence.shape().clone();
        let tokens = self.n_tokens()..self.n_tokens() + len;
        let data = move |layer: LayerId| -> Vec<TokenData> {
            tokens.clone().map(|p| token_data(&shape, seed, layer, p)).collect()
        };
        self.step_with(len, mode, &data)
    }

    /// One step of `len` tokens whose data `data` makes for each layer, and once more if it does
    /// not stand.
    pub fn step_with(
        &mut self,
        len: usize,
        mode: SpanMode,
        data: &dyn Fn(LayerId) -> Vec<TokenData>,
    ) -> Result<(), SchedulerError> {
        let first = self.n_tokens();
        let data: Vec<_> = self.sequence.shape().layers().map(data).collect();
        if self.run(&data, len, mode)? == StepVerdict::RunAgain {
            assert_eq!(self.n_tokens(), first, "a step that is taken back leaves nothing");
            assert_eq!(self.run(&data, len, mode)?, StepVerdict::Stands, "an exact step stands");
        }
        for (layer, tokens) in data.into_iter().enumerate() {
            self.truth[layer].truncate(first);
            self.truth[layer].extend(tokens);
        }
        Ok(())
    }

    fn run(
        &mut self,
        data: &[Vec<TokenData>],
        len: usize,
        mode: SpanMode,
    ) -> Result<StepVerdict, SchedulerError> {
        let shape = self.sequence.shape().clone();
        let spans =
            &mut [StepSpan { sequence: &mut self.sequence, start: 0, len, mode, is_read: true }];
        let mut step = Step { spans, scratch: &mut self.scratch };
        step.check()?;
        for (layer, tokens) in shape.layers().zip(data) {
            let next = LayerId(layer.0 + 1);
            if let Some(tokens) = data.get(next.index()).filter(|_| step.wants_prefetch(next)) {
                let q: Vec<f32> = tokens.iter().flat_map(TokenData::predicted).collect();
                let mut buffer = self.backend.alloc(DType::F32, q.len(), "test")?;
                self.backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(&q))?;
                block_on(step.prefetch(next, View::all(&buffer)))?;
            }
            self.out[layer] = attend(&*self.backend, &shape, &mut step, layer, tokens)?;
            self.own_readbacks += 1;
        }
        step.finish();
        // As the engine does, which adds the token.
        let mut parts = self.sequence.writeback_parts();
        if !parts.is_empty() {
            block_on(self.backend.read_all(&mut parts))?;
        }
        drop(parts);
        Ok(self.sequence.finish_writeback())
    }

    /// Attention of query head `h` of the last token of the last step over the tokens at
    /// `positions`, in f64.
    pub fn oracle(&self, layer: LayerId, h: usize, positions: &[u32]) -> Vec<f64> {
        let group = self.sequence.shape().n_q_heads / self.sequence.shape().n_kv_heads;
        let head = HeadId::new(h / group);
        let terms: Vec<_> = positions.iter().map(|p| self.term(layer, head, *p)).collect();
        self.attention(layer, h, &terms)
    }

    /// Key and value of the token at a position.
    pub fn term(&self, layer: LayerId, kv_head: HeadId, position: u32) -> Term {
        let d = self.sequence.shape().head_dim;
        let token = &self.truth[layer][position as usize];
        let part = |x: &[f32]| -> Vec<f64> {
            x[kv_head.index() * d..][..d].iter().map(|x| f64::from(*x)).collect()
        };
        Term { key: part(&token.k), value: part(&token.v), weight: 1.0 }
    }

    /// Attention of query head `h` of the last token of the last step over these keys and values,
    /// in f64.
    pub fn attention(&self, layer: LayerId, h: usize, terms: &[Term]) -> Vec<f64> {
        let (d, scale) = (self.sequence.shape().head_dim, self.sequence.shape().scale);
        let q = &self.truth[layer].last().expect("a token").q[h * d..(h + 1) * d];
        let score = |term: &Term| {
            let dot = q.iter().zip(&term.key).map(|(a, b)| f64::from(*a) * b).sum::<f64>();
            f64::from(scale) * dot + term.weight.ln()
        };
        let scores: Vec<f64> = terms.iter().map(score).collect();
        let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let mut out = vec![0.0; d];
        let mut sum = 0.0;
        for (term, s) in terms.iter().zip(&scores) {
            let weight = (s - top).exp();
            sum += weight;
            out.iter_mut().zip(&term.value).for_each(|(o, v)| *o += weight * v);
        }
        out.iter().map(|o| o / sum).collect()
    }

    /// Checks that every row of the host store holds the key and value of the position that it
    /// claims, and that positions are each there once.
    pub fn check_rows(&self) {
        let shape = self.sequence.shape();
        let d = shape.head_dim;
        for (l, layer) in shape.layers().zip(self.sequence.layers()) {
            for (h, positions) in shape.heads().zip(&layer.positions) {
                let mut sorted = positions.clone();
                sorted.sort_unstable();
                assert!(
                    sorted.iter().enumerate().all(|(i, p)| i as u32 == *p),
                    "positions are 0..n"
                );
                let mut bytes = vec![0; positions.len() * shape.row_bytes()];
                self.sequence.store().read_rows(l, h, 0..positions.len(), &mut bytes);
                let rows = longview_core::decode_f32(shape.kv_dtype, &bytes);
                let own = h.index() * d..(h.index() + 1) * d;
                for (row, p) in rows.chunks_exact(2 * d).zip(positions) {
                    let truth = &self.truth[l][*p as usize];
                    assert_eq!(&row[..d], &truth.k[own.clone()], "layer {l} head {h} key {p}");
                    assert_eq!(&row[d..], &truth.v[own.clone()], "layer {l} head {h} value {p}");
                }
            }
        }
    }
}

fn scratch<B: Backend>(
    backend: &Arc<B>,
    shape: &KvShape,
    options: &SequenceOptions,
) -> OpResult<StepScratch<B>> {
    StepScratch::new(&**backend, shape, options.chunk, options.tile, options.placement)
}

/// One layer of a step whose tokens are `tokens`, in the order of the spans; returns the attention.
pub fn attend<B: Backend>(
    backend: &B,
    shape: &KvShape,
    step: &mut Step<'_, '_, B>,
    layer: LayerId,
    tokens: &[TokenData],
) -> Result<Vec<f32>, SchedulerError> {
    let buffer = |values: Vec<f32>| {
        let mut buffer = backend.alloc(DType::F32, values.len(), "test").expect("memory");
        backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(&values)).expect("write");
        buffer
    };
    let q = buffer(tokens.iter().flat_map(|t| t.q.clone()).collect());
    let k = buffer(tokens.iter().flat_map(|t| t.k.clone()).collect());
    let v = buffer(tokens.iter().flat_map(|t| t.v.clone()).collect());
    let mut out = buffer(vec![f32::NAN; tokens.len() * shape.n_q_heads * shape.head_dim]);
    let tensors = LayerTensors {
        q: View::all(&q),
        k: View::all(&k),
        v: View::all(&v),
        out: ViewMut::all(&mut out),
    };
    block_on(step.attend(layer, tensors))?;
    let mut values = vec![0.0f32; tokens.len() * shape.n_q_heads * shape.head_dim];
    block_on(backend.read(View::all(&out), bytemuck::cast_slice_mut(&mut values))).expect("read");
    Ok(values)
}

/// Fails unless every element is within `1e-4 + 1e-4 |want|`.
pub fn assert_near(got: &[f32], want: &[f64], what: &str) {
    assert_within(got, want, 1e-4, what);
}

/// Fails unless every element is within `tolerance + tolerance |want|`.
pub fn assert_within(got: &[f32], want: &[f64], tolerance: f64, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (g, w)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*g) - w).abs();
        let allowed = tolerance + tolerance * w.abs();
        assert!(error <= allowed, "{what}: element {i} is {g}, expected {w}");
    }
}
