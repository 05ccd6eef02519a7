//! Files that tasks read.

use std::path::PathBuf;

/// Files that some tasks read, as the user gave them.
#[derive(Clone, Debug, Default)]
pub struct TaskFiles {
    /// SQuAD 2.0, `dev-v2.0.json`.
    pub squad: Option<PathBuf>,
    /// HotpotQA, `hotpot_dev_distractor_v1.json`.
    pub hotpotqa: Option<PathBuf>,
    /// Folder of LongBench's `*.jsonl`.
    pub longbench: Option<PathBuf>,
    /// Depths of the needle in a haystack, from 0 to 1.
    pub depths: usize,
}
