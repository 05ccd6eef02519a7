//! Every kernel, in one table: in which file it is, how many threads its block has, what it takes.
//!
//! A kernel is spelled here as in its `.cu` file; variants of one template are kernels of their own
//! with names of their own. A test of the emulation compares this table with what the sources
//! declare, both ways, so neither side can drift.

use crate::args::{KernelArgs, Layout};
use crate::fused_args::*;
use crate::kernel_args::*;
use crate::ptx;
use crate::target::Target;
use crate::tile_args::*;

/// What the table says of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct KernelFacts {
    /// The name of its entry.
    pub name: &'static str,
    /// The stem of its file.
    pub file: &'static str,
    /// Threads of a block.
    pub threads: u32,
    /// Its one argument.
    pub args: Layout,
}

/// A file of kernels, compiled.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name without the extension.
    pub stem: &'static str,
}

impl Source {
    /// Its PTX, unpacked anew at each call.
    pub fn ptx(&self, target: Target) -> String {
        ptx::unpack(target, self.stem)
    }
}

macro_rules! kernels {
    ($($file:literal: $($kernel:ident($args:ty, $threads:literal)),+;)+) => {
        /// A kernel, spelled as in its source.
        #[expect(non_camel_case_types, reason = "one spelling here and in `kernels/`")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Kernel {
            $($(#[doc = concat!("In `", $file, ".cu`.")] $kernel,)+)+
        }

        impl Kernel {
            /// Every kernel, by file.
            pub const ALL: &'static [Kernel] = &[$($(Kernel::$kernel,)+)+];
        }

        static FACTS: &[KernelFacts] = &[$($(KernelFacts {
            name: stringify!($kernel),
            file: $file,
            threads: $threads,
            args: <$args as KernelArgs>::LAYOUT,
        },)+)+];

        /// Every file of kernels.
        pub static SOURCES: &[Source] = &[$(Source { stem: $file },)+];
    };
}

kernels! {
    "argmax": argmax_parts(ArgmaxPartsArgs, 256), argmax_merge(ArgmaxMergeArgs, 32);
    "attend_blocks":
        attend_blocks_f16_64(AttendBlocksArgs, 128),
        attend_blocks_f16_128(AttendBlocksArgs, 128),
        attend_blocks_bf16_64(AttendBlocksArgs, 128),
        attend_blocks_bf16_128(AttendBlocksArgs, 128),
        attend_blocks_plain_f32_128(AttendBlocksArgs, 128),
        attend_blocks_plain_f32_256(AttendBlocksArgs, 128),
        attend_blocks_plain_f16_128(AttendBlocksArgs, 128),
        attend_blocks_plain_f16_256(AttendBlocksArgs, 128),
        attend_blocks_plain_bf16_128(AttendBlocksArgs, 128),
        attend_blocks_plain_bf16_256(AttendBlocksArgs, 128),
        attend_blocks_plain_q8_128(AttendBlocksArgs, 128),
        attend_blocks_plain_q8_256(AttendBlocksArgs, 128);
    "attend_chunk":
        attend_chunk_f16_64(AttendChunkArgs, 128),
        attend_chunk_f16_128(AttendChunkArgs, 128),
        attend_chunk_bf16_64(AttendChunkArgs, 128),
        attend_chunk_bf16_128(AttendChunkArgs, 128),
        attend_chunk_merge(AttendChunkArgs, 128);
    "attend_list":
        attend_list_f16_64(AttendListArgs, 128),
        attend_list_f16_128(AttendListArgs, 128),
        attend_list_f16_256(AttendListArgs, 128),
        attend_list_bf16_64(AttendListArgs, 128),
        attend_list_bf16_128(AttendListArgs, 128),
        attend_list_bf16_256(AttendListArgs, 128),
        attend_list_plain_f32_128(AttendListArgs, 128),
        attend_list_plain_f32_256(AttendListArgs, 128),
        attend_list_plain_f16_128(AttendListArgs, 128),
        attend_list_plain_f16_256(AttendListArgs, 128),
        attend_list_plain_bf16_128(AttendListArgs, 128),
        attend_list_plain_bf16_256(AttendListArgs, 128),
        attend_list_weighted_f16_64(AttendListArgs, 128),
        attend_list_weighted_f16_128(AttendListArgs, 128),
        attend_list_weighted_f16_256(AttendListArgs, 128),
        attend_list_weighted_bf16_64(AttendListArgs, 128),
        attend_list_weighted_bf16_128(AttendListArgs, 128),
        attend_list_weighted_bf16_256(AttendListArgs, 128),
        attend_list_weighted_plain_f32_128(AttendListArgs, 128),
        attend_list_weighted_plain_f32_256(AttendListArgs, 128),
        attend_list_weighted_plain_f16_128(AttendListArgs, 128),
        attend_list_weighted_plain_f16_256(AttendListArgs, 128),
        attend_list_weighted_plain_bf16_128(AttendListArgs, 128),
        attend_list_weighted_plain_bf16_256(AttendListArgs, 128),
        attend_list_q8_64(AttendListArgs, 128),
        attend_list_q8_128(AttendListArgs, 128),
        attend_list_q8_256(AttendListArgs, 128),
        attend_list_weighted_q8_64(AttendListArgs, 128),
        attend_list_weighted_q8_128(AttendListArgs, 128),
        attend_list_weighted_q8_256(AttendListArgs, 128),
        attend_list_plain_q8_128(AttendListArgs, 128),
        attend_list_plain_q8_256(AttendListArgs, 128),
        attend_list_weighted_plain_q8_128(AttendListArgs, 128),
        attend_list_weighted_plain_q8_256(AttendListArgs, 128),
        attend_list_merge(AttendListArgs, 128);
    "block_reduce":
        block_reduce_unit(BlockReduceArgs, 256),
        block_reduce_plain(BlockReduceArgs, 256),
        block_reduce_top(BlockReduceArgs, 256);
    "centroid_scores":
        centroid_logits_f32_1(CentroidLogitsArgs, 128),
        centroid_logits_f32_2(CentroidLogitsArgs, 128),
        centroid_logits_f32_8(CentroidLogitsArgs, 128),
        centroid_logits_f16_1(CentroidLogitsArgs, 128),
        centroid_logits_f16_2(CentroidLogitsArgs, 128),
        centroid_logits_f16_8(CentroidLogitsArgs, 128),
        centroid_logits_bf16_1(CentroidLogitsArgs, 128),
        centroid_logits_bf16_2(CentroidLogitsArgs, 128),
        centroid_logits_bf16_8(CentroidLogitsArgs, 128),
        centroid_logits_i8_1(CentroidLogitsArgs, 128),
        centroid_logits_i8_2(CentroidLogitsArgs, 128),
        centroid_logits_i8_8(CentroidLogitsArgs, 128),
        centroid_pool(CentroidPoolArgs, 256),
        centroid_sums_f32(CentroidSumsArgs, 128),
        centroid_sums_f16(CentroidSumsArgs, 128),
        centroid_sums_bf16(CentroidSumsArgs, 128),
        centroid_share(CentroidShareArgs, 256);
    "cluster_rest": cluster_rest(ClusterRestArgs, 256);
    "cluster_rows": cluster_rows(ClusterRowsArgs, 512);
    "cluster_stats":
        cluster_radius_clear(ClusterRadiusClearArgs, 256),
        cluster_stats(ClusterStatsArgs, 256);
    "column_mass":
        column_mass_f16_64(ColumnMassArgs, 128),
        column_mass_f16_128(ColumnMassArgs, 128),
        column_mass_bf16_64(ColumnMassArgs, 128),
        column_mass_bf16_128(ColumnMassArgs, 128),
        column_mass_plain_f32(ColumnMassArgs, 128),
        column_mass_plain_f16(ColumnMassArgs, 128),
        column_mass_plain_bf16(ColumnMassArgs, 128);
    "embed": embed_f32(EmbedArgs, 256), embed_f16(EmbedArgs, 256), embed_bf16(EmbedArgs, 256);
    "gelu_mul": gelu_mul(GeluMulArgs, 256);
    "gram": gram(GramArgs, 128);
    "kmeans_assign":
        kmeans_terms(KmeansTermsArgs, 256),
        kmeans_assign_tensor_wide(KmeansAssignArgs, 256),
        kmeans_assign_tensor_narrow(KmeansAssignArgs, 128),
        kmeans_assign_wide(KmeansAssignArgs, 256),
        kmeans_assign_narrow(KmeansAssignArgs, 128);
    "kmeans_update": kmeans_update(KmeansUpdateArgs, 256);
    "kv_gather":
        kv_gather_16(KvGatherArgs, 256),
        kv_gather_4(KvGatherArgs, 256),
        kv_gather_2(KvGatherArgs, 256),
        kv_gather_1(KvGatherArgs, 256);
    "kv_keys":
        kv_keys_plain_f32(KvKeysArgs, 256),
        kv_keys_plain_f16(KvKeysArgs, 256),
        kv_keys_plain_bf16(KvKeysArgs, 256),
        kv_keys_unit_f32(KvKeysArgs, 256),
        kv_keys_unit_f16(KvKeysArgs, 256),
        kv_keys_unit_bf16(KvKeysArgs, 256);
    "kv_scatter":
        kv_scatter_f32(KvScatterArgs, 256),
        kv_scatter_f16(KvScatterArgs, 256),
        kv_scatter_bf16(KvScatterArgs, 256),
        kv_scatter_q8(KvScatterArgs, 256);
    "look_up_rows":
        look_up_rows(LookUpRowsArgs, 1024),
        look_up_rows_large(LookUpRowsArgs, 1024);
    "lse_merge": lse_merge(LseMergeArgs, 256);
    "matmul":
        matmul_wide_f32(MatmulArgs, 256),
        matmul_wide_f16(MatmulArgs, 256),
        matmul_wide_bf16(MatmulArgs, 256),
        matmul_narrow_f32(MatmulArgs, 128),
        matmul_narrow_f16(MatmulArgs, 128),
        matmul_narrow_bf16(MatmulArgs, 128),
        matmul_round_f16(MatmulRoundArgs, 256),
        matmul_round_bf16(MatmulRoundArgs, 256),
        matmul_bias(MatmulBiasArgs, 256);
    "matvec":
        matvec_f32_1(MatvecArgs, 128),
        matvec_f32_2(MatvecArgs, 128),
        matvec_f32_4(MatvecArgs, 128),
        matvec_f32_8(MatvecArgs, 128),
        matvec_f16_1(MatvecArgs, 128),
        matvec_f16_2(MatvecArgs, 128),
        matvec_f16_4(MatvecArgs, 128),
        matvec_f16_8(MatvecArgs, 128),
        matvec_bf16_1(MatvecArgs, 128),
        matvec_bf16_2(MatvecArgs, 128),
        matvec_bf16_4(MatvecArgs, 128),
        matvec_bf16_8(MatvecArgs, 128),
        norm_matvec_f32_1(NormMatvecArgs, 128),
        norm_matvec_f32_4(NormMatvecArgs, 128),
        norm_matvec_f16_1(NormMatvecArgs, 128),
        norm_matvec_f16_4(NormMatvecArgs, 128),
        norm_matvec_bf16_1(NormMatvecArgs, 128),
        norm_matvec_bf16_4(NormMatvecArgs, 128);
    "owner_counts": owner_counts(OwnerCountsArgs, 512);
    "pool_scores": pool_scores(PoolScoresArgs, 256);
    "project_heads":
        project_heads_wide(ProjectHeadsArgs, 128),
        project_heads_narrow(ProjectHeadsArgs, 256);
    "quantised":
        round_rows(RoundRowsArgs, 128),
        tile_product_q4_0_1(TileProductArgs, 256),
        tile_product_q4_0_4(TileProductArgs, 256),
        tile_product_q4_0_floats(TileProductArgs, 256),
        tile_embed_q4_0(TileEmbedArgs, 256),
        tile_product_q4_1_1(TileProductArgs, 256),
        tile_product_q4_1_4(TileProductArgs, 256),
        tile_product_q4_1_floats(TileProductArgs, 256),
        tile_embed_q4_1(TileEmbedArgs, 256),
        tile_product_q5_0_1(TileProductArgs, 256),
        tile_product_q5_0_4(TileProductArgs, 256),
        tile_product_q5_0_floats(TileProductArgs, 256),
        tile_embed_q5_0(TileEmbedArgs, 256),
        tile_product_q5_1_1(TileProductArgs, 256),
        tile_product_q5_1_4(TileProductArgs, 256),
        tile_product_q5_1_floats(TileProductArgs, 256),
        tile_embed_q5_1(TileEmbedArgs, 256),
        tile_product_q8_0_1(TileProductArgs, 256),
        tile_product_q8_0_4(TileProductArgs, 256),
        tile_product_q8_0_floats(TileProductArgs, 256),
        tile_embed_q8_0(TileEmbedArgs, 256),
        tile_product_q4_k_1(TileProductArgs, 256),
        tile_product_q4_k_4(TileProductArgs, 256),
        tile_product_q4_k_floats(TileProductArgs, 256),
        tile_embed_q4_k(TileEmbedArgs, 256),
        tile_product_q5_k_1(TileProductArgs, 256),
        tile_product_q5_k_4(TileProductArgs, 256),
        tile_product_q5_k_floats(TileProductArgs, 256),
        tile_embed_q5_k(TileEmbedArgs, 256),
        tile_product_q6_k_1(TileProductArgs, 256),
        tile_product_q6_k_4(TileProductArgs, 256),
        tile_product_q6_k_floats(TileProductArgs, 256),
        tile_embed_q6_k(TileEmbedArgs, 256),
        tile_product_iq4_nl_1(TileProductArgs, 256),
        tile_product_iq4_nl_4(TileProductArgs, 256),
        tile_product_iq4_nl_floats(TileProductArgs, 256),
        tile_embed_iq4_nl(TileEmbedArgs, 256),
        tile_product_mxfp4_1(TileProductArgs, 256),
        tile_product_mxfp4_4(TileProductArgs, 256),
        tile_product_mxfp4_floats(TileProductArgs, 256),
        tile_embed_mxfp4(TileEmbedArgs, 256);
    "query_gate": query_gate(QueryGateArgs, 128);
    "query_sums": query_sums(QuerySumsArgs, 256);
    "rest_lists": rest_lists(RestListsArgs, 512);
    "rms_norm":
        rms_norm_wide_f32(RmsNormArgs, 512),
        rms_norm_wide_f16(RmsNormArgs, 512),
        rms_norm_wide_bf16(RmsNormArgs, 512),
        rms_norm_narrow_f32(RmsNormArgs, 256),
        rms_norm_narrow_f16(RmsNormArgs, 256),
        rms_norm_narrow_bf16(RmsNormArgs, 256);
    "rope": rope(RopeArgs, 256), norm_rope(NormRopeArgs, 256);
    "rotate_rows":
        rotate_rows_f32(RotateRowsArgs, 256),
        rotate_rows_f16(RotateRowsArgs, 256),
        rotate_rows_bf16(RotateRowsArgs, 256);
    "row_means":
        row_means_f32(RowMeansArgs, 256),
        row_means_f16(RowMeansArgs, 256),
        row_means_bf16(RowMeansArgs, 256),
        row_means_q8(RowMeansArgs, 256);
    "score_blocks": score_blocks(ScoreBlocksArgs, 128);
    "select_clusters": select_clusters(SelectClustersArgs, 1024);
    "silu_mul": silu_mul(SiluMulArgs, 256);
    "split_signs": split_signs(SplitSignsArgs, 256);
    "tile_layers":
        tile_layers_q4_0(TileLayersArgs, 512),
        tile_layers_q4_1(TileLayersArgs, 512),
        tile_layers_q5_0(TileLayersArgs, 512),
        tile_layers_q5_1(TileLayersArgs, 512),
        tile_layers_q8_0(TileLayersArgs, 512),
        tile_layers_q4_k(TileLayersArgs, 512),
        tile_layers_q5_k(TileLayersArgs, 512),
        tile_layers_q6_k(TileLayersArgs, 512),
        tile_layers_iq4_nl(TileLayersArgs, 512),
        tile_layers_mxfp4(TileLayersArgs, 512),
        tile_layers_q4_k_q6_k(TileLayersArgs, 512),
        tile_layers_q5_k_q6_k(TileLayersArgs, 512);
    "tile_products":
        round_blocks(RoundBlocksArgs, 128),
        tile_products_q4_0(TileProductsArgs, 128),
        tile_products_q4_1(TileProductsArgs, 128),
        tile_products_q5_0(TileProductsArgs, 128),
        tile_products_q5_1(TileProductsArgs, 128),
        tile_products_q8_0(TileProductsArgs, 128),
        tile_products_q4_k(TileProductsArgs, 128),
        tile_products_q5_k(TileProductsArgs, 128),
        tile_products_q6_k(TileProductsArgs, 128),
        tile_products_iq4_nl(TileProductsArgs, 128),
        tile_products_mxfp4(TileProductsArgs, 128);
    "top_k":
        top_k_row(TopKArgs, 256),
        top_k_parts(TopKArgs, 256),
        top_k_merge(TopKArgs, 256);
    "upload_words": upload_words(UploadWordsArgs, 256);
}

impl Kernel {
    /// What the table says of it.
    pub fn facts(self) -> &'static KernelFacts {
        &FACTS[self as usize]
    }

    /// The file it is in.
    ///
    /// # Panics
    /// Never: the table lists a file with its kernels.
    pub fn source(self) -> usize {
        let found = SOURCES.iter().position(|source| source.stem == self.facts().file);
        found.expect("a kernel is listed below its file")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ptx_has_its_kernels_and_is_of_an_old_toolkit_and_for_its_target() {
        for (i, source) in SOURCES.iter().enumerate() {
            for target in Target::ALL {
                let ptx = source.ptx(target);
                let arch = target.name().replace("compute_", ".target sm_");
                assert!(ptx.contains(".version 8.1"), "{}", source.stem);
                assert!(ptx.contains(&arch), "{} for {}", source.stem, target.name());
                for kernel in Kernel::ALL.iter().filter(|kernel| kernel.source() == i) {
                    let name = kernel.facts().name;
                    let entry = format!(".visible .entry {name}(");
                    assert!(ptx.contains(&entry), "{name} for {}", target.name());
                }
            }
        }
    }

    #[test]
    fn a_device_gets_the_highest_target_it_runs() {
        assert_eq!(Target::of((7, 0)), None);
        assert_eq!(Target::of((7, 5)), Some(Target::Compute75));
        assert_eq!(Target::of((8, 9)), Some(Target::Compute80));
        assert_eq!(Target::of((9, 0)), Some(Target::Compute90));
        assert_eq!(Target::of((12, 0)), Some(Target::Compute90));
    }
}
