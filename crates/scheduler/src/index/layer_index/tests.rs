//! An index on the reference device, batch by batch.

use super::super::testing::{R, floats, shape, words};
use super::*;
use crate::store::fixture::separate_device;

/// Clusters of these sizes whose centroids count up from `first` and whose values are the
/// centroids' negatives.
fn clusters(sizes: &[u32], first: f32) -> HeadClusters {
    let numbers = || (0..2 * sizes.len()).map(|i| first + i as f32);
    HeadClusters {
        order: Vec::new(),
        sizes: sizes.to_vec(),
        centroids: numbers().collect(),
        radius: sizes.iter().map(|size| *size as f32 / 2.0).collect(),
        values: numbers().map(|x| -x).collect(),
    }
}

fn empty(backend: &R) -> LayerIndex<R> {
    LayerIndex::new(backend, &shape(2, 2, 2), 2, 4, 3).unwrap()
}

/// Two batches: rows 2 to 7, then rows 7 to 9.
fn filled(backend: &R, index: LayerIndex<R>) -> LayerIndex<R> {
    let mut index = index;
    index.append(backend, 2, 7, &[clusters(&[3, 2], 1.0), clusters(&[1, 4], 11.0)]).unwrap();
    index.append(backend, 7, 9, &[clusters(&[2], 5.0), clusters(&[1, 1], 15.0)]).unwrap();
    index
}

/// Starts, sizes, counts and centroids of both heads as the device has them.
type OnDevice = (Vec<u32>, Vec<u32>, Vec<u32>, Vec<f32>);

fn on_device(backend: &R, index: &LayerIndex<R>) -> OnDevice {
    (
        words(backend, index.starts()),
        words(backend, index.sizes()),
        words(backend, index.n_clusters()),
        floats(backend, index.centroids()),
    )
}

fn all_of_both_batches() -> OnDevice {
    (
        vec![2, 5, 7, 0, 2, 3, 7, 8],
        vec![3, 2, 2, 0, 1, 4, 1, 1],
        vec![3, 4],
        vec![
            1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, // head 0, one place is free
            11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 18.0,
        ],
    )
}

#[test]
fn batches_follow_each_other_in_every_head() {
    let backend = R::new();
    let index = filled(&backend, empty(&backend));
    assert_eq!(on_device(&backend, &index), all_of_both_batches());
    assert_eq!([index.n_used(0), index.n_used(1)], [3, 4]);
    assert_eq!(index.heads()[1].starts, [2, 3, 7, 8]);
    assert_eq!(index.heads()[1].radius, [0.5, 2.0, 0.5, 0.5]);
    // Centroids of 16 numbers, sizes and starts of 8 each, and 2 counts, of 4 bytes.
    assert_eq!(index.device_bytes(), 4 * (16 + 8 + 8 + 2));
    assert!(index.pairs().is_none());
}

#[test]
fn a_cut_drops_whole_batches_that_reach_beyond_it() {
    let backend = R::new();
    let cut = |n_rows| {
        let mut index = filled(&backend, empty(&backend));
        let left = index.truncate(&backend, n_rows, 2).unwrap();
        (left, words(&backend, index.n_clusters()), index)
    };
    let (left, counts, _) = cut(9);
    assert_eq!((left, counts), (9, vec![3, 4]), "the end of a batch is not beyond it");
    let (left, counts, index) = cut(8);
    assert_eq!((left, counts), (7, vec![2, 2]), "a batch is not cut in two");
    let head = &index.heads()[1];
    assert_eq!((head.starts.as_slice(), head.sizes.as_slice()), (&[2, 3][..], &[1, 4][..]));
    assert_eq!(head.radius, [0.5, 2.0]);
    let record = index.record(&backend);
    assert_eq!(record.heads[1].centroids.len(), 2 * 2 * 4);
    let (left, counts, _) = cut(6);
    assert_eq!((left, counts), (2, vec![0, 0]), "none is left: the first row");
    // What comes after a cut takes the places of what was dropped.
    let (_, _, mut index) = cut(8);
    index.append(&backend, 7, 9, &[clusters(&[2], 5.0), clusters(&[1, 1], 15.0)]).unwrap();
    assert_eq!(on_device(&backend, &index), all_of_both_batches());
}

