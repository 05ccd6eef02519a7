//! The search for tokens as one call against the single calls, bit for bit, and what it refuses.

use longview_core::{DType, SplitMix64, encode_f32};
use longview_cpu::{CpuBackend, CpuOptions};
use longview_ops::{
    Backend, DeviceBuffer, KvView, OpError, OpResult, Opened, Pooling, Rerank, SearchGroups,
    SearchLevel, SearchTokens, SearchTokensParams, Storage, View, ViewMut,
};

type Buffer = <CpuBackend as Storage>::Buffer;

/// Landmarks that each head chose, with what it takes of them.
type Choice = Vec<Vec<(u32, u32)>>;

/// Numbers of a search that is made by chance.
#[derive(Clone, Copy, Debug)]
struct Case {
    hkv: usize,
    group: usize,
    dh: usize,
    rank: usize,
    clusters: usize,
    pooling: Pooling,
    codes: bool,
    /// Tokens that are opened and that are chosen.
    budgets: [usize; 2],
    /// Tokens that are scored again by their keys, and the type of these.
    again: Option<(usize, DType)>,
    /// Clusters that are scored, where those of the best groups are.
    scored: Option<usize>,
}

const FIRST_ROW: u32 = 3;
const STRIDE: usize = 3000;

/// One level's buffers.
struct Level {
    centroids: Buffer,
    sizes: Buffer,
    n: Buffer,
    starts: Buffer,
    budgets: Buffer,
    chosen: [Buffer; 3],
    opened: [Buffer; 2],
    stride: usize,
    max: usize,
    room: usize,
}

fn backend(threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads, isa: None }).unwrap()
}

fn ints(backend: &CpuBackend, values: &[u32]) -> Buffer {
    let mut buffer = backend.alloc(DType::U32, values.len(), "test").unwrap();
    backend.write(ViewMut::all(&mut buffer), bytemuck::cast_slice(values)).unwrap();
    buffer
}

fn numbers(backend: &CpuBackend, dtype: DType, values: &[f32]) -> Buffer {
    let mut buffer = backend.alloc(dtype, values.len(), "test").unwrap();
    backend.write(ViewMut::all(&mut buffer), &encode_f32(dtype, values)).unwrap();
    buffer
}

/// Words of a buffer; what is not in use is left as it was.
fn words(backend: &CpuBackend, buffer: &Buffer, n: usize) -> Vec<u32> {
    let mut words = vec![0u32; n];
    let bytes = bytemuck::cast_slice_mut(&mut words);
    pollster::block_on(backend.read(View::part(buffer, 0, n), bytes)).unwrap();
    words
}

impl Level {
    /// Heads of landmarks, given the sizes of each.
    fn new(
        backend: &CpuBackend,
        rng: &mut SplitMix64,
        (dtype, width): (DType, usize),
        sizes: &[Vec<u32>],
        (budget, room): (usize, usize),
    ) -> Self {
        let stride = sizes.iter().map(Vec::len).max().unwrap_or(0) + 2;
        let (mut all, mut starts) = (vec![], vec![]);
        for (head, own) in sizes.iter().enumerate() {
            let mut next = FIRST_ROW;
            for size in own {
                starts.push(next);
                next += size;
            }
            all.extend(own);
            all.resize((head + 1) * stride, u32::MAX);
            starts.resize((head + 1) * stride, u32::MAX);
        }
        let spread = if dtype == DType::I8 { 40.0 } else { 1.0 };
        let marks: Vec<f32> =
            (0..sizes.len() * stride * width).map(|_| rng.next_normal() * spread).collect();
        let counts: Vec<u32> = sizes.iter().map(|own| own.len() as u32).collect();
        let (h, max) = (sizes.len(), budget.min(stride).max(1));
        Self {
            centroids: numbers(backend, dtype, &marks),
            sizes: ints(backend, &all),
            n: ints(backend, &counts),
            starts: ints(backend, &starts),
            budgets: ints(backend, &vec![budget as u32; h]),
            chosen: [h * max, h * max, h].map(|n| ints(backend, &vec![7; n])),
            opened: [h * room, h].map(|n| ints(backend, &vec![7; n])),
            stride,
            max,
            room,
        }
    }

