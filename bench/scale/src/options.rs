//! What the program is told.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::real::Start;
use crate::router::Routing;

/// Where the measured times are.
const TIMES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/worker.json");

/// A simulation of many servers, fed by measured times of one.
#[derive(Parser)]
pub struct Options {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What it does.
#[derive(Subcommand)]
pub enum Command {
    /// Measures the times of one server on this machine.
    Measure(MeasureArgs),
    /// Asks real servers and the simulation the same questions.
    Check(CheckArgs),
    /// Simulates one set-up.
    One(WorldArgs),
    /// Makes the tables and the plot of docs/scale.md.
    Study(StudyArgs),
}

/// The server that is started.
#[derive(Args)]
pub struct ServerArgs {
    /// The `longview` program that serves.
    #[arg(long, value_name = "FILE")]
    binary: PathBuf,
    /// A model [default: that of the program].
    #[arg(short, long, value_name = "FILE")]
    model: Option<PathBuf>,
    /// Priority of the server; below 0 where others use the machine.
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    nice: i32,
}

impl ServerArgs {
    /// How it is started.
    pub fn start(&self, ctx_size: u64, keep: u64) -> Start {
        let (binary, model) = (self.binary.clone(), self.model.clone());
        Start { binary, model, ctx_size, keep, nice: self.nice }
    }
}

/// Options of `measure`.
#[derive(Args)]
pub struct MeasureArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Words of documents.
    #[arg(long, value_delimiter = ',', default_value = "600,2400,9600,24000")]
    pub words: Vec<u64>,
    /// Documents of each length.
    #[arg(long, default_value_t = 3)]
    pub documents: usize,
    /// The server's context.
    #[arg(long, default_value_t = 65_536)]
    pub ctx_size: u64,
    /// The processor that the server computes on.
    #[arg(long, default_value_t = 1)]
    pub core: usize,
    /// Where the numbers hold: written into the file.
    #[arg(long)]
    pub machine: String,
    /// The file with the measured times of one worker.
    #[arg(short, long, default_value = TIMES)]
    pub output: PathBuf,
}

impl MeasureArgs {
    /// The command, without paths of this machine.
    pub fn line(&self) -> String {
        let words: Vec<_> = self.words.iter().map(u64::to_string).collect();
        format!(
            "cargo xtask scale measure --binary longview --words {} --documents {} \
             --ctx-size {} --core {}",
            words.join(","),
            self.documents,
            self.ctx_size,
            self.core
        )
    }
}

/// Options of `check`.
#[derive(Args)]
pub struct CheckArgs {
    #[command(flatten)]
    pub server: ServerArgs,
    /// Measured times of the server [default: they are measured first, for documents as long as
    /// those that are asked about].
    #[arg(long, value_name = "FILE")]
    pub times: Option<PathBuf>,
    /// Numbers of servers, each on a processor of its own.
    #[arg(long, value_delimiter = ',', default_value = "1,2")]
    pub workers: Vec<usize>,
    /// Documents that are asked about.
    #[arg(long, default_value_t = 30)]
    pub documents: usize,
    /// Words of the shortest.
    #[arg(long, default_value_t = 400)]
    pub shortest: u64,
    /// Words of the longest.
    #[arg(long, default_value_t = 2000)]
    pub longest: u64,
    /// Questions that are asked.
    #[arg(long, default_value_t = 120)]
    pub questions: usize,
    /// Questions a second for each server.
    #[arg(long, default_value_t = 0.8)]
    pub rate: f64,
    /// Tokens of an answer.
    #[arg(long, default_value_t = 16)]
    pub answer: u64,
    /// Documents that a server keeps in memory.
    #[arg(long, default_value_t = 5)]
    pub keep: u64,
    /// The servers' context.
    #[arg(long, default_value_t = 16_384)]
    pub ctx_size: u64,
    /// Seed of documents, questions and their moments.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Says more of each run.
    #[arg(long)]
    pub more: bool,
}

