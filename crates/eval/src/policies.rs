//! Policies to compare, as text: `clusterkv:cluster-tokens=4:pooling=max` is a preset with options
//! by the names that `longview policies` lists.

use std::collections::BTreeMap;

use longview_engine::PrefillMode;
use longview_scheduler::{Importance, OptionInfo, PolicyOptions, Preset};

use crate::error::EvalError;
use crate::record::PolicyLabel;

/// What records call the way in which prompts were read, among a policy's options.
const PREFILL: &str = "prefill";

/// A policy before it has a budget.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicySpec {
    preset: Preset,
    options: BTreeMap<String, String>,
}

/// A policy at a budget, ready to answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name in records.
    pub label: PolicyLabel,
    /// What the engine is told.
    pub options: PolicyOptions,
    /// How its prompts are read; as the engine's options say where it does not.
    pub prefill: Option<PrefillMode>,
}

impl Candidate {
    /// The same with prompts that are read so. Records name the way where it is not exact.
    ///
    /// # Errors
    /// [`EvalError::PolicyText`] where the policy needs of a prompt what sparse prefill does not
    /// compute.
    pub fn with_prefill(mut self, mode: PrefillMode) -> Result<Self, EvalError> {
        if !mode.is_exact() && self.needs_own_prefill() {
            let reason = format!(
                "--prefill {mode} does not compute the attention of all queries that it keeps; \
                 leave one of them out"
            );
            return Err(EvalError::PolicyText { text: title(&self.label), reason });
        }
        if let Some(how) = mode.inexact() {
            self.label.options.insert(PREFILL.to_owned(), how);
        }
        self.prefill = Some(mode);
        Ok(self)
    }

    /// Whether no prefill under another policy serves this one: `h2o` needs the attention of all
    /// queries, importance by the queries of a local window (`infllm`'s default) their sums, and
    /// only a prefill under the policy itself records these.
    pub fn needs_own_prefill(&self) -> bool {
        let PolicyOptions { preset, importance, .. } = self.options;
        let is_local = match importance {
            Some(importance) => importance == Importance::Local,
            None => preset == Preset::Infllm,
        };
        is_local || preset == Preset::H2o
    }
}

impl PolicySpec {
    /// A preset with options by name.
    pub fn new(preset: Preset, options: impl IntoIterator<Item = (String, String)>) -> Self {
        Self { preset, options: options.into_iter().collect() }
    }

    /// Reads `preset[:option=value]...`.
    ///
    /// # Errors
    /// [`EvalError::PolicyText`] for an unknown preset or option, an option that means nothing to
    /// the preset, or a value that is none.
    pub fn parse(text: &str) -> Result<Self, EvalError> {
        let wrong = |reason: String| EvalError::PolicyText { text: text.to_owned(), reason };
        let mut parts = text.split(':');
        let name = parts.next().unwrap_or_default();
        let preset: Preset = name
            .parse()
            .map_err(|error: longview_scheduler::PolicyError| wrong(error.to_string()))?;
        let mut options = BTreeMap::new();
        for part in joined(parts) {
            let (option, value) = part
                .split_once('=')
                .ok_or_else(|| wrong(format!("'{part}' is not option=value")))?;
            // Results files name options as they were first called.
            let name = OptionInfo::find(option).map_or(option, |info| info.old_name);
            if options.insert(name.to_owned(), value.to_owned()).is_some() {
                return Err(wrong(format!("'{option}' is given twice")));
            }
        }
        let spec = Self { preset, options };
        spec.options().map_err(|error| wrong(error.to_string()))?;
        let known = preset.info().options;
        let current = |option: &str| OptionInfo::find(option).map_or("", |info| info.name);
        match spec.options.keys().find(|option| !known.contains(&current(option))) {
            Some(option) => Err(wrong(format!(
                "'{option}' has no meaning for {name}, which takes {}",
                known.join(", ")
            ))),
            None => Ok(spec),
        }
    }

    fn options(&self) -> Result<PolicyOptions, longview_scheduler::PolicyError> {
        let mut options = PolicyOptions::new(self.preset);
        for (name, value) in &self.options {
            options.set(name, value)?;
        }
        Ok(options)
    }

    /// The policy at each budget; at its own if it names one; `full` once, at none.
    ///
    /// # Errors
    /// [`EvalError::PolicyText`] if an option is not one, or the budget is no number of tokens.
    pub fn at(&self, budgets: &[usize]) -> Result<Vec<Candidate>, EvalError> {
        let wrong =
            |reason: String| EvalError::PolicyText { text: self.preset.to_string(), reason };
        let base = self.options().map_err(|error| wrong(error.to_string()))?;
        let mut named = self.options.clone();
        let own = named.remove("budget").map(|text| {
            text.parse().map_err(|_| wrong(format!("budget={text}: must be a number of tokens")))
        });
        let own = own.transpose()?;
        let label = |budget: usize| PolicyLabel {
            policy: self.preset.to_string(),
            options: named.clone(),
            budget,
        };
        if self.preset == Preset::Full {
            return Ok(vec![Candidate { label: label(0), options: base, prefill: None }]);
        }
        let at = |budget: usize| Candidate {
            label: label(budget),
            options: base.clone().with_budget(budget),
            prefill: None,
        };
        Ok(match own {
            Some(budget) => vec![at(budget)],
            None => budgets.iter().map(|budget| at(*budget)).collect(),
        })
    }
}

