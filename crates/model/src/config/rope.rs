//! The rotary embedding as the config declares it, in either spelling.
//!
//! Up to transformers 4 the base stood in `rope_theta` and the rest in `rope_scaling`;
//! transformers 5 writes both in `rope_parameters`. Checkpoints of both kinds are common.

use serde_json::{Map, Value};

use super::problem::{ConfigProblem, MAX_POSITIONS, bounded};
use super::raw::RawConfig;
use crate::arch::{ArchTraits, SlidingRule};
use crate::json::{self, FieldError};
use crate::text::clip;

/// Rotary position embedding: base, scaling, and how much of a head it rotates.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeConfig {
    /// The base of the geometric series of frequencies.
    pub theta: f64,
    /// How frequencies are stretched beyond the trained context.
    pub scaling: RopeScaling,
    /// Components of each head that rotate, the first ones; even. The others stay as they are.
    pub rotary_dim: usize,
}

/// How frequencies are stretched. Formulas are in [`crate::rope`].
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// Not at all.
    Default,
    /// Every frequency divided by `factor`.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Dynamic NTK: the base grows with the context planned, once it exceeds the trained one.
    Dynamic {
        /// Growth of the base.
        factor: f64,
        /// The context the model was trained for.
        original_max_positions: usize,
    },
    /// Llama 3.1: slow frequencies divided, fast ones kept, a smooth passage between.
    Llama3 {
        /// The divisor of slow frequencies.
        factor: f64,
        /// Wavelengths above the original context over this are slow.
        low_freq_factor: f64,
        /// Wavelengths below the original context over this are fast.
        high_freq_factor: f64,
        /// The context the model was trained for.
        original_max_positions: usize,
    },
    /// YaRN: a linear passage between divided and kept, and an attention factor.
    Yarn {
        /// The divisor of slow frequencies.
        factor: f64,
        /// Multiplies cosine and sine.
        attention_factor: f64,
        /// Rotations within the original context above which a component is kept.
        beta_fast: f64,
        /// Rotations below which it is divided.
        beta_slow: f64,
        /// The ends of the passage are rounded outwards to whole components.
        truncate: bool,
        /// The context the model was trained for.
        original_max_positions: usize,
    },
    /// Every pair's frequency divided by a factor of its own, whatever the length: how GGUF files
    /// have Llama 3.1's scaling.
    Factors {
        /// The divisors, one for each rotated pair.
        factors: Vec<f64>,
    },
    /// LongRoPE (Ding et al., 2024): every pair's frequency divided by a factor of its own, from
    /// one list within the trained context and from another beyond it.
    LongRope {
        /// The divisors for contexts of up to the trained length, one for each rotated pair.
        short_factor: Vec<f64>,
        /// The divisors for longer contexts.
        long_factor: Vec<f64>,
        /// Multiplies cosine and sine, in short contexts too.
        attention_factor: f64,
        /// The context the model was trained for.
        original_max_positions: usize,
    },
}

/// Where a scaled model says what it was trained for.
const ORIGINAL_MAX_POSITIONS: &str = "original_max_position_embeddings";
/// Names for the message about unknown ones.
const SUPPORTED: &str = "default, linear, dynamic, llama3, yarn, longrope";

impl RopeConfig {
    /// Reads either spelling; `max_positions` fills in for an absent original context.
    pub(super) fn from_raw(
        raw: &RawConfig,
        traits: &ArchTraits,
        head_dim: usize,
        max_positions: usize,
    ) -> Result<Self, ConfigProblem> {
        let empty = Map::new();
        let new_form = of_layers(raw, traits, "full_attention")?.unwrap_or(&empty);
        // People extend a context by adding `rope_scaling`, so it wins, as in transformers.
        let old_form = raw.rope_scaling.as_ref().filter(|map| !map.is_empty());
        let map = old_form.unwrap_or(new_form);
        let beside = Fields { map: new_form, raw, max_positions }.number("rope_theta")?;
        let theta = raw.rope_theta.or(beside).unwrap_or(traits.default_rope_theta);
        Self::read(&Fields { map, raw, max_positions }, traits, head_dim, theta)
    }

