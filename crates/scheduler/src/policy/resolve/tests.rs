//! Defaults, refusals and what they say, option by option.

use longview_core::{DType, LayerId};

use super::*;
use crate::layout::{HostRows, KvShape};

fn layers(n_layers: usize) -> KvShape {
    KvShape {
        n_layers,
        n_q_heads: 1,
        n_kv_heads: 1,
        head_dim: 2,
        kv_dtype: DType::F32,
        host_rows: HostRows::default(),
        capacity: 32_768,
        scale: 1.0,
        inv_freq: [].into(),
        windows: [].into(),
    }
}

fn resolve(change: impl FnOnce(&mut PolicyOptions)) -> Result<Policy, PolicyError> {
    let mut options = PolicyOptions::new(Preset::Clusterkv).with_budget(1024);
    change(&mut options);
    Policy::resolve(&options, 32768)
}

#[test]
fn the_paper_is_a_set_of_options() {
    let paper = resolve(|o| {
        o.cluster_tokens = Some(80);
        o.cluster_segment = Some(0);
        o.recent = Some(0);
        o.window = Some(320);
        o.cache_steps = Some(1);
    });
    let index = paper.unwrap().index.unwrap();
    let IndexKind::Clusters(clusters) = index.kind else { panic!("{index:?}") };
    assert_eq!((index.window, clusters.window_clusters), (320, 4));
}

#[test]
fn defaults_fit_every_budget_from_64() {
    for budget in [64, 100, 256, 512, 1000, 1024, 2048, 100_000] {
        let options = PolicyOptions::new(Preset::Clusterkv).with_budget(budget);
        let policy = Policy::resolve(&options, 1 << 20).unwrap();
        assert!(policy.sinks + policy.ring_rows() < budget, "{policy:?}");
    }
}

#[test]
fn combinations_that_cannot_work_are_named() {
    let message = |r: Result<Policy, PolicyError>| r.unwrap_err().to_string();
    assert!(
        message(resolve(|o| o.budget = Some(BudgetOption::Tokens(0)))).starts_with("--budget 0")
    );
    let small = message(resolve(|o| {
        o.budget = Some(BudgetOption::Tokens(300));
        o.window = Some(320);
    }));
    assert!(small.contains("--budget 300") && small.contains("window of 320"), "{small}");
    assert_eq!(
        message(resolve(|o| o.cluster_tokens = Some(0))),
        "--cluster-tokens 0: must be a whole number from 1 to 1,073,741,824"
    );
    assert!(
        message(resolve(|o| o.window_clusters = Some(9999))).contains("--window-clusters 9999")
    );
    assert!(message(resolve(|o| o.cluster_segment = Some(8))).contains("--cluster-segment 8"));
    let streaming = message(resolve(|o| {
        o.preset = Preset::StreamingLlm;
        o.cluster_tokens = Some(16);
    }));
    let meant = "--cluster-tokens has no meaning for --policy streaming-llm; leave it out";
    assert_eq!(streaming, meant);
    assert!("quests".parse::<Preset>().unwrap_err().to_string().contains("one of full"));
}

#[test]
fn deep_models_have_dense_layers_unless_told_otherwise() {
    let dense = |n_layers, chosen| {
        let options =
            PolicyOptions { dense_layers: chosen, ..PolicyOptions::new(Preset::Clusterkv) };
        Policy::resolve(&options.for_depth(n_layers), 32768).unwrap().dense_layers
    };
    assert_eq!(
        [dense(4, None), dense(32, None), dense(32, Some(0)), dense(4, Some(1))],
        [0, 2, 0, 1]
    );
}

#[test]
fn a_budget_means_all_attended_tokens() {
    let policy = resolve(|o| o.preset = Preset::StreamingLlm).unwrap();
    assert_eq!(policy.sinks + policy.recent, 1024);
}