    fn parts(&mut self, first_row: u32) -> (SearchLevel<'_, CpuBackend>, Opened<'_, CpuBackend>) {
        let [chosen, takes, n_chosen] = self.chosen.each_mut().map(ViewMut::all);
        let [rows, n_rows] = self.opened.each_mut().map(ViewMut::all);
        let level = SearchLevel {
            centroids: View::all(&self.centroids),
            sizes: View::all(&self.sizes),
            n: View::all(&self.n),
            budgets: View::all(&self.budgets),
            stride: self.stride as u32,
            max_selected: self.max as u32,
            chosen,
            takes,
            n_chosen,
        };
        let (starts, stride) = (View::all(&self.starts), self.room as u32);
        (level, Opened { starts, first_row, stride, rows, n_rows })
    }

    /// What each head chose.
    fn choice(&self, backend: &CpuBackend) -> Choice {
        let [chosen, takes, n] = &self.chosen;
        let heads = words(backend, n, n.len());
        let all = [chosen, takes].map(|buffer| words(backend, buffer, heads.len() * self.max));
        let own = |(head, n): (usize, &u32)| {
            let at = head * self.max..head * self.max + *n as usize;
            all[0][at.clone()].iter().copied().zip(all[1][at].iter().copied()).collect()
        };
        heads.iter().enumerate().map(own).collect()
    }
}

/// Clusters and tokens, and these tokens' keys.
struct Levels {
    groups: Option<Level>,
    clusters: Level,
    tokens: Level,
    again: Option<Again>,
}

/// Buffers of tokens that are scored again.
struct Again {
    kv: Buffer,
    head_stride: usize,
    budgets: Buffer,
    lists: [Buffer; 3],
    most: usize,
}

impl Again {
    fn new(
        backend: &CpuBackend,
        rng: &mut SplitMix64,
        (hkv, dh): (usize, usize),
        (most, dtype): (usize, DType),
        tokens: usize,
    ) -> Self {
        let head_stride = FIRST_ROW as usize + tokens + 1;
        let rows: Vec<f32> = (0..hkv * head_stride * 2 * dh).map(|_| rng.next_normal()).collect();
        Self {
            kv: numbers(backend, dtype, &rows),
            head_stride,
            budgets: ints(backend, &vec![most as u32; hkv]),
            lists: [hkv * most, hkv * most, hkv].map(|n| ints(backend, &vec![7; n])),
            most,
        }
    }

    fn part(&mut self) -> Rerank<'_, CpuBackend> {
        let [tokens, takes, n_tokens] = self.lists.each_mut().map(ViewMut::all);
        Rerank {
            kv: KvView::new(&self.kv, self.head_stride),
            budgets: View::all(&self.budgets),
            stride: self.most as u32,
            tokens,
            takes,
            n_tokens,
        }
    }
}

impl Case {
    fn levels(&self, backend: &CpuBackend, seed: u64) -> Levels {
        let mut rng = SplitMix64::new(seed);
        // The last head has fewer clusters than the others.
        let count =
            |head: usize| if head + 1 == self.hkv { self.clusters / 3 } else { self.clusters };
        let sizes: Vec<Vec<u32>> = (0..self.hkv)
            .map(|head| (0..count(head)).map(|_| 1 + rng.below(12) as u32).collect())
            .collect();
        let tokens = |own: &Vec<u32>| vec![1; own.iter().sum::<u32>() as usize];
        let (dtype, [opened, chosen]) = (DType::F16, self.budgets);
        let mark = if self.codes { DType::I8 } else { dtype };
        let token_sizes: Vec<_> = sizes.iter().map(tokens).collect();
        let most = token_sizes.iter().map(Vec::len).max().unwrap_or(0);
        let (shape, bounds) = ((self.hkv, self.dh), (mark, 2 * self.rank));
        // Every fifth group has fewer clusters than the others.
        let groups = |own: &Vec<u32>| {
            let (mut groups, mut left) = (vec![], own.len() as u32);
            while left > 0 {
                groups.push(left.min(if groups.len() % 5 == 4 { 3 } else { 8 }));
                left -= groups.last().unwrap();
            }
            groups
        };
        let group_sizes: Vec<_> = sizes.iter().map(groups).collect();
        let groups = self
            .scored
            .map(|scored| Level::new(backend, &mut rng, bounds, &group_sizes, (scored, scored)));
        Levels {
            groups,
            clusters: Level::new(backend, &mut rng, bounds, &sizes, (opened, opened)),
            tokens: Level::new(backend, &mut rng, (mark, self.rank), &token_sizes, (chosen, 1)),
            again: self.again.map(|again| Again::new(backend, &mut rng, shape, again, most)),
        }
    }

