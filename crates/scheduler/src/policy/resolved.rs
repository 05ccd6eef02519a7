//! A validated policy, and what follows from its three values together.

use longview_core::LayerId;
use longview_ops::Pooling;

use super::budget::{Budget, HeadBudgets};
use super::index::{Index, LocalWindow};
use super::left_out::{AttentionBound, Residual};
use super::options::Positions;
use super::preset::Preset;
use super::residency::{Eviction, Residency, Statistic};
use crate::layout::{DeviceLayout, KvShape, LayerMode};

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
    /// Up to so many tokens, layers that recall attend to everything where rows lie: there a search
    /// takes longer than what it saves.
    pub attend_all: usize,
    /// What stands for tokens that a step does not choose.
    pub residual: Residual,
    /// How every step bounds the attention that it leaves out.
    pub attention_bound: AttentionBound,
    /// Where tokens that are drawn come from; that of the index, if it has one.
    pub seed: u64,
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
            attend_all: 0,
            residual: Residual::Drop,
            attention_bound: AttentionBound::Off,
            seed: 0,
        }
    }

    /// Whether `layer` attends to everything under this policy.
    pub fn is_dense(&self, layer: LayerId) -> bool {
        self.residency == Residency::Resident || layer.index() < self.dense_layers
    }

    /// How `layer` attends under this policy. A layer with a window attends to that alone, and the
    /// policy is about the others.
    pub fn layer_mode(&self, shape: &KvShape, layer: LayerId) -> LayerMode {
        match self.residency {
            _ if shape.window(layer).is_some() => LayerMode::Local,
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
            || self.attention_bound != AttentionBound::Off
            || self.residual.draws()
            || self.budget.needs_host_choice()
            || self.index.is_some_and(|index| index.needs_host_choice())
    }

    /// Whether the host attends to rows of a step.
    pub fn reads_rows_on_host(&self) -> bool {
        self.residency.attends_on_host() || self.residual.draws()
    }

    /// Whether the host draws tokens that a step did not choose.
    pub fn draws(&self) -> bool {
        self.residual.draws() || self.attention_bound == AttentionBound::Sampled
    }

    /// Whether a step may attend what the query of the step before selected.
    pub fn allows_speculation(&self) -> bool {
        !self.needs_host_choice()
            && self.residual == Residual::Drop
            && self.index.is_none_or(|index| index.allows_speculation())
    }

    /// Why a decoded token cannot be taken back without a trace, if it cannot: then no step holds
    /// tokens that are computed on trial.
    pub fn why_no_draft(&self) -> Option<&'static str> {
        if self.residency.kept().is_some() {
            return Some("chooses what it keeps by the attention of every token");
        }
        if self.local_window().is_some() {
            return Some("makes blocks by the queries of every token");
        }
        if self.attention_bound != AttentionBound::Off {
            return Some("counts the bounds of every token");
        }
        self.index.and_then(|index| index.why_no_draft())
    }

    /// The tokens behind a key whose queries say how much it represents its block, where prefill
    /// records sums of queries for that.
    pub fn local_window(&self) -> Option<LocalWindow> {
        self.index.and_then(|index| index.local_window(self.recent))
    }

    /// Whether its index is made from sums over queries and keys of the prompt.
    pub fn needs_sums(&self) -> bool {
        self.index.is_some_and(|index| index.tokens().is_some())
    }

    /// Whether what it keeps or compares follows from the attention of a prompt's last queries.
    pub fn needs_last_queries(&self) -> bool {
        let observes = matches!(self.budget.heads, HeadBudgets::Ada { .. });
        let kept = self.residency.kept().map(|kept| kept.statistic);
        let blocks = self.index.is_some_and(|index| index.observes());
        (observes && self.residency.recalls())
            || matches!(kept, Some(Statistic::LastQueries(_)))
            || (blocks && self.local_window().is_none())
    }

    /// Whether prefill must compute the attention of all queries, which sparse prefill does not.
    pub fn needs_all_queries(&self) -> bool {
        self.residency.records_all_attention() || self.local_window().is_some()
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
            (Some(index), _) => {
                self.recent.saturating_add(index.window).saturating_add(index.waiting())
            }
            (None, Some(kept)) => self.recent.saturating_add(kept.window),
            (None, None) => self.recent,
        }
    }

    /// The rows of a device buffer of a layer that does not attend to everything: no more of any
    /// kind than there are tokens.
    pub fn device_layout(&self, context: usize) -> DeviceLayout {
        DeviceLayout {
            sinks: self.sinks.min(context),
            ring: self.ring_rows().min(context),
            slots: self.cache_slots(context),
        }
    }

    /// The rows of the device buffer of `layer`, which does not attend to everything.
    pub fn layer_layout(&self, shape: &KvShape, layer: LayerId) -> DeviceLayout {
        shape.window_layout(layer).unwrap_or_else(|| self.device_layout(shape.capacity))
    }

    /// Rows of a head of `layer` on the device.
    pub fn device_rows(&self, shape: &KvShape, layer: LayerId) -> usize {
        match self.layer_mode(shape, layer) {
            LayerMode::Dense => shape.capacity,
            LayerMode::Local => self.layer_layout(shape, layer).rows(),
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
        times.saturating_mul(self.most_attended()).min(context)
    }

    /// Most parts of `of` clusters each by which a KV head may choose the clusters that it scores;
    /// 0 where it scores all.
    pub fn most_parts(&self, context: usize, of: usize) -> usize {
        let Some(index) = self.index.filter(|_| self.residual == Residual::Groups) else {
            return 0;
        };
        // Clusters of a list have no weights.
        let is_weighted = index.pooling as u32 > Pooling::MaxSoftmax as u32;
        let scored = index.two_stage().map_or(usize::MAX, |two_stage| two_stage.scored);
        if is_weighted || index.max_units(context) <= scored {
            return 0;
        }
        index.max_groups(context, of)
    }

    /// Rows of the device cache of one KV head: what R steps, or the one under way, may select, and
    /// no more than there are tokens.
    pub fn cache_slots(&self, context: usize) -> usize {
        match (self.residency, self.budget.tokens) {
            (Residency::Recall { cache_steps }, Some(_)) => {
                let recalled = self.most_attended() - self.sinks - self.recent;
                cache_steps.max(1).saturating_mul(recalled).min(context)
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
    pub fn kept(&self, shape: &KvShape, layer: LayerId) -> usize {
        let (Some(_), Some(budget)) = (self.residency.kept(), self.budget.tokens) else { return 0 };
        let keeps = |layer: &LayerId| self.layer_mode(shape, *layer) == LayerMode::Kept;
        let sharing = shape.layers().filter(keeps).count();
        let own = shape.layers().take(layer.index()).filter(keeps).count();
        self.budget.layers.share(budget - self.recent, LayerId::new(own), sharing)
    }
}

#[cfg(test)]
mod tests {
    use longview_core::DType;

    use super::super::{FLUSH_STEPS, PolicyOptions};
    use super::*;
    use crate::layout::HostRows;

    /// A preset with a budget of 512 for sequences of up to 32,768 tokens, and changes.
    fn policy(preset: Preset, settings: &[(&str, &str)]) -> Policy {
        let mut options = PolicyOptions::new(preset).with_budget(512);
        settings.iter().for_each(|(name, value)| options.set(name, value).unwrap());
        Policy::resolve(&options, 32_768).unwrap()
    }

    fn shape(capacity: usize) -> KvShape {
        KvShape {
            n_layers: 4,
            n_q_heads: 4,
            n_kv_heads: 2,
            head_dim: 4,
            kv_dtype: DType::F16,
            host_rows: HostRows::default(),
            capacity,
            scale: 0.5,
            inv_freq: vec![1.0, 0.1].into(),
            windows: [].into(),
        }
    }

    #[test]
    fn layers_attend_as_the_residency_says_behind_the_dense_ones() {
        for (preset, mode) in [
            (Preset::Full, LayerMode::Dense),
            (Preset::StreamingLlm, LayerMode::Window),
            (Preset::Clusterkv, LayerMode::Recall),
            (Preset::Ktransformers, LayerMode::Recall),
            (Preset::H2o, LayerMode::Kept),
        ] {
            let policy = policy(preset, &[("dense-layers", "2")]);
            let modes = |shape: &KvShape| {
                [0, 1, 2, 3].map(|layer| policy.layer_mode(shape, LayerId(layer)))
            };
            let dense = LayerMode::Dense;
            assert_eq!(modes(&shape(64)), [dense, dense, mode, mode], "{preset}");
            let windows = [Some(5), None, None, Some(5)].into();
            let with_windows = KvShape { windows, ..shape(64) };
            let local = LayerMode::Local;
            assert_eq!(modes(&with_windows), [local, dense, mode, local], "{preset}");
            assert!(
                policy.is_dense(LayerId(1))
                    && policy.is_dense(LayerId(2)) == (preset == Preset::Full)
            );
        }
    }

    #[test]
    fn one_choice_of_any_axis_needs_the_host_and_ends_speculation() {
        let of = |preset, settings: &[(&str, &str)]| {
            let policy = policy(preset, settings);
            (policy.needs_host_choice(), policy.allows_speculation())
        };
        assert_eq!(of(Preset::Full, &[]), (false, true));
        assert_eq!(of(Preset::Clusterkv, &[]), (false, true));
        assert_eq!(of(Preset::Quest, &[]), (false, true));
        assert_eq!(of(Preset::Clusterkv, &[("attend", "host")]), (true, false));
        assert_eq!(of(Preset::Clusterkv, &[("attention-bound", "true")]), (true, false));
        assert_eq!(of(Preset::Clusterkv, &[("attention-bound", "sampled")]), (true, false));
        assert_eq!(of(Preset::Clusterkv, &[("residual", "sample:9")]), (true, false));
        assert_eq!(of(Preset::Clusterkv, &[("budget-mode", "mass")]), (true, false));
        assert_eq!(of(Preset::Infinigen, &[]), (true, false), "alpha");
        assert_eq!(of(Preset::Lrqk, &[("lrqk-decode", "adaptive")]), (true, false));
        // These the device does by itself, but not with a selection of the step before.
        assert_eq!(of(Preset::Clusterkv, &[("residual", "means")]), (false, false));
        assert_eq!(of(Preset::Clusterkv, &[("two-stage", "2")]), (false, false));
        assert_eq!(of(Preset::Longview, &[]), (false, false));
        let device = [("attend", "device"), ("token-step", "2")];
        assert_eq!(of(Preset::Ktransformers, &device), (false, false));
    }

    #[test]
    fn queries_are_summed_over_the_recent_tokens_where_they_say_what_represents() {
        let window = |settings: &[(&str, &str)]| policy(Preset::Infllm, settings).local_window();
        assert_eq!(window(&[("recent", "100")]), Some(LocalWindow { tokens: 100 }));
        assert_eq!(window(&[("importance", "last")]), None);
        assert_eq!(policy(Preset::Full, &[]).local_window(), None);
    }

    #[test]
    fn sinks_turn_where_the_cache_places_them_and_keys_turn_at_all() {
        let rotates = |preset, settings: &[(&str, &str)], inv_freq: &[f64]| {
            let shape = KvShape { inv_freq: inv_freq.into(), ..shape(64) };
            policy(preset, settings).rotates_sinks(&shape)
        };
        assert!(rotates(Preset::StreamingLlm, &[], &[1.0]));
        assert!(!rotates(Preset::StreamingLlm, &[], &[]), "keys without positions");
        assert!(!rotates(Preset::StreamingLlm, &[("sinks", "0")], &[1.0]));
        assert!(!rotates(Preset::StreamingLlm, &[("positions", "text")], &[1.0]));
        assert!(!rotates(Preset::Clusterkv, &[], &[1.0]));
    }

    #[test]
    fn a_ring_holds_recent_tokens_a_window_and_what_comes_meanwhile() {
        let rows = |preset, settings: &[(&str, &str)]| policy(preset, settings).ring_rows();
        let given = [("recent", "50"), ("window", "32")];
        assert_eq!(rows(Preset::Clusterkv, &given), 50 + 32 + FLUSH_STEPS);
        // Up to 15 tokens wait until their block is whole.
        assert_eq!(rows(Preset::Quest, &given), 50 + 32 + 15 + FLUSH_STEPS);
        assert_eq!(rows(Preset::Snapkv, &given), 50 + 32);
        assert_eq!(rows(Preset::StreamingLlm, &[("recent", "50")]), 50);
        assert_eq!(rows(Preset::Full, &[]), 0);
    }

    #[test]
    fn device_rows_are_sinks_ring_and_slots() {
        let given = [("sinks", "8"), ("recent", "50"), ("window", "32"), ("cache-steps", "3")];
        let policy = policy(Preset::Clusterkv, &given);
        // Three steps of 512 tokens without the 58 that are always there.
        let layout = DeviceLayout { sinks: 8, ring: 86, slots: 3 * 454 };
        assert_eq!(policy.device_layout(32_768), layout);
        assert_eq!(policy.cache_slots(1000), 1000, "no more than there are tokens");
        let rows = |policy: &Policy, windows: &[Option<usize>]| {
            let shape = KvShape { windows: windows.into(), ..shape(32_768) };
            policy.device_rows(&shape, LayerId(1))
        };
        let dense = Policy { dense_layers: 2, ..policy.clone() };
        assert_eq!([rows(&dense, &[]), rows(&policy, &[])], [32_768, 8 + 86 + 1362]);
        assert_eq!(rows(&policy, &[None, Some(512)]), 512, "the window alone");
    }

    #[test]
    fn slots_follow_the_steps_and_the_largest_head() {
        let slots = |settings: &[(&str, &str)]| {
            let given = [("sinks", "8"), ("recent", "50"), ("window", "32")];
            policy(Preset::Clusterkv, &[&given, settings].concat()).cache_slots(1 << 20)
        };
        assert_eq!([slots(&[("cache-steps", "0")]), slots(&[("cache-steps", "1")])], [454, 454]);
        assert_eq!(slots(&[("cache-steps", "2"), ("budget-mode", "ada")]), 2 * (1024 - 58));
        assert_eq!(slots(&[("attend", "host")]), 0);
        assert_eq!(policy(Preset::Full, &[]).cache_slots(1 << 20), 0);
    }

    #[test]
    fn an_adaptive_head_recalls_twice_the_mean_but_keeps_no_more_than_it() {
        let most = |preset, settings: &[(&str, &str)]| policy(preset, settings).most_attended();
        assert_eq!(most(Preset::Clusterkv, &[]), 512);
        assert_eq!(most(Preset::Clusterkv, &[("budget-mode", "ada")]), 1024);
        assert_eq!(most(Preset::AdaSnapkv, &[]), 512);
        assert_eq!(most(Preset::Full, &[]), 0);
    }

    #[test]
    fn candidates_are_a_multiple_of_the_budget_and_no_more_than_the_context() {
        let two = policy(Preset::Clusterkv, &[("two-stage", "3")]);
        assert_eq!([two.candidates(32_768), two.candidates(1000)], [1536, 1000]);
        assert_eq!(policy(Preset::Clusterkv, &[]).candidates(32_768), 0);
    }

    #[test]
    fn layers_behind_the_dense_ones_share_what_is_kept() {
        let given = [("recent", "112"), ("window", "32"), ("beta", "4"), ("dense-layers", "1")];
        let pyramid = policy(Preset::Pyramidkv, &given);
        // A mean of 400 over four layers: 700 down to 100.
        let five = KvShape { n_layers: 5, ..shape(64) };
        let kept = [1, 2, 3, 4].map(|layer| pyramid.kept(&five, LayerId(layer)));
        assert_eq!(kept, [700, 500, 300, 100]);
        // Over two of them, where the others have windows.
        let windows = [None, Some(9), None, Some(9), None].into();
        let two = KvShape { windows, ..five.clone() };
        assert_eq!([2, 4].map(|layer| pyramid.kept(&two, LayerId(layer))), [700, 100]);
        assert_eq!(policy(Preset::Clusterkv, &[]).kept(&five, LayerId(1)), 0);
    }

    #[test]
    fn without_an_index_there_are_no_units() {
        assert_eq!(policy(Preset::Full, &[]).max_units(1000), 0);
        assert_eq!(policy(Preset::Loki, &[]).max_units(1000), 1000);
    }
}