#[test]
fn the_budget_of_lrqk_follows_its_papers_active_and_lite_tokens() {
    let auto = |context| Policy::resolve(&PolicyOptions::new(Preset::Lrqk), context).unwrap();
    for (context, k) in [
        (2048, 256),
        (4096, 256),
        (4097, 512),
        (8192, 512),
        (8193, 1024),
        (16384, 1024),
        (32767, 1024),
        (32768, 2048),
        (131_072, 2048),
    ] {
        let policy = auto(context);
        assert_eq!((policy.budget.tokens, policy.recent), (Some(k + 64), 64), "{context}");
        let kind = policy.index.unwrap().kind;
        let IndexKind::Tokens(tokens) = kind else { panic!("{kind:?}") };
        assert_eq!(tokens.rank, Rank::Given(Some(32)));
        assert!(matches!(tokens.projection, Projection::Lrqk { iterations: 2, .. }));
    }
    let mut options = PolicyOptions::new(Preset::Lrqk);
    options.recent = Some(16);
    assert_eq!(Policy::resolve(&options, 4096).unwrap().budget.tokens, Some(256 + 16));
    // A budget that is given is all that is attended, and less is lite where it is small.
    let small = Policy::resolve(&options.clone().with_budget(100), 4096).unwrap();
    assert_eq!((small.budget.tokens, small.recent), (Some(100), 16));
    options.recent = None;
    let small = Policy::resolve(&options.with_budget(100), 4096).unwrap();
    assert_eq!((small.budget.tokens, small.recent), (Some(100), 25));
}

#[test]
fn every_preset_has_defaults_for_every_budget() {
    for (preset, name) in Preset::ALL {
        for budget in [64, 100, 512, 1024, 4096, 100_000] {
            let options = PolicyOptions::new(*preset).with_budget(budget);
            let policy = Policy::resolve(&options, 1 << 20).unwrap_or_else(|e| panic!("{e}"));
            let always = policy.sinks + policy.ring_rows();
            let is_all = matches!(preset, Preset::Full);
            let is_window = policy.index.is_none() && policy.residency.kept().is_none();
            assert!(is_all || is_window || always < budget, "{name} {budget}: {policy:?}");
        }
    }
}

#[test]
fn an_option_is_for_some_presets_and_has_a_range() {
    let of = |preset, name: &str, value: &str| {
        let mut options = PolicyOptions::new(preset).with_budget(512);
        options.set(name, value)?;
        Policy::resolve(&options, 32768)
    };
    let message = |preset, name, value| of(preset, name, value).unwrap_err().to_string();
    assert!(of(Preset::Quest, "block-size", "32").is_ok());
    assert_eq!(
        message(Preset::Snapkv, "block-size", "32"),
        "--block-size has no meaning for --policy snapkv; leave it out"
    );
    assert_eq!(
        message(Preset::Quest, "block-size", "x"),
        "--block-size: 'x' is not a whole number from 1 to 1,073,741,824"
    );
    assert_eq!(
        message(Preset::Ktransformers, "representative", "best"),
        "--representative: 'best' is not one of max, mean, quest, dynamic, fix"
    );
    assert!(message(Preset::Quest, "blocks", "3").starts_with("unknown option 'blocks'"));
    for (preset, name, value) in [
        (Preset::Lrqk, "rank-tolerance", "1.5"),
        (Preset::AdaSnapkv, "safeguard", "2"),
        (Preset::Pyramidkv, "beta", "1"),
        (Preset::H2o, "heavy-ratio", "0"),
        (Preset::Snapkv, "pool-kernel", "4"),
        (Preset::Snapkv, "observe", "129"),
        (Preset::Infllm, "representative-num", "33"),
    ] {
        let message = message(preset, name, value);
        assert!(message.starts_with(&format!("--{name} {value}: must be ")), "{message}");
    }
}

#[test]
fn an_option_of_something_that_was_not_asked_for_says_so() {
    let of = |preset, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset).with_budget(512);
        settings.iter().try_for_each(|(name, value)| options.set(name, value))?;
        Policy::resolve(&options, 32768)
    };
    let message = |preset, settings: &[(&str, &str)]| of(preset, settings).unwrap_err().to_string();
    for (name, value) in
        [("preselect-kernel", "5"), ("preselect-neighbours", "false"), ("pool", "max")]
    {
        assert_eq!(
            message(Preset::Ktransformers, &[(name, value)]),
            format!("--{name}: means something with --preselect alone; leave --{name} out")
        );
        assert!(of(Preset::Ktransformers, &[("preselect", "9"), (name, value)]).is_ok());
    }
    assert_eq!(
        message(Preset::Ktransformers, &[("preselect", "9"), ("preselect-kernel", "4")]),
        "--preselect-kernel 4: must be an odd whole number from 1 to 1,023"
    );
    assert_eq!(
        message(Preset::Clusterkv, &[("host-threads", "2")]),
        "--host-threads: means something with --attend host alone; leave --host-threads out"
    );
    assert!(of(Preset::Clusterkv, &[("host-threads", "2"), ("attend", "host")]).is_ok());
    assert_eq!(
        message(Preset::Ktransformers, &[("host-threads", "0")]),
        "--host-threads 0: must be a whole number from 1 to 1,024"
    );
    let plain = of(Preset::Ktransformers, &[("preselect", "9")]).unwrap().index.unwrap().kind;
    let IndexKind::Blocks(BlockConfig { preselect: Some(plain), .. }) = plain else {
        panic!("{plain:?}")
    };
    let want =
        Preselect { count: 9, queries: 128, kernel: 1, pool: PoolKind::Average, neighbours: true };
    assert_eq!(plain, want);
}