/// Also on a device whose memory is not the host's, which gets a copy.
#[test]
fn a_fork_and_its_origin_are_changed_without_each_other() {
    for backend in [R::new(), separate_device()] {
        let index = empty(&backend).with_pairs(&backend).unwrap().with_owners(9);
        let mut index = filled(&backend, index);
        let same = filled(&backend, empty(&backend).with_pairs(&backend).unwrap().with_owners(9));
        let before = same.record(&backend);
        assert_eq!(index.record(&backend), before);
        let mut fork = index.fork(&backend).unwrap();
        assert!(Arc::ptr_eq(&index.heads, &fork.heads), "the host's copy is there once");
        fork.truncate(&backend, 9, 2).unwrap();
        assert!(Arc::ptr_eq(&index.heads, &fork.heads), "nothing was cut");
        assert_eq!(on_device(&backend, &fork), all_of_both_batches());
        fork.truncate(&backend, 8, 2).unwrap();
        fork.append(&backend, 7, 9, &[clusters(&[1, 1], 7.0), clusters(&[2], 0.5)]).unwrap();
        assert_eq!(on_device(&backend, &index), all_of_both_batches());
        assert_eq!((index.record(&backend), fork.n_used(0)), (before, 4));
        let pairs = [&fork, &index].map(|index| index.pairs.as_ref().unwrap());
        if pairs[0].has_copies() {
            let [fork, own] = pairs.map(|pairs| pairs.get(&backend, 0, 0..1).as_ptr());
            assert_eq!(fork, own, "what is not cut is there once");
        }
        let second = fork.fork(&backend).unwrap();
        assert_eq!(second.record(&backend), fork.record(&backend));
        assert_eq!(second.heads[0].owners, fork.heads[0].owners);
        let used = |index: &LayerIndex<R>| {
            let pairs = index.pairs().map(|pairs| floats(&backend, View::all(pairs.buffer)));
            let (starts, sizes, counts, centroids) = on_device(&backend, index);
            // Head 0 fills its places, head 1 leaves one free.
            (
                starts[..7].to_vec(),
                sizes[..7].to_vec(),
                counts,
                centroids[..14].to_vec(),
                pairs.unwrap()[..28].to_vec(),
            )
        };
        assert_eq!(used(&second), used(&fork));
    }
}

#[test]
fn a_cluster_with_its_mean_value_is_a_kv_row() {
    let backend = R::new();
    let index = empty(&backend).with_pairs(&backend).unwrap();
    let mut index = filled(&backend, index);
    let rows = [
        [1.0, 2.0, -1.0, -2.0],
        [3.0, 4.0, -3.0, -4.0],
        [5.0, 6.0, -5.0, -6.0],
        [0.0; 4],
        [11.0, 12.0, -11.0, -12.0],
        [13.0, 14.0, -13.0, -14.0],
        [15.0, 16.0, -15.0, -16.0],
        [17.0, 18.0, -17.0, -18.0],
    ];
    let pairs = index.pairs().unwrap();
    assert_eq!((pairs.head_stride, pairs.offset), (4, 0));
    assert_eq!(floats(&backend, View::all(pairs.buffer)), rows.concat());
    assert_eq!(index.device_bytes(), 4 * (16 + 8 + 8 + 2 + 32));
    index.truncate(&backend, 8, 2).unwrap();
    let left = index.record(&backend).heads[0].pairs.len();
    assert_eq!(left, 2 * 4 * 4, "two rows of four numbers");
}

#[test]
fn owners_say_which_cluster_a_row_is_in_also_after_a_cut_and_from_a_record() {
    let backend = R::new();
    let mut index = filled(&backend, empty(&backend).with_owners(7));
    let owners = |index: &LayerIndex<R>| [0, 1].map(|h| index.heads()[h].owners.clone());
    let all = [vec![0, 0, 0, 1, 1, 2, 2], vec![0, 1, 1, 1, 1, 2, 3]];
    assert_eq!(owners(&index), all);
    let mut loaded = empty(&backend).with_owners(7);
    assert!(loaded.load(&backend, 2, index.record(&backend)).unwrap());
    assert_eq!(owners(&loaded), all);
    index.truncate(&backend, 8, 2).unwrap();
    assert_eq!(owners(&index), all.map(|owners| owners[..5].to_vec()));
    assert_eq!(owners(&filled(&backend, empty(&backend))), [vec![], vec![]]);
}

#[test]
fn closed_clusters_look_empty_to_the_device_alone() {
    let backend = R::new();
    let mut index = empty(&backend);
    index.append(&backend, 2, 7, &[clusters(&[3, 2], 1.0), clusters(&[1, 4], 11.0)]).unwrap();
    index.narrow(&backend, 1, vec![false, true]).unwrap();
    assert_eq!(words(&backend, index.sizes()), [3, 2, 0, 0, 0, 4, 0, 0]);
    assert_eq!(index.heads()[1].sizes, [1, 4], "the host keeps them");
    index.append(&backend, 7, 9, &[clusters(&[2], 5.0), clusters(&[1, 1], 15.0)]).unwrap();
    assert_eq!(words(&backend, index.sizes()), [3, 2, 2, 0, 0, 4, 1, 1], "later ones are open");
    index.restore(&backend, &backend).unwrap();
    assert_eq!(words(&backend, index.sizes()), [3, 2, 2, 0, 0, 4, 1, 1]);
    index.truncate(&backend, 8, 2).unwrap();
    assert_eq!(index.heads()[1].open, [false, true]);
}

