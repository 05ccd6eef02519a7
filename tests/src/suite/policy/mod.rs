//! Every preset on a backend, without a model: the right rows, the right sums, within the budget,
//! whatever happens.
//!
//! Rows lie in device buffers of their own, as every device has them; where the device shares the
//! host's memory, in place too.

#![expect(missing_docs, reason = "a check is what its name says")]

mod device_cache;
mod eight_bits;
mod forks;
mod presets;
mod resident_rows;
mod speculate;
mod steps;
mod windows;

pub use self::device_cache::*;
pub use self::eight_bits::*;
pub use self::forks::*;
pub use self::presets::*;
pub use self::resident_rows::*;
pub use self::speculate::*;
pub use self::steps::*;
pub use self::windows::*;