#[test]
fn names_of_options_are_names_of_presets_options() {
    for (preset, name) in Preset::ALL {
        for option in preset.info().options {
            let known = crate::policy::OPTIONS.iter().any(|info| info.name == *option);
            assert!(known, "{name} has an option '{option}' that there is not");
        }
    }
    for info in crate::policy::OPTIONS {
        let used = Preset::ALL.iter().any(|(p, _)| p.info().options.contains(&info.name));
        assert!(used, "--{} means nothing to any preset", info.name);
    }
}

#[test]
fn a_pyramid_keeps_as_many_rows_as_equal_layers() {
    let options = PolicyOptions::new(Preset::Pyramidkv).with_budget(256);
    let policy = Policy::resolve(&options, 4096).unwrap();
    let mean = 256 - policy.recent;
    let kept: Vec<usize> = (0..8).map(|layer| policy.kept(&layers(8), LayerId(layer))).collect();
    assert!(kept.windows(2).all(|w| w[0] > w[1]), "{kept:?}");
    let sum: usize = kept.iter().sum();
    assert!(sum.abs_diff(8 * mean) <= 8 * 8, "{kept:?} of {mean}");
    assert!(kept[7] < mean / 8 && kept[0] > 3 * mean / 2, "{kept:?}");
    assert_eq!(policy.kept(&layers(1), LayerId(0)), mean);
}

#[test]
fn budgets_by_themselves_follow_the_context() {
    let tokens = |preset, context| {
        Policy::resolve(&PolicyOptions::new(preset), context).unwrap().budget.tokens.unwrap()
    };
    for (context, want) in [(1, 512), (4096, 512), (4097, 1024), (32_768, 1024), (32_769, 2048)] {
        assert_eq!(tokens(Preset::Clusterkv, context), want, "{context}");
        assert_eq!(tokens(Preset::Snapkv, context), want, "{context}");
    }
    assert_eq!(
        Policy::resolve(&PolicyOptions::new(Preset::Full), 9999).unwrap().budget.tokens,
        None
    );
}

#[test]
fn long_prompts_are_clustered_in_segments() {
    let segment = |context| {
        let options = PolicyOptions::new(Preset::Clusterkv);
        Policy::resolve(&options, context).unwrap().index.unwrap().segment
    };
    assert_eq!([segment(32_768), segment(32_769)], [0, 8192]);
}

#[test]
fn a_budget_must_hold_what_is_always_attended_and_one_token_more() {
    // 16 sinks, 64 recent and a window of 128, of which 4 more may be pending.
    let of = |budget| {
        resolve(|o| {
            o.budget = Some(BudgetOption::Tokens(budget));
            (o.sinks, o.recent, o.window) = (Some(16), Some(64), Some(128));
        })
    };
    assert!(of(213).is_ok());
    let PolicyError::BudgetTooSmall(small) = of(212).unwrap_err() else { panic!("another error") };
    assert_eq!((small.least, small.always.window), (Some(213), 128));
    let kept = |budget| {
        resolve(|o| {
            o.preset = Preset::Snapkv;
            o.budget = Some(BudgetOption::Tokens(budget));
            (o.recent, o.window) = (Some(30), Some(20));
        })
    };
    assert!(kept(51).is_ok() && kept(50).is_err());
    let streaming = |sinks, recent| {
        resolve(|o| {
            o.preset = Preset::StreamingLlm;
            (o.sinks, o.recent) = (Some(sinks), Some(recent));
        })
    };
    assert!(streaming(24, 1000).is_ok() && streaming(25, 1000).is_err());
    assert!(streaming(4, 0).is_err(), "the token itself is a recent one");
}

