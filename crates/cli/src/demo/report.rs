//! What the demo found, as a table or as JSON.

use std::io::Write;

use anyhow::Result;
use serde::Serialize;

use super::exam::Outcome;
use crate::out;
use crate::table::Table;
use crate::units;

/// Both exams over one prefill.
pub struct Report {
    /// Tokens of context.
    pub context: usize,
    /// Questions asked of each policy.
    pub n_questions: usize,
    /// With every token attended.
    pub full: Outcome,
    /// Under the policy that was asked for.
    pub recall: Outcome,
}

#[derive(Serialize)]
struct Json {
    context_tokens: usize,
    budget_tokens: Option<usize>,
    questions: usize,
    full: FullJson,
    recall: RecallJson,
    host_kv_bytes: u64,
}

#[derive(Serialize)]
struct FullJson {
    correct: usize,
    decode_tokens_per_s: Option<f64>,
    device_kv_bytes: u64,
}

#[derive(Serialize)]
struct RecallJson {
    policy: &'static str,
    correct: usize,
    decode_tokens_per_s: Option<f64>,
    hit_rate: Option<f64>,
    device_kv_bytes: u64,
}

impl Report {
    /// The object of `--json`.
    pub fn print_json(&self) -> Result<()> {
        out::json(&Json {
            context_tokens: self.context,
            budget_tokens: self.recall.budget,
            questions: self.n_questions,
            full: FullJson {
                correct: self.full.correct,
                decode_tokens_per_s: self.full.decode_tokens_per_s,
                device_kv_bytes: self.full.device_kv_bytes,
            },
            recall: RecallJson {
                policy: self.recall.policy.name(),
                correct: self.recall.correct,
                decode_tokens_per_s: self.recall.decode_tokens_per_s,
                hit_rate: self.recall.hit_rate,
                device_kv_bytes: self.recall.device_kv_bytes,
            },
            host_kv_bytes: self.recall.host_kv_bytes,
        })
    }

    /// The table at the end.
    pub fn print_table(&self) -> Result<()> {
        let both = [&self.full, &self.recall];
        let mut table = Table::new("", both.map(|o| o.policy.name()));
        table
            .row("correct answers", both.map(|o| format!("{} of {}", o.correct, self.n_questions)));
        let attended = |o: &Outcome| o.mean_attended.map(f64::round);
        table.row("tokens attended per step", both.map(|o| units::rate(attended(o))));
        table.row("decode tokens/s", both.map(|o| units::rate(o.decode_tokens_per_s)));
        table.row("hits in the device cache", both.map(|o| units::share(o.hit_rate)));
        table.row("KV and index on the device", both.map(|o| units::bytes(o.device_kv_bytes)));
        table.row("KV in host memory", both.map(|o| units::bytes(o.host_kv_bytes)));
        let mut out = out::stdout();
        writeln!(out)?;
        table.write(&mut out)?;
        Ok(out.flush()?)
    }
}
