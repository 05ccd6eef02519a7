//! The cases of all ops.

use longview_ops::Backend;

use super::harness::Cases;
use super::{attention, cluster, dense, kv, select};

/// Every case, in the order of the table.
pub(super) fn cases<B: Backend>() -> Cases<B> {
    let parts =
        [dense::cases(), attention::cases(), kv::cases(), cluster::cases(), select::cases()];
    parts.into_iter().flatten().collect()
}