#[test]
fn where_tokens_are_attended_follows_the_preset_and_the_option() {
    let of = |preset, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset).with_budget(512);
        settings.iter().for_each(|(name, value)| options.set(name, value).unwrap());
        Policy::resolve(&options, 32768).unwrap().residency
    };
    let host = |threads| Residency::AttendOnHost { threads };
    let device = |cache_steps| Residency::Recall { cache_steps };
    assert_eq!(of(Preset::Clusterkv, &[]), device(2));
    assert_eq!(of(Preset::Clusterkv, &[("cache-steps", "0")]), device(0));
    assert_eq!(of(Preset::Clusterkv, &[("attend", "host")]), host(None));
    assert_eq!(of(Preset::Ktransformers, &[("host-threads", "3")]), host(Some(3)));
    assert_eq!(of(Preset::Ktransformers, &[("attend", "device")]), device(2));
    assert_eq!(of(Preset::Full, &[]), Residency::Resident);
    let first = |positions| Residency::Evict(Eviction::FirstTokens { positions });
    assert_eq!(of(Preset::StreamingLlm, &[]), first(Positions::Cache));
    assert_eq!(of(Preset::StreamingLlm, &[("positions", "text")]), first(Positions::Text));
}

#[test]
fn budgets_of_heads_and_steps_are_those_asked_for() {
    let of = |preset, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset).with_budget(512);
        settings.iter().try_for_each(|(name, value)| options.set(name, value))?;
        Policy::resolve(&options, 32768)
    };
    let budget = |preset, settings: &[(&str, &str)]| of(preset, settings).unwrap().budget;
    assert_eq!(budget(Preset::Clusterkv, &[]), Budget::of(512));
    let ada = |safeguard, queries| HeadBudgets::Ada { safeguard, queries };
    let given = [("budget-mode", "ada"), ("safeguard", "0.5"), ("observe", "9")];
    assert_eq!(budget(Preset::Clusterkv, &given).heads, ada(0.5, 9));
    assert_eq!(budget(Preset::AdaSnapkv, &[]).heads, ada(0.2, 32));
    assert_eq!(budget(Preset::Snapkv, &[]).heads, HeadBudgets::Uniform);
    assert_eq!(
        budget(Preset::AdaPyramid, &[("beta", "4")]).layers,
        LayerBudgets::Pyramid { beta: 4.0 }
    );
    let by_mass = [("budget-mode", "mass")];
    let policy = of(Preset::Clusterkv, &by_mass).unwrap();
    let pooling = policy.index.unwrap().pooling;
    assert_eq!((policy.budget.mass, pooling), (Some(0.95), Pooling::SizeWeighted));
    let given = [("budget-mode", "mass"), ("mass", "1"), ("pooling", "max")];
    let policy = of(Preset::Clusterkv, &given).unwrap();
    let pooling = policy.index.unwrap().pooling;
    assert_eq!((policy.budget.mass, pooling), (Some(1.0), Pooling::MaxSoftmax));
    assert_eq!(of(Preset::Loki, &by_mass).unwrap().index.unwrap().pooling, Pooling::SumSoftmax);
    assert!(of(Preset::Quest, &by_mass).is_err(), "scores of blocks are no attention");
    assert!(of(Preset::Clusterkv, &[("mass", "0.9")]).is_err(), "without the mode");
    assert_eq!(budget(Preset::Infinigen, &[]).alpha, Some(4.0));
    assert_eq!(budget(Preset::Infinigen, &[("alpha", "inf")]).alpha, None);
    assert!(of(Preset::Infinigen, &[("alpha", "0")]).is_err());
}

/// Where clusters alone are chosen a known beginning keeps its clusters; with a second stage a
/// prompt has the same index whatever was known.
#[test]
fn clusters_stay_behind_a_known_beginning_where_they_alone_are_chosen() {
    let keeps = |preset, two_stage| {
        let options = PolicyOptions { two_stage, ..PolicyOptions::new(preset).with_budget(1024) };
        Policy::resolve(&options, 32768).unwrap().index.unwrap().keeps_runs()
    };
    assert!(keeps(Preset::Clusterkv, None) && keeps(Preset::Longview, Some(1)));
    assert!(!keeps(Preset::Longview, None) && !keeps(Preset::Clusterkv, Some(4)));
}

