//! The parity run: every case of the corpus on a backend against the reference, and the table of
//! what came out.
//!
//! Absence is reported, never skipped in silence: an op that a backend lacks, a data type it does
//! not take and a device that is not there are rows `NOT RUN` with their reason. Cases that ask for
//! what the contract leaves to a backend are rows `left out`.

use std::collections::BTreeMap;
use std::fmt;

use crate::backend::Backend;
use crate::corpus::{Case, Outcome, Plan, cases_of};
use crate::op::Op;
use crate::reference::ReferenceBackend;

/// Failed cases of one row whose messages are kept.
const SHOWN: usize = 6;

/// How an op went on a backend.
#[derive(Clone, Debug, PartialEq)]
pub enum ParityStatus {
    /// All cases are right.
    Passed {
        /// Cases run.
        cases: usize,
        /// Largest error as a share of the tolerance.
        worst: f64,
        /// Largest normalised mean square error.
        nmse: f64,
        /// Indices that differed within the tolerance.
        ties: usize,
    },
    /// Some cases are wrong.
    Failed {
        /// Cases that are right.
        passed: usize,
        /// Cases that are wrong.
        failed: usize,
        /// The first of them, with what is wrong.
        messages: Vec<String>,
    },
    /// Some cases say nothing about this backend.
    LeftOut {
        /// Cases concerned.
        cases: usize,
        /// Why.
        reason: String,
    },
    /// Some or all cases were not run.
    NotRun {
        /// Cases concerned.
        cases: usize,
        /// Why.
        reason: String,
    },
}

/// One line of the table. An op has a second row where a part of its cases could not run.
#[derive(Clone, Debug, PartialEq)]
pub struct ParityRow {
    /// The op; `None` for a whole backend that is not there.
    pub op: Option<Op>,
    /// The backend's name.
    pub backend: String,
    /// How it went.
    pub status: ParityStatus,
}

impl ParityRow {
    /// The row of a backend that is unknown or whose device is absent.
    pub fn absent(backend: impl Into<String>, reason: impl Into<String>) -> Self {
        let status = ParityStatus::NotRun { cases: 0, reason: reason.into() };
        Self { op: None, backend: backend.into(), status }
    }
}

/// Runs the corpus, or the cases of one op, on `backend`. Blocks the thread; a browser uses
/// [`parity_rows`].
pub fn run_parity<B: Backend>(backend: &B, filter: Option<Op>) -> Vec<ParityRow> {
    pollster::block_on(parity_rows(backend, filter))
}

/// [`run_parity`] as a future.
pub async fn parity_rows<B: Backend>(backend: &B, filter: Option<Op>) -> Vec<ParityRow> {
    let mut rows = Vec::new();
    for op in Op::ALL.iter().copied().filter(|op| filter.is_none_or(|only| only == *op)) {
        rows.extend(parity_part(backend, op, 1).await);
    }
    rows
}

/// Rows of one op from every `every`-th case of its corpus, the first included. A prime number does
/// not fall in step with the loops that the corpus is made of, so each of their values comes up.
pub async fn parity_part<B: Backend>(backend: &B, op: Op, every: usize) -> Vec<ParityRow> {
    parity_of_each(&[backend], op, every).await.pop().unwrap_or_default()
}

/// [`parity_part`] for each of `backends`. The numbers of a case and what the reference makes of
/// them are computed once for all, which takes longer than most backends do.
pub async fn parity_of_each<B: Backend>(
    backends: &[&B],
    op: Op,
    every: usize,
) -> Vec<Vec<ParityRow>> {
    let all: Vec<_> = (0..backends.len()).collect();
    let cases = cases_of(op).into_iter().step_by(every.max(1));
    let cases: Vec<_> = cases.map(|case| (case, all.clone())).collect();
    parity_of_cases(backends, op, &cases).await
}

/// [`parity_of_each`] of `cases` of one op, each on those of `backends` whose places stand with it.
pub async fn parity_of_cases<B: Backend>(
    backends: &[&B],
    op: Op,
    cases: &[(Case, Vec<usize>)],
) -> Vec<Vec<ParityRow>> {
    let mut accounts: Vec<_> = backends.iter().map(|backend| Account::new(*backend, op)).collect();
    for (case, takers) in cases {
        let mut expected = None;
        for taker in takers {
            accounts[*taker].take(case, &mut expected).await;
        }
    }
    accounts.into_iter().map(Account::rows).collect()
}

