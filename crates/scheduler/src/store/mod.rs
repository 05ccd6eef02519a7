//! Where all KV rows live, and what carries them between the host and the device.

mod eight_bit;
mod eight_bit_layer;
#[cfg(test)]
pub(crate) mod fixture;
mod host_bytes;
mod host_memory;
mod host_store;
mod layer_rows;
mod layer_store;
mod row_lists;
mod row_mover;
mod segmented_bytes;
mod two_forms;
mod upload_cache;
mod writeback;

pub use eight_bit::EightBitStore;
pub use host_bytes::{HostBytesMut, OpenBytes};
pub use host_store::{HostStore, MappedStore, PlainStore, RoundedRows, RowRange};
pub(crate) use layer_rows::{LayerRows, RowReader};
pub use layer_store::{LayerStore, RoundedLayer};
pub(crate) use row_lists::RowLists;
pub(crate) use row_mover::{DeviceRows, NewRows, RowMover, scatter, scatter_twice};
pub use two_forms::{TwoForms, TwoFormsMut};
pub(crate) use upload_cache::UploadCache;
pub use writeback::ReadParts;
pub(crate) use writeback::{Writeback, WritebackSource};