#[test]
fn two_stages_take_no_option_that_speaks_of_whole_clusters() {
    let of = |settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(Preset::Clusterkv).with_budget(512);
        settings.iter().for_each(|(name, value)| options.set(name, value).unwrap());
        Policy::resolve(&options, 32768).map(|policy| policy.index.unwrap().two_stage())
    };
    assert_eq!(of(&[]), Ok(None));
    assert_eq!(of(&[("two-stage", "1")]), Ok(None));
    let stage = of(&[("two-stage", "2"), ("rank", "8"), ("cluster-seed", "5")]).unwrap().unwrap();
    let (init, order) = (LrqkInit::Random, LrqkOrder::KeysFirst);
    let projection = Projection::Lrqk { iterations: 2, init, order, seed: 5 };
    let rank = Rank::Given(Some(8));
    let tokens = TokenConfig { projection, rank, adapts: false };
    assert_eq!(stage, TwoStage { times: 2, tokens, rerank: 0, scored: usize::MAX });
    assert!(of(&[("rerank", "4")]).is_err(), "without a second stage");
    assert!(of(&[("rank", "8")]).is_err() && of(&[("two-stage", "2"), ("rank", "7")]).is_err());
    assert!(of(&[("two-stage", "2"), ("residual", "means")]).is_ok());
    for (name, value) in [("attention-bound", "true"), ("budget-mode", "mass")] {
        assert!(of(&[(name, value)]).is_ok());
        let error = of(&[("two-stage", "2"), (name, value)]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("--{name}: ")), "{error}");
        let fix = if name == "budget-mode" {
            "leave --budget-mode out"
        } else {
            "use --attention-bound sampled"
        };
        assert!(error.contains(&format!("not with --two-stage; {fix}")), "{error}");
    }
}

#[test]
fn groups_stand_for_clusters_where_tokens_are_chosen_one_by_one() {
    let of = |preset, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset).with_budget(512);
        settings.iter().for_each(|(name, value)| options.set(name, value).unwrap());
        Policy::resolve(&options, 32768).map(|policy| policy.residual)
    };
    let groups = ("residual", "groups");
    assert_eq!(of(Preset::Longview, &[]), Ok(Residual::Groups));
    assert_eq!(of(Preset::Longview, &[("residual", "means")]), Ok(Residual::Means));
    assert_eq!(of(Preset::Longview, &[("two-stage", "1")]), Ok(Residual::Means));
    assert_eq!(of(Preset::Clusterkv, &[groups, ("two-stage", "2")]), Ok(Residual::Groups));
    for (preset, more) in [(Preset::Clusterkv, None), (Preset::Longview, Some(("two-stage", "1")))]
    {
        let settings: Vec<_> = [groups].into_iter().chain(more).collect();
        let error = of(preset, &settings).unwrap_err().to_string();
        assert!(error.starts_with("--residual: "), "{error}");
        assert!(error.contains("use --residual means"), "{error}");
    }
}

