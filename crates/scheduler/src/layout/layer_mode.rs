//! How a layer attends in decode.

/// How a layer attends in decode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerMode {
    /// To every row.
    Dense,
    /// To sinks and the most recent rows.
    Window,
    /// To the last rows alone, under every policy: the model was trained so.
    Local,
    /// To sinks, recalled clusters and rows that are not indexed yet.
    Recall,
    /// To rows that are kept for the attention they received, and to those that came since.
    Kept,
}
