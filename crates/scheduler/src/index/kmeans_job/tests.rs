//! K-means on points that can be clustered by eye, landmarks of blocks and tokens, and what a job
//! keeps from one task to the next.

use longview_core::HeadId;
use longview_ops::BlockSummary;

use super::super::testing::{R, shape, store_of, upload};
use super::*;
use crate::policy::Importance;
use crate::store::LayerRows;

/// K-means by L2 of points of two channels.
fn task(n_kv_heads: usize, n_points: usize, n_clusters: usize) -> ClusterTask {
    ClusterTask {
        layer: LayerId(0),
        row_start: 0,
        kind: TaskKind::Clusters,
        n_kv_heads,
        n_points,
        n_clusters,
        head_dim: 2,
        distance: Distance::L2,
        iterations: 10,
        max_cluster: n_points,
        is_grouped: false,
        seed: 0,
    }
}

/// The same with a seed whose first head begins with the points `start`.
fn started(task: ClusterTask, start: &[u32]) -> ClusterTask {
    let draws = |seed: &u64| SplitMix64::new(*seed).distinct(task.n_points, start.len()) == start;
    let seed = (0..100_000).find(draws).expect("a seed that draws them");
    ClusterTask { n_clusters: start.len(), seed, ..task }
}

fn run(job: &mut ClusterJob<R>, backend: &R, keys: &[[f32; 2]]) {
    job.host_keys().copy_from_slice(keys.as_flattened());
    pollster::block_on(job.run(backend)).unwrap();
}

fn clustered(task: ClusterTask, keys: &[[f32; 2]]) -> ClusterJob<R> {
    let mut job = ClusterJob::new(task);
    run(&mut job, &R::new(), keys);
    job
}

const PAIRS: [[f32; 2]; 4] = [[0.0, 0.0], [0.0, 1.0], [10.0, 0.0], [10.0, 1.0]];

#[test]
fn two_pairs_of_points_are_two_clusters() {
    let job = clustered(started(task(1, 4, 2), &[0, 2]), &PAIRS);
    let head = &job.heads[0];
    assert_eq!((head.order.as_slice(), head.sizes.as_slice()), (&[0, 1, 2, 3][..], &[2, 2][..]));
    assert_eq!(head.centroids, [0.0, 0.5, 10.0, 0.5]);
    assert_eq!(head.radius, [0.5, 0.5]);
    assert_eq!(job.iterations_run, 2, "the second changes no label");
    // Clusters are in the order of their first centroids.
    let job = clustered(started(task(1, 4, 2), &[2, 0]), &PAIRS);
    let head = &job.heads[0];
    assert_eq!(
        (head.order.as_slice(), &head.centroids[..2]),
        (&[2, 3, 0, 1][..], &[10.0, 0.5][..])
    );
}

#[test]
fn iterations_end_at_the_limit_with_means_of_the_last_members() {
    // From points 0 and 1 the first round splits at 0.5, the second at about 3, the third at 5.
    let line = [[0.0, 0.0], [1.0, 0.0], [5.0, 0.0], [6.0, 0.0]];
    let limited = |iterations| {
        let job = clustered(ClusterTask { iterations, ..started(task(1, 4, 2), &[0, 1]) }, &line);
        (job.iterations_run, job.heads[0].sizes.clone(), job.heads[0].centroids.clone())
    };
    assert_eq!(limited(1), (1, vec![1, 3], vec![0.0, 0.0, 4.0, 0.0]));
    let settled = vec![0.5, 0.0, 5.5, 0.0];
    assert_eq!(limited(2), (2, vec![2, 2], settled.clone()));
    assert_eq!(limited(10), (3, vec![2, 2], settled));
}

#[test]
fn members_are_closest_first_and_ties_go_to_the_earlier_token() {
    // The mean is 1.5: distances 1.5, 2.5, 0.5 and 0.5.
    let line = [[0.0, 0.0], [4.0, 0.0], [1.0, 0.0], [1.0, 0.0]];
    let head = &clustered(task(1, 4, 1), &line).heads[0];
    assert_eq!(head.order, [2, 3, 0, 1]);
    assert_eq!((head.centroids.as_slice(), head.radius.as_slice()), (&[1.5, 0.0][..], &[2.5][..]));
}

