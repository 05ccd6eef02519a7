//! `longview demo`: hide facts in a long document, prefill it once, and ask for all of them under
//! a policy and under full attention.
//!
//! Everything it prints is measured in this run. Keys and values lie in separate device buffers of
//! fixed size even on the CPU, so that fetches, hits and evictions are those of a real device.

mod document;
mod exam;
mod report;
mod view;

use std::io::Write;

use anyhow::Result;
use clap::Args;
use longview_engine::{Engine, EngineOptions, Session, resolve_policy};
use longview_needles::facts;
use longview_ops::Backend;
use longview_scheduler::{Index, IndexKind, Policy, PolicyOptions, Preset};
use pollster::block_on;

use self::document::{Document, DocumentSpec};
use self::report::Report;
use self::view::View;
use crate::args::{EngineArgs, PolicyArgs, numbers};
use crate::context;
use crate::device::with_device;
use crate::interrupt::Interrupt;
use crate::load;
use crate::progress::PrefillBar;
use longview_startup::embedded;

use crate::{out, units};

/// Options of `longview demo`.
#[derive(Args)]
#[command(after_help = "\
Measured with 32768 tokens, a budget of 1024 and 24 questions, seeds 0 to 3: 94 of 96 right answers,
94 with full attention.")]
pub struct DemoArgs {
    /// Tokens of the document with one question and its answer.
    #[arg(
        short,
        long,
        visible_alias = "ctx-size",
        value_name = "TOKENS",
        default_value_t = 32768,
        value_parser = numbers::tokens
    )]
    context: usize,

    /// Facts to hide and questions to ask, 1 to 96.
    #[arg(
        long,
        value_name = "N",
        default_value_t = 24,
        value_parser = numbers::count(1..=facts::MAX_FACTS)
    )]
    questions: usize,

    /// Seed of the document and its facts.
    #[arg(short, long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// Print one JSON object and nothing else on stdout [default: off].
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    policy: PolicyArgs,

    #[command(flatten)]
    engine: EngineArgs,
}

/// Runs the demo.
pub fn run(args: &DemoArgs) -> Result<()> {
    let interrupt = Interrupt::install()?;
    let folder = embedded::open()?;
    let n_questions = args.questions;
    let spec = DocumentSpec { context: args.context, n_questions, seed: args.seed };
    let (policy, resolved) = policy(args, folder.config.n_layers)?;
    // Before anything is printed: it may not be there.
    let device = args.engine.device()?;
    let report = with_device!(device, backend => {
        // Before the document is written: of one that no memory holds that would take hours.
        let memory = context::memory(&args.engine, &*backend);
        Engine::check_memory(&*backend, &folder, &options(args), &policy, memory)?;
        let document = Document::write(folder.tokenizer()?, spec)?;
        if !args.json {
            introduce(&document, &resolved)?;
        }
        let (mut engine, _) = load::engine(backend, folder, options(args), &policy)?;
        let mut session = engine.session(&policy)?;
        prefill(&mut engine, &mut session, &document, &interrupt)?;
        block_on(examine(&mut engine, &mut session, &document, args, &interrupt))?
    });
    if args.json { report.print_json() } else { report.print_table() }
}

fn options(args: &DemoArgs) -> EngineOptions {
    EngineOptions { simulate_device: true, ..args.engine.options(args.context) }
}

/// The policy that was asked for, as it was and resolved.
fn policy(args: &DemoArgs, n_layers: usize) -> Result<(PolicyOptions, Policy)> {
    Ok(resolve_policy(&args.policy.options()?, n_layers, args.context)?)
}

/// What will happen, and what it does and does not show.
fn introduce(document: &Document, policy: &Policy) -> Result<()> {
    let mut out = out::stdout();
    let budget = policy.budget.tokens.map_or("all".to_owned(), units::count);
    writeln!(
        out,
        "A document of {} tokens: generated filler with {} numbers at all depths, each under a name.",
        units::count(document.ids.len()),
        document.questions.len(),
    )?;
    writeln!(
        out,
        "Each question gives a name, and the model has to find its number: what stands behind the \
         bar is its answer."
    )?;
    writeln!(
        out,
        "Under {}, a KV head attends {budget} of these tokens per step, question and answer alike.",
        policy.preset
    )?;
    if let Some(Index { kind: IndexKind::Clusters(cluster), segment, .. }) = policy.index {
        let (tokens, iterations) = (cluster.cluster_tokens, cluster.iterations);
        let parts = match segment {
            0 => "the whole document".to_owned(),
            tokens => format!("segments of {} tokens", units::count(tokens)),
        };
        writeln!(
            out,
            "Clusters: {tokens} tokens on average, {iterations} iterations of k-means over {parts}."
        )?;
    }
    Ok(out.flush()?)
}

fn prefill<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    document: &Document,
    interrupt: &Interrupt,
) -> Result<()> {
    let n_tokens = document.ids.len();
    let mut bar = PrefillBar::new(n_tokens);
    let fate = "they are not kept, because nothing is written to disk".to_owned();
    let guard = interrupt.end_with(bar.last_words("document", fate));
    let mut update = |progress| bar.update(progress, &guard);
    block_on(engine.prefill(session, &document.ids, &mut update))?;
    drop((guard, bar));
    let timings = session.timings();
    out::note(format_args!(
        "prefill: {} tokens in {:.1} s, {} tokens/s",
        units::count(n_tokens),
        timings.prefill.as_secs_f64(),
        units::rate(timings.prefill_tokens_per_s()),
    ));
    Ok(())
}

/// Both exams, the policy's first: its index was built during the prefill.
async fn examine<B: Backend>(
    engine: &mut Engine<B>,
    session: &mut Session<B>,
    document: &Document,
    args: &DemoArgs,
    interrupt: &Interrupt,
) -> Result<Report> {
    let _guard = interrupt.cancel_with(session.cancel_token());
    let n_questions = document.questions.len();
    let mut sit = async |session: &mut Session<B>| {
        if !args.json {
            out::piece(&format!("\nunder {}\n", session.policy().preset))?;
        }
        let mut view = View::new(n_questions, args.json);
        exam::sit(engine, session, document, &mut view).await
    };
    let recall = sit(session).await?;
    session.set_policy(&PolicyOptions::new(Preset::Full)).await?;
    let full = sit(session).await?;
    Ok(Report { context: args.context, n_questions, full, recall })
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use longview_scheduler::DEEP_LAYERS;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        demo: DemoArgs,
    }

    #[test]
    fn the_policy_follows_the_depth_of_the_model_as_in_every_command() {
        let line = Line::try_parse_from(["demo", "--policy", "clusterkv", "--context", "4096"]);
        let line = line.expect("options");
        let dense_layers =
            |n_layers| policy(&line.demo, n_layers).expect("a policy").1.dense_layers;
        assert_eq!(dense_layers(DEEP_LAYERS - 1), 0);
        assert_eq!(dense_layers(DEEP_LAYERS), 2);
        let told = ["demo", "--dense-layers", "1"];
        let told = Line::try_parse_from(told).expect("options");
        assert_eq!(policy(&told.demo, DEEP_LAYERS).expect("a policy").1.dense_layers, 1);
    }
}