/// Runs two cases of each of `ops`, and two more with quantised weights where it takes some: what a
/// backend does at its start to see whether the device computes. The error names the first case
/// that does not and what is wrong.
pub async fn spot_check<B: Backend>(backend: &B, ops: &[Op]) -> Result<(), String> {
    for op in ops {
        let mut cases = cases_of(*op);
        let capabilities = backend.capabilities();
        cases.retain(|case| case.runs_on(capabilities));
        let (quantised, plain): (Vec<_>, Vec<_>) = cases.into_iter().partition(Case::is_quantised);
        let mut tally = Tally::default();
        for cases in [plain, quantised] {
            let n = cases.len();
            for case in [n / 3, 2 * n / 3].into_iter().filter_map(|place| cases.get(place)) {
                run_case(backend, case, &Expected::of(case).await, &mut tally).await;
            }
        }
        if let Some(message) = tally.messages.pop() {
            return Err(message);
        }
    }
    Ok(())
}

/// What happened to the cases of one op.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    messages: Vec<String>,
    worst: f64,
    nmse: f64,
    ties: usize,
}

impl Tally {
    fn fail(&mut self, message: String) {
        self.failed += 1;
        if self.messages.len() < SHOWN {
            self.messages.push(message);
        }
    }

    /// `None` where nothing was run.
    fn status(self) -> Option<ParityStatus> {
        let Self { passed, failed, messages, worst, nmse, ties } = self;
        match (passed, failed) {
            (0, 0) => None,
            (cases, 0) => Some(ParityStatus::Passed { cases, worst, nmse, ties }),
            _ => Some(ParityStatus::Failed { passed, failed, messages }),
        }
    }
}

/// The numbers of a case, and what the reference makes of them.
struct Expected {
    plan: Plan,
    outcome: Result<Outcome, String>,
}

impl Expected {
    async fn of(case: &Case) -> Self {
        let plan = case.plan();
        let outcome = case.execute_plan(&plan, &ReferenceBackend::new()).await;
        Self { outcome: outcome.map_err(|e| e.to_string()), plan }
    }
}

/// How the cases of one op go on one backend.
struct Account<'a, B: Backend> {
    backend: &'a B,
    op: Op,
    tally: Tally,
    n_missing: usize,
    excused: BTreeMap<String, usize>,
    left_out: BTreeMap<String, usize>,
}

impl<'a, B: Backend> Account<'a, B> {
    fn new(backend: &'a B, op: Op) -> Self {
        let (excused, left_out) = (BTreeMap::new(), BTreeMap::new());
        Self { backend, op, tally: Tally::default(), n_missing: 0, excused, left_out }
    }

    /// Why the backend does not have the op.
    fn missing(&self) -> Option<&str> {
        let mut missing = self.backend.capabilities().missing_ops.iter();
        missing.find(|(op, _)| *op == self.op).map(|(_, reason)| &**reason)
    }

    /// Runs a case, or counts why not. `expected` is filled by whoever needs it first.
    async fn take(&mut self, case: &Case, expected: &mut Option<Expected>) {
        if self.missing().is_some() {
            self.n_missing += 1;
            return;
        }
        let capabilities = self.backend.capabilities();
        match (case.elsewhere(capabilities), case.excused(capabilities)) {
            (Some(reason), _) => *self.left_out.entry(reason).or_default() += 1,
            (None, Some(reason)) => *self.excused.entry(reason).or_default() += 1,
            (None, None) => {
                let expected = match expected {
                    Some(expected) => expected,
                    None => expected.insert(Expected::of(case).await),
                };
                run_case(self.backend, case, expected, &mut self.tally).await;
            }
        }
    }

    fn statuses(self) -> Vec<ParityStatus> {
        if let Some(reason) = self.missing() {
            return vec![ParityStatus::NotRun { cases: self.n_missing, reason: reason.into() }];
        }
        let not_run = |(reason, cases)| ParityStatus::NotRun { cases, reason };
        let left_out = self.left_out.into_iter();
        let left_out = left_out.map(|(reason, cases)| ParityStatus::LeftOut { cases, reason });
        let rest = left_out.chain(self.excused.into_iter().map(not_run));
        self.tally.status().into_iter().chain(rest).collect()
    }

