//! How far one server goes, and what more of them do: a simulation that is fed by measured times.
//!
//! `measure` times a real server, `check` asks one or two of them and the simulation the same
//! questions, `one` simulates one set-up, and `study` makes the tables and the plot of
//! `docs/scale.md`. Everything follows from measured times, options and seeds.

#![expect(clippy::print_stdout, reason = "a face: its results go to stdout")]

mod check;
mod load;
mod lru;
mod measure;
mod options;
mod queue;
mod real;
mod router;
mod sim;
mod study;
mod times;
mod worker;

use std::fs;

use anyhow::{Context, Result, ensure};
use clap::Parser;

use crate::options::{CheckArgs, Command, MeasureArgs, Options, StudyArgs, WorldArgs};
use crate::router::{Routing, Rules};
use crate::times::{Rates, Times};

fn main() -> Result<()> {
    match Options::parse().command {
        Command::Measure(args) => measured(&args),
        Command::Check(args) => checked(&args),
        Command::One(args) => one(&args),
        Command::Study(args) => studied(&args),
    }
}

fn measured(args: &MeasureArgs) -> Result<()> {
    let plan = measure::Plan {
        start: args.server.start(args.ctx_size, 8),
        core: args.core,
        words: args.words.clone(),
        n_docs: args.documents,
        machine: args.machine.clone(),
        command: args.line(),
    };
    measure::measure(&plan, &args.output, &mut |line| println!("{line}"))
}

fn checked(args: &CheckArgs) -> Result<()> {
    let rates = match &args.times {
        Some(path) => Times::read(path)?.rates(),
        None => measured_for(args)?,
    };
    let mut n_outside = 0;
    println!(
        "| servers | routing | TTFT p50 | simulated | apart | prefill avoided | simulated | apart |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for n_workers in args.workers.iter().copied() {
        let routings = [Routing::Prefix, Routing::Random, Routing::RoundRobin];
        // One server leaves no choice.
        for routing in routings.into_iter().take(if n_workers == 1 { 1 } else { 3 }) {
            let plan = check::Plan {
                start: args.server.start(args.ctx_size, args.keep),
                n_workers,
                rules: Rules { routing, most_unanswered: 8, n_hot: 0, n_copies: 1 },
                n_docs: args.documents,
                words: (args.shortest, args.longest),
                n_questions: args.questions,
                rate: args.rate * n_workers as f64,
                answer: args.answer,
                seed: args.seed,
            };
            let found = check::check(&plan, rates)?;
            let (real, simulated) = (&found.real, &found.simulated);
            let apart = |real: f64, simulated: f64| 100.0 * (simulated / real - 1.0);
            let first = (real.ttft(0.5), simulated.ttft(0.5));
            let known = (real.avoided(), simulated.avoided());
            let both = [apart(first.0, first.1), apart(known.0, known.1)];
            n_outside += both.iter().filter(|apart| apart.abs() > 15.0).count();
            println!(
                "| {n_workers} | {} | {:.1} ms | {:.1} ms | {:+.1} % | {:.1} % | {:.1} % | \
                 {:+.1} % |",
                options::name(routing),
                1e3 * first.0,
                1e3 * first.1,
                both[0],
                1e2 * known.0,
                1e2 * known.1,
                both[1],
            );
            if args.more {
                for share in [0.1, 0.25, 0.75, 0.9, 0.99] {
                    println!(
                        "p{}: {:.3} s, simulated {:.3} s",
                        100.0 * share,
                        real.ttft(share),
                        simulated.ttft(share)
                    );
                }
                println!("opened {}, simulated {}", real.opened, simulated.opened);
                println!(
                    "read {} of {}, simulated {} of {}",
                    real.read_tokens,
                    real.prompt_tokens,
                    simulated.read_tokens,
                    simulated.prompt_tokens
                );
            }
        }
    }
    ensure!(n_outside == 0, "{n_outside} values are more than 15 % apart");
    Ok(())
}

/// What the server takes here and now, for documents around those of the check.
fn measured_for(args: &CheckArgs) -> Result<Rates> {
    let folder = real::Folder::new("longview-scale-times")?;
    let plan = measure::Plan {
        start: args.server.start(args.ctx_size, 8),
        core: 1,
        words: vec![300, 700, 1500, 3000],
        n_docs: 3,
        machine: String::new(),
        command: String::new(),
    };
    let path = folder.path().join("times.json");
    measure::measure(&plan, &path, &mut |line| println!("{line}"))?;
    Ok(Times::read(&path)?.rates())
}

fn one(args: &WorldArgs) -> Result<()> {
    let world = study::World::new(args)?;
    let rate = args.rate.unwrap_or_else(|| world.highest_rate());
    ensure!(
        rate > 0.0,
        "at no load {:.0} % of the answers begin within {} s; --rate says one to look at",
        1e2 * args.share,
        args.within
    );
    println!("{}\n{}", study::HEAD, study::line(&world, rate, &world.run(rate)));
    Ok(())
}

fn studied(args: &StudyArgs) -> Result<()> {
    let (text, svg) = study::study(args)?;
    print!("{text}");
    if let Some(path) = &args.plot {
        fs::write(path, svg).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
