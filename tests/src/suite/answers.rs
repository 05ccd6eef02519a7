//! Every preset from prompt to answer: what a session says that it attended, let go of and
//! fetched, and that answers do not depend on where rows lie.
//!
//! Budgets are below the prompt, so every layer leaves something out; the windows are small, so
//! that what is generated is indexed, or chosen from again, before the answer ends.

use std::ops::ControlFlow;

use longview_engine::{Engine, EngineError, GenerationParams, Session};
use longview_ops::{Backend, Op, OpError};
use longview_scheduler::{
    LayerBudgets, LayerMode, PolicyOptions, Preset, Residency, SchedulerError,
};
use pollster::block_on;

/// What an engine is asked.
pub struct Prompt {
    /// Prefilled: attends exactly.
    pub document: Vec<u32>,
    /// Fed token by token, through the policy.
    pub question: Vec<u32>,
    /// Tokens to generate.
    pub n_answer: usize,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The generated tokens.
    pub ids: Vec<u32>,
    /// Logits behind the document: no policy has a part in them.
    pub logits: Vec<f32>,
    /// Rows that each KV head of each layer attended in the last step.
    pub attended: Vec<u32>,
    /// Rows that were let go of at the end of the document, and in all.
    pub evictions: [u64; 2],
}

/// Every preset at this budget, and ClusterKV with budgets by head.
pub fn presets(budget: usize) -> Vec<PolicyOptions> {
    let set = |preset: Preset, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset).with_budget(budget);
        for (name, value) in settings.iter().filter(|(n, _)| preset.info().options.contains(n)) {
            options.set(name, value).unwrap_or_else(|e| panic!("{preset} --{name}: {e}"));
        }
        options
    };
    let small = [("window", "4"), ("block-size", "4"), ("cluster-tokens", "4"), ("beta", "2")];
    // InfiniGen may take less than its budget: here it is to use it.
    let small = [&small[..], &[("alpha", "inf")]].concat();
    let recalls = [&small[..], &[("recent", "8")]].concat();
    let settings = |preset: Preset| match preset.info().residency {
        "evict" => &small[..],
        _ => &recalls[..],
    };
    let mut all: Vec<_> =
        Preset::ALL.iter().map(|(preset, _)| set(*preset, settings(*preset))).collect();
    all.push(set(Preset::Clusterkv, &[&recalls[..], &[("budget-mode", "ada")]].concat()));
    all
}

/// A policy in words.
pub fn name(policy: &PolicyOptions) -> String {
    match policy.budget_mode {
        Some(_) => format!("{} with budgets by head", policy.preset),
        None => policy.preset.to_string(),
    }
}

/// Whether heads have unequal budgets that follow from what they attended: rounding may move a row
/// from one to another.
pub fn follows_attention(policy: &PolicyOptions) -> bool {
    let is_ada = matches!(policy.preset, Preset::AdaSnapkv | Preset::AdaPyramid);
    is_ada || policy.budget_mode.is_some()
}

/// The ops beside those of full attention and ClusterKV that a policy calls.
pub fn further_ops(policy: &PolicyOptions) -> &'static [Op] {
    match policy.preset {
        // Budgets by head follow the attention that the prompt's last queries gave.
        Preset::Clusterkv if policy.budget_mode.is_some() => &[Op::ColumnMass, Op::PoolScores],
        Preset::Full | Preset::StreamingLlm | Preset::Clusterkv => &[],
        Preset::Quest => &[Op::BlockReduce, Op::SplitSigns],
        Preset::Infllm => &[Op::BlockReduce, Op::QuerySums],
        Preset::Ktransformers => &[Op::BlockReduce, Op::ColumnMass, Op::PoolScores],
        Preset::Loki | Preset::Infinigen | Preset::Lrqk => &[Op::ProjectHeads],
        Preset::Longview => {
            &[Op::ProjectHeads, Op::ClusterRows, Op::ClusterRest, Op::OwnerCounts, Op::RestLists]
        }
        Preset::Snapkv | Preset::Pyramidkv | Preset::AdaSnapkv | Preset::AdaPyramid => {
            &[Op::ColumnMass, Op::PoolScores]
        }
        Preset::H2o => &[Op::ColumnMass],
    }
}

/// The op that a backend does not have, if that is what went wrong.
pub fn missing_op(error: &EngineError) -> Option<Op> {
    match error {
        EngineError::Op(OpError::Unsupported { op, .. })
        | EngineError::Scheduler(SchedulerError::Op(OpError::Unsupported { op, .. })) => Some(*op),
        _ => None,
    }
}