/// Puts the parts of a value that has colons itself together again: what follows one is a number
/// there, as in `residual=sample:64`.
fn joined<'a>(parts: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut joined: Vec<String> = Vec::new();
    for part in parts {
        match joined.last_mut().filter(|_| part.parse::<f32>().is_ok()) {
            Some(value) => value.extend([":", part]),
            None => joined.push(part.to_owned()),
        }
    }
    joined
}

/// All policies at all budgets, each once.
///
/// # Errors
/// As [`PolicySpec::at`].
pub fn candidates(specs: &[PolicySpec], budgets: &[usize]) -> Result<Vec<Candidate>, EvalError> {
    let mut all: Vec<Candidate> = Vec::new();
    for spec in specs {
        for candidate in spec.at(budgets)? {
            if all.iter().all(|other| other.label != candidate.label) {
                all.push(candidate);
            }
        }
    }
    Ok(all)
}

/// A policy in words: name and options, without the budget.
pub fn title(label: &PolicyLabel) -> String {
    let options = label.options.iter().map(|(name, value)| format!(":{name}={value}"));
    std::iter::once(label.policy.clone()).chain(options).collect()
}

#[cfg(test)]
mod tests {
    use longview_scheduler::Residual;

    use super::*;

    #[test]
    fn a_way_of_reading_is_named_where_it_is_not_exact() {
        let one = |text: &str| PolicySpec::parse(text).unwrap().at(&[256]).unwrap().remove(0);
        let sparse = PrefillMode::sparse(0.3).unwrap();
        let exact = one("quest").with_prefill(PrefillMode::Exact).unwrap();
        assert_eq!((&exact.label, exact.prefill), (&one("quest").label, Some(PrefillMode::Exact)));
        let sparsely = one("quest").with_prefill(sparse).unwrap();
        assert_eq!(title(&sparsely.label), "quest:prefill=sparse:0.3");
        for policy in ["h2o", "infllm"] {
            one(policy).with_prefill(PrefillMode::Exact).unwrap();
            let refused = one(policy).with_prefill(sparse).unwrap_err().to_string();
            assert!(refused.contains(policy) && refused.contains("sparse:0.3"), "{refused}");
        }
    }

    #[test]
    fn a_text_names_preset_and_options() {
        let spec = PolicySpec::parse("clusterkv:cluster-tokens=4:pooling=max").unwrap();
        let all = spec.at(&[256, 512]).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!(title(&all[1].label), "clusterkv:cluster-tokens=4:pooling=max");
        assert_eq!((all[1].label.budget, all[1].options.cluster_tokens), (512, Some(4)));
        let full = PolicySpec::parse("full").unwrap();
        let own = PolicySpec::parse("quest:budget=300").unwrap();
        let all = candidates(&[full.clone(), own, full], &[256, 512]).unwrap();
        let budgets: Vec<usize> = all.iter().map(|candidate| candidate.label.budget).collect();
        assert_eq!(budgets, [0, 300]);
        assert!(all[1].label.options.is_empty());
    }

    #[test]
    fn a_value_may_have_colons_before_numbers() {
        for (text, residual) in [
            ("clusterkv:residual=sample:64:sinks=3", Residual::Sample(64)),
            (
                "clusterkv:residual=verified:0.1:0.05:sinks=3",
                Residual::Verified { error: 0.1, failure: 0.05 },
            ),
        ] {
            let options = PolicySpec::parse(text).unwrap().options().unwrap();
            assert_eq!((options.residual, options.sinks), (Some(residual), Some(3)), "{text}");
        }
        assert!(PolicySpec::parse("clusterkv:64").is_err());
    }

    #[test]
    fn who_records_more_than_others_is_known() {
        let own = |text: &str| {
            let spec = PolicySpec::parse(text).unwrap();
            spec.at(&[256]).unwrap()[0].needs_own_prefill()
        };
        for text in ["h2o", "infllm", "infllm:importance=local"] {
            assert!(own(text), "{text}");
        }
        for text in ["full", "clusterkv", "ktransformers", "infllm:importance=last"] {
            assert!(!own(text), "{text}");
        }
    }

    #[test]
    fn a_text_that_says_nothing_is_an_error() {
        let message = |text: &str| PolicySpec::parse(text).unwrap_err().to_string();
        assert!(message("best").contains("unknown policy 'best'"), "{}", message("best"));
        assert!(message("quest:pages=3").contains("unknown option 'pages'"));
        assert!(message("quest:cluster-tokens=3").contains("has no meaning for quest"));
        assert!(message("quest:block-size").contains("is not option=value"));
        assert!(message("quest:block-size=x").contains("'x' is not a whole number"));
        assert!(message("quest:sinks=1:sinks=2").contains("given twice"));
        let auto = PolicySpec::parse("quest:budget=auto").unwrap();
        assert!(auto.at(&[1]).unwrap_err().to_string().contains("must be a number of tokens"));
    }
}
