//! The transformer on the reference backend against logits and tokens of Hugging Face.

use std::convert::Infallible;
use std::path::Path;

use longview_core::{DType, HostBytes, TokenPos};
use longview_ops::Storage;
use longview_ops::reference::ReferenceBackend;
use longview_ops::{
    Activations, AttendChunk, AttendParams, ChunkSpan, DeviceBuffer, KvScatter, KvScatterParams,
    KvView, WeightSource,
};
use serde_json::Value;

use super::*;
use crate::batch::Span;
use crate::folder::ModelFolder;
use crate::testing::fixture;

type Ref = ReferenceBackend;
type Buffer = <Ref as Storage>::Buffer;

const CAPACITY: usize = 512;

/// Full attention over plain f32 rows: one buffer per sequence and layer.
struct FullAttention {
    backend: Ref,
    config: ModelConfig,
    p: AttendParams,
    rows: Vec<Vec<Buffer>>,
    lse: Buffer,
    row_ids: Buffer,
    /// With queries of layer 1 as predicted, and as they are, where these are wanted.
    looks_ahead: bool,
    queries: [Vec<f32>; 2],
}

impl FullAttention {
    fn new(backend: &Ref, model: &Model<Ref>, n_sequences: usize) -> Self {
        let config = model.config();
        let len = config.n_kv_heads * CAPACITY * 2 * config.head_dim;
        let buffer = || backend.alloc(DType::F32, len, "rows").unwrap();
        let layers = || (0..config.n_layers).map(|_| buffer()).collect();
        Self {
            backend: backend.clone(),
            config: config.clone(),
            p: AttendParams {
                n_tokens: 0,
                n_q_heads: config.n_q_heads as u32,
                n_kv_heads: config.n_kv_heads as u32,
                head_dim: config.head_dim as u32,
                scale: model.config().attention_scale(),
                accumulate: 0,
            },
            rows: (0..n_sequences).map(|_| layers()).collect(),
            lse: backend.alloc(DType::F32, CAPACITY * config.n_q_heads, "lse").unwrap(),
            row_ids: backend.alloc(DType::U32, CAPACITY, "rows").unwrap(),
            looks_ahead: false,
            queries: [Vec::new(), Vec::new()],
        }
    }

    fn read(&self, view: View<'_, Ref>) -> Vec<f32> {
        let mut out = vec![0.0f32; view.len];
        pollster::block_on(self.backend.read(view, bytemuck::cast_slice_mut(&mut out))).unwrap();
        out
    }

    fn store(
        &mut self,
        sequence: usize,
        layer: LayerId,
        span: &Span,
        t: &AttentionTensors<'_, Ref>,
    ) {
        let width = (self.p.n_kv_heads * self.p.head_dim) as usize;
        let first = span.first_pos.0;
        let ids: Vec<u32> = (first..first + span.len as u32).collect();
        let row_ids = ViewMut::part(&mut self.row_ids, 0, span.len);
        self.backend.write(row_ids, bytemuck::cast_slice(&ids)).unwrap();
        let part = |view: View<'_, Ref>| (view.offset + span.start * width, span.len * width);
        let (k, v) = (part(t.k), part(t.v));
        let scatter = KvScatter {
            p: KvScatterParams {
                n_tokens: span.len as u32,
                n_kv_heads: self.p.n_kv_heads,
                head_dim: self.p.head_dim,
                dst_head_stride: CAPACITY as u32,
            },
            k: View::part(t.k.buffer, k.0, k.1),
            v: View::part(t.v.buffer, v.0, v.1),
            rows: View::part(&self.row_ids, 0, span.len),
            dst: &mut self.rows[sequence][layer],
        };
        self.backend.kv_scatter(scatter).unwrap();
    }
}

impl Attention<Ref> for FullAttention {
    type Error = Infallible;

    async fn attend(
        &mut self,
        layer: LayerId,
        batch: &Batch<'_>,
        t: AttentionTensors<'_, Ref>,
    ) -> Result<(), Infallible> {
        if self.looks_ahead && layer == LayerId(1) {
            self.queries[1] = self.read(t.q);
        }
        for (sequence, span) in batch.spans.iter().enumerate() {
            self.store(sequence, layer, span, &t);
        }
        let window = self.config.window(layer);
        let spans: Vec<_> = batch
            .spans
            .iter()
            .enumerate()
            .map(|(sequence, span)| ChunkSpan {
                q_start: span.start as u32,
                q_len: span.len as u32,
                kv: KvView::new(&self.rows[sequence][layer], CAPACITY),
                row_start: 0,
                n_rows: span.first_pos.0 + span.len as u32,
                diagonal: span.first_pos.0 as i32,
                window: window.map_or(ChunkSpan::<Ref>::ALL, |tokens| tokens as u32),
                order: None,
            })
            .collect();
        let n_tokens = batch.n_tokens();
        let lse_len = n_tokens * self.p.n_q_heads as usize;
        let attend = AttendChunk {
            p: AttendParams { n_tokens: n_tokens as u32, ..self.p },
            q: t.q,
            spans: &spans,
            out: t.out,
            lse: ViewMut::part(&mut self.lse, 0, lse_len),
        };
        self.backend.attend_chunk(attend).unwrap();
        Ok(())
    }

