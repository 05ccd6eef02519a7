//! One module per op: how its kernels are launched.
//!
//! Products and lookups of quantised weights are launched by `crate::quantised`, several ops in one
//! launch by `crate::fused`.
//!
//! To add an op: write `kernels/<op>.cu`, run `cargo xtask kernels`, declare the kernels' arguments
//! in `kernel_args.rs`, list the kernels in `kernels.rs`, write the module here, and call it in
//! `contract.rs`.

pub(crate) mod argmax;
pub(crate) mod attend_blocks;
pub(crate) mod attend_chunk;
pub(crate) mod attend_list;
pub(crate) mod block_reduce;
pub(crate) mod centroid_scores;
pub(crate) mod cluster_rest;
pub(crate) mod cluster_rows;
pub(crate) mod cluster_stats;
pub(crate) mod column_mass;
pub(crate) mod embed;
pub(crate) mod gelu_mul;
pub(crate) mod gram;
pub(crate) mod kmeans_assign;
pub(crate) mod kmeans_update;
pub(crate) mod kv_gather;
pub(crate) mod kv_keys;
pub(crate) mod kv_scatter;
pub(crate) mod look_up_rows;
pub(crate) mod lse_merge;
pub(crate) mod matmul;
pub(crate) mod matvec;
pub(crate) mod owner_counts;
pub(crate) mod pool_scores;
pub(crate) mod project_heads;
pub(crate) mod query_gate;
pub(crate) mod query_sums;
pub(crate) mod rest_lists;
pub(crate) mod rms_norm;
pub(crate) mod rope;
pub(crate) mod rotate_rows;
pub(crate) mod row_means;
pub(crate) mod score_blocks;
pub(crate) mod select_clusters;
pub(crate) mod silu_mul;
pub(crate) mod split_signs;
pub(crate) mod top_k;

#[cfg(test)]
mod tests {
    use longview_ops::Op;

    use crate::kernels::SOURCES;

    #[test]
    fn an_op_has_a_file_of_its_stem_and_nothing_else_has() {
        let mut ops: Vec<&str> = Op::ALL.iter().map(|op| op.stem()).collect();
        let mut files: Vec<&str> = SOURCES.iter().map(|source| source.stem).collect();
        // Of three ops, for weights that most models have not: loaded for those that have. Whole
        // layers of such weights. And what the host tells the device between ops.
        files.retain(|stem| {
            !["quantised", "tile_layers", "tile_products", "upload_words"].contains(stem)
        });
        ops.sort_unstable();
        files.sort_unstable();
        assert_eq!(files, ops);
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/ops");
        let entries = std::fs::read_dir(folder).expect("this folder");
        let name =
            |entry: std::io::Result<std::fs::DirEntry>| entry.ok()?.file_name().into_string().ok();
        let mut modules: Vec<String> = entries.filter_map(name).collect();
        let mut expected: Vec<String> = ops.iter().map(|op| format!("{op}.rs")).collect();
        expected.push("mod.rs".into());
        modules.sort();
        expected.sort();
        assert_eq!(modules, expected);
    }
}
