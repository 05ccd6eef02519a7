//! A validated policy, and what follows from its three values together.

use super::budget::Budget;
use super::index::{Index, LocalWindow};
use super::options::{Positions, Residual};
use super::preset::Preset;
use super::residency::{Eviction, Residency};
use crate::layout::{DeviceLayout, KvShape, LayerMode};

/// Steps between handing a full window to the clustering worker and using its clusters: a fixed
/// number, so that the worker has time and the tokens do not depend on how much it took.
pub const FLUSH_STEPS: usize = 4;

/// Models at least this deep attend to everything in their first two layers unless told otherwise,
/// where the paper does: attention there is spread too evenly for any selection, and two layers of
/// many cost little.
pub const DEEP_LAYERS: usize = 16;

/// Contexts up to this many tokens are clustered whole, as in the paper: segments cost the embedded
/// model two of 24 answers at 32K. Longer ones go in segments of 8,192, because the work of one
/// clustering is quadratic.
pub const WHOLE_PROMPT_CONTEXT: usize = 32_768;

/// Rows that an index other than clusters takes in at a time at the end of a prompt: as many as fit
/// into a small device beside everything else.
pub const INDEX_SEGMENT: usize = 8_192;

/// A validated policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// The preset it came from.
    pub preset: Preset,
    /// How keys are summarised and searched; `None` where nothing is.
    pub index: Option<Index>,
    /// How many tokens a head attends.
    pub budget: Budget,
    /// Where the others are.
    pub residency: Residency,
    /// First tokens, always attended.
    pub sinks: usize,
    /// Last tokens, always attended.
    pub recent: usize,
    /// First layers that attend to everything.
    pub dense_layers: usize,
    /// What stands for clusters that a step does not open.
    pub residual: Residual,
    /// Whether every step bounds the attention that it leaves out.
    pub bounds_attention: bool,
}

impl Policy {
    /// A policy without anything that is optional.
    pub(super) fn of(preset: Preset, budget: Budget, residency: Residency) -> Self {
        Self {
            preset,
            index: None,
            budget,
            residency,
            sinks: 0,
            recent: 0,
            dense_layers: 0,
            residual: Residual::Drop,
            bounds_attention: false,
        }
    }

    /// Whether `layer` attends to everything under this policy.
    pub fn is_dense(&self, layer: usize) -> bool {
        self.residency == Residency::Resident || layer < self.dense_layers
    }

    /// How `layer` attends under this policy.
    pub fn layer_mode(&self, layer: usize) -> LayerMode {
        match self.residency {
            _ if self.is_dense(layer) => LayerMode::Dense,
            Residency::Recall { .. } | Residency::AttendOnHost { .. } => LayerMode::Recall,
            Residency::Evict(Eviction::ByAttention(_)) => LayerMode::Kept,
            Residency::Resident | Residency::Evict(Eviction::FirstTokens { .. }) => {
                LayerMode::Window
            }
        }
    }

    /// Whether the host must see what a step selected before the step can go on.
    pub fn needs_host_choice(&self) -> bool {
        self.residency.attends_on_host()
            || self.bounds_attention
            || self.budget.needs_host_choice()
            || self.index.is_some_and(|index| index.needs_host_choice())
    }

    /// Whether a step may attend what the query of the step before selected.
    pub fn allows_speculation(&self) -> bool {
        !self.needs_host_choice()
            && self.residual == Residual::Drop
            && self.index.is_none_or(|index| index.allows_speculation())
    }

    /// The tokens behind a key whose queries say how much it represents its block, where prefill
    /// records sums of queries for that.
    pub fn local_window(&self) -> Option<LocalWindow> {
        self.index.and_then(|index| index.local_window(self.recent))
    }

    /// Whether first tokens are attended at other positions than those of the text, in a sequence
    /// whose keys turn with their position.
    pub fn rotates_sinks(&self, shape: &KvShape) -> bool {
        self.residency.first_positions() == Positions::Cache
            && self.sinks > 0
            && !shape.inv_freq.is_empty()
    }

    /// Rows of the device ring that holds tokens before they are indexed or leave.
    pub fn ring_rows(&self) -> usize {
        match (self.index, self.residency.kept()) {
            (Some(index), _) => self.recent + index.window + index.unit() - 1 + FLUSH_STEPS,
            (None, Some(kept)) => self.recent + kept.window,
            (None, None) => self.recent,
        }
    }

    /// The rows of a device buffer of a layer that does not attend to everything.
    pub fn device_layout(&self, context: usize) -> DeviceLayout {
        DeviceLayout { sinks: self.sinks, ring: self.ring_rows(), slots: self.cache_slots(context) }
    }

    /// Rows of a head on the device, in a layer of this mode.
    pub fn device_rows(&self, shape: &KvShape, mode: LayerMode) -> usize {
        match mode {
            LayerMode::Dense => shape.capacity,
            LayerMode::Window | LayerMode::Recall | LayerMode::Kept => {
                self.device_layout(shape.capacity).rows()
            }
        }
    }

    /// The most tokens that any recalling head attends in a step; 0 without a budget.
    pub fn most_attended(&self) -> usize {
        if self.residency.recalls() {
            self.budget.most_recalling()
        } else {
            self.budget.tokens.unwrap_or(0)
        }
    }

    /// Most tokens of a KV head that are compared one by one in a step; 0 where none are.
    pub fn candidates(&self, context: usize) -> usize {
        let two_stage = self.index.and_then(|index| index.two_stage());
        let times = two_stage.map_or(0, |two_stage| two_stage.times);
        (times * self.most_attended()).min(context)
    }

    /// Rows of the device cache of one KV head: what R steps, or the one under way, may select, and
    /// no more than there are tokens.
    pub fn cache_slots(&self, context: usize) -> usize {
        match (self.residency, self.budget.tokens) {
            (Residency::Recall { cache_steps }, Some(_)) => {
                let recalled = self.most_attended() - self.sinks - self.recent;
                (cache_steps.max(1) * recalled).min(context)
            }
            _ => 0,
        }
    }

    /// Most clusters, blocks or tokens that an index of `context` tokens has.
    pub fn max_units(&self, context: usize) -> usize {
        self.index.map_or(0, |index| index.max_units(context))
    }

    /// Tokens that a KV head of `layer` keeps beside the recent ones for the attention that they
    /// received, on average over its heads; 0 where none are.
    pub fn kept(&self, layer: usize, n_layers: usize) -> usize {
        let (Some(_), Some(budget)) = (self.residency.kept(), self.budget.tokens) else { return 0 };
        let sharing = n_layers.saturating_sub(self.dense_layers);
        let own = layer.saturating_sub(self.dense_layers);
        self.budget.layers.share(budget - self.recent, own, sharing)
    }
}
