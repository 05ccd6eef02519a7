//! Small sequences whose rows say which token they are, for the tests of this room.

use std::sync::Arc;

use longview_core::{HeadId, LayerId, decode_f32};
use longview_ops::ReferenceBackend;

use super::kv_sequence::Sequence;
use super::options::{HostStoreKind, Placement, SequenceOptions};
use super::prompt_end::PromptEnd;
use crate::index::ClustersRecord;
use crate::layout::KvShape;
use crate::policy::{Policy, PolicyOptions, Preset};
use crate::store::fixture;

pub(super) type TestSequence = Sequence<ReferenceBackend>;

/// Two layers of two KV heads, 24 tokens.
pub(super) fn shape() -> KvShape {
    KvShape { capacity: 24, ..fixture::shape() }
}

/// A policy from options.
pub(super) fn policy(
    preset: Preset,
    budget: usize,
    change: impl FnOnce(&mut PolicyOptions),
) -> Policy {
    let mut options = PolicyOptions::new(preset).with_budget(budget);
    change(&mut options);
    Policy::resolve(&options, 24).unwrap()
}

pub(super) fn full() -> Policy {
    Policy::resolve(&PolicyOptions::new(Preset::Full), 24).unwrap()
}

/// Two first tokens and three last ones.
pub(super) fn streaming() -> Policy {
    policy(Preset::StreamingLlm, 5, |o| (o.sinks, o.recent) = (Some(2), Some(3)))
}

/// One first token, two last ones, clusters of two in windows of two: a ring of eight.
pub(super) fn clusters() -> Policy {
    policy(Preset::Clusterkv, 16, |o| {
        (o.sinks, o.recent, o.window) = (Some(1), Some(2), Some(2));
        (o.cluster_tokens, o.window_clusters, o.cache_steps) = (Some(2), Some(1), Some(1));
    })
}

/// One first token, two last ones, blocks of two in windows of two.
pub(super) fn blocks() -> Policy {
    policy(Preset::Quest, 16, |o| {
        (o.sinks, o.recent, o.window, o.block_size) = (Some(1), Some(2), Some(2), Some(2));
    })
}

/// Four rows kept by the attention of all queries, four last ones, windows of two: a ring of six.
pub(super) fn heavy_hitters() -> Policy {
    policy(Preset::H2o, 8, |o| o.window = Some(2))
}

/// In place, or on the device with tiles and chunks of four rows.
pub(super) fn options(placement: Placement, store: HostStoreKind) -> SequenceOptions {
    SequenceOptions {
        placement,
        store,
        chunk: 4,
        tile: 4,
        overlap: false,
        ..SequenceOptions::default()
    }
}

/// An empty sequence in place.
pub(super) fn in_place(policy: Policy) -> TestSequence {
    made(policy, options(Placement::InPlace, HostStoreKind::Auto))
}

/// An empty sequence with rows in buffers of the device, for either store.
pub(super) fn on_device(policy: Policy, store: HostStoreKind) -> TestSequence {
    made(policy, options(Placement::Device, store))
}

pub(super) fn made(policy: Policy, options: SequenceOptions) -> TestSequence {
    let backend = Arc::new(ReferenceBackend::new());
    Sequence::new(&backend, shape(), policy, options).unwrap()
}

/// Adds tokens, each with its own [`fixture::row`] in every layer and head.
pub(super) fn inject(sequence: &mut TestSequence, n: usize) {
    let mut fill = |layer: LayerId, head: HeadId, first: usize, rows: &mut [f32]| {
        for (i, out) in rows.chunks_exact_mut(8).enumerate() {
            out.copy_from_slice(&fixture::row(layer, head, first + i));
        }
    };
    pollster::block_on(sequence.inject(n, &mut fill)).unwrap();
}

/// A sequence whose prefill of `n` tokens has ended.
pub(super) fn prefilled(mut sequence: TestSequence, n: usize) -> TestSequence {
    inject(&mut sequence, n);
    pollster::block_on(sequence.finish_prefill()).unwrap();
    sequence
}

/// Ends the prompt in pieces that do not wait; returns how many there were.
pub(super) fn end_in_pieces(sequence: &mut TestSequence) -> usize {
    let mut n_pieces = 0;
    for _ in 0..1_000_000 {
        match pollster::block_on(sequence.finish_prefill_piece(false)).unwrap() {
            PromptEnd::Done => return n_pieces + 1,
            PromptEnd::More => n_pieces += 1,
            PromptEnd::Waits => std::thread::yield_now(),
        }
    }
    panic!("it does not end");
}

/// The units of each layer, and the tokens of its rows.
pub(super) fn indexes(sequence: &TestSequence) -> Vec<(Vec<ClustersRecord<'_>>, Vec<Vec<u32>>)> {
    let layers = sequence.layers.iter();
    let one = layers.map(|layer| {
        let index = &layer.recall().unwrap().index;
        (index.record(&sequence.backend).heads, layer.positions.clone())
    });
    one.collect()
}

/// Every row is that of the token that positions say, and every token has one.
#[track_caller]
pub(super) fn check_rows(sequence: &TestSequence) {
    let shape = sequence.shape();
    for (layer, state) in shape.layers().zip(sequence.layers()) {
        for (head, positions) in shape.heads().zip(&state.positions) {
            let mut sorted = positions.clone();
            sorted.sort_unstable();
            let all: Vec<u32> = (0..sequence.n_tokens() as u32).collect();
            assert_eq!(sorted, all, "layer {layer}, head {head}");
            let want: Vec<f32> =
                positions.iter().flat_map(|t| fixture::row(layer, head, *t as usize)).collect();
            assert_eq!(host_rows(sequence, layer, head), want, "layer {layer}, head {head}");
        }
    }
}

/// Rows of a head in the host store, as many as there are tokens.
pub(super) fn host_rows(sequence: &TestSequence, layer: LayerId, head: HeadId) -> Vec<f32> {
    let (n, shape) = (sequence.n_tokens(), sequence.shape());
    let mut bytes = vec![0; n * shape.row_bytes()];
    sequence.store().read_rows(layer, head, 0..n, &mut bytes);
    decode_f32(shape.kv_dtype, &bytes)
}
