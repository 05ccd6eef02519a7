//! Many set-ups side by side: tables and a plot.

use std::fmt::Write;

use anyhow::{Result, ensure};
use longview_eval::report::{Axis, Chart, Point, Series, Unit};

use crate::load::{self, Zipf};
use crate::options::{Storage, StudyArgs, WorldArgs, name};
use crate::router::{Routing, Rules};
use crate::sim::{Copies, Outcome, Setup, Simulation, Sizes, Store};
use crate::times::{Rates, Times};
use crate::worker::Limits;

/// Loads that are tried, as shares of what workers could answer if everything were known.
const LOADS: [f64; 14] =
    [0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];

/// Questions for each document that pass before a run, so that memory and disks are filled.
const WARM: usize = 20;

/// What [`line()`] says.
pub const HEAD: &str = "\
| workers | routing | storage | questions an hour | TTFT p50 | p99 | known | disk | store | sent | busy \
| cost | copies before |
|---|---|---|---|---|---|---|---|---|---|---|---|---|";

/// Documents of which a quarter of the workers hold copies, in the ways with copies.
const HOT: usize = 200;

/// What is simulated, with all that follows from the options.
pub struct World {
    args: WorldArgs,
    rates: Rates,
    zipf: Zipf,
    docs: Vec<Sizes>,
}

impl World {
    /// The world of some options.
    ///
    /// # Errors
    /// Where the times cannot be read, or a number makes no sense.
    pub fn new(args: &WorldArgs) -> Result<Self> {
        ensure!(args.workers > 0, "--workers: 1 at least");
        ensure!(args.documents > 0, "--documents: 1 at least");
        ensure!(args.speed > 0.0 && args.bytes > 0.0, "--speed and --bytes: above 0");
        ensure!(0 < args.shortest && args.shortest <= args.longest, "--shortest: 1 to --longest");
        ensure!((0.0..=1.0).contains(&args.share), "--share: 0 to 1");
        ensure!(args.slots > 0, "--slots: 1 at least");
        let mut rates = Times::read(&args.times)?.rates().faster(args.speed);
        rates.disk_bytes_per_token *= args.bytes;
        rates.host_bytes_per_token *= args.bytes;
        if let Some(speed) = args.disk_speed {
            ensure!(speed > 0.0, "--disk-speed: above 0");
            rates.open[1] = 1.0 / speed;
        }
        let lengths = load::lengths(args.documents, args.shortest, args.longest, args.seed);
        let sizes = |tokens| Sizes {
            tokens,
            memory: (tokens as f64 * rates.host_bytes_per_token) as u64,
            disk: (tokens as f64 * rates.disk_bytes_per_token) as u64,
        };
        let docs = lengths.into_iter().map(sizes).collect();
        Ok(Self { rates, zipf: Zipf::new(args.documents, args.zipf), docs, args: args.clone() })
    }

    fn setup(&self) -> Setup {
        let args = &self.args;
        let gib = |n: f64| (n * f64::from(1u32 << 30)) as u64;
        let store = Store {
            latency: args.store_latency,
            worker_bytes_per_s: args.store_speed,
            total_bytes_per_s: args.store_total,
        };
        Setup {
            n_workers: args.workers,
            limits: Limits {
                slots: args.slots,
                chunk: 512,
                max_stall: 0.2,
                opening: 2,
                memory: gib(args.memory),
                disk: gib(args.disk),
            },
            rates: self.rates,
            rules: Rules {
                routing: args.routing,
                most_unanswered: 2 * args.slots,
                n_hot: args.hot,
                n_copies: args.copies,
            },
            store: (args.storage == Storage::Store).then_some(store),
            docs: self.docs.clone(),
            seed: args.seed,
        }
    }

    /// Questions a second that all workers could answer if they never read or opened a document.
    pub fn limit(&self) -> f64 {
        let slots = self.args.slots;
        let shares = (0..self.docs.len()).map(|i| self.zipf.share(i));
        let tokens: f64 = shares.zip(&self.docs).map(|(p, doc)| p * doc.tokens as f64).sum();
        let step = self.rates.step(slots, (slots as f64 * tokens) as u64) / slots as f64;
        let steps = self.args.answer.saturating_sub(1) as f64 * step;
        self.args.workers as f64 / (self.rates.question(tokens as u64) + steps + self.rates.end)
    }

    /// What happens with so many questions a second.
    pub fn run(&self, rate: f64) -> Outcome {
        let n = self.args.questions * self.args.workers.max(4);
        let mut simulation = Simulation::new(self.setup());
        simulation.warm(WARM * self.args.documents, &self.zipf, self.args.seed + 1);
        let answer = self.args.answer.max(1);
        simulation.run(&load::questions(n, &self.zipf, rate, answer, self.args.seed + 2))
    }

    /// The highest load at which enough answers begin in time, in questions a second; 0: none.
    pub fn highest_rate(&self) -> f64 {
        let limit = self.limit();
        let holds = |load: &f64| self.run(load * limit).ttft(self.args.share) <= self.args.within;
        let n = LOADS.partition_point(holds);
        n.checked_sub(1).map_or(0.0, |i| LOADS[i] * limit)
    }
}