    fn wants_prefetch(&mut self, layer: LayerId) -> bool {
        self.looks_ahead && layer == LayerId(1)
    }

    async fn prefetch(
        &mut self,
        layer: LayerId,
        _batch: &Batch<'_>,
        q: View<'_, Ref>,
    ) -> Result<(), Infallible> {
        assert_eq!(layer, LayerId(1), "only what is wanted");
        self.queries[0] = self.read(q);
        Ok(())
    }
}

fn options(planned_context: usize) -> LoadOptions {
    LoadOptions { planned_context, activations: Activations::F32 }
}

fn load(backend: &Ref, path: &Path) -> Model<Ref> {
    let folder = ModelFolder::open(path).unwrap();
    Model::load(backend, &folder.config, &folder.tensors, options(CAPACITY), &mut |_, _| {})
        .unwrap()
}

struct Golden {
    prompt: Vec<u32>,
    positions: Vec<usize>,
    logits: Vec<Vec<f32>>,
    greedy: Vec<u32>,
}

fn golden(path: &Path) -> Golden {
    let text = std::fs::read_to_string(path.join("golden.json")).unwrap();
    let json: Value = serde_json::from_str(&text).unwrap();
    fn get<T: serde::de::DeserializeOwned>(json: &Value, key: &str) -> T {
        serde_json::from_value(json[key].clone()).unwrap()
    }
    assert_eq!(get::<usize>(&json, "planned_context"), CAPACITY);
    Golden {
        prompt: get(&json, "prompt"),
        positions: get(&json, "positions"),
        logits: get(&json, "logits"),
        greedy: get(&json, "greedy"),
    }
}

/// A model with a workspace and one or more sequences.
struct Run {
    backend: Ref,
    model: Model<Ref>,
    ws: Workspace<Ref>,
    attention: FullAttention,
}

impl Run {
    fn new(path: &Path, n_sequences: usize, max_tokens: usize) -> Self {
        let backend = Ref::new();
        let model = load(&backend, path);
        let ws = Workspace::new(&backend, model.config(), max_tokens, max_tokens).unwrap();
        let attention = FullAttention::new(&backend, &model, n_sequences);
        Self { backend, model, ws, attention }
    }

    fn step(&mut self, ids: &[u32], spans: &[Span]) {
        let batch = Batch { ids, spans };
        let step = self.model.forward(&self.backend, &mut self.ws, &batch, &mut self.attention);
        pollster::block_on(step).unwrap();
    }

    fn logits(&mut self, rows: &[usize]) -> Vec<f32> {
        let view = self.model.logits(&self.backend, &mut self.ws, rows).unwrap();
        let mut out = vec![0.0f32; view.len];
        let bytes = bytemuck::cast_slice_mut(&mut out);
        pollster::block_on(self.backend.read(view, bytes)).unwrap();
        out
    }
}

fn span(start: usize, len: usize, first_pos: usize) -> Span {
    Span { start, len, first_pos: TokenPos(first_pos as u32), n_wanted: len }
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.expect("a vocabulary").0 as u32
}

fn assert_close(name: &str, position: usize, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{name}");
    let worst = found.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= 1e-3, "{name}: logits of position {position} are off by {worst}");
}

/// The proof: logits of a prompt in chunks, then greedy tokens, against Hugging Face transformers.
fn check_fixture(name: &str) {
    let path = fixture(name);
    let golden = golden(&path);
    let chunk = 128;
    let mut run = Run::new(&path, 1, chunk);
    let mut last = Vec::new();
    for (index, ids) in golden.prompt.chunks(chunk).enumerate() {
        let first = index * chunk;
        run.step(ids, &[span(0, ids.len(), first)]);
        for (position, expected) in golden.positions.iter().zip(&golden.logits) {
            if (first..first + ids.len()).contains(position) {
                let found = run.logits(&[position - first]);
                assert_close(name, *position, &found, expected);
            }
        }
        last = run.logits(&[ids.len() - 1]);
    }
    let allocations = run.backend.allocations();
    for (index, expected) in golden.greedy.iter().enumerate() {
        let id = argmax(&last);
        assert_eq!(id, *expected, "{name}: greedy token {index}");
        run.step(&[id], &[span(0, 1, golden.prompt.len() + index)]);
        last = run.logits(&[0]);
    }
    assert_eq!(run.backend.allocations(), allocations, "{name}: decode allocated");
}