    /// That of layers with a window, where they have one of their own: what stretches the other is
    /// not theirs.
    pub(super) fn local_from_raw(
        raw: &RawConfig,
        traits: &ArchTraits,
        head_dim: usize,
        max_positions: usize,
    ) -> Result<Self, ConfigProblem> {
        let empty = Map::new();
        let map = match of_layers(raw, traits, "sliding_attention")? {
            Some(map) if has_layer_types(raw) => map,
            _ => &empty,
        };
        let theta = raw.rope_local_base_freq.unwrap_or(10_000.0);
        Self::read(&Fields { map, raw, max_positions }, traits, head_dim, theta)
    }

    /// What a dictionary says; `theta` where it names no base.
    fn read(
        fields: &Fields<'_>,
        traits: &ArchTraits,
        head_dim: usize,
        theta: f64,
    ) -> Result<Self, ConfigProblem> {
        fields.refuse_layer_types()?;
        let rotary_dim = fields.rotary_dim(traits, head_dim)?;
        let theta = fields.number("rope_theta")?.unwrap_or(theta);
        if !(theta.is_finite() && theta > 1.0) {
            return Err(bad("rope_theta", theta, "a finite number above 1"));
        }
        Ok(Self { theta, scaling: fields.scaling(rotary_dim)?, rotary_dim })
    }
}

/// Whether `rope_parameters` has a dictionary for each kind of layers.
fn has_layer_types(raw: &RawConfig) -> bool {
    raw.rope_parameters.iter().flatten().any(|(_, value)| value.is_object())
}

/// The part of `rope_parameters` that is about layers of a kind, where an architecture has several
/// kinds, else all of it.
fn of_layers<'a>(
    raw: &'a RawConfig,
    traits: &ArchTraits,
    kind: &'static str,
) -> Result<Option<&'a Map<String, Value>>, ConfigProblem> {
    let all = raw.rope_parameters.as_ref();
    if !matches!(traits.sliding, SlidingRule::Alternating { .. }) || !has_layer_types(raw) {
        return Ok(all);
    }
    match all.and_then(|all| all.get(kind)) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Object(map)) => Ok(Some(map)),
        Some(other) => Err(FieldError::new(kind, other, "an object").into()),
    }
}

/// The scaling dictionary with what stands in for absent entries.
struct Fields<'a> {
    map: &'a Map<String, Value>,
    raw: &'a RawConfig,
    max_positions: usize,
}