/// Its clusters are ClusterKV's; its tokens are compared in the best space of 32 dimensions.
#[test]
fn longview_chooses_tokens_in_clusters_and_keeps_the_means_of_the_rest() {
    let of = |settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(Preset::Longview).with_budget(512);
        settings.iter().for_each(|(name, value)| options.set(name, value).unwrap());
        Policy::resolve(&options, 32768)
    };
    let policy = of(&[]).unwrap();
    let (projection, rank) = (Projection::ShrunkFactors, Rank::Given(Some(32)));
    let tokens = TokenConfig { projection, rank, adapts: false };
    let two_stage = policy.index.unwrap().two_stage();
    assert_eq!(two_stage, Some(TwoStage { times: 4, tokens, rerank: 2, scored: 4096 }));
    assert_eq!((policy.residual, policy.dense_layers), (Residual::Groups, 0));
    let clusterkv =
        Policy::resolve(&PolicyOptions::new(Preset::Clusterkv).with_budget(512), 32768).unwrap();
    let clusters = |policy: &Policy| {
        let IndexKind::Clusters(clusters) = policy.index.unwrap().kind else { panic!() };
        clusters
    };
    let plain = |policy: &Policy| {
        let clusters = ClusterConfig { two_stage: None, iterations: 0, ..clusters(policy) };
        (clusters, policy.sinks, policy.recent)
    };
    assert_eq!(plain(&policy), plain(&clusterkv));
    assert_eq!([&policy, &clusterkv].map(|policy| clusters(policy).iterations), [4, 10]);
    assert_eq!(clusters(&of(&[("iterations", "7")]).unwrap()).iterations, 7);
    for (budget, times, rerank) in [
        ("128", 16, 4),
        ("400", 5, 2),
        ("513", 4, 0),
        ("768", 4, 0),
        ("1024", 3, 0),
        ("1536", 2, 0),
        ("4096", 2, 0),
    ] {
        let index = of(&[("budget", budget)]).unwrap().index.unwrap();
        let two_stage = index.two_stage().unwrap();
        assert_eq!((two_stage.times, two_stage.rerank), (times, rerank), "--budget {budget}");
    }
    let times = |context, budget| {
        let options = PolicyOptions::new(Preset::Longview).with_budget(budget);
        let policy = Policy::resolve(&options, context).unwrap();
        policy.index.unwrap().two_stage().unwrap().times
    };
    assert_eq!([1024, 32_768, 65_536, 131_072].map(|n| times(n, 512)), [4, 4, 5, 8]);
    assert_eq!([1024, 32_768, 131_072, 1 << 30].map(|n| times(n, 64)), [16, 16, 32, 2896]);
    let scored = |context| {
        let options = PolicyOptions::new(Preset::Longview).with_budget(512);
        let policy = Policy::resolve(&options, context).unwrap();
        policy.index.unwrap().two_stage().unwrap().scored
    };
    assert_eq!([1024, 131_072, 262_144, 1 << 20].map(scored), [4096, 4096, 4096, 16_384]);
    let segment = |context| {
        let options = PolicyOptions::new(Preset::Longview).with_budget(512);
        Policy::resolve(&options, context).unwrap().index.unwrap().segment
    };
    assert_eq!([2048, 32768, 1 << 20].map(segment), [INDEX_SEGMENT; 3]);
    let other = [("two-stage", "6"), ("rank", "16"), ("rerank", "0"), ("residual", "drop")];
    let other = of(&other).unwrap();
    let two_stage = other.index.unwrap().two_stage().unwrap();
    assert_eq!((two_stage.times, two_stage.tokens.rank), (6, Rank::Given(Some(16))));
    assert_eq!(two_stage.rerank, 0);
    assert_eq!(other.residual, Residual::Drop);
    assert!(of(&[("rank", "7")]).is_err(), "an odd rank");
    assert!(PolicyOptions::new(Preset::Longview).dense_layers.is_none());
    assert_eq!(PolicyOptions::new(Preset::Longview).for_depth(32).dense_layers, None);
}

#[test]
fn blocks_have_the_summaries_and_the_window_that_their_papers_give_them() {
    let of = |preset, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset).with_budget(2048);
        settings.iter().for_each(|(name, value)| options.set(name, value).unwrap());
        let index = Policy::resolve(&options, 32768).unwrap().index.unwrap();
        let IndexKind::Blocks(blocks) = index.kind else { panic!("{index:?}") };
        (blocks, index)
    };
    let (blocks, index) = of(Preset::Quest, &[]);
    assert_eq!((blocks.block, blocks.summary, index.window), (16, BlockSummary::MinMax, 16));
    assert_eq!((index.pooling, blocks.importance), (Pooling::SumScores, Importance::Last));
    let (blocks, index) = of(Preset::Infllm, &[]);
    assert_eq!((blocks.block, blocks.summary, blocks.n_top), (128, BlockSummary::Top, 4));
    assert_eq!((index.pooling, blocks.importance), (Pooling::SharedScores, Importance::Local));
    // A window holds whole blocks.
    let (_, index) = of(Preset::Ktransformers, &[("window", "130"), ("head-select", "separate")]);
    assert_eq!((index.window, index.pooling), (256, Pooling::SumScores));
    for (name, summary) in [
        ("max", BlockSummary::Max),
        ("mean", BlockSummary::Mean),
        ("quest", BlockSummary::MinMax),
        ("dynamic", BlockSummary::Top),
        ("fix", BlockSummary::Strided),
    ] {
        assert_eq!(of(Preset::Ktransformers, &[("representative", name)]).0.summary, summary);
    }
}

#[test]
fn only_an_index_that_bounds_its_keys_bounds_attention_in_the_worst_case() {
    let of = |preset, bound: &str, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset).with_budget(512);
        options.set("attention-bound", bound).unwrap();
        settings.iter().for_each(|(name, value)| options.set(name, value).unwrap());
        Policy::resolve(&options, 32768).map(|policy| policy.attention_bound)
    };
    let worst_case = Ok(AttentionBound::WorstCase);
    assert_eq!(of(Preset::Clusterkv, "true", &[]), worst_case);
    assert_eq!(of(Preset::Quest, "worst-case", &[]), worst_case);
    let quest = [("representative", "quest")];
    assert_eq!(of(Preset::Ktransformers, "worst-case", &quest), worst_case);
    for bound in ["worst-case", "sampled"] {
        let said = of(Preset::Ktransformers, bound, &[]).unwrap_err().to_string();
        let want = "only clusters, and blocks with --representative quest, bound what they hold";
        assert!(said.contains(want), "{said}");
    }
    // Tokens that are drawn say it where tokens are chosen in clusters, too.
    let said = of(Preset::Longview, "true", &[]).unwrap_err().to_string();
    assert!(said.contains("worst-case bounds clusters, not tokens in them"), "{said}");
    assert!(said.ends_with("use --attention-bound sampled"), "{said}");
    for (preset, settings) in [
        (Preset::Longview, &[][..]),
        (Preset::Clusterkv, &[("two-stage", "2")]),
        (Preset::Quest, &[]),
        (Preset::Ktransformers, &quest),
    ] {
        assert_eq!(of(preset, "sampled", settings), Ok(AttentionBound::Sampled), "{preset}");
    }
}

