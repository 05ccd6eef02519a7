//! Where all KV rows live, and what carries them between the host and the device.

mod eight_bit;
#[cfg(test)]
pub(crate) mod fixture;
mod host_bytes;
mod host_store;
mod layer_rows;
mod row_lists;
mod row_mover;
mod segmented_bytes;
mod together;
mod two_forms;
mod upload_cache;
mod writeback;

pub use eight_bit::EightBitStore;
pub use host_bytes::{HostBytesMut, OpenBytes};
pub use host_store::{HostStore, MappedStore, PlainStore, RoundedRows, RowRange};
pub(crate) use layer_rows::{LayerRows, RowReader};
pub(crate) use row_lists::RowLists;
pub(crate) use row_mover::{DeviceRows, NewRows, RowMover, scatter, scatter_twice};
pub(crate) use together::{Task, together, touch, touch_room};
pub use two_forms::{TwoForms, TwoFormsMut};
pub(crate) use upload_cache::UploadCache;
pub use writeback::ReadParts;
pub(crate) use writeback::{Writeback, WritebackSource};