#[test]
fn near_means_what_the_task_says() {
    let points = [[1.0, 0.0], [0.0, 10.0], [0.25, 1.0]];
    let with = |distance| {
        let task = ClusterTask { distance, ..started(task(1, 3, 2), &[0, 1]) };
        let job = clustered(task, &points);
        (job.heads[0].sizes.clone(), job.heads[0].order.clone())
    };
    assert_eq!(with(Distance::Cosine), (vec![1, 2], vec![0, 1, 2]), "the direction counts");
    assert_eq!(with(Distance::L2), (vec![2, 1], vec![0, 2, 1]), "the place counts");
}

#[test]
fn a_cluster_without_members_vanishes() {
    // Points 0 and 1 are equal, so the second centroid wins none of them.
    let points = [[0.0, 0.0], [0.0, 0.0], [5.0, 0.0]];
    let head = &clustered(started(task(1, 3, 3), &[0, 1, 2]), &points).heads[0];
    assert_eq!((head.sizes.as_slice(), head.order.as_slice()), (&[2, 1][..], &[0, 1, 2][..]));
    assert_eq!((head.centroids.as_slice(), head.radius.len()), (&[0.0, 0.0, 5.0, 0.0][..], 2));
}

#[test]
fn an_oversized_cluster_becomes_parts_in_the_order_of_the_tokens() {
    let mut points = [[0.0, 0.0]; 6];
    points[1] = [9.0, 0.0];
    let split = |max_cluster| {
        let task = started(task(1, 6, 2), &[0, 1]);
        let job = clustered(ClusterTask { max_cluster, ..task }, &points);
        (job.heads[0].sizes.clone(), job.heads[0].order.clone())
    };
    assert_eq!(split(5), (vec![5, 1], vec![0, 2, 3, 4, 5, 1]), "five are not too many");
    assert_eq!(split(4), (vec![3, 1, 2], vec![0, 2, 3, 1, 4, 5]), "parts are nearly equal");
    assert_eq!(split(2), (vec![2, 1, 2, 1], vec![0, 2, 1, 3, 4, 5]));
}

#[test]
fn each_head_splits_its_own_clusters() {
    // Head 0: five and one. Head 1: three and three, none of them too large.
    let (a, b) = ([0.0, 0.0], [9.0, 0.0]);
    let points = [a, a, a, a, a, b, a, a, a, b, b, b];
    // A seed whose draws hold a point of both kinds in both heads.
    let mixed = |seed: &u64| {
        let (mut chosen, task) = (Vec::new(), ClusterTask { seed: *seed, ..task(2, 6, 2) });
        (0..2).all(|head| {
            task.draw_start(head, &mut chosen);
            let kinds = chosen.iter().filter(|i| points[head * 6 + **i as usize] == a);
            kinds.count() == 1
        })
    };
    let seed = (0..100).find(mixed).expect("a third of all seeds do");
    let job = clustered(ClusterTask { max_cluster: 3, seed, ..task(2, 6, 2) }, &points);
    let sorted = |head: &HeadClusters| {
        let mut sizes = head.sizes.clone();
        sizes.sort_unstable();
        sizes
    };
    assert_eq!(sorted(&job.heads[0]), [1, 2, 3]);
    assert_eq!(sorted(&job.heads[1]), [3, 3]);
    let last = &job.heads[0].order[4..];
    assert_eq!(last, [3, 4], "the second part is behind all first ones");
    assert_eq!(job.heads[0].centroids[4..], a, "and is a mean of its own");
}

