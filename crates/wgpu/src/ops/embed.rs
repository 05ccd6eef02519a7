//! Launches `embed.wgsl`, once for each shard of the table; `quantised` has the other tables.

use longview_ops::{Embed, Op, OpResult, kind};

use crate::backend::WgpuBackend;
use crate::launch::Launch;
use crate::quantised;
use crate::weight::Layout;

const GROUP: usize = 256;

pub(crate) fn run(backend: &WgpuBackend, d: Embed<'_, WgpuBackend>) -> OpResult<()> {
    d.check()?;
    let (n_tokens, width) = (d.p.n_tokens as usize, d.p.width as usize);
    let table = d.table;
    table.expect(Op::Embed, table.n_rows, width)?;
    let plain = match table.layout {
        Layout::Plain(plain) => plain,
        Layout::Tiled(tiled) => return quantised::embed(backend, &d, tiled),
    };
    let n = n_tokens * width;
    for shard in &table.shards {
        Launch::new(backend, "embed", "embed")
            .params(&d.p)
            .params(&kind(plain.dtype))
            .u32(table.n_rows)
            .u32(shard.first_row)
            .u32(shard.n_rows)
            .reads(&shard.raw)
            .u32(plain.elements_of(shard.word_offset))
            .u32(plain.elements_of(plain.row_words))
            .view(&d.ids)
            .view_mut(&d.out)
            .counts((n * plain.dtype.size() / table.shards.len()) as u64)
            .run(n.div_ceil(GROUP))?;
    }
    Ok(())
}
