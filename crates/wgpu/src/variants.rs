//! Which variants of the shaders the ops launch: for tests that look at all of them without a
//! device.
//!
//! Where a constant has many values (widths of heads), the list has those of real models, and where
//! constants do not meet in a shader, not every combination. A test runs the corpus and finds every
//! value of every constant here, so that the list stays whole.

use std::collections::BTreeSet;

use longview_core::quant::QuantType;
use longview_ops::OpResult;
use longview_ops::corpus::{Case, Plan};

use crate::backend::WgpuBackend;
use crate::quantised::{format_defines, group_size};
use crate::shader::Define;

/// A shader with its constants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShaderVariant {
    /// The file by its name in [`crate::shader::FILES`].
    pub stem: &'static str,
    /// The entry point.
    pub entry: &'static str,
    /// Its constants, without those of the level.
    pub defines: Vec<Define>,
}

/// A value of a constant in an entry point of a shader; `None` for the entry point itself.
pub type ShaderValue = (&'static str, &'static str, Option<Define>);

impl ShaderVariant {
    /// Its entry point, and the value of each constant there.
    pub fn values(&self) -> impl Iterator<Item = ShaderValue> + '_ {
        let defines = self.defines.iter().map(|define| Some(*define));
        defines.chain([None]).map(|define| (self.stem, self.entry, define))
    }
}

impl WgpuBackend {
    /// What was launched since the last call, each once; of a device that lists only.
    pub fn take_listed(&self) -> Vec<ShaderVariant> {
        let variants = self.gpu.take_listed().into_iter();
        variants
            .map(|v| ShaderVariant { stem: v.stem, entry: v.entry, defines: v.defines.to_vec() })
            .collect()
    }

    /// What a case with these numbers would launch; of a device that lists only.
    pub fn launches_of(&self, case: &Case, plan: &Plan) -> OpResult<BTreeSet<ShaderValue>> {
        if !case.runs_on(&self.capabilities) {
            return Ok(BTreeSet::new());
        }
        self.take_listed();
        case.launch(self, &mut plan.upload(self)?)?;
        Ok(self.take_listed().iter().flat_map(ShaderVariant::values).collect())
    }
}

/// Every variant.
pub fn variants() -> Vec<ShaderVariant> {
    let mut list = List(Vec::new());
    let plain = [
        "argmax",
        "cluster_rest",
        "cluster_rows",
        "embed",
        "gelu_mul",
        "gram",
        "kv_keys",
        "lse_merge",
        "owner_counts",
        "pool_scores",
        "query_sums",
        "look_up_rows",
        "rope",
        "rotate_rows",
        "silu_mul",
        "split_signs",
        "top_k",
    ];
    plain.into_iter().for_each(|stem| list.add(stem, stem, &[]));
    list.add("shared/write_halves", "write_halves", &[]);
    list.add("block_reduce", "block_reduce", &[("TOP", BOTH)]);
    list.add("project_heads", "project_heads", &[("VECTOR", BOTH)]);
    list.add("query_gate", "query_gate", &[("GROUP", &[64])]);
    list.add("rms_norm", "rms_norm", &[("GROUP", &[32, 256])]);
    list.add("kv_scatter", "kv_scatter", &[("CODED", &[0])]);
    list.add("kv_scatter", "kv_scatter_coded", &[("CODED", &[1])]);
    list.add("kv_gather", "kv_gather", &[("VECTOR", BOTH), ("SHIFTED", &[0])]);
    list.add("kv_gather", "kv_gather", &[("VECTOR", &[0]), ("SHIFTED", &[1])]);
    list.add_linear();
    list.add_quantised();
    list.add_attend_list();
    list.add_attend_tiles();
    list.add_sparse();
    list.add_clusters();
    list.add_column_mass();
    list.0
}

/// The names of all entry points and constants.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn names() -> BTreeSet<&'static str> {
    let all = variants();
    let defines = all.iter().flat_map(|variant| variant.defines.iter().map(|(name, _)| *name));
    defines.chain(all.iter().map(|variant| variant.entry)).collect()
}

const BOTH: &[u32] = &[0, 1];
/// F32, F16, BF16.
const KINDS: &[u32] = &[0, 1, 2];
/// Those, and Q8.
const ROW_KINDS: &[u32] = &[0, 1, 2, 4];
/// Codes of 8 bits.
const CODES: &[u32] = &[5];

struct List(Vec<ShaderVariant>);