#[test]
fn parts_of_several_clusters_have_labels_of_their_own() {
    let mut job: ClusterJob<R> = ClusterJob::new(ClusterTask { max_cluster: 2, ..task(1, 8, 2) });
    job.host.labels = vec![0, 1, 0, 1, 0, 1, 1, 1];
    job.host.counts = vec![3, 5];
    assert_eq!(job.split_oversized(2), Some(5));
    assert_eq!(job.host.labels, [0, 1, 0, 1, 2, 3, 3, 4]);
    job.host.counts = vec![2, 2];
    assert_eq!(job.split_oversized(2), None);
    let mut labels = [7, 1, 7, 7, 7, 7];
    relabel_parts(&mut labels, 7, 2, 10);
    assert_eq!(labels, [7, 1, 7, 10, 10, 11]);
}

#[test]
fn room_holds_every_part_of_a_split() {
    let room = |max_cluster| ClusterTask { max_cluster, ..task(1, 9, 3) }.room();
    assert_eq!([room(9), room(4), room(1)], [3 + 2, 3 + 6, 3 + 18]);
    let tokens = ClusterTask { kind: TaskKind::Tokens(1), max_cluster: 1, ..task(1, 9, 9) };
    assert_eq!((tokens.room(), tokens.width()), (9, 1));
}

#[test]
fn starts_are_distinct_and_follow_from_seed_and_head() {
    let draw = |seed, head| {
        let mut chosen = Vec::new();
        ClusterTask { seed, ..task(2, 50, 6) }.draw_start(head, &mut chosen);
        chosen
    };
    let first = draw(4, 0);
    assert_eq!(first, SplitMix64::new(4).distinct(50, 6), "head 0 draws by the seed itself");
    assert_eq!(first, draw(4, 0));
    assert_ne!(first, draw(5, 0));
    assert_ne!(first, draw(4, 1), "heads draw for themselves");
    let mut all = draw(9, 1);
    all.sort_unstable();
    all.dedup();
    assert!(all.len() == 6 && all[5] < 50, "{all:?}");
}

fn blocks(summary: BlockSummary) -> TaskKind {
    let (importance, preselect) = (Importance::Last, None);
    TaskKind::Blocks(BlockConfig { block: 2, summary, n_top: 1, importance, preselect })
}

/// Head 0, then head 1, of four keys each.
const KEYS: [[f32; 2]; 8] = [
    [1.0, 8.0],
    [3.0, 2.0],
    [0.0, 0.0],
    [4.0, 6.0],
    [-1.0, -8.0],
    [-3.0, -2.0],
    [5.0, 5.0],
    [7.0, 1.0],
];

#[test]
fn a_block_of_keys_becomes_its_summary() {
    let landmarks = |summary, mass: &[f32]| {
        let mut job = ClusterJob::new(ClusterTask { kind: blocks(summary), ..task(2, 4, 2) });
        job.mass = mass.to_vec();
        run(&mut job, &R::new(), &KEYS);
        for head in &job.heads {
            assert_eq!((head.sizes.as_slice(), head.order.len()), (&[2, 2][..], 0));
            assert!(head.radius.is_empty(), "blocks have none");
        }
        [job.heads[0].centroids.clone(), job.heads[1].centroids.clone()]
    };
    let means = [[2.0, 5.0, 2.0, 3.0], [-2.0, -5.0, 6.0, 3.0]];
    assert_eq!(landmarks(BlockSummary::Mean, &[]), means);
    let bounds =
        [[3.0, 8.0, 1.0, 2.0, 4.0, 6.0, 0.0, 0.0], [-1.0, -2.0, -3.0, -8.0, 7.0, 5.0, 5.0, 1.0]];
    assert_eq!(landmarks(BlockSummary::MinMax, &[]), bounds);
    // The key of most mass stands for its block.
    let mass = [0.1, 0.9, 0.5, 0.2, 0.9, 0.1, 0.3, 0.4];
    let tops = [[3.0, 2.0, 0.0, 0.0], [-1.0, -8.0, 7.0, 1.0]];
    assert_eq!(landmarks(BlockSummary::Top, &mass), tops);
}