    fn rows(self) -> Vec<ParityRow> {
        let (op, backend) = (self.op, self.backend.name().to_owned());
        let row = |status| ParityRow { op: Some(op), backend: backend.clone(), status };
        self.statuses().into_iter().map(row).collect()
    }
}

async fn run_case<B: Backend>(backend: &B, case: &Case, expected: &Expected, tally: &mut Tally) {
    let plan = &expected.plan;
    let want = match &expected.outcome {
        Ok(want) => want,
        Err(e) => return tally.fail(format!("{}: the reference says: {e}", case.name())),
    };
    let got = match case.execute_plan(plan, backend).await {
        Ok(got) => got,
        Err(e) => return tally.fail(format!("{}: {e}", case.name())),
    };
    let comparison = case.compare_plan(plan, &got, want);
    if !comparison.passed() {
        return tally.fail(format!("{}: {comparison}", case.name()));
    }
    tally.passed += 1;
    tally.ties += comparison.ties;
    tally.worst = tally.worst.max(comparison.worst);
    tally.nmse = tally.nmse.max(comparison.nmse);
}

/// The closing line: **cases** that passed and failed, and **rows** that were not run (an op, or a
/// part of its cases, or a whole backend).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ParitySummary {
    /// Cases.
    pub passed: usize,
    /// Cases.
    pub failed: usize,
    /// Rows.
    pub not_run: usize,
}

impl ParitySummary {
    /// Counts rows of any number of backends.
    pub fn of(rows: &[ParityRow]) -> Self {
        let mut sum = Self::default();
        for row in rows {
            match &row.status {
                ParityStatus::Passed { cases, .. } => sum.passed += cases,
                ParityStatus::Failed { passed, failed, .. } => {
                    sum.passed += passed;
                    sum.failed += failed;
                }
                ParityStatus::LeftOut { .. } => (),
                ParityStatus::NotRun { .. } => sum.not_run += 1,
            }
        }
        sum
    }
}

impl fmt::Display for ParitySummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} not run", self.passed, self.failed, self.not_run)
    }
}

/// The table `op x backend x status`, failures with their messages below their row, and the closing
/// line.
pub fn format_parity(rows: &[ParityRow]) -> String {
    let mut text = format!("{:<16} {:<14} status\n", "op", "backend");
    for row in rows {
        let op = row.op.map_or("(all)", Op::stem);
        text += &format!("{op:<16} {:<14} {}\n", row.backend, status_text(&row.status));
        if let ParityStatus::Failed { messages, .. } = &row.status {
            messages.iter().for_each(|m| text += &format!("    {m}\n"));
        }
    }
    text += &format!("{}\n", ParitySummary::of(rows));
    text
}

fn status_text(status: &ParityStatus) -> String {
    match status {
        ParityStatus::Passed { cases, worst, nmse, ties } => {
            let ties = if *ties > 0 { format!(", {ties} ties") } else { String::new() };
            format!("passed {cases} cases, worst {worst:.2} of tolerance, NMSE {nmse:.0e}{ties}")
        }
        ParityStatus::Failed { passed, failed, .. } => {
            format!("FAILED {failed} of {} cases", passed + failed)
        }
        ParityStatus::LeftOut { cases, reason } => format!("left out {cases} cases: {reason}"),
        ParityStatus::NotRun { cases: 0, reason } => format!("NOT RUN: {reason}"),
        ParityStatus::NotRun { cases, reason } => format!("NOT RUN {cases} cases: {reason}"),
    }
}

/// One message per backend of `required` that was not run: it has no row, or a row that says it is
/// not there. `required` is the list of the environment variable `REQUIRE_BACKENDS`; the face reads
/// it. A missing op of a present backend is no absence: its row says so.
pub fn missing_required(rows: &[ParityRow], required: &[&str]) -> Vec<String> {
    required.iter().filter_map(|name| absence(rows, name)).collect()
}

fn absence(rows: &[ParityRow], name: &str) -> Option<String> {
    let mut own = rows.iter().filter(|row| row.backend == name).peekable();
    if own.peek().is_none() {
        return Some(format!("required backend {name} was not asked for"));
    }
    own.find_map(|row| match (&row.op, &row.status) {
        (None, ParityStatus::NotRun { reason, .. }) => {
            Some(format!("required backend {name} was not run: {reason}"))
        }
        _ => None,
    })
}