#[test]
fn a_lost_device_is_filled_from_the_host() {
    let backend = R::new();
    let index = empty(&backend).with_pairs(&backend).unwrap();
    let mut index = filled(&backend, index);
    let pairs = floats(&backend, View::all(index.pairs().unwrap().buffer));
    let fresh = R::new();
    index.restore(&backend, &fresh).unwrap();
    assert_eq!(fresh.allocations(), 5);
    assert_eq!(on_device(&fresh, &index), all_of_both_batches());
    assert_eq!(floats(&fresh, View::all(index.pairs().unwrap().buffer)), pairs);
}

#[test]
fn a_record_makes_the_same_index() {
    let backend = R::new();
    let index = empty(&backend).with_pairs(&backend).unwrap();
    let mut index = filled(&backend, index);
    index.narrow(&backend, 0, vec![true, false, true]).unwrap();
    let record = index.record(&backend);
    assert_eq!(record.batches, [(7, vec![2, 2]), (9, vec![3, 4])]);
    assert!(record.covers(2, 9));
    let mut loaded = empty(&backend).with_pairs(&backend).unwrap();
    assert!(loaded.load(&backend, 2, record.clone()).unwrap());
    assert_eq!(on_device(&backend, &loaded), on_device(&backend, &index));
    assert_eq!(loaded.record(&backend), record);
    assert_eq!(loaded.truncate(&backend, 8, 2).unwrap(), 7);
}

#[test]
fn a_record_of_another_index_is_refused() {
    let backend = R::new();
    let index = filled(&backend, empty(&backend));
    let record = index.record(&backend);
    let load = |index: LayerIndex<R>, record: IndexRecord<'_>| {
        let mut index = index;
        let is_taken = index.load(&backend, 2, record).unwrap();
        assert_eq!(is_taken, index.n_used(0) > 0, "nothing of a refused record stays");
        is_taken
    };
    assert!(load(empty(&backend), record.clone()));
    assert!(!load(empty(&backend), IndexRecord { width: 3, ..record.clone() }));
    let small = LayerIndex::new(&backend, &shape(2, 2, 2), 2, 3, 3).unwrap();
    assert!(!load(small, record.clone()), "head 1 has four clusters");
    let paired = empty(&backend).with_pairs(&backend).unwrap();
    assert!(!load(paired, record.clone()), "mean values are missing");
    let mut short = record.clone();
    short.heads[1].centroids.to_mut().pop();
    assert!(!load(empty(&backend), short));
    let mut short = record.clone();
    short.heads[1].radius.pop();
    assert!(!load(empty(&backend), short));
    let mut blocks = record;
    blocks.heads.iter_mut().for_each(|head| head.radius.clear());
    assert!(load(empty(&backend), blocks), "units other than clusters have no radius");
}

/// Each batch begins a group, and there is room for as many as a policy makes.
#[test]
fn a_record_of_more_batches_than_there_is_room_for_is_refused() {
    let backend = R::new();
    let grouped = || {
        let index = empty(&backend).with_pairs(&backend).unwrap();
        index.with_groups(&backend, 3, 32).unwrap()
    };
    let index = filled(&backend, grouped());
    let mut record = index.record(&backend);
    assert!(grouped().load(&backend, 2, record.clone()).unwrap());
    record.batches = vec![(4, vec![1, 1]), (7, vec![2, 2]), (8, vec![3, 3]), (9, vec![3, 4])];
    assert!(!grouped().load(&backend, 2, record).unwrap());
}

#[test]
#[should_panic(expected = "more clusters than the policy's bound")]
fn more_clusters_than_there_is_room_for_is_a_broken_bound() {
    let backend = R::new();
    let mut index = empty(&backend);
    let five = || clusters(&[1; 5], 0.0);
    let _ = index.append(&backend, 0, 5, &[five(), five()]);
}

#[test]
#[should_panic(expected = "clusters do not cover their rows")]
fn clusters_that_leave_a_row_out_are_a_broken_invariant() {
    let backend = R::new();
    let _ = empty(&backend).append(&backend, 0, 5, &[clusters(&[2, 2], 0.0)]);
}