/// What stands for the rest has no meaning where rows are gone, or where nothing is left out.
#[test]
fn tokens_are_drawn_where_rows_are_recalled_in_place_of_means() {
    let of = |preset, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset).with_budget(512);
        settings.iter().for_each(|(name, value)| options.set(name, value).unwrap());
        Policy::resolve(&options, 32768)
    };
    for preset in [Preset::Clusterkv, Preset::Longview] {
        let policy = of(preset, &[("residual", "sample:64"), ("cluster-seed", "7")]).unwrap();
        assert_eq!((policy.residual, policy.seed), (Residual::Sample(64), 7));
        assert!(policy.draws() && !policy.allows_speculation());
        let policy = of(preset, &[("attention-bound", "sampled")]).unwrap();
        assert!(policy.draws() && !policy.residual.draws());
    }
    // To ask for a bound says nothing about how a step searches.
    let mut options = PolicyOptions::new(Preset::Longview);
    for (bound, rank) in [(None, None), (Some("sampled"), None), (Some("sampled"), Some("48"))] {
        bound.iter().for_each(|value| options.set("attention-bound", value).unwrap());
        rank.iter().for_each(|value| options.set("rank", value).unwrap());
        let policy = Policy::resolve(&options, 32768).unwrap();
        assert_eq!(policy.attend_all > 0, rank.is_none(), "{bound:?}, {rank:?}");
    }
    // What fits into a budget needs no search.
    let policy = of(Preset::Longview, &[("budget", "1024")]).unwrap();
    assert_eq!((policy.attend_all, policy.budget.tokens), (1024, Some(1024)));
    assert_eq!(of(Preset::Clusterkv, &[("budget", "1024")]).unwrap().attend_all, 0);
    for preset in [Preset::H2o, Preset::StreamingLlm, Preset::Snapkv, Preset::Full] {
        for (option, value) in [("residual", "sample:64"), ("attention-bound", "sampled")] {
            let said = of(preset, &[(option, value)]).unwrap_err().to_string();
            let want = format!("--{option} has no meaning for --policy {preset}; leave it out");
            assert_eq!(said, want);
        }
    }
}

#[test]
fn h2o_divides_its_budget_between_heavy_hitters_and_the_last_tokens() {
    let of = |share: &str| {
        let mut options = PolicyOptions::new(Preset::H2o).with_budget(1000);
        options.set("heavy-ratio", share).unwrap();
        Policy::resolve(&options, 32768).unwrap()
    };
    let policy = of("0.25");
    assert_eq!((policy.recent, policy.kept(&layers(4), LayerId(0))), (750, 250));
    let kept = policy.residency.kept().unwrap();
    assert_eq!((kept.statistic, kept.kernel), (Statistic::AllQueries, 1));
}

#[test]
fn local_importance_needs_a_local_window() {
    let of = |importance: &str| {
        let mut options = PolicyOptions::new(Preset::Infllm).with_budget(512);
        options.set("recent", "0").unwrap();
        options.set("importance", importance).unwrap();
        Policy::resolve(&options, 32768)
    };
    assert!(of("last").is_ok());
    assert!(of("local").unwrap_err().to_string().contains("there is no local window"));
}

