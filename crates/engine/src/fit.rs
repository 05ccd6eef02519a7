//! Whether a model fits into memory, the longest context that does, and what would fit instead.

use longview_core::DType;
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset};

use crate::advice::{Advice, Change};
use crate::memory::{Memory, MemoryPlan};
use crate::options::EngineOptions;
use crate::plan::plan;

/// What is to be loaded, and where.
pub struct Fit<'a, B: Backend> {
    /// The device.
    pub backend: &'a B,
    /// The model.
    pub folder: &'a ModelFolder,
    /// How the engine is to be set up.
    pub options: &'a EngineOptions,
    /// What a session attends.
    pub policy: &'a PolicyOptions,
    /// What there is.
    pub memory: Memory,
    /// Whether the device's memory is the host's, or is to be planned as if it were.
    pub unified: bool,
}

impl<B: Backend> Fit<'_, B> {
    /// Whether it fits with these options instead.
    fn holds(&self, options: &EngineOptions, policy: &PolicyOptions) -> bool {
        let plan = plan(self.backend, self.folder, options, policy);
        let plan = plan.map(|plan| MemoryPlan { unified: self.unified, ..plan });
        plan.is_ok_and(|plan| plan.shortage(self.memory).is_none())
    }

    /// The longest context of `least` to `most` tokens that fits. A memory that holds a context
    /// holds all shorter ones.
    pub fn longest_context(&self, least: usize, most: usize) -> Option<usize> {
        self.longest_with(self.options, self.policy, least, most)
    }

    fn longest_with(
        &self,
        options: &EngineOptions,
        policy: &PolicyOptions,
        least: usize,
        most: usize,
    ) -> Option<usize> {
        let fits =
            |ctx_size: usize| self.holds(&EngineOptions { ctx_size, ..options.clone() }, policy);
        if least > most || !fits(least) {
            return None;
        }
        if fits(most) {
            return Some(most);
        }
        let (mut low, mut high) = (least, most);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(middle) { low = middle } else { high = middle }
        }
        let round = round_down(low).max(least);
        Some(if fits(round) { round } else { low })
    }

    /// What would fit, with a context of at least `least` tokens.
    pub fn advice(&self, least: usize) -> Advice {
        let single = self.single_changes(least);
        if !single.is_empty() {
            return Advice(single.into_iter().map(|change| vec![change]).collect());
        }
        Advice(self.changes_together(least).into_iter().collect())
    }

    fn single_changes(&self, least: usize) -> Vec<Change> {
        let (options, policy) = (self.options, self.policy);
        let mut found = Vec::new();
        let shorter = options.ctx_size.saturating_sub(1);
        found.extend(self.longest_context(least, shorter).map(Change::Context));
        let fitting = smaller_types(options.kv_dtype).find(|dtype| {
            self.holds(&EngineOptions { kv_dtype: *dtype, ..options.clone() }, policy)
        });
        found.extend(fitting.map(Change::KvType));
        let budgets = [4096, 2048, 1024, 512, 256, 128];
        let fitting = budgets.into_iter().find(|tokens| {
            self.has_budget() && self.holds(options, &policy.clone().with_budget(*tokens))
        });
        found.extend(fitting.map(Change::Budget));
        found.extend(self.smaller_chunk(options, policy).map(Change::ChunkSize));
        let other = self.smaller_policies().find(|other| self.holds(options, other));
        found.extend(other.map(|other| Change::Policy(other.preset)));
        found
    }

    /// Everything that helps at once.
    fn changes_together(&self, least: usize) -> Option<Vec<Change>> {
        let (mut options, mut policy) = (self.options.clone(), self.policy.clone());
        let mut changes = Vec::new();
        if let Some(other) = self.smaller_policies().last() {
            changes.push(Change::Policy(other.preset));
            policy = other;
        }
        if options.chunk_size > 64 {
            options.chunk_size = 64;
            changes.push(Change::ChunkSize(64));
        }
        // Rows of 8 bits take more where most rows are recent ones, which are kept in full beside.
        let mut types: Vec<DType> = smaller_types(options.kv_dtype).collect();
        types.insert(0, options.kv_dtype);
        let longest = |dtype: DType| {
            let with = EngineOptions { kv_dtype: dtype, ..options.clone() };
            Some((self.longest_with(&with, &policy, least, options.ctx_size)?, dtype))
        };
        // Of types that hold as much, the last is taken, which is the largest.
        let best = types.into_iter().rev().filter_map(longest).max_by_key(|(tokens, _)| *tokens);
        let (context, dtype) = best?;
        if dtype != options.kv_dtype {
            changes.push(Change::KvType(dtype));
        }
        if context < self.options.ctx_size {
            changes.push(Change::Context(context));
        }
        Some(changes)
    }

    fn smaller_chunk(&self, options: &EngineOptions, policy: &PolicyOptions) -> Option<usize> {
        let smaller = std::iter::successors(Some(options.chunk_size / 2), |chunk| Some(chunk / 2));
        smaller.take_while(|chunk| *chunk >= 16).find(|chunk| {
            self.holds(&EngineOptions { chunk_size: *chunk, ..options.clone() }, policy)
        })
    }

    fn has_budget(&self) -> bool {
        self.policy.preset.info().options.contains(&"budget")
    }

    /// Policies that recall with less on the device, the largest first, where nothing was said that
    /// they do not know. Clusters alone take a fifth of what codes of tokens and means take.
    fn smaller_policies(&self) -> impl Iterator<Item = PolicyOptions> {
        let given = self.policy.given();
        let is_plain = given.iter().all(|name| ["budget", "dense-layers"].contains(name));
        let others: &[Preset] = match self.policy.preset {
            Preset::Full if is_plain => &[Preset::DEFAULT, Preset::Clusterkv],
            Preset::Longview if is_plain => &[Preset::Clusterkv],
            _ => &[],
        };
        // What was given stays: whoever follows the advice adds a policy to it.
        others.iter().map(|preset| PolicyOptions { preset: *preset, ..self.policy.clone() })
    }
}

