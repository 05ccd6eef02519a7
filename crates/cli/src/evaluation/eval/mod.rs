//! `longview eval`: tasks under policies, budgets and lengths, into a file that a later run goes
//! on with.

mod args;
mod plan;
mod show;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use longview_engine::{CancelToken, Engine, EngineOptions};
use longview_eval::haystack::TextSource;
use longview_eval::prompt::Prompter;
use longview_eval::record::Run;
use longview_eval::results::ResultsFile;
use longview_eval::runner::{self, Evaluation, Outcome};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset};
use pollster::block_on;

pub use self::args::EvalArgs;
use self::plan::Plan;
use self::show::Bar;
use crate::device::with_device;
use crate::evaluation::record::run_record;
use crate::failure::Interrupted;
use crate::files::input;
use crate::interrupt::Interrupt;
use crate::{context, load, template, units};

/// Runs the command.
pub fn run(args: &EvalArgs) -> Result<()> {
    if args.list {
        return show::list(&args.files());
    }
    let read = [
        ("--squad", args.squad.as_deref()),
        ("--hotpotqa", args.hotpotqa.as_deref()),
        ("--longbench", args.longbench.as_deref()),
    ];
    args.compared.check_output(&args.output, &read)?;
    check_read(&read)?;
    let plan = Plan::new(args)?;
    let text = match &args.text {
        Some(folder) => TextSource::open(folder)?,
        None => TextSource::Generated,
    };
    let interrupt = Interrupt::install()?;
    let outcome = with_device!(args.engine.device()?, backend => {
        evaluate(args, &plan, &text, backend, &interrupt)?
    });
    finish(args, outcome)
}

/// Fails for files of tasks that are not there or no files, also where no task reads them now.
fn check_read(read: &[(&str, Option<&Path>)]) -> Result<()> {
    for (option, path) in read {
        match path {
            Some(path) if *option == "--longbench" && path.is_dir() => {}
            Some(path) if *option == "--longbench" => {
                bail!(
                    "{option} {}: is not a folder; give the one of its .jsonl files",
                    path.display()
                )
            }
            Some(path) => input::check(option, path, "give the name of a file")?,
            None => {}
        }
    }
    Ok(())
}

/// Runs what the file lacks, and shows what it has.
fn evaluate<B: Backend>(
    args: &EvalArgs,
    plan: &Plan,
    text: &TextSource,
    backend: Arc<B>,
    interrupt: &Interrupt,
) -> Result<Outcome> {
    let folder = args.compared.folder()?;
    check_memory(args, plan, &folder, &*backend)?;
    let chat = folder.chat.as_ref().filter(|_| !args.no_chat_template);
    chat.map_or(Ok(()), template::check)?;
    let evaluation = Evaluation {
        tasks: &plan.tasks,
        policies: &plan.policies,
        lengths: &plan.lengths,
        samples: args.samples,
        questions: &plan.questions,
        seed: args.seed,
        text,
        prompter: Prompter::new(folder.tokenizer()?, chat),
    };
    evaluation.check()?;
    let record = record(args, plan, text, &folder, &*backend)?;
    let mut results = ResultsFile::open(&args.output, &record)?;
    // All opened now, so that a folder that goes away later does not end the run.
    let mut folders =
        plan.lengths.iter().map(|_| args.compared.folder()).collect::<Result<Vec<_>>>()?;
    let cancel = CancelToken::default();
    let outcome = {
        let bar = Bar::new();
        let _guard = interrupt.cancel_with(cancel.clone());
        let mut load = |length: usize| {
            let folder = folders.pop().expect("there is one folder for each length");
            let options = options(args, &folder.config, length);
            let policy = PolicyOptions::new(Preset::StreamingLlm);
            Engine::load(Arc::clone(&backend), folder, options, &policy)
        };
        let mut on_progress = |progress: &runner::Progress<'_>| bar.update(progress);
        block_on(runner::run(&evaluation, &mut results, &mut load, &cancel, &mut on_progress))?
    };
    show::summary(&results, plan, args.seed)?;
    Ok(outcome)
}

fn options(
    args: &EvalArgs,
    config: &longview_model::config::ModelConfig,
    length: usize,
) -> EngineOptions {
    // Memory is planned for what takes most of it: sparse reading needs means beside the rows.
    let inexact = args.engine.prefill.all().find(|mode| !mode.is_exact());
    EngineOptions {
        prefill: inexact.unwrap_or_default(),
        simulate_device: args.simulate_device,
        rope: args.rope.scaling(config),
        ..args.engine.options(length)
    }
}

/// Fails for a length that no memory holds, or that a policy cannot be used at, before anything
/// runs.
fn check_memory<B: Backend>(
    args: &EvalArgs,
    plan: &Plan,
    folder: &ModelFolder,
    backend: &B,
) -> Result<()> {
    let memory = context::memory(&args.engine, backend);
    for length in &plan.lengths {
        let options = options(args, &folder.config, *length);
        for policy in &plan.policies {
            let options =
                EngineOptions { prefill: policy.prefill.unwrap_or_default(), ..options.clone() };
            let what = || {
                let title = longview_eval::policies::title(&policy.label);
                format!("--lengths {length}, --policies {title}")
            };
            Engine::check_memory(backend, folder, &options, &policy.options, memory)
                .with_context(what)?;
        }
    }
    if let Some(longest) = plan.lengths.iter().max() {
        let options = options(args, &folder.config, *longest);
        load::warn_of_length(&folder.config, &folder.path, &options);
    }
    Ok(())
}

/// Where the numbers come from.
fn record<B: Backend>(
    args: &EvalArgs,
    plan: &Plan,
    text: &TextSource,
    folder: &ModelFolder,
    backend: &B,
) -> Result<Run> {
    let model = args.compared.model.as_deref();
    let mut run = run_record(model, folder, &args.engine, &args.rope, backend)?;
    run.seed = args.seed;
    run.settings.extend(plan.settings(args, text));
    Ok(run)
}

/// Says how the run ended.
fn finish(args: &EvalArgs, outcome: Outcome) -> Result<()> {
    let file = args.output.display();
    let Outcome { answered, skipped, total, failed, is_cancelled } = outcome;
    if is_cancelled {
        let (done, total) = (units::count(answered + skipped), units::count(total));
        let text =
            format!("{done} of {total} answers are in {file}; the same command goes on there");
        return Err(Interrupted(text).into());
    }
    if failed > 0 {
        bail!(
            "{} of {} answers failed, {} are in {file}, which says why; the same command tries \
             them again",
            units::count(failed),
            units::count(total),
            units::count(answered + skipped)
        );
    }
    Ok(())
}