/// What once panicked, hung, or ended in an error of a kernel.
#[test]
fn numbers_that_no_context_has_are_refused_by_name_wherever_they_come_from() {
    let large = usize::MAX;
    for (preset, name, value) in [
        (Preset::Clusterkv, "sinks", large - 63),
        (Preset::Clusterkv, "recent", large - 63),
        (Preset::Clusterkv, "window", large),
        (Preset::Clusterkv, "cluster-segment", large),
        (Preset::Clusterkv, "cache-steps", large / 2 + 1),
        (Preset::Clusterkv, "observe", 1_000_000),
        (Preset::Quest, "block-size", large / 2 + 1),
        (Preset::Infllm, "block-size", large / 2 + 1),
        (Preset::Ktransformers, "block-size", large / 2 + 1),
        (Preset::Ktransformers, "token-step", large),
        (Preset::StreamingLlm, "recent", large),
        (Preset::Snapkv, "recent", large),
        (Preset::Lrqk, "iterations", large / 2 + 1),
        (Preset::H2o, "window", large),
    ] {
        let text = value.to_string();
        let mut options = PolicyOptions::new(preset).with_budget(256);
        let set = options.set(name, &text).unwrap_err();
        let file = PolicyOptions::from_text(&format!("policy = {preset}\n{name} = {text}\n"));
        assert_eq!(file.unwrap_err(), set);
        let message = set.to_string();
        assert!(message.starts_with(&format!("--{name} {text}: must be a whole")), "{message}");
    }
    // What is put together in a program is checked as well.
    for change in [
        |o: &mut PolicyOptions| o.window = Some(usize::MAX),
        |o: &mut PolicyOptions| o.recent = Some(usize::MAX),
        |o: &mut PolicyOptions| o.safeguard = Some(f32::NAN),
        |o: &mut PolicyOptions| o.safeguard = Some(-1.0),
        |o: &mut PolicyOptions| o.budget = Some(BudgetOption::Tokens(usize::MAX)),
    ] {
        let error = resolve(change).unwrap_err();
        assert!(matches!(error, PolicyError::Range { .. }), "{error}");
    }
}

#[test]
fn a_small_budget_names_one_that_does_and_only_options_that_were_given() {
    let of = |preset, settings: &[(&str, &str)]| {
        let mut options = PolicyOptions::new(preset);
        settings.iter().for_each(|(name, value)| options.set(name, value).unwrap());
        options
    };
    let message =
        |options: &PolicyOptions| Policy::resolve(options, 4096).map(drop).unwrap_err().to_string();
    for (preset, settings, want) in [
        (
            Preset::Infllm,
            &[("budget", "8")][..],
            "--policy infllm --budget 8: 1 first tokens, 4 last tokens and a window of 4 tokens \
             with 7 waiting behind it leave no room for a token to recall; raise --budget to",
        ),
        (
            Preset::H2o,
            &[("budget", "20"), ("window", "40")],
            "--policy h2o --budget 20: 10 last tokens and a window of 40 tokens leave no room for \
             a token to keep for its attention; raise --budget to 82 or more, or lower --window",
        ),
        (
            Preset::H2o,
            &[("heavy-ratio", "1e-30")],
            "--policy h2o --budget 512 (auto): 511 last tokens and a window of 64 tokens leave no \
             room for a token to keep for its attention; leave --heavy-ratio out: no budget is \
             enough for it",
        ),
        (
            Preset::StreamingLlm,
            &[("budget", "20"), ("sinks", "40")],
            "--policy streaming-llm --budget 20: 40 first tokens, 1 last tokens leave no room for \
             all of them; raise --budget to 41 or more, or lower --sinks",
        ),
    ] {
        let mut options = of(preset, settings);
        let message = message(&options);
        assert!(message.starts_with(want), "{message}");
        let advice = Policy::resolve(&options, 4096).unwrap_err().advice().unwrap();
        assert!(message.contains(&advice.to_string()), "{message}");
        options.follow(&advice).unwrap();
        assert!(Policy::resolve(&options, 4096).is_ok(), "{message}");
    }
}

/// Seven raises for infllm and six for ktransformers, once.
#[test]
fn one_raise_of_any_budget_is_enough() {
    for (preset, name) in Preset::ALL {
        for budget in 1..=300 {
            let mut options = PolicyOptions::new(*preset).with_budget(budget);
            let Err(error) = Policy::resolve(&options, 4096) else { continue };
            let advice = error.advice().unwrap();
            options.follow(&advice).unwrap();
            assert!(Policy::resolve(&options, 4096).is_ok(), "{name} {budget}: {error}");
        }
    }
}

#[test]
fn an_option_is_given_once_under_either_name() {
    let twice = "policy = infinigen\nahead = true\nlayer-prefetch = true\n";
    let error = PolicyOptions::from_text(twice).unwrap_err();
    assert_eq!(error.to_string(), "--layer-prefetch is given twice");
}
