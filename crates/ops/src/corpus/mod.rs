//! The case corpus: one list of cases for the parity run, the tests and the benches.
//!
//! A case is a small struct of sizes; its name says all of them, its data is a pure function of its
//! name. What is swept: every dimension on its own over the edges of the usual tiles, then
//! combinations; all data types; one to three sequences of unequal length. Data carries traps on
//! purpose: poison around every view, large scores, ties, empty lists.

mod attention;
mod case;
mod cluster;
mod data;
mod dense;
mod gate;
mod index;
mod kv;
mod look_up;
mod mass;
pub(crate) mod plan;
mod quantised;
mod residual;
mod select;
mod sparse;
mod token_rest;
mod top_k;
mod turns;

pub use attention::{AttendChunkCase, AttendListCase, ChunkMask, LseMergeCase, QueryKind};
pub use case::OpCase;
pub use cluster::{
    CentroidScoresCase, ClusterStatsCase, KmeansAssignCase, KmeansShape, KmeansUpdateCase,
};
pub use dense::{
    ArgmaxCase, ArgmaxKind, EmbedCase, GeluMulCase, GramCase, LinearCase, NormKind, RmsNormCase,
    RopeCase, SiluMulCase,
};
pub use gate::{GateKind, QueryGateCase};
pub use index::{BlockReduceCase, ProjectHeadsCase, SplitSignsCase};
pub use kv::{KvGatherCase, KvKeysCase, KvScatterCase, RotateRowsCase};
pub use look_up::LookUpRowsCase;
pub use mass::{ColumnMassCase, MassMask, PoolScoresCase, QuerySumsCase};
pub use plan::{
    Buffers, Input, Outcome, Output, OutputPlan, Overwrite, Placed, Plan, PlannedWeight, Values,
};
pub use quantised::{QuantEmbedCase, QuantLinearCase, random_blocks};
pub use residual::{ClusterRestCase, ClusterRowsCase};
pub use select::{ScoreKind, SelectClustersCase};
pub use sparse::{AttendBlocksCase, RowMeansCase, ScoreBlocksCase, TileSizes};
pub use token_rest::{OwnerCountsCase, RestListsCase};
pub use top_k::{TopKCase, TopKKind};
pub use turns::turns;

use std::collections::HashSet;

use longview_core::{DType, SplitMix64};

use crate::backend::Backend;
use crate::capability::Capabilities;
use crate::compare::Comparison;
use crate::error::OpResult;
use crate::op::Op;
use crate::tolerance::tolerance;