/// A run as a row of a table.
pub fn line(world: &World, rate: f64, outcome: &Outcome) -> String {
    let args = &world.args;
    let n = outcome.ttft.len().max(1) as f64;
    let each = |bytes: u64| format!("{:.0} MB", bytes as f64 / n / 1e6);
    let busy = outcome.busy / outcome.seconds.max(1e-9) / args.workers as f64;
    let storage = if args.storage == Storage::Store { "store" } else { "disk" };
    format!(
        "| {} | {} | {storage} | {:.0} | {} | {} | {:.1} % | {} | {} | {} | {:.0} % | {:.2} | {} |",
        args.workers,
        way(args),
        rate * 3600.0,
        Unit::Seconds.text(outcome.ttft(0.5)),
        Unit::Seconds.text(outcome.ttft(0.99)),
        1e2 * outcome.avoided(),
        each(outcome.disk_bytes),
        each(outcome.fetched_bytes),
        each(outcome.sent_bytes),
        1e2 * busy,
        1e3 * args.workers as f64 * args.price / (rate * 3600.0),
        copies(args, outcome),
    )
}

/// How questions are routed, with the copies of hot documents.
fn way(args: &WorldArgs) -> String {
    let name = name(args.routing);
    if args.copies < 2 || args.hot == 0 {
        return name.to_owned();
    }
    format!("{name}, {} copies of {}", args.copies, args.hot)
}

/// What copies took before a run, for each worker.
fn copies(args: &WorldArgs, outcome: &Outcome) -> String {
    let Copies { n, fetched_bytes, reading } = outcome.copies;
    let each = |sum: f64| sum / args.workers as f64;
    match args.storage {
        _ if n == 0 => "-".to_owned(),
        Storage::Store => format!("{n}: {:.1} GB a worker", each(fetched_bytes as f64) / 1e9),
        Storage::Disk => format!("{n}: {:.0} h a worker", each(reading) / 3600.0),
    }
}

/// The tables in Markdown, and the plot as SVG.
///
/// # Errors
/// As [`World::new`]; where the plot cannot be drawn.
pub fn study(args: &StudyArgs) -> Result<(String, String)> {
    let mut text = String::new();
    let mut series = Vec::new();
    let ways = [
        (Routing::Prefix, Storage::Store, false),
        (Routing::Prefix, Storage::Disk, false),
        (Routing::Prefix, Storage::Store, true),
        (Routing::Prefix, Storage::Disk, true),
        (Routing::Random, Storage::Store, false),
        (Routing::Random, Storage::Disk, false),
        (Routing::RoundRobin, Storage::Store, false),
        (Routing::RoundRobin, Storage::Disk, false),
    ];
    writeln!(text, "{HEAD}")?;
    for (routing, storage, has_copies) in ways {
        let mut points = Vec::new();
        for workers in args.all_workers.iter().copied() {
            let mut world = WorldArgs { routing, storage, workers, ..args.world.clone() };
            if has_copies {
                (world.hot, world.copies) = (HOT, workers / 4);
                // A quarter of few workers is one, which is no copy.
                if world.copies < 2 {
                    continue;
                }
            }
            let world = World::new(&world)?;
            let rate = world.highest_rate();
            // Where none is in time: what happens at the lowest load.
            let shown = if rate > 0.0 { rate } else { LOADS[0] * world.limit() };
            let row = line(&world, shown, &world.run(shown));
            let missed = if rate > 0.0 { "" } else { " too late at any load" };
            writeln!(text, "{row}{missed}")?;
            if rate > 0.0 {
                points.push(Point { x: workers as f64, y: 3600.0 * rate, interval: None });
            }
        }
        let what = if storage == Storage::Store { "object store" } else { "own disks" };
        let copies = if has_copies { " with copies" } else { "" };
        let name = format!("{}{copies}, {what}", name(routing));
        series.push(Series { name, points, is_reference: storage == Storage::Disk });
    }
    let axis =
        |label: &str| Axis { label: label.into(), is_log: true, range: None, unit: Unit::Plain };
    series.retain(|series| !series.points.is_empty());
    let chart = Chart::Lines { x: axis("workers"), y: axis("questions an hour"), series };
    let (percent, within) = (100.0 * args.world.share, args.world.within);
    let title = format!("Questions an hour, {percent:.0} % of them answered within {within} s");
    Ok((text, chart.svg(&title)?))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::options::{Command, Options};

    #[test]
    fn the_table_has_copies_and_what_they_took() {
        let words = "scale study --all-workers 2,8 --documents 40 --questions 5 --longest 40000";
        let Command::Study(args) = Options::parse_from(words.split(' ')).command else {
            panic!("not the study");
        };
        let (text, _) = study(&args).unwrap();
        let cells = |line: &str| line.split('|').count();
        let (first, rest) = text.split_once('\n').unwrap();
        assert!(rest.lines().all(|row| cells(row) == cells(first)), "{text}");
        let of = |what: &str| text.lines().filter(|row| row.contains(what)).collect::<Vec<_>>();
        // Two workers of eight; of two workers there is no quarter.
        let copies = of("| 8 | prefix, 2 copies of 200 |");
        assert_eq!(copies.len(), 2, "{text}");
        assert!(copies[0].contains("| store |") && copies[0].contains("| 40: "), "{text}");
        assert!(copies[0].contains("GB a worker") && copies[1].contains("h a worker"), "{text}");
        assert!(of("| 2 | prefix, ").is_empty(), "{text}");
    }
}