impl List {
    /// Every combination of the values of these constants.
    fn add(&mut self, stem: &'static str, entry: &'static str, axes: &[(&'static str, &[u32])]) {
        let mut all = vec![Vec::new()];
        for (name, values) in axes {
            all = all
                .iter()
                .flat_map(|defines: &Vec<Define>| {
                    values.iter().map(|value| [&defines[..], &[(*name, *value)]].concat())
                })
                .collect();
        }
        self.0.extend(all.into_iter().map(|defines| ShaderVariant { stem, entry, defines }));
    }

    fn add_linear(&mut self) {
        // Weights of BF16 alone round x.
        let as_it_is = [("WEIGHT_KIND", KINDS), ("ROUND_X", &[0][..])];
        let rounded = [("WEIGHT_KIND", &[2][..]), ("ROUND_X", &[1][..])];
        let vector = ("X_VECTOR", BOTH);
        for [kind, round] in [as_it_is, rounded] {
            self.add("matmul", "matmul", &[("WIDE", BOTH), kind, round, vector]);
            let sizes: [(&[u32], &[u32]); 2] = [(&[1, 2, 4], &[64, 128, 256]), (&[8], &[64, 128])];
            for (rows, groups) in sizes {
                let (rows, groups) = (("ROWS", rows), ("GROUP", groups));
                self.add("matvec", "matvec", &[rows, groups, kind, round, vector]);
            }
            let sizes: [(&[u32], &[u32]); 2] = [(&[1, 2, 4], &[128]), (&[8], &[64])];
            for (rows, groups) in sizes {
                let (rows, groups) = (("ROWS", rows), ("GROUP", groups));
                let project = [kind, round, rows, groups, ("PROJECT", &[1])];
                self.add("shared/norm_matvec", "project", &project);
                let gated = [kind, round, rows, groups, ("PROJECT", &[0]), ("GELU", BOTH)];
                self.add("shared/norm_matvec", "gated", &gated);
            }
        }
    }

    fn add_quantised(&mut self) {
        let vector = ("X_VECTOR", BOTH);
        self.add("shared/round_rows", "round_rows", &[vector, ("PLANES", &[1, 2])]);
        for ty in QuantType::ALL {
            let format = format_defines(ty);
            let [bits, scales, table] = &format;
            let [bits, scales, table] =
                [bits, scales, table].map(|(name, value)| (*name, std::slice::from_ref(value)));
            self.add("shared/tile_embed", "tile_embed", &[bits, scales, table]);
            let mut groups = [1, 1024].map(|n_units| group_size(ty, n_units) as u32).to_vec();
            groups.dedup();
            let (rows, group): ((_, &[u32]), _) = (("ROWS", &[1, 2, 4, 8]), ("GROUP", &groups[..]));
            let rounded: (_, &[u32]) = ("PLANES", &[1, 2]);
            let axes = [bits, scales, table, rows, group, rounded];
            self.add("shared/tile_product", "tile_product", &axes);
            let as_they_are: (_, &[u32]) = ("PLANES", &[0]);
            let axes = [bits, scales, table, rows, group, as_they_are, vector];
            self.add("shared/tile_product", "tile_product", &axes);
        }
    }

    fn add_attend_list(&mut self) {
        let widths: &[u32] = &[40, 64, 80, 96, 128, 192, 256];
        self.add("shared/attend_merge", "attend_merge", &[("HEAD_DIM", &[20])]);
        self.add("shared/attend_merge", "attend_merge", &[("HEAD_DIM", widths)]);
        let sets: [[&[u32]; 4]; 3] = [
            [&[20], ROW_KINDS, &[0], &[1, 3]],
            [&[64], ROW_KINDS, BOTH, &[1, 3]],
            [widths, &[1], &[1], &[2, 4, 5, 6, 7, 8]],
        ];
        // Rows of a run stand for one key each.
        let origins: [(&[u32], &[u32]); 2] = [(BOTH, &[0]), (&[1], &[1])];
        for [widths, kinds, vector, rows] in sets {
            for (listed, weighted) in origins {
                let axes: [(_, &[u32]); 8] = [
                    ("HEAD_DIM", widths),
                    ("KV_KIND", kinds),
                    ("VECTOR", vector),
                    ("ROWS", rows),
                    ("KEYS", &[1, 2]),
                    ("LISTED", listed),
                    ("PARTIAL", BOTH),
                    ("WEIGHTED", weighted),
                ];
                self.add("attend_list", "attend_list", &axes);
            }
        }
    }

    fn add_attend_tiles(&mut self) {
        // Widths that share their tiles and slices.
        let sets: [(&[u32], &[u32], [u32; 3]); 4] = [
            (&[20], &[0], [64, 32, 4]),
            (&[40, 80], BOTH, [64, 32, 2]),
            (&[64, 96, 128], BOTH, [64, 32, 4]),
            (&[192, 256], BOTH, [32, 64, 4]),
        ];
        for (widths, vector, [queries, keys, slice]) in sets {
            // With PARTIAL, whether the run is split; with KEPT, which rows count.
            for (stem, choice) in [("attend_chunk", "PARTIAL"), ("attend_blocks", "KEPT")] {
                let axes: [(_, &[u32]); 8] = [
                    ("HEAD_DIM", widths),
                    ("KV_KIND", ROW_KINDS),
                    ("VECTOR", vector),
                    ("QUERY_VECTOR", vector),
                    ("QUERY_TILE", &[queries]),
                    ("KEY_TILE", &[keys]),
                    ("SLICE", &[slice]),
                    (choice, BOTH),
                ];
                self.add(stem, stem, &axes);
            }
        }
    }

    /// What goes before [`List::add_attend_tiles`] in a prompt that is read sparsely.
    fn add_sparse(&mut self) {
        let sets: [(&[u32], &[u32], u32); 3] =
            [(&[20], &[0], 16), (&[40, 64, 80, 96, 128], BOTH, 16), (&[192, 256], BOTH, 8)];
        for (widths, vector, queries) in sets {
            let (widths, vector) = (("HEAD_DIM", widths), ("VECTOR", vector));
            self.add("row_means", "row_means", &[widths, ("KV_KIND", ROW_KINDS), vector]);
            let queries: &[u32] = &[queries];
            let means = [widths, ("KV_KIND", &[0]), vector, ("QUERIES", queries)];
            self.add("score_blocks", "score_blocks", &means);
        }
    }

    fn add_clusters(&mut self) {
        let vector = ("VECTOR", BOTH);
        self.add("kmeans_assign", "find_terms", &[vector, ("TERMS", &[1])]);
        self.add("kmeans_assign", "kmeans_assign", &[vector, ("NARROW", BOTH)]);
        self.add("kmeans_update", "kmeans_update", &[vector]);
        self.add("rest_lists", "list_clusters", &[("GROUPS", &[0])]);
        self.add("rest_lists", "rest_of_groups", &[("GROUPS", &[1])]);
        self.add("cluster_stats", "clear", &[("CLEAR", &[1])]);
        self.add("cluster_stats", "cluster_stats", &[vector]);
        let heads: &[u32] = &[1, 2, 3, 4, 5, 6, 7, 8];
        let kind = ("CENTROID_KIND", KINDS);
        let listed = ("LISTED", BOTH);
        self.add("centroid_scores", "logits", &[kind, vector, ("HEADS", heads), listed]);
        let codes = ("CENTROID_KIND", CODES);
        self.add("centroid_scores", "logits", &[codes, vector, ("HEADS", heads), listed]);
        let raw = [("HEADS", &[1][..]), ("LISTED", &[0]), ("RAW", &[1])];
        self.add("centroid_scores", "logits", &[&[kind, vector][..], &raw].concat());
        self.add("centroid_scores", "pool", &[("POOL", &[1])]);
        self.add("centroid_scores", "share", &[("SHARE", &[1])]);
        self.add("select_clusters", "select_clusters", &[("LISTED", BOTH), ("POOL", BOTH)]);
    }

    fn add_column_mass(&mut self) {
        // One head's tokens, fewer where heads are wide; and the heads of one token.
        let tokens: [&[u32]; 3] = [&[1], &[16], &[2]];
        let wide: [&[u32]; 3] = [&[1], &[8], &[2]];
        let heads: [&[u32]; 3] = [&[1, 2, 3, 4, 5, 6, 7, 8], &[1], &[1]];
        let sets: [(&[u32], &[u32], _); 6] = [
            (&[20], &[0], tokens),
            (&[20], &[0], heads),
            (&[40, 64, 80, 96, 128], BOTH, tokens),
            (&[64, 128], BOTH, heads),
            (&[192, 256], BOTH, wide),
            (&[256], BOTH, heads),
        ];
        for (widths, vector, [heads, tokens, keys]) in sets {
            let axes: [(_, &[u32]); 6] = [
                ("HEAD_DIM", widths),
                ("KV_KIND", KINDS),
                ("VECTOR", vector),
                ("HEADS", heads),
                ("TOKENS", tokens),
                ("KEYS", keys),
            ];
            self.add("column_mass", "column_mass", &axes);
        }
    }
}