macro_rules! cases {
    ($($variant:ident($case:ty),)*) => {
        /// A case of any op.
        #[derive(Clone, Debug)]
        pub enum Case {
            $(#[doc = concat!("[`", stringify!($case), "`]")] $variant($case),)*
        }

        $(impl From<$case> for Case {
            fn from(case: $case) -> Self {
                Case::$variant(case)
            }
        })*

        macro_rules! each {
            ($self:expr, $c:ident => $body:expr) => {
                match $self { $(Case::$variant($c) => $body,)* }
            };
        }
    };
}

cases! {
    Embed(EmbedCase),
    RmsNorm(RmsNormCase),
    Linear(LinearCase),
    QuantEmbed(QuantEmbedCase),
    QuantLinear(QuantLinearCase),
    Rope(RopeCase),
    SiluMul(SiluMulCase),
    GeluMul(GeluMulCase),
    KvScatter(KvScatterCase),
    KvGather(KvGatherCase),
    KvKeys(KvKeysCase),
    AttendChunk(AttendChunkCase),
    AttendList(AttendListCase),
    LseMerge(LseMergeCase),
    KmeansAssign(KmeansAssignCase),
    KmeansUpdate(KmeansUpdateCase),
    ClusterStats(ClusterStatsCase),
    CentroidScores(CentroidScoresCase),
    SelectClusters(SelectClustersCase),
    LookUpRows(LookUpRowsCase),
    Argmax(ArgmaxCase),
    TopK(TopKCase),
    Gram(GramCase),
    QueryGate(QueryGateCase),
    BlockReduce(BlockReduceCase),
    ProjectHeads(ProjectHeadsCase),
    SplitSigns(SplitSignsCase),
    ColumnMass(ColumnMassCase),
    PoolScores(PoolScoresCase),
    ClusterRest(ClusterRestCase),
    ClusterRows(ClusterRowsCase),
    OwnerCounts(OwnerCountsCase),
    RestLists(RestListsCase),
    RotateRows(RotateRowsCase),
    QuerySums(QuerySumsCase),
    RowMeans(RowMeansCase),
    ScoreBlocks(ScoreBlocksCase),
    AttendBlocks(AttendBlocksCase),
}

impl Case {
    /// Stem and sizes: `rope[t=17,heads=2,dh=20,rotary=10]`.
    pub fn name(&self) -> String {
        each!(self, c => c.to_string())
    }

    /// The op that a case calls.
    pub fn op(&self) -> Op {
        each!(self, c => c.op())
    }

    /// Whether it has quantised weights.
    pub fn is_quantised(&self) -> bool {
        matches!(self, Case::QuantEmbed(_) | Case::QuantLinear(_))
    }

    /// The data type that the tolerance goes by.
    pub fn dtype(&self) -> DType {
        each!(self, c => c.dtype())
    }

    /// The data: always the same for the same name.
    pub fn plan(&self) -> Plan {
        let mut rng = SplitMix64::new(data::seed_of(&self.name()));
        each!(self, c => c.draw(&mut rng))
    }

    /// Calls the op once on buffers of [`Plan::upload`]; benches call it again and again.
    pub fn launch<B: Backend>(&self, backend: &B, buffers: &mut Buffers<B>) -> OpResult<()> {
        each!(self, c => c.launch(backend, buffers))
    }

    /// Why a backend with these capabilities need not run this case.
    pub fn excused(&self, capabilities: &Capabilities) -> Option<String> {
        each!(self, c => c.excused(capabilities))
    }

    /// Why this says nothing about a backend with these capabilities.
    pub fn elsewhere(&self, capabilities: &Capabilities) -> Option<String> {
        each!(self, c => c.elsewhere(capabilities))
    }

    /// Whether a backend with these capabilities must get it right.
    pub fn runs_on(&self, capabilities: &Capabilities) -> bool {
        self.excused(capabilities).is_none() && self.elsewhere(capabilities).is_none()
    }

    /// Makes the buffers, runs the op and reads the outputs back with their guards.
    pub async fn execute<B: Backend>(&self, backend: &B) -> OpResult<Outcome> {
        self.execute_plan(&self.plan(), backend).await
    }

    /// [`Case::execute`] for whoever has the plan already: drawing its numbers takes longer than
    /// most ops.
    pub async fn execute_plan<B: Backend>(&self, plan: &Plan, backend: &B) -> OpResult<Outcome> {
        let mut buffers = plan.upload(backend)?;
        self.launch(backend, &mut buffers)?;
        backend.submit()?;
        plan.read_back(backend, &buffers).await
    }

    /// [`Case::execute`] for threads that may wait.
    pub fn execute_blocking<B: Backend>(&self, backend: &B) -> OpResult<Outcome> {
        pollster::block_on(self.execute(backend))
    }

    /// Compares with what the reference gave, by the table's tolerance.
    pub fn compare(&self, got: &Outcome, want: &Outcome) -> Comparison {
        self.compare_plan(&self.plan(), got, want)
    }

    /// [`Case::compare`] for whoever has the plan already.
    pub fn compare_plan(&self, plan: &Plan, got: &Outcome, want: &Outcome) -> Comparison {
        let tol = tolerance(self.op(), self.dtype());
        each!(self, c => c.judge(plan, got, want, &tol))
    }
}

/// Every case of every op.
pub fn corpus() -> Vec<Case> {
    Op::ALL.iter().flat_map(|op| cases_of(*op)).collect()
}

/// Every case of one op. Where sweeps cross, a case is listed once.
pub fn cases_of(op: Op) -> Vec<Case> {
    let mut names = HashSet::new();
    let mut cases = listed(op);
    cases.retain(|case| names.insert(case.name()));
    cases
}

fn listed(op: Op) -> Vec<Case> {
    match op {
        Op::Embed => [cases(EmbedCase::all()), cases(QuantEmbedCase::all())].concat(),
        Op::RmsNorm => cases(RmsNormCase::all()),
        Op::Matmul => {
            [cases(LinearCase::all_matmul()), cases(QuantLinearCase::all_matmul())].concat()
        }
        Op::Matvec => {
            [cases(LinearCase::all_matvec()), cases(QuantLinearCase::all_matvec())].concat()
        }
        Op::Rope => cases(RopeCase::all()),
        Op::SiluMul => cases(SiluMulCase::all()),
        Op::GeluMul => cases(GeluMulCase::all()),
        Op::KvScatter => cases(KvScatterCase::all()),
        Op::KvGather => cases(KvGatherCase::all()),
        Op::KvKeys => cases(KvKeysCase::all()),
        Op::AttendChunk => cases(AttendChunkCase::all()),
        Op::AttendList => cases(AttendListCase::all()),
        Op::LseMerge => cases(LseMergeCase::all()),
        Op::KmeansAssign => cases(KmeansAssignCase::all()),
        Op::KmeansUpdate => cases(KmeansUpdateCase::all()),
        Op::ClusterStats => cases(ClusterStatsCase::all()),
        Op::CentroidScores => cases(CentroidScoresCase::all()),
        Op::SelectClusters => cases(SelectClustersCase::all()),
        Op::LookUpRows => cases(LookUpRowsCase::all()),
        Op::Argmax => cases(ArgmaxCase::all()),
        Op::TopK => cases(TopKCase::all()),
        Op::Gram => cases(GramCase::all()),
        Op::QueryGate => cases(QueryGateCase::all()),
        Op::BlockReduce => cases(BlockReduceCase::all()),
        Op::ProjectHeads => cases(ProjectHeadsCase::all()),
        Op::SplitSigns => cases(SplitSignsCase::all()),
        Op::ColumnMass => cases(ColumnMassCase::all()),
        Op::PoolScores => cases(PoolScoresCase::all()),
        Op::ClusterRest => cases(ClusterRestCase::all()),
        Op::ClusterRows => cases(ClusterRowsCase::all()),
        Op::OwnerCounts => cases(OwnerCountsCase::all()),
        Op::RestLists => cases(RestListsCase::all()),
        Op::RotateRows => cases(RotateRowsCase::all()),
        Op::QuerySums => cases(QuerySumsCase::all()),
        Op::RowMeans => cases(RowMeansCase::all()),
        Op::ScoreBlocks => cases(ScoreBlocksCase::all()),
        Op::AttendBlocks => cases(AttendBlocksCase::all()),
    }
}

fn cases<C: Into<Case>>(list: Vec<C>) -> Vec<Case> {
    list.into_iter().map(Into::into).collect()
}
