//! The list of ops: one stem for each, everywhere.

macro_rules! ops {
    ($($(#[$doc:meta])* $variant:ident = $stem:literal,)*) => {
        /// An operation of the contract. [`Op::stem`] names its reference, CPU module, shader,
        /// kernel and parity case.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Op {
            $($(#[$doc])* $variant,)*
        }

        impl Op {
            /// Every op, in the order of the contract.
            pub const ALL: &'static [Op] = &[$(Op::$variant,)*];

            /// The snake-case name that files and cases carry.
            pub const fn stem(self) -> &'static str {
                match self {
                    $(Op::$variant => $stem,)*
                }
            }
        }
    };
}

ops! {
    /// Embedding lookup.
    Embed = "embed",
    /// Root-mean-square norm.
    RmsNorm = "rms_norm",
    /// Matrix product for many rows.
    Matmul = "matmul",
    /// Matrix product for few rows.
    Matvec = "matvec",
    /// Rotary position embedding.
    Rope = "rope",
    /// SiLU of the gate times the up projection.
    SiluMul = "silu_mul",
    /// GELU of the gate times the up projection.
    GeluMul = "gelu_mul",
    /// Keys and values into KV rows.
    KvScatter = "kv_scatter",
    /// KV rows to KV rows.
    KvGather = "kv_gather",
    /// Keys of KV rows, as numbers.
    KvKeys = "kv_keys",
    /// Attention of a chunk over a run of rows.
    AttendChunk = "attend_chunk",
    /// Attention of one token over a list of rows.
    AttendList = "attend_list",
    /// Merge of two attentions.
    LseMerge = "lse_merge",
    /// Nearest centroid.
    KmeansAssign = "kmeans_assign",
    /// Means of clusters.
    KmeansUpdate = "kmeans_update",
    /// Closeness and radius.
    ClusterStats = "cluster_stats",
    /// Scores of clusters.
    CentroidScores = "centroid_scores",
    /// Rank, prefix sum, trim.
    SelectClusters = "select_clusters",
    /// Selected rows: on the device, or to be fetched.
    LookUpRows = "look_up_rows",
    /// Index of the largest.
    Argmax = "argmax",
    /// The largest and their indices.
    TopK = "top_k",
    /// Sum of outer products.
    Gram = "gram",
    /// How near a query is to the one before it.
    QueryGate = "query_gate",
    /// Landmarks of blocks of keys.
    BlockReduce = "block_reduce",
    /// Heads in a low-rank space.
    ProjectHeads = "project_heads",
    /// Positive and negative parts.
    SplitSigns = "split_signs",
    /// Attention that rows received.
    ColumnMass = "column_mass",
    /// Scores of neighbours and of a group, pooled.
    PoolScores = "pool_scores",
    /// What a selection left of clusters.
    ClusterRest = "cluster_rest",
    /// Rows of selected clusters.
    ClusterRows = "cluster_rows",
    /// Chosen tokens of each cluster.
    OwnerCounts = "owner_counts",
    /// What chosen tokens left of clusters and groups.
    RestLists = "rest_lists",
    /// Keys rotated to other positions.
    RotateRows = "rotate_rows",
    /// Sums of queries over blocks.
    QuerySums = "query_sums",
    /// Means of neighbouring rows.
    RowMeans = "row_means",
    /// Shares that blocks have of a tile's attention.
    ScoreBlocks = "score_blocks",
    /// Attention of a chunk over the blocks that count.
    AttendBlocks = "attend_blocks",
}

impl std::fmt::Display for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.stem())
    }
}

impl std::str::FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Op::ALL.iter().copied().find(|op| op.stem() == text).ok_or_else(|| {
            let known: Vec<_> = Op::ALL.iter().map(|op| op.stem()).collect();
            format!("unknown op '{text}': one of {}", known.join(", "))
        })
    }
}