/// Types of keys and values that take less than `dtype`, the largest first.
fn smaller_types(dtype: DType) -> impl Iterator<Item = DType> {
    [DType::F16, DType::Q8].into_iter().filter(move |smaller| smaller.size() < dtype.size())
}

/// A number that can be typed: whole thousands of tokens where there are many.
fn round_down(tokens: usize) -> usize {
    let step = match tokens {
        0..1024 => 16,
        1024..65_536 => 256,
        _ => 1024,
    };
    tokens / step * step
}

#[cfg(test)]
mod tests {
    use longview_cpu::{CpuBackend, CpuOptions};

    use super::*;

    fn folder() -> ModelFolder {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/needle");
        ModelFolder::open(folder.as_ref()).expect("the embedded model")
    }

    /// The options with a change made.
    fn changed(
        options: &EngineOptions,
        policy: &PolicyOptions,
        changes: &[Change],
    ) -> (EngineOptions, PolicyOptions) {
        let (mut options, mut policy) = (options.clone(), policy.clone());
        for change in changes {
            match *change {
                Change::Context(tokens) => options.ctx_size = tokens,
                Change::KvType(dtype) => options.kv_dtype = dtype,
                Change::Budget(tokens) => policy = policy.with_budget(tokens),
                Change::ChunkSize(tokens) => options.chunk_size = tokens,
                Change::Policy(preset) => policy = PolicyOptions::new(preset),
            }
        }
        (options, policy)
    }

    #[test]
    fn following_the_advice_works_and_names_nothing_that_is_so_already() {
        let backend = CpuBackend::new(CpuOptions { threads: 1, isa: None }).expect("a CPU");
        let folder = folder();
        let (mut n_advised, mut n_none) = (0, 0);
        for preset in
            [Preset::Full, Preset::Longview, Preset::Clusterkv, Preset::StreamingLlm, Preset::H2o]
        {
            for (dtype, chunk_size, ctx_size) in [
                (DType::F16, 512, 4096),
                (DType::F32, 512, 65_536),
                (DType::F16, 65_536, 4096),
                (DType::F32, 4096, 1 << 30),
            ] {
                for mib in [1, 16, 64, 256, 1024] {
                    for simulate_device in [false, true] {
                        let options = EngineOptions {
                            kv_dtype: dtype,
                            chunk_size,
                            ctx_size,
                            simulate_device,
                            ..EngineOptions::default()
                        };
                        let policy = PolicyOptions::new(preset);
                        let memory = Memory { device: Some(mib << 20), host: None };
                        let fit = Fit {
                            backend: &backend,
                            folder: &folder,
                            options: &options,
                            policy: &policy,
                            memory,
                            unified: true,
                        };
                        if fit.holds(&options, &policy) {
                            continue;
                        }
                        let advice = fit.advice(256);
                        n_none += usize::from(advice.alternatives().is_empty());
                        for changes in advice.alternatives() {
                            n_advised += 1;
                            let (with, under) = changed(&options, &policy, changes);
                            assert!(fit.holds(&with, &under), "{preset} {options:?}: {changes:?}");
                            let same = Change::KvType(options.kv_dtype);
                            assert!(!changes.contains(&same), "{changes:?}");
                        }
                    }
                }
            }
        }
        assert!(n_advised > 50 && n_none > 10, "{n_advised} advised, {n_none} without");
    }

    #[test]
    fn the_longest_context_fits_and_the_next_one_does_not() {
        let backend = CpuBackend::new(CpuOptions { threads: 1, isa: None }).expect("a CPU");
        let folder = folder();
        let (options, policy) = (EngineOptions::default(), PolicyOptions::new(Preset::Full));
        let memory = Memory { device: Some(64 << 20), host: None };
        let fit = Fit {
            backend: &backend,
            folder: &folder,
            options: &options,
            policy: &policy,
            memory,
            unified: true,
        };
        let longest = fit.longest_context(16, 1 << 30).expect("64 MiB hold the model");
        let with = |ctx_size| EngineOptions { ctx_size, ..options.clone() };
        assert!(fit.holds(&with(longest), &policy), "{longest}");
        assert!(!fit.holds(&with(longest + 1024), &policy), "{longest}");
        assert_eq!(fit.longest_context(longest + 1024, 1 << 30), None);
    }
}
