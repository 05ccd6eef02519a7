//! The seam between the transformer and whoever keeps keys and values.
//!
//! The transformer computes q, k and v and hands them over; where the past lies and which part of
//! it is attended is a policy, and no business of a model.

use std::future::Future;

use longview_core::LayerId;
use longview_ops::{Backend, View, ViewMut};

use crate::batch::Batch;

/// One layer's tensors after RoPE, for all tokens of a step.
pub struct AttentionTensors<'a, B: Backend> {
    /// F32 `[T, Hq, Dh]`.
    pub q: View<'a, B>,
    /// F32 `[T, Hkv, Dh]`.
    pub k: View<'a, B>,
    /// F32 `[T, Hkv, Dh]`.
    pub v: View<'a, B>,
    /// F32 `[T, Hq, Dh]`, to be written for every token; in the last layer for those that are
    /// wanted ([`crate::batch::Span::n_wanted`]).
    pub out: ViewMut<'a, B>,
}

/// Keeps keys and values, and attends to them.
pub trait Attention<B: Backend> {
    /// What can go wrong besides ops.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Stores the step's keys and values of `layer` and writes each token's attention over its own
    /// sequence up to itself into `t.out`. Called once per layer and step, in order. A step that
    /// ends early (an error, a dropped future) must leave sequences as they were before it.
    fn attend(
        &mut self,
        layer: LayerId,
        batch: &Batch<'_>,
        t: AttentionTensors<'_, B>,
    ) -> impl Future<Output = Result<(), Self::Error>>;

    /// Whether [`Attention::prefetch`] is wanted for `layer`. It costs a projection of queries.
    fn wants_prefetch(&mut self, layer: LayerId) -> bool {
        let _ = layer;
        false
    }

    /// Takes the queries of `layer` as the hidden states that enter the layer before predict them:
    /// F32 `[T, Hq, Dh]` after RoPE, by the norm and the projection of `layer`. Called before the
    /// attention of the layer before, where it is wanted; `q` is written again after it.
    fn prefetch(
        &mut self,
        layer: LayerId,
        batch: &Batch<'_>,
        q: View<'_, B>,
    ) -> impl Future<Output = Result<(), Self::Error>> {
        let _ = (layer, batch, q);
        std::future::ready(Ok(()))
    }
}