    /// Searches by `call` and says what tokens were chosen.
    fn search(
        &self,
        backend: &CpuBackend,
        levels: &mut Levels,
        call: fn(&CpuBackend, SearchTokens<'_, CpuBackend>) -> OpResult<()>,
    ) -> OpResult<Choice> {
        let (hq, mut rng) = (self.hkv * self.group, SplitMix64::new(3));
        let mut normals = |n: usize, spread: f32| -> Vec<f32> {
            (0..n).map(|_| rng.next_normal() * spread).collect()
        };
        let q = numbers(backend, DType::F32, &normals(2 * hq * self.dh, 1.0));
        let spread = if self.codes { 0.02 } else { 0.3 };
        let w_q = numbers(backend, DType::F32, &normals(self.hkv * self.dh * self.rank, spread));
        let mut query = backend.alloc(DType::F32, hq * self.rank, "test")?;
        let mut split_query = backend.alloc(DType::F32, hq * 2 * self.rank, "test")?;
        let mut scratch = backend.alloc(DType::F32, hq * STRIDE, "test")?;
        let groups = levels.groups.as_mut().map(|groups| {
            // Starts count from there.
            let (level, opened) = groups.parts(FIRST_ROW);
            SearchGroups { level, opened }
        });
        let (clusters, opened) = levels.clusters.parts(FIRST_ROW);
        let (tokens, _) = levels.tokens.parts(0);
        call(
            backend,
            SearchTokens {
                p: SearchTokensParams {
                    n_tokens: 2,
                    q_index: 1,
                    n_q_heads: hq as u32,
                    n_kv_heads: self.hkv as u32,
                    head_dim: self.dh as u32,
                    rank: self.rank as u32,
                    score_stride: STRIDE as u32,
                    scale: 0.3,
                    pooling: self.pooling as u32,
                    token_pooling: Pooling::SumSoftmax as u32,
                },
                q: View::all(&q),
                groups,
                clusters,
                opened,
                w_q: View::all(&w_q),
                query: ViewMut::all(&mut query),
                split_query: ViewMut::all(&mut split_query),
                tokens,
                rerank: levels.again.as_mut().map(Again::part),
                scratch: ViewMut::all(&mut scratch),
            },
        )?;
        Ok(levels.tokens.choice(backend))
    }
}

fn at_once(backend: &CpuBackend, d: SearchTokens<'_, CpuBackend>) -> OpResult<()> {
    backend.search_tokens(d)
}

fn one_by_one(backend: &CpuBackend, d: SearchTokens<'_, CpuBackend>) -> OpResult<()> {
    d.unfused(backend)
}

const CASE: Case = Case {
    hkv: 3,
    group: 2,
    dh: 20,
    rank: 8,
    clusters: 90,
    pooling: Pooling::SumSoftmax,
    codes: true,
    budgets: [200, 60],
    again: None,
    scored: None,
};

fn cases() -> Vec<Case> {
    let wide = Case { hkv: 2, group: 7, dh: 64, rank: 32, clusters: 300, ..CASE };
    vec![
        CASE,
        Case { pooling: Pooling::SizeWeighted, ..CASE },
        Case { pooling: Pooling::MaxSoftmax, codes: false, ..CASE },
        Case { hkv: 1, group: 1, clusters: 4, ..CASE },
        Case { budgets: [1500, 400], ..wide },
        Case { budgets: [2500, 2000], codes: false, ..wide },
        Case { budgets: [40, 40], group: 9, ..wide },
        Case { scored: Some(40), ..CASE },
        Case { scored: Some(90), pooling: Pooling::MaxSoftmax, codes: false, ..CASE },
        Case { scored: Some(75), budgets: [1500, 400], ..wide },
        Case { scored: Some(100), again: Some((120, DType::F16)), ..wide },
        Case { again: Some((120, DType::F16)), ..CASE },
        Case { again: Some((200, DType::F32)), ..CASE },
        Case { budgets: [1500, 300], again: Some((900, DType::BF16)), ..wide },
        Case { budgets: [1500, 300], again: Some((2000, DType::F16)), group: 9, ..wide },
    ]
}

#[test]
fn one_call_chooses_what_the_single_calls_choose() {
    for threads in [1, 3] {
        let backend = backend(threads);
        for (seed, case) in cases().iter().enumerate() {
            let [a, b] = [at_once, one_by_one].map(|call| {
                let mut levels = case.levels(&backend, seed as u64);
                case.search(&backend, &mut levels, call).unwrap()
            });
            assert_eq!(a, b, "{case:?}, {threads} threads");
            assert!(a.iter().any(|head| !head.is_empty()), "{case:?}");
            assert!(a.iter().all(|head| head.len() <= case.budgets[1]), "{case:?}");
        }
    }
}

/// With all clusters in the best groups the choice is that without groups.
#[test]
fn groups_of_all_clusters_change_nothing() {
    let backend = backend(2);
    let wide = Case { hkv: 2, group: 7, dh: 64, rank: 32, clusters: 300, ..CASE };
    for (seed, case) in [CASE, Case { budgets: [1500, 400], ..wide }].iter().enumerate() {
        let choose = |scored: Option<usize>| {
            let mut levels = case.levels(&backend, seed as u64);
            levels.groups = Case { scored, ..*case }.levels(&backend, seed as u64).groups;
            let mut found = case.search(&backend, &mut levels, at_once).unwrap();
            // They are in the order of the clusters that scored best, whose sums round otherwise.
            found.iter_mut().for_each(|head| head.sort_unstable());
            found
        };
        assert_eq!(choose(Some(case.clusters)), choose(None));
        assert_ne!(choose(Some(case.clusters / 4)), choose(None));
    }
}

/// A group that begins behind the last cluster, and clusters of a list that weigh by their size.
#[test]
fn groups_that_there_are_not_are_refused() {
    let backend = backend(2);
    let case = Case { scored: Some(40), ..CASE };
    let mut levels = case.levels(&backend, 1);
    let groups = levels.groups.as_mut().unwrap();
    groups.starts = ints(&backend, &vec![100_000; 3 * groups.stride]);
    let error = case.search(&backend, &mut levels, at_once).unwrap_err();
    assert!(matches!(error, OpError::Index { .. }), "{error}");
    let weighted = Case { pooling: Pooling::SizeWeighted, ..case };
    let error = weighted.search(&backend, &mut case.levels(&backend, 1), at_once).unwrap_err();
    assert!(error.to_string().contains("clusters of a list"), "{error}");
}

/// A cluster that begins behind the last token, and more clusters than there are.
#[test]
fn rows_and_counts_that_there_are_not_are_refused() {
    let backend = backend(2);
    let mut levels = CASE.levels(&backend, 1);
    levels.clusters.starts = ints(&backend, &vec![100_000; 3 * levels.clusters.stride]);
    let error = CASE.search(&backend, &mut levels, at_once).unwrap_err();
    assert!(matches!(error, OpError::Index { what: "row", .. }), "{error}");
    let mut levels = CASE.levels(&backend, 1);
    levels.clusters.n = ints(&backend, &[1, 5000, 1]);
    let error = CASE.search(&backend, &mut levels, at_once).unwrap_err();
    assert!(matches!(error, OpError::Index { index: 5000, .. }), "{error}");
    let mut levels = CASE.levels(&backend, 1);
    levels.tokens.budgets = ints(&backend, &[60, 500, 60]);
    let error = CASE.search(&backend, &mut levels, at_once).unwrap_err();
    assert!(error.to_string().contains("room for 60"), "{error}");
    // Keys of fewer tokens than there are, and more tokens than the list has room for.
    let case = Case { again: Some((120, DType::F16)), ..CASE };
    let mut levels = case.levels(&backend, 1);
    levels.again.as_mut().unwrap().head_stride = 40;
    let error = case.search(&backend, &mut levels, at_once).unwrap_err();
    assert!(matches!(error, OpError::Index { what: "number of tokens", .. }), "{error}");
    let mut levels = case.levels(&backend, 1);
    levels.again.as_mut().unwrap().budgets = ints(&backend, &[120, 121, 120]);
    let error = case.search(&backend, &mut levels, at_once).unwrap_err();
    assert!(matches!(error, OpError::Index { what: "tokens scored again", .. }), "{error}");
}