#[test]
fn a_token_is_its_key_in_the_projections_space() {
    let task = ClusterTask { kind: TaskKind::Tokens(1), ..task(2, 4, 4) };
    let mut job = ClusterJob::new(task);
    // Head 0 takes the first channel, head 1 the sum of both.
    job.projection = Some(Arc::new(vec![1.0, 0.0, 1.0, 1.0]));
    run(&mut job, &R::new(), &KEYS);
    assert_eq!(job.heads[0].centroids, [1.0, 3.0, 0.0, 4.0]);
    assert_eq!(job.heads[1].centroids, [-9.0, -5.0, 10.0, 8.0]);
    assert_eq!(job.heads[1].sizes, [1; 4]);
    // Places that steps found are taken as they are.
    job.reset(task);
    job.landmarks = (0..8).map(|i| i as f32).collect();
    run(&mut job, &R::new(), &KEYS);
    assert_eq!(job.heads[0].centroids, [0.0, 1.0, 2.0, 3.0]);
    assert_eq!(job.heads[1].centroids, [4.0, 5.0, 6.0, 7.0]);
    assert_eq!(job.heads[1].sizes, [1; 4]);
}

#[test]
fn keys_from_rows_that_kernels_read_are_those_of_the_host() {
    let backend = R::new();
    let shape = shape(2, 2, 2);
    // Heads of eight rows; keys of the task begin at row 3. A value lies between two keys.
    let store =
        store_of(&shape, |head, row| KEYS[head.index() * 4 + row.saturating_sub(3) % 4].to_vec());
    let mut rows = vec![0.0; shape.layer_elements()];
    let reader = LayerRows::<R> { shape: &shape, store: &store, layer: LayerId(0) };
    for (row, out) in rows.chunks_exact_mut(4).enumerate() {
        out[..2].copy_from_slice(&reader.key(HeadId::new(row / 8), row % 8));
    }
    let rows = upload(&backend, &rows);
    let task = ClusterTask { row_start: 3, ..task(2, 4, 2) };
    let from_host = clustered(task, &KEYS);
    for other in [None, Some(Arc::new(backend.background()))] {
        let mut job = ClusterJob::new(task);
        job.take_keys(&backend, KvView::new(&rows, shape.capacity), other);
        pollster::block_on(job.run(&backend)).unwrap();
        for (got, want) in job.heads.iter().zip(&from_host.heads) {
            assert_eq!((&got.order, &got.sizes), (&want.order, &want.sizes));
            assert_eq!((&got.centroids, &got.radius), (&want.centroids, &want.radius));
        }
    }
}

#[test]
fn rows_that_are_not_there_fail_the_run_and_not_the_next_one() {
    let backend = R::new();
    let mut job = ClusterJob::new(task(1, 4, 2));
    let rows = upload(&backend, &[0.0; 8]);
    job.take_keys(&backend, KvView::new(&rows, 2), None);
    assert!(pollster::block_on(job.run(&backend)).is_err(), "two rows of four");
    job.reset(started(task(1, 4, 2), &[0, 2]));
    run(&mut job, &backend, &PAIRS);
    assert_eq!(job.heads[0].centroids, [0.0, 0.5, 10.0, 0.5]);
}

#[test]
fn a_job_that_is_used_again_forgets_its_result_and_keeps_its_memory() {
    let backend = R::new();
    let mut job = ClusterJob::new(task(2, 6, 3));
    job.reserve(&backend).unwrap();
    let made = backend.allocations();
    run(&mut job, &backend, &[[1.0, 2.0]; 12]);
    job.reset(started(task(1, 4, 2), &[0, 2]));
    assert_eq!((job.heads.len(), job.capacity()), (1, 6));
    run(&mut job, &backend, &PAIRS);
    assert_eq!(job.heads[0].order, [0, 1, 2, 3]);
    assert_eq!((job.heads[0].sizes.len(), job.heads[0].radius.len()), (2, 2));
    assert_eq!(backend.allocations(), made, "a smaller task needs no more");
    job.reset(task(2, 7, 3));
    run(&mut job, &backend, &[[1.0, 2.0]; 14]);
    assert!(backend.allocations() > made, "a larger one does");
}
