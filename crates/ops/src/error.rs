//! What can go wrong in a backend.

use longview_core::DType;

use crate::op::Op;

/// Result of an op.
pub type OpResult<T> = Result<T, OpError>;

/// An op that did not happen.
#[derive(Debug, thiserror::Error)]
pub enum OpError {
    /// A descriptor whose parts do not fit each other; nothing was written.
    #[error("{op}: {what}")]
    Shape {
        /// The op that refused.
        op: Op,
        /// Which part, with the numbers.
        what: String,
    },
    /// A buffer of another data type than the op reads.
    #[error("{op}: {buffer} is {found}, expected {expected}")]
    Type {
        /// The op that refused.
        op: Op,
        /// Which buffer.
        buffer: &'static str,
        /// What it holds.
        found: DType,
        /// What the op reads.
        expected: &'static str,
    },
    /// An index in a buffer that points outside.
    #[error("{op}: {what} {index} is not below {limit}")]
    Index {
        /// The op that refused.
        op: Op,
        /// What the index counts.
        what: &'static str,
        /// What was asked for.
        index: usize,
        /// The number of things there are.
        limit: usize,
    },
    /// The device lacks something.
    #[error("{backend} cannot do {op}: {reason}")]
    Unsupported {
        /// The backend's name.
        backend: &'static str,
        /// The op that refused.
        op: Op,
        /// What is missing.
        reason: String,
    },
    /// No memory.
    #[error("{backend}: no memory for {label} ({bytes} bytes)")]
    OutOfMemory {
        /// The backend's name.
        backend: &'static str,
        /// What was to be allocated.
        label: String,
        /// How much.
        bytes: u64,
    },
    /// A weight whose bytes do not fit its shape or type.
    #[error("weight {name}: {what}")]
    Weight {
        /// The tensor.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// A copy between host and device of the wrong length.
    #[error("copy of {bytes} bytes to or from a view of {view_bytes} bytes")]
    Copy {
        /// Host side.
        bytes: usize,
        /// Device side.
        view_bytes: usize,
    },
    /// The device is gone.
    #[error("{backend}: the device was lost: {reason}")]
    DeviceLost {
        /// The backend's name.
        backend: &'static str,
        /// What the driver said.
        reason: String,
    },
}

impl OpError {
    /// A [`OpError::Shape`].
    pub fn shape(op: Op, what: impl Into<String>) -> Self {
        OpError::Shape { op, what: what.into() }
    }
}