macro_rules! golden_tests {
    ($($test:ident = $name:literal,)*) => {
        $(#[test]
        fn $test() {
            check_fixture($name);
        })*

        /// A fixture without a test would prove nothing.
        #[test]
        fn every_fixture_is_tested() {
            let tested = [$($name),*];
            for entry in std::fs::read_dir(fixture("")).unwrap() {
                let entry = entry.unwrap();
                let name = entry.file_name().into_string().unwrap();
                if entry.path().join("config.json").is_file() {
                    assert!(tested.contains(&name.as_str()), "{name}");
                }
            }
        }
    };
}

golden_tests! {
    llama2_mha = "llama2-mha",
    llama3_gqa = "llama3-gqa",
    llama_mqa = "llama-mqa",
    llama_linear = "llama-linear",
    llama_dynamic = "llama-dynamic",
    llama_dynamic_within = "llama-dynamic-within",
    llama_yarn = "llama-yarn",
    llama_bias = "llama-bias",
    llama_head20 = "llama-head20",
    llama_head40 = "llama-head40",
    llama_f16 = "llama-f16",
    llama_f32 = "llama-f32",
    llama_sharded = "llama-sharded",
    mistral_gqa = "mistral-gqa",
    qwen2_tied = "qwen2-tied",
    qwen2_untied = "qwen2-untied",
    qwen2_yarn = "qwen2-yarn",
    qwen3_tied = "qwen3-tied",
    phi3_longrope = "phi3-longrope",
    phi3_longrope_long = "phi3-longrope-long",
    phi4_partial = "phi4-partial",
    glm_partial = "glm-partial",
    glm4_sandwich = "glm4-sandwich",
    gemma3_windows = "gemma3-windows",
    gemma3_old = "gemma3-old",
    internlm2_fused = "internlm2-fused",
    internlm2_llama = "internlm2-llama",
}

/// The first layer's output projections are made zero: then it adds nothing, and the queries that
/// its input predicts for the next one are those that it has, to the bit. With them the prediction
/// is another, and asking for it changes no logit.
#[test]
fn queries_are_predicted_from_the_input_of_the_layer_before() {
    for name in ["llama3-gqa", "qwen2-tied", "qwen3-tied", "llama-bias", "llama-head20"] {
        let path = fixture(name);
        let prompt = &golden(&path).prompt[..40];
        let step = |looks_ahead: bool, silent: bool| {
            let mut run = Run::new(&path, 1, 64);
            run.attention.looks_ahead = looks_ahead;
            if silent {
                let first = &mut run.model.layers[0];
                for layer in [&mut first.o, &mut first.down] {
                    let zeros = vec![0u8; layer.n_in * layer.n_out * DType::F32.size()];
                    let source = WeightSource {
                        name: "zeros".into(),
                        dtype: DType::F32,
                        n_rows: layer.n_out,
                        n_cols: layer.n_in,
                        bytes: HostBytes::from_vec(zeros),
                        activations: Activations::F32,
                    };
                    layer.weight = run.backend.load_weight(source).unwrap();
                    layer.bias = None;
                }
            }
            run.step(prompt, &[span(0, prompt.len(), 0)]);
            let logits = run.logits(&[39]);
            (run.attention.queries, logits)
        };
        let ([predicted, own], _) = step(true, true);
        assert!(!own.is_empty() && predicted == own, "{name}: the layer adds nothing");
        let ([predicted, own], logits) = step(true, false);
        assert_ne!(predicted, own, "{name}: the layer adds something");
        assert_eq!(logits, step(false, false).1, "{name}: looking ahead changes nothing");
    }
}

#[test]
fn sequences_of_unequal_length_do_not_mix() {
    let path = fixture("qwen3-tied");
    let prompt = golden(&path).prompt;
    let parts = [&prompt[..40], &prompt[50..57], &prompt[100..101]];
    let alone: Vec<Vec<f32>> = parts
        .iter()
        .map(|ids| {
            let mut run = Run::new(&path, 1, 64);
            run.step(ids, &[span(0, ids.len(), 0)]);
            run.logits(&[ids.len() - 1])
        })
        .collect();
    let mut run = Run::new(&path, 3, 64);
    run.step(&parts.concat(), &[span(0, 40, 0), span(40, 7, 0), span(47, 1, 0)]);
    assert_eq!(run.logits(&[39, 46, 47]), alone.concat());
    assert_eq!(run.logits(&[46]), alone[1]);
}