/// Reads the document under a policy and asks.
pub fn ask<B: Backend>(
    engine: &mut Engine<B>,
    policy: &PolicyOptions,
    prompt: &Prompt,
) -> Result<Answer, EngineError> {
    let mut session = engine.session(policy)?;
    let mut go_on = |_| ControlFlow::Continue(());
    assert!(block_on(engine.prefill(&mut session, &prompt.document, &mut go_on))?);
    answer(engine, &mut session, policy, prompt)
}

/// Asks a session that has read the document, and is under this policy; checks what the session
/// says that it did. Its counters must be those since it came under the policy.
pub fn answer<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    policy: &PolicyOptions,
    prompt: &Prompt,
) -> Result<Answer, EngineError> {
    let (logits, before) = (session.logits().to_vec(), session.stats().clone());
    if !prompt.question.is_empty() {
        block_on(engine.feed(session, &prompt.question))?;
    }
    let n = prompt.n_answer;
    let params = GenerationParams { max_tokens: Some(n), ignore_eos: true, ..Default::default() };
    let mut go_on = |_: &str| ControlFlow::Continue(());
    let ids = block_on(engine.generate(session, &params, &mut go_on))?.ids;
    assert_eq!(ids.len(), n, "{}", name(policy));
    check_attended(session, policy);

    let (what, stats, resolved) = (name(policy), session.stats(), session.policy());
    if resolved.residency.kept().is_some() {
        assert!(before.evictions > 0, "{what}: the document was kept whole");
        assert!(stats.evictions > before.evictions, "{what}: nothing was chosen again");
    }
    if resolved.index.is_some() {
        assert!(stats.clusterings > before.clusterings, "{what}: no generated token is indexed");
        let is_separate = session.sequence().layers()[0].device.is_some();
        let fetches = matches!(resolved.residency, Residency::Recall { .. });
        assert_eq!(stats.misses > 0, is_separate && fetches, "{what}: {stats:?}");
    }
    let evictions = [before.evictions, stats.evictions];
    Ok(Answer { ids, logits, attended: stats.attended_last.clone(), evictions })
}

/// Every layer that is not dense left something out in the last step, and the budget was kept and
/// used.
fn check_attended<B: Backend>(session: &Session<B>, policy: &PolicyOptions) {
    let (what, sequence, resolved) = (name(policy), session.sequence(), session.policy());
    let (n_tokens, heads) = (sequence.n_tokens(), sequence.shape().n_kv_heads);
    let attended = &session.stats().attended_last;
    for (layer, rows) in attended.chunks_exact(heads).enumerate() {
        let is_dense = sequence.layers()[layer].mode() == LayerMode::Dense;
        assert_eq!(is_dense, policy.preset == Preset::Full, "{what}, layer {layer}");
        let is_right = |n: usize| if is_dense { n == n_tokens } else { 0 < n && n < n_tokens };
        let all_right = rows.iter().all(|n| is_right(*n as usize));
        assert!(all_right, "{what}, layer {layer} of {n_tokens} tokens: {rows:?}");
    }
    let Some(budget) = resolved.budget.tokens else { return };
    let cells = attended.len();
    let is_uniform = !follows_attention(policy) && resolved.budget.layers == LayerBudgets::Uniform;
    if is_uniform {
        assert_eq!(*attended, vec![budget as u32; cells], "{what}");
    } else {
        // The mean over heads and layers, but for what rounding adds to each.
        let sum: usize = attended.iter().map(|n| *n as usize).sum();
        assert!(sum.abs_diff(cells * budget) <= 2 * cells, "{what}: {attended:?}");
    }
}

/// Fails unless both attended as much, but for rows that rounding moves between heads whose budgets
/// follow their attention.
pub fn assert_as_much(policy: &PolicyOptions, got: &Answer, want: &Answer, where_: &str) {
    let what = format!("{} {where_}", name(policy));
    let most = u32::from(follows_attention(policy));
    assert_eq!(got.attended.len(), want.attended.len(), "{what}");
    for (got_rows, want_rows) in got.attended.iter().zip(&want.attended) {
        assert!(
            got_rows.abs_diff(*want_rows) <= most,
            "{what}: {:?}, expected {:?}",
            got.attended,
            want.attended
        );
    }
}