/// Storage of documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Storage {
    /// Each worker's own disk.
    Disk,
    /// An object store beside it.
    Store,
}

/// What is simulated.
#[derive(Args, Clone)]
pub struct WorldArgs {
    /// Measured times of a worker.
    #[arg(long, value_name = "FILE", default_value = TIMES)]
    pub times: PathBuf,
    /// How many times as fast workers compute as the measured one.
    #[arg(long, default_value_t = 1.0)]
    pub speed: f64,
    /// How many times as large a token's keys and values are as those of the measured model.
    #[arg(long, default_value_t = 1.0)]
    pub bytes: f64,
    /// Workers that answer.
    #[arg(long, default_value_t = 1)]
    pub workers: usize,
    /// Which of them is asked.
    #[arg(long, value_enum, default_value_t = Routing::Prefix)]
    pub routing: Routing,
    /// Where documents are kept.
    #[arg(long, value_enum, default_value_t = Storage::Disk)]
    pub storage: Storage,
    /// Hot documents, which several workers hold.
    #[arg(long, default_value_t = 0)]
    pub hot: usize,
    /// Workers that hold a hot document.
    #[arg(long, default_value_t = 1)]
    pub copies: usize,
    /// Documents that are asked about.
    #[arg(long, default_value_t = 10_000)]
    pub documents: usize,
    /// Tokens of the shortest.
    #[arg(long, default_value_t = 32_768)]
    pub shortest: u64,
    /// Tokens of the longest.
    #[arg(long, default_value_t = 1_048_576)]
    pub longest: u64,
    /// The exponent of Zipf's law.
    #[arg(long, default_value_t = 1.0)]
    pub zipf: f64,
    /// Tokens of an answer.
    #[arg(long, default_value_t = 200)]
    pub answer: u64,
    /// Questions of a run, for each worker and at least for 4.
    #[arg(long, default_value_t = 100)]
    pub questions: usize,
    /// Questions a second, of all workers; without it as many as can be answered in time.
    #[arg(long)]
    pub rate: Option<f64>,
    /// Seconds within which an answer is to begin.
    #[arg(long, default_value_t = 30.0)]
    pub within: f64,
    /// The share of answers that is to begin by then.
    #[arg(long, default_value_t = 0.95)]
    pub share: f64,
    /// Requests that a worker runs at the same time.
    #[arg(long, default_value_t = 4)]
    pub slots: usize,
    /// GiB of a worker's memory for documents.
    #[arg(long, default_value_t = 64.0)]
    pub memory: f64,
    /// GiB of a worker's disk for documents.
    #[arg(long, default_value_t = 1024.0)]
    pub disk: f64,
    /// Bytes a second of a worker's disk [default: as measured].
    #[arg(long)]
    pub disk_speed: Option<f64>,
    /// Seconds until the object store sends the first byte.
    #[arg(long, default_value_t = 0.15)]
    pub store_latency: f64,
    /// Bytes a second that a worker receives from it.
    #[arg(long, default_value_t = 1.25e9)]
    pub store_speed: f64,
    /// Bytes a second that it sends to all together.
    #[arg(long, default_value_t = 1.25e10)]
    pub store_total: f64,
    /// Price of a worker's hour.
    #[arg(long, default_value_t = 1.0)]
    pub price: f64,
    /// Seed of documents, questions and their moments.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

/// Options of `study`.
#[derive(Args)]
pub struct StudyArgs {
    #[command(flatten)]
    pub world: WorldArgs,
    /// Numbers of workers.
    #[arg(long, value_delimiter = ',', default_value = "1,4,16,64,256")]
    pub all_workers: Vec<usize>,
    /// Where the plot goes (SVG).
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// What a routing is called.
pub fn name(routing: Routing) -> &'static str {
    match routing {
        Routing::Prefix => "prefix",
        Routing::Random => "random",
        Routing::RoundRobin => "round robin",
    }
}