#[test]
fn rows_in_any_order_and_none_at_all() {
    let path = fixture("llama-mqa");
    let prompt = golden(&path).prompt;
    let mut run = Run::new(&path, 1, 8);
    run.step(&prompt[..8], &[span(0, 8, 0)]);
    let all = run.logits(&[0, 1, 2, 3, 4, 5, 6, 7]);
    let vocab_size = run.model.config().vocab_size;
    let row = |index: usize| &all[index * vocab_size..][..vocab_size];
    assert_eq!(run.logits(&[5, 2, 3]), [row(5), row(2), row(3)].concat());
    assert!(run.logits(&[]).is_empty());
    run.step(&[], &[]);
    let error = run.model.logits(&run.backend, &mut run.ws, &[0]).map(drop).unwrap_err();
    assert_eq!(error.to_string(), "row 0 of logits: the last step had 0 tokens");
}

/// The last layer computes to its end the tokens whose logits are read; these have the same bits,
/// and so have tokens of later steps.
#[test]
fn wanted_tokens_are_what_they_are_among_all() {
    for name in ["llama-mqa", "gemma3-windows", "glm4-sandwich"] {
        let path = fixture(name);
        let prompt = golden(&path).prompt;
        let spans = [span(0, 5, 0), span(5, 6, 0), span(11, 2, 0)];
        let ids: Vec<u32> = [&prompt[..5], &prompt[1..7], &prompt[3..5]].concat();
        let logits = |wanted: [usize; 3], rows: &[usize]| {
            let mut run = Run::new(&path, 3, 16);
            let mut spans = spans;
            spans.iter_mut().zip(wanted).for_each(|(span, n)| span.n_wanted = n);
            run.step(&ids, &spans);
            let first = run.logits(rows);
            let Run { model, backend, ws, .. } = &mut run;
            let error = model.logits(backend, ws, &[10]).map(drop).err().map(|e| e.to_string());
            assert_eq!(error.is_some(), wanted[1] == 0, "{error:?}");
            let not_read = "row 10 of logits: the last step was told that it is not read";
            assert!(error.is_none_or(|error| error == not_read));
            run.step(&prompt[7..8], &[span(0, 1, 5)]);
            [first, run.logits(&[0])].concat()
        };
        let rows = [3, 4, 12];
        assert_eq!(logits([2, 0, 1], &rows), logits([5, 6, 2], &rows), "{name}");
    }
}

#[test]
fn steps_beyond_the_plan_are_refused() {
    let path = fixture("llama-mqa");
    let mut run = Run::new(&path, 1, 4);
    let mut message = |ids: &[u32], first_pos| {
        let spans = [span(0, ids.len(), first_pos)];
        let batch = Batch { ids, spans: &spans };
        let step = run.model.forward(&run.backend, &mut run.ws, &batch, &mut run.attention);
        pollster::block_on(step).unwrap_err().to_string()
    };
    assert_eq!(message(&[1; 5], 0), "a step of 5 tokens is larger than the workspace's 4");
    assert_eq!(message(&[320], 0), "token id 320 is not below the vocabulary size 320");
    assert_eq!(message(&[1, 1], 511), "position 512 is beyond the planned context of 512 tokens");
}

#[test]
fn the_workspace_takes_what_was_planned() {
    let run = Run::new(&fixture("llama-mqa"), 1, 16);
    let ws = &run.ws;
    let buffers = [
        &ws.ids,
        &ws.hidden,
        &ws.normed,
        &ws.q,
        &ws.q_scratch,
        &ws.k,
        &ws.k_scratch,
        &ws.v,
        &ws.attended,
        &ws.gate,
        &ws.up,
        &ws.activated,
        &ws.logits,
    ];
    let buffers = buffers.into_iter().chain(ws.rope.buffers());
    let taken: u64 = buffers.map(|buffer| buffer.size_bytes()).sum();
    assert_eq!(Workspace::<Ref>::device_bytes(run.model.config(), 16, 16), taken);
}

#[test]
fn a_context_beyond_a_window_is_refused_before_loading() {
    let folder = ModelFolder::open(&fixture("mistral-gqa")).unwrap();
    let config = ModelConfig { sliding_window: Some(256), ..folder.config };
    let refused = Model::load(&Ref::new(), &config, &folder.tensors, options(512), &mut |_, _| {});
    let text = refused.map(drop).unwrap_err().to_string();
    assert!(text.starts_with("a context of 512 tokens is longer than this model's sliding window"));
}