impl Fields<'_> {
    /// Components of a head that rotate. A product that is not whole is cut, as in transformers.
    fn rotary_dim(&self, traits: &ArchTraits, head_dim: usize) -> Result<usize, ConfigProblem> {
        const FIELD: &str = "partial_rotary_factor";
        let given = self.number(FIELD)?.or(self.raw.partial_rotary_factor);
        let part = given.or(traits.partial_rotary).unwrap_or(1.0);
        if traits.partial_rotary.is_none() && part != 1.0 {
            return Err(ConfigProblem::RopeForm { what: format!("{FIELD} {part}") });
        }
        if !(part > 0.0 && part <= 1.0) {
            return Err(bad(FIELD, part, "above 0 and at most 1"));
        }
        let rotary_dim = (head_dim as f64 * part) as usize;
        if rotary_dim == 0 || !rotary_dim.is_multiple_of(2) {
            return Err(bad(FIELD, part, "such that an even number of a head's components rotate"));
        }
        Ok(rotary_dim)
    }

    /// Models with two kinds of layers nest one dictionary per kind.
    fn refuse_layer_types(&self) -> Result<(), ConfigProblem> {
        if let Some((name, _)) = self.map.iter().find(|(_, value)| value.is_object()) {
            return Err(ConfigProblem::RopeForm {
                what: format!("RoPE per layer type ({})", clip(name)),
            });
        }
        Ok(())
    }

    fn scaling(&self, rotary_dim: usize) -> Result<RopeScaling, ConfigProblem> {
        match self.rope_type()? {
            "default" => Ok(RopeScaling::Default),
            "linear" => Ok(RopeScaling::Linear { factor: self.factor()? }),
            "dynamic" => self.dynamic(rotary_dim),
            "llama3" => self.llama3(),
            // The first Phi-3 configs called LongRoPE "su" or "yarn"; YaRN has no such list.
            "yarn" if !self.map.contains_key("short_factor") => self.yarn(),
            "longrope" | "su" | "yarn" => self.longrope(rotary_dim / 2),
            name => Err(ConfigProblem::RopeType { name: clip(name), supported: SUPPORTED }),
        }
    }

    fn rope_type(&self) -> Result<&str, ConfigProblem> {
        match self.map.get("rope_type").or_else(|| self.map.get("type")) {
            None | Some(Value::Null) => Ok("default"),
            Some(Value::String(name)) => Ok(name),
            Some(other) => Err(FieldError::new("rope_type", other, "a text").into()),
        }
    }

    fn dynamic(&self, rotary_dim: usize) -> Result<RopeScaling, ConfigProblem> {
        // The exponent of the new base is d / (d - 2).
        if rotary_dim <= 2 {
            let requirement = "above 2 for dynamic RoPE scaling";
            return Err(bad("head_dim", rotary_dim as f64, requirement));
        }
        let original_max_positions = self.max_positions;
        Ok(RopeScaling::Dynamic { factor: self.factor()?, original_max_positions })
    }

    fn llama3(&self) -> Result<RopeScaling, ConfigProblem> {
        let low_freq_factor = self.required("low_freq_factor")?;
        let high_freq_factor = self.required("high_freq_factor")?;
        positive("low_freq_factor", low_freq_factor)?;
        if !(high_freq_factor.is_finite() && high_freq_factor > low_freq_factor) {
            return Err(bad("high_freq_factor", high_freq_factor, "above low_freq_factor"));
        }
        Ok(RopeScaling::Llama3 {
            factor: self.factor()?,
            low_freq_factor,
            high_freq_factor,
            original_max_positions: self.original_max_positions()?,
        })
    }

    fn yarn(&self) -> Result<RopeScaling, ConfigProblem> {
        let original_max_positions = self.original_max_positions()?;
        // Without it transformers refuses, too: nothing else says by how much to stretch.
        let factor = self.factor()?;
        // transformers treats 0 like absence for both.
        let beta = |value: Option<f64>, default| value.filter(|v| *v != 0.0).unwrap_or(default);
        let beta_fast = beta(self.number("beta_fast")?, 32.0);
        let beta_slow = beta(self.number("beta_slow")?, 1.0);
        positive("beta_fast", beta_fast)?;
        positive("beta_slow", beta_slow)?;
        let truncate = json::Fields(self.map).truth("truncate")?.unwrap_or(true);
        Ok(RopeScaling::Yarn {
            factor,
            attention_factor: self.attention_factor(factor)?,
            beta_fast,
            beta_slow,
            truncate,
            original_max_positions,
        })
    }

    fn longrope(&self, n_pairs: usize) -> Result<RopeScaling, ConfigProblem> {
        // Nothing else says where the trained context ends and the other list begins.
        let original_max_positions = self
            .given_original_max_positions()?
            .ok_or(ConfigProblem::Missing { field: ORIGINAL_MAX_POSITIONS })?;
        let factor = match self.number("factor")? {
            Some(_) => self.factor()?,
            None => self.max_positions as f64 / original_max_positions as f64,
        };
        let attention_factor = match self.number("attention_factor")? {
            Some(given) => given,
            None if factor <= 1.0 => 1.0,
            None => (1.0 + factor.ln() / (original_max_positions as f64).ln()).sqrt(),
        };
        positive("attention_factor", attention_factor)?;
        Ok(RopeScaling::LongRope {
            short_factor: self.factors("short_factor", n_pairs)?,
            long_factor: self.factors("long_factor", n_pairs)?,
            attention_factor,
            original_max_positions,
        })
    }

    /// A list of divisors, one for each rotated pair.
    fn factors(&self, field: &'static str, expected: usize) -> Result<Vec<f64>, ConfigProblem> {
        let wrong = |found| ConfigProblem::RopeFactors { field, found, expected };
        let list = match self.map.get(field) {
            None | Some(Value::Null) => return Err(ConfigProblem::Missing { field }),
            Some(Value::Array(list)) => list,
            Some(other) => return Err(wrong(format!("is {}", clip(&other.to_string())))),
        };
        if list.len() != expected {
            return Err(wrong(format!("has {} entries", list.len())));
        }
        let number = |entry: &Value| {
            let factor = entry
                .as_f64()
                .ok_or_else(|| wrong(format!("contains {}", clip(&entry.to_string()))))?;
            positive(field, factor)?;
            Ok(factor)
        };
        list.iter().map(number).collect()
    }

    /// The factor on cosine and sine: given, or from the paper's 0.1 ln(s) + 1.
    fn attention_factor(&self, factor: f64) -> Result<f64, ConfigProblem> {
        if let Some(given) = self.number("attention_factor")? {
            positive("attention_factor", given)?;
            return Ok(given);
        }
        let paper =
            |mscale: f64| if factor <= 1.0 { 1.0 } else { 0.1 * mscale * factor.ln() + 1.0 };
        let nonzero = |value: Option<f64>| value.filter(|v| *v != 0.0);
        let mscale = nonzero(self.number("mscale")?);
        let mscale_all_dim = nonzero(self.number("mscale_all_dim")?);
        let attention_factor = match (mscale, mscale_all_dim) {
            (Some(mscale), Some(all_dim)) => paper(mscale) / paper(all_dim),
            _ => paper(1.0),
        };
        positive("mscale / mscale_all_dim", attention_factor)?;
        Ok(attention_factor)
    }

    fn factor(&self) -> Result<f64, ConfigProblem> {
        let factor = self.required("factor")?;
        if !(factor.is_finite() && factor >= 1.0) {
            return Err(bad("rope factor", factor, "a finite number of at least 1"));
        }
        Ok(factor)
    }

    fn original_max_positions(&self) -> Result<usize, ConfigProblem> {
        Ok(self.given_original_max_positions()?.unwrap_or(self.max_positions))
    }

    /// A top-level entry wins over the dictionary's, as in transformers.
    fn given_original_max_positions(&self) -> Result<Option<usize>, ConfigProblem> {
        const FIELD: &str = ORIGINAL_MAX_POSITIONS;
        if let Some(value) = self.raw.original_max_position_embeddings {
            return bounded(FIELD, value, MAX_POSITIONS).map(Some);
        }
        match self.number(FIELD)? {
            Some(value) if value >= 0.0 => bounded(FIELD, value as u64, MAX_POSITIONS).map(Some),
            Some(value) => Err(bad(FIELD, value, "at least 1")),
            None => Ok(None),
        }
    }

    fn required(&self, field: &'static str) -> Result<f64, ConfigProblem> {
        self.number(field)?.ok_or(ConfigProblem::Missing { field })
    }

    fn number(&self, field: &'static str) -> Result<Option<f64>, ConfigProblem> {
        match self.map.get(field) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Number(number)) => Ok(number.as_f64()),
            Some(other) => Err(FieldError::new(field, other, "a number").into()),
        }
    }
}

fn positive(field: &'static str, value: f64) -> Result<(), ConfigProblem> {
    if value.is_finite() && value > 0.0 {
        return Ok(());
    }
    Err(bad(field, value, "a finite number above 0"))
}

fn bad(field: &'static str, value: f64, requirement: &'static str) -> ConfigProblem {
    ConfigProblem::BadNumber { field, value, requirement }
}
