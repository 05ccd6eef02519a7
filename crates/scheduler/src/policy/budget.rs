//! The second axis: how many tokens a KV head attends in a step.

use longview_core::LayerId;

/// Tokens that KV heads attend, first and last tokens included.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// B, the mean over layers and heads, or `None` for all tokens.
    pub tokens: Option<usize>,
    /// How the heads of a layer share it.
    pub heads: HeadBudgets,
    /// How the layers share it.
    pub layers: LayerBudgets,
    /// Recalled are no more than this share of the attention needs, as the index estimates it, up
    /// to the budget.
    pub mass: Option<f32>,
    /// Recalled are no more tokens than have a score within this distance of the best, on average
    /// over the heads, up to the budget.
    pub alpha: Option<f32>,
}

/// How the KV heads of a layer share its budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum HeadBudgets {
    /// Equally.
    Uniform,
    /// By the attention that the best tokens of a head received from the prompt's last queries
    /// (Ada-KV).
    Ada {
        /// Share of the budget that every head keeps.
        safeguard: f32,
        /// Last queries of the prompt that count.
        queries: usize,
    },
}

/// How layers share the budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LayerBudgets {
    /// Equally.
    Uniform,
    /// In equal steps from the first layer to the last (PyramidKV).
    Pyramid {
        /// The mean budget over that of the last layer.
        beta: f32,
    },
}

impl Budget {
    /// All tokens.
    pub const ALL: Self = Self {
        tokens: None,
        heads: HeadBudgets::Uniform,
        layers: LayerBudgets::Uniform,
        mass: None,
        alpha: None,
    };

    /// No recalling head gets more than this many times the mean: the device cache must hold what
    /// the largest one may recall.
    pub const MOST_TIMES_MEAN: usize = 2;

    /// The same number of tokens for every layer and head.
    pub fn of(tokens: usize) -> Self {
        Self { tokens: Some(tokens), ..Self::ALL }
    }

    /// Whether the host must see the scores of a selection to know where it ends.
    pub fn needs_host_choice(&self) -> bool {
        self.mass.is_some() || self.alpha.is_some()
    }

    /// The most tokens that any recalling head attends in a step; 0 without a budget.
    pub fn most_recalling(&self) -> usize {
        let tokens = self.tokens.unwrap_or(0);
        match self.heads {
            HeadBudgets::Uniform => tokens,
            HeadBudgets::Ada { .. } => Self::MOST_TIMES_MEAN * tokens,
        }
    }
}

impl LayerBudgets {
    /// The part of `mean` tokens that is the `layer`-th of `n_layers` layers': all layers together
    /// have as many as with equal parts, but for rounding.
    pub fn share(self, mean: usize, layer: LayerId, n_layers: usize) -> usize {
        let (Self::Pyramid { beta }, Some(steps)) = (self, n_layers.checked_sub(1)) else {
            return mean;
        };
        let least = (mean as f32 / beta) as usize;
        let most = 2 * mean - least;
        let fall = (most - least).checked_div(steps).unwrap_or(0);
        if steps == 0 { mean } else { most - fall * layer.index() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mass_and_alpha_need_the_host_to_see_scores() {
        let budget = Budget::of(64);
        assert!(!Budget::ALL.needs_host_choice() && !budget.needs_host_choice());
        assert!(Budget { mass: Some(0.9), ..budget }.needs_host_choice());
        assert!(Budget { alpha: Some(4.0), ..budget }.needs_host_choice());
    }

    #[test]
    fn a_head_of_adaptive_budgets_may_have_twice_the_mean() {
        let heads = HeadBudgets::Ada { safeguard: 0.2, queries: 32 };
        assert_eq!(Budget::of(64).most_recalling(), 64);
        assert_eq!(Budget { heads, ..Budget::of(64) }.most_recalling(), 128);
        assert_eq!(Budget { heads, ..Budget::ALL }.most_recalling(), 0);
    }

    #[test]
    fn a_pyramid_falls_in_equal_steps_about_the_mean() {
        // The last layer has 100 / 4 = 25, the first 2 * 100 - 25 = 175: steps of 150 / 3.
        let pyramid = LayerBudgets::Pyramid { beta: 4.0 };
        let shares =
            |n| (0..n).map(|layer| pyramid.share(100, LayerId::new(layer), n)).collect::<Vec<_>>();
        assert_eq!(shares(4), [175, 125, 75, 25]);
        // Steps of 150 / 4 are rounded down.
        assert_eq!(shares(5), [175, 138, 101, 64, 27]);
        assert_eq!(shares(2), [175, 25]);
        assert_eq!(shares(1), [100], "one layer has the mean");
        assert_eq!(pyramid.share(100, LayerId(0), 0), 100);
        assert_eq!(LayerBudgets::Uniform.share(100, LayerId(3), 4), 100);
    }
}
