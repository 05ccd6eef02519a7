//! Launches `attend_list.wgsl` over lists of rows.

use longview_ops::{AttendList, Op, OpResult};

use crate::attention::{ListLaunch, ListRows, check_width};
use crate::backend::WgpuBackend;

pub(crate) fn run(backend: &WgpuBackend, d: AttendList<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    check_width(Op::AttendList, d.p.head_dim)?;
    for span in d.spans {
        let rows = ListRows::Listed {
            rows: span.rows,
            counts: span.n_rows,
            weights: span.weights,
            stride: span.list_stride as usize,
        };
        let launch = ListLaunch {
            p: d.p,
            q: d.q,
            first_token: span.q_index as usize,
            n_tokens: 1,
            kv: span.kv,
            rows,
        };
        launch.run(backend, &d.out, &d.lse)?;
    }
    Ok(())
}
