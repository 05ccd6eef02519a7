//! Kept rows on hand-made masses: two KV heads of two query heads each.

use std::sync::Arc;

use longview_core::{DType, HeadId, LayerId, encode_f32};
use longview_ops::ReferenceBackend;

use super::*;
use crate::policy::PoolOrder;
use crate::store::HostStore;
use crate::store::fixture::{self, Buffer, floats, full_stores, read_floats, row};

/// Rows of the ring of a head: two recent ones and a window of two.
const RING: usize = 4;

/// Head 0 has four places, head 1 one.
const CAPACITY: [usize; 2] = [4, 1];

/// Sums of a query head: four places, the ring, and one.
const STRIDE: usize = 9;

fn shape() -> KvShape {
    KvShape { capacity: 10, ..fixture::shape() }
}

fn places(in_place: bool) -> KeptPlaces {
    let layout = DeviceLayout { sinks: 0, ring: RING, slots: 0 };
    KeptPlaces { in_place, layout, n_kv_heads: 2 }
}

fn config(statistic: Statistic) -> KeptConfig {
    let (kernel, pool) = (1, longview_ops::PoolKind::Max);
    KeptConfig { statistic, window: 2, kernel, pool, order: PoolOrder::GroupFirst }
}

fn kept_rows(rows: &[[u32; 2]]) -> Vec<KeptRow> {
    rows.iter().map(|[row, slot]| KeptRow { row: *row, slot: *slot }).collect()
}

/// Head 0 keeps rows 4, 1, 2 and 0, in places that have another order; head 1 keeps row 3.
fn kept(backend: &ReferenceBackend) -> Kept<ReferenceBackend> {
    let mut kept = Kept::new(backend, &shape(), CAPACITY.to_vec(), RING).unwrap();
    kept.rows[0] = kept_rows(&[[4, 2], [1, 0], [2, 3], [0, 1]]);
    kept.rows[1] = kept_rows(&[[3, 0]]);
    kept
}

/// Sums on the device: four places, then rows 6 to 9 and the token's own.
const MASS: [[f32; STRIDE]; 4] = [
    [1.0, 50.0, 0.5, 60.0, 0.5, 0.75, 8.0, 9.0, 0.0],
    [1.0, 50.0, 0.25, 60.0, 1.0, 0.0, 8.5, 9.5, 0.0],
    [90.0, 0.0, 0.0, 0.0, 0.125, 0.25, 6.0, 7.0, 0.0],
    [90.0, 0.0, 0.0, 0.0, 0.25, 0.25, 6.5, 7.5, 0.0],
];

/// The window that rows 6 and 7 leave, and 8 and 9 do not.
const WINDOW: RechooseWindow = RechooseWindow { leaving: 6..8, recent: 2 };

fn set_mass(backend: &ReferenceBackend, kept: &mut Kept<ReferenceBackend>, mass: &[f32]) {
    backend.write(ViewMut::all(&mut kept.mass), bytemuck::cast_slice(mass)).unwrap();
}

fn rechosen(
    backend: &ReferenceBackend,
    statistic: Statistic,
    in_place: bool,
    mover: &mut RowMover<ReferenceBackend>,
) -> (Kept<ReferenceBackend>, usize) {
    let mut kept = kept(backend);
    set_mass(backend, &mut kept, &MASS.concat());
    let (config, places) = (config(statistic), places(in_place));
    let choice = kept.rechoose(backend, &config, &places, &WINDOW, mover);
    let evicted = pollster::block_on(choice).unwrap();
    (kept, evicted)
}

fn mover(backend: &ReferenceBackend, mapped: bool) -> RowMover<ReferenceBackend> {
    RowMover::new(backend, &shape(), 4, mapped).unwrap()
}

#[test]
fn a_head_keeps_the_rows_of_most_attention_the_first_among_equals() {
    let backend = ReferenceBackend::new();
    let mut kept = Kept::new(&backend, &shape(), vec![2, 3], RING).unwrap();
    kept.choose(&[0.1, 0.5, 0.3, 0.5, 0.2, 1.0, 2.0, 5.0, 4.0, 3.0], 5);
    assert_eq!(kept.rows[0], kept_rows(&[[1, 0], [3, 1]]));
    assert_eq!(kept.rows[1], kept_rows(&[[2, 0], [3, 1], [4, 2]]));
    assert_eq!((kept.n_kept(), kept.n_pool_rows()), (5, 5));
    // Heads' places follow each other in the pool.
    let pool_rows: Vec<usize> = shape()
        .heads()
        .flat_map(|h| kept.rows[h].iter().map(move |k| (h, *k)))
        .map(|(h, k)| kept.pool_row(h, k))
        .collect();
    assert_eq!(pool_rows, [0, 1, 2, 3, 4]);
}

#[test]
fn a_prompt_that_fits_is_kept_whole_and_an_empty_one_not_at_all() {
    let backend = ReferenceBackend::new();
    let mut kept = Kept::new(&backend, &shape(), vec![3, 3], RING).unwrap();
    kept.choose(&[], 0);
    assert_eq!(kept.n_kept(), 0);
    kept.choose(&[0.5, 1.0, 2.0, 2.0], 2);
    assert_eq!(kept.rows[0], kept_rows(&[[1, 0], [0, 1]]));
    assert_eq!(kept.rows[1], kept_rows(&[[0, 0], [1, 1]]));
}

/// Rows 6 and 7 took the places of what head 0 kept last, rows 2 and 0, whose masses no longer
/// count. Of the others row 1 received 2, row 6 1.5, rows 4 and 7 0.75. Head 1 has one place and
/// lost its row to the first of the two; row 7 received 0.5, row 6 0.375.
#[test]
fn a_new_choice_keeps_places_of_rows_that_stay_and_gives_free_ones_to_new_rows() {
    let backend = ReferenceBackend::new();
    for in_place in [true, false] {
        let mut mover = mover(&backend, true);
        let (kept, evicted) = rechosen(&backend, Statistic::AllQueries, in_place, &mut mover);
        assert_eq!(kept.rows[0], kept_rows(&[[1, 0], [6, 1], [4, 2], [7, 3]]));
        assert_eq!(kept.rows[1], kept_rows(&[[7, 0]]));
        // Rows 2 and 0 of head 0, rows 3 and 6 of head 1.
        assert_eq!(evicted, 4);
        assert_eq!(mover.len(), if in_place { 0 } else { 3 });
    }
}

/// The pool lies behind the rings of both heads: row 8 is its first, row 12 that of head 1.
#[test]
fn rows_that_are_new_are_carried_into_the_pool_and_no_others() {
    let backend = Arc::new(ReferenceBackend::new());
    for (store, mapped) in full_stores(&backend, &shape()).iter().zip([true, false]) {
        let mut mover = mover(&backend, mapped);
        // What was listed before is not carried again.
        mover.push(HeadId(1), 0, 0);
        rechosen(&backend, Statistic::AllQueries, false, &mut mover);
        let mut buffer = floats(&backend, &[0.0; 13 * 8]);
        let pool = DeviceRows { buffer: &mut buffer, head_stride: 0 };
        mover.load(&*backend, &shape(), &**store, LayerId(1), pool).unwrap();
        let mut want = vec![[0.0; 8]; 13];
        (want[8 + 1], want[8 + 3]) = (row(LayerId(1), HeadId(0), 6), row(LayerId(1), HeadId(0), 7));
        want[8 + 4] = row(LayerId(1), HeadId(1), 7);
        assert_eq!(read_floats(&backend, &buffer), want.concat());
    }
}

#[test]
fn mass_follows_its_row_where_all_queries_count() {
    let backend = ReferenceBackend::new();
    let mut mover = mover(&backend, true);
    let (kept, _) = rechosen(&backend, Statistic::AllQueries, true, &mut mover);
    // Rows 1, 6, 4 and 7, then 8 and 9, which do not leave the window.
    let want = [
        [1.0, 0.5, 0.5, 0.75, 8.0, 9.0, 0.0, 0.0, 0.0],
        [1.0, 1.0, 0.25, 0.0, 8.5, 9.5, 0.0, 0.0, 0.0],
        [0.25, 0.0, 0.0, 0.0, 6.0, 7.0, 0.0, 0.0, 0.0],
        [0.25, 0.0, 0.0, 0.0, 6.5, 7.5, 0.0, 0.0, 0.0],
    ];
    assert_eq!(read_floats(&backend, &kept.mass), want.concat());
    assert_eq!(kept.host_mass, want.concat());
}

#[test]
fn a_choice_by_the_last_queries_begins_again_at_zero() {
    let backend = ReferenceBackend::new();
    let mut mover = mover(&backend, true);
    let (kept, evicted) = rechosen(&backend, Statistic::LastQueries(2), true, &mut mover);
    assert_eq!(kept.rows[0], kept_rows(&[[1, 0], [6, 1], [4, 2], [7, 3]]));
    assert_eq!(evicted, 4);
    assert_eq!(read_floats(&backend, &kept.mass), [0.0; 4 * STRIDE]);
}

/// A cut left head 0 two rows of four, and the window is full: nothing has to go.
#[test]
fn a_head_with_room_lets_go_of_nothing() {
    let backend = ReferenceBackend::new();
    let mut kept = kept(&backend);
    kept.rows[0].truncate(2);
    kept.rows[1].clear();
    set_mass(&backend, &mut kept, &MASS.concat());
    let (window, mut mover) = (RechooseWindow { leaving: 6..7, recent: 2 }, mover(&backend, true));
    let (config, places) = (config(Statistic::AllQueries), places(true));
    let choice = kept.rechoose(&backend, &config, &places, &window, &mut mover);
    assert_eq!(pollster::block_on(choice).unwrap(), 0);
    assert_eq!(kept.rows[0], kept_rows(&[[1, 0], [6, 1], [4, 2]]));
    assert_eq!(kept.rows[1], kept_rows(&[[6, 0]]));
}

#[test]
fn decode_begins_with_the_sums_of_the_prompt() {
    let backend = ReferenceBackend::new();
    let mut kept = kept(&backend);
    // Query head g gave row r 10 g + r.
    let prompt: Vec<f32> = (0..4).flat_map(|g| (0..10).map(move |r| (10 * g + r) as f32)).collect();
    kept.carry_mass(&backend, &shape(), &prompt, 6..8).unwrap();
    let want = [
        [1.0, 0.0, 4.0, 2.0, 6.0, 7.0, 0.0, 0.0, 0.0],
        [11.0, 10.0, 14.0, 12.0, 16.0, 17.0, 0.0, 0.0, 0.0],
        [23.0, 0.0, 0.0, 0.0, 26.0, 27.0, 0.0, 0.0, 0.0],
        [33.0, 0.0, 0.0, 0.0, 36.0, 37.0, 0.0, 0.0, 0.0],
    ];
    assert_eq!(read_floats(&backend, &kept.mass), want.concat());
}

/// With rows 6, 7 and 8 pending and two recent ones, head 0 attends three of its four, head 1 none.
#[test]
fn every_new_row_takes_the_place_of_the_one_that_was_kept_last() {
    let backend = ReferenceBackend::new();
    let kept = kept(&backend);
    let mut lists = RowLists::new(&backend, 2, 8, false).unwrap();
    kept.list(&places(true), &(6..9), 2, &mut lists);
    assert_eq!(lists.head(HeadId(0)), [6, 7, 8, 4, 1, 2]);
    assert_eq!(lists.head(HeadId(1)), [6, 7, 8]);
    // In the ring of four a row lies at its remainder; places of head 0 begin at 8.
    kept.list(&places(false), &(6..9), 2, &mut lists);
    assert_eq!(lists.head(HeadId(0)), [2, 3, 0, 8 + 2, 8, 8 + 3]);
    assert_eq!(lists.head(HeadId(1)), [4 + 2, 4 + 3, 4]);
    // With no more than the recent ones pending, all are attended.
    kept.list(&places(false), &(6..8), 2, &mut lists);
    assert_eq!(lists.head(HeadId(0)), [2, 3, 8 + 2, 8, 8 + 3, 8 + 1]);
    assert_eq!(lists.head(HeadId(1)), [4 + 2, 4 + 3, 8 + 4]);
}

/// What the key of a row is worth to a query of 2 in its first element: with a scale of a half and
/// a log-sum-exp of 0, a query of 2 gives the row this much, a query of 4 its square.
fn worth(head: HeadId, row: usize) -> f32 {
    1.0 + head.0 as f32 / 2.0 + row as f32 / 16.0
}

fn key_of(head: HeadId, row: usize) -> [f32; 8] {
    [worth(head, row).ln(), 5.0, 5.0, 5.0, 1.0, 1.0, 1.0, 1.0]
}

/// Rows 0 to 8 where attention reads them: in the host store, or in rings and pool.
fn measured_rows(
    backend: &ReferenceBackend,
    kept: &Kept<ReferenceBackend>,
    in_place: bool,
) -> Buffer {
    let mut rows = vec![[0.0; 8]; 20];
    for head in shape().heads() {
        if in_place {
            (0..9).for_each(|r| rows[head.index() * 10 + r] = key_of(head, r));
        } else {
            (6..9).for_each(|r| rows[head.index() * RING + r % RING] = key_of(head, r));
            for k in &kept.rows[head] {
                let first = [8, 12][head];
                rows[first + k.slot as usize] = key_of(head, k.row as usize);
            }
        }
    }
    floats(backend, &rows.concat())
}

/// Adds the attention of the second of two tokens, whose row is 8; rows 6 and 7 are pending too.
fn measure(backend: &ReferenceBackend, kept: &mut Kept<ReferenceBackend>, in_place: bool) {
    let rows = measured_rows(backend, kept, in_place);
    let query = |g: usize| [if g.is_multiple_of(2) { 2.0 } else { 4.0 }, 0.0, 0.0, 0.0];
    let own: Vec<f32> = (0..4).flat_map(query).collect();
    let q = floats(backend, &[vec![1.0; 16], own].concat());
    let lse = floats(backend, &[3.0, 3.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0]);
    let (kv, mut out) = (floats(backend, &[0.0; 16]), floats(backend, &[0.0; 32]));
    let t = LayerTensors {
        q: View::all(&q),
        k: View::all(&kv),
        v: View::all(&kv),
        out: ViewMut::all(&mut out),
    };
    let rows = KvView::new(&rows, if in_place { 10 } else { 0 });
    let observed = ObservedToken { t: &t, index: 1, lse: View::all(&lse), rows };
    kept.measure(backend, &shape(), &places(in_place), &(6..9), &observed).unwrap();
}

/// The sums after `times` tokens: places 0 to 3 of head 0 have rows 1, 0, 4 and 2, place 0 of head
/// 1 row 3, and places without a row the token's own, 8.
#[track_caller]
fn check_measured(backend: &ReferenceBackend, kept: &Kept<ReferenceBackend>, times: usize) {
    let rows = [[1, 0, 4, 2, 6, 7, 8], [3, 8, 8, 8, 6, 7, 8]];
    let sums = read_floats(backend, &kept.mass);
    for (g, sums) in sums.chunks_exact(STRIDE).enumerate() {
        let head = HeadId::new(g / 2);
        for (sum, row) in sums.iter().zip(rows[head]) {
            let gave = worth(head, row).powi(if g.is_multiple_of(2) { 1 } else { 2 });
            let want = times as f32 * gave;
            assert!((sum - want).abs() < 1e-4, "query head {g}, row {row}: {sum}, not {want}");
        }
        assert_eq!(sums[7..], [0.0, 0.0], "nothing is listed behind the token's own");
    }
}

#[test]
fn a_token_adds_what_its_query_gave_to_every_row_that_may_be_chosen() {
    let backend = ReferenceBackend::new();
    for in_place in [true, false] {
        let mut kept = kept(&backend);
        for times in 1..3 {
            measure(&backend, &mut kept, in_place);
            check_measured(&backend, &kept, times);
        }
    }
}

#[test]
fn the_pool_is_filled_from_the_host_a_few_rows_at_a_time() {
    let backend = Arc::new(ReferenceBackend::new());
    let (shape, kept) = (shape(), kept(&backend));
    for (store, mapped) in full_stores(&backend, &shape).iter().zip([true, false]) {
        for stride in [1, 3, 4] {
            let mut mover = RowMover::new(&*backend, &shape, stride, mapped).unwrap();
            let mut buffer = floats(&backend, &[0.0; 13 * 8]);
            let rows = LayerRows { shape: &shape, store: &**store, layer: LayerId(1) };
            kept.load(&backend, rows, &places(false), &mut mover, &mut buffer).unwrap();
            let pool = [
                row(LayerId(1), HeadId(0), 1),
                row(LayerId(1), HeadId(0), 0),
                row(LayerId(1), HeadId(0), 4),
                row(LayerId(1), HeadId(0), 2),
                row(LayerId(1), HeadId(1), 3),
            ];
            let want = [vec![0.0; 8 * 8], pool.concat()].concat();
            assert_eq!(read_floats(&backend, &buffer), want, "{stride} at a time");
        }
    }
}

/// Cut to three tokens: nothing is pending, and row 4 is gone.
#[test]
fn a_cut_forgets_later_rows_and_what_they_received() {
    let backend = ReferenceBackend::new();
    let mut kept = kept(&backend);
    set_mass(&backend, &mut kept, &[1.0; 4 * STRIDE]);
    kept.truncate(&backend, 3, 0).unwrap();
    assert_eq!(kept.rows[0], kept_rows(&[[1, 0], [2, 3], [0, 1]]), "places stay");
    assert_eq!(kept.rows[1], [], "row 3 is the first that is cut");
    let want = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0].repeat(4);
    assert_eq!(read_floats(&backend, &kept.mass), want);
    // In the middle of a prompt more is pending than there are places for.
    kept.truncate(&backend, 3, 100).unwrap();
    assert_eq!(read_floats(&backend, &kept.mass), want);
}

#[test]
fn a_cut_keeps_what_rows_before_it_received() {
    let backend = ReferenceBackend::new();
    let mut kept = kept(&backend);
    set_mass(&backend, &mut kept, &[1.0; 4 * STRIDE]);
    kept.truncate(&backend, 7, 1).unwrap();
    assert_eq!(kept.n_kept(), 5);
    let want = [1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0].repeat(4);
    assert_eq!(read_floats(&backend, &kept.mass), want);
}

/// The sums of a fresh device come from the host's copy, which must have forgotten too.
#[test]
fn a_fresh_device_does_not_bring_back_what_a_cut_forgot() {
    let backend = ReferenceBackend::new();
    let mut kept = kept(&backend);
    kept.carry_mass(&backend, &shape(), &[2.0; 40], 6..8).unwrap();
    kept.truncate(&backend, 7, 1).unwrap();
    kept.restore(&ReferenceBackend::new(), &shape(), RING).unwrap();
    let want = [
        [2.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0],
        [2.0, 2.0, 2.0, 2.0, 2.0, 0.0, 0.0, 0.0, 0.0],
        [2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0],
        [2.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 0.0],
    ];
    assert_eq!(read_floats(&backend, &kept.mass), want.concat());
}

#[test]
fn a_fresh_device_goes_on_where_the_last_choice_was() {
    let backend = ReferenceBackend::new();
    let mut kept = kept(&backend);
    measure(&backend, &mut kept, false);
    kept.restore(&backend, &shape(), RING).unwrap();
    assert_eq!(kept.rows[0], kept_rows(&[[4, 2], [1, 0], [2, 3], [0, 1]]));
    assert_eq!(kept.rows[1], kept_rows(&[[3, 0]]));
    assert_eq!(read_floats(&backend, &kept.mass), [0.0; 4 * STRIDE]);
    // Lists that the old device knew are written again.
    measure(&backend, &mut kept, false);
    check_measured(&backend, &kept, 1);
}

#[test]
fn a_record_brings_rows_and_sums_back() {
    let backend = ReferenceBackend::new();
    let mut kept = kept(&backend);
    set_mass(&backend, &mut kept, &MASS.concat());
    let record = pollster::block_on(kept.record(&backend, 6)).unwrap();
    assert_eq!((record.n_indexed, &record.capacity), (6, &vec![4, 1]));
    assert_eq!(record.rows, [vec![[4, 2], [1, 0], [2, 3], [0, 1]], vec![[3, 0]]]);
    let load = |record: &KeptRecord, ring, pending| {
        Kept::from_record(&backend, &shape(), record.clone(), ring, pending).unwrap()
    };
    let same = load(&record, RING, RING).unwrap();
    assert_eq!(read_floats(&backend, &same.mass), MASS.concat());
    assert_eq!((&same.rows, &same.capacity), (&kept.rows, &kept.capacity));
    assert_eq!(pollster::block_on(same.record(&backend, 6)).unwrap(), record);
    // In another context the ring is longer or shorter, and what both have is the same.
    for ring in [RING - 1, RING + 1] {
        let other = load(&record, ring, RING - 1).unwrap();
        let (old, new) = (4 + RING + 1, 4 + ring + 1);
        let mass = read_floats(&backend, &other.mass);
        for (mass, saved) in mass.chunks(new).zip(record.mass.chunks(old)) {
            assert_eq!(mass[..old.min(new)], saved[..old.min(new)]);
            assert!(mass[old.min(new)..].iter().all(|sum| *sum == 0.0));
        }
    }
    assert!(load(&record, RING + 1, RING + 1).is_none(), "a row that waits has no mass");
    assert!(load(&record, RING - 1, RING).is_none(), "a row that waits has no place");
    let short = KeptRecord { mass: record.mass[1..].to_vec(), ..record };
    assert!(load(&short, RING, RING).is_none());
}

#[test]
fn groups_are_averaged_over_the_rows_that_there_are() {
    // Query head g gave row r 10 g + r; only rows 0 and 1 are asked for.
    let mass: Vec<f32> = (0..4).flat_map(|g| (0..10).map(move |r| (10 * g + r) as f32)).collect();
    assert_eq!(group_means(&shape(), &mass, 2), [5.0, 6.0, 25.0, 26.0]);
}

#[test]
fn the_best_come_first_and_the_first_among_equals() {
    assert_eq!(best(&[1.0, 3.0, 2.0, 3.0, 3.0], 3), [1, 3, 4]);
    assert_eq!(best(&[1.0, 3.0, 2.0, 3.0, 3.0], 2), [1, 3]);
    assert_eq!(best(&[2.0, 2.0, 2.0], 2), [0, 1]);
    assert_eq!(best(&[2.0, 5.0], 9), [1, 0], "no more than there are");
    assert_eq!(best(&[2.0], 0), [0; 0]);
    assert_eq!(best(&[-1.0, f32::NEG_INFINITY, -2.0], 2), [0, 2]);
}

/// Ada-KV, algorithm 1: of the best 4 of 8 scores head 0 has three.
#[test]
fn a_head_gets_as_many_rows_as_are_among_the_best_of_all_heads() {
    let scores = [9.0, 8.0, 7.0, 1.0, 6.0, 2.0, 2.0, 2.0];
    assert_eq!(head_capacities(&scores, 4, 2, 0.0), [3, 1]);
    // Half of each head's two is its own whatever the scores: 0.5 * 3 + 1 and 0.5 * 1 + 1.
    assert_eq!(head_capacities(&scores, 4, 2, 0.5), [3, 2]);
    // 0.2 * 2 is less than a row: 0.8 * 3 and 0.8 * 1.
    assert_eq!(head_capacities(&scores, 4, 2, 0.2), [2, 1]);
    assert_eq!(head_capacities(&scores, 4, 2, 1.0), [2, 2]);
    assert_eq!(head_capacities(&scores, 4, 100, 0.2), [4, 4], "no more than there are");
    assert_eq!(head_capacities(&[5.0; 4], 2, 1, 0.0), [2, 0], "the first among equals");
}

/// 15 of the best 20 are of head 0: 0.8 * 15 + 2 and 0.8 * 5 + 2 are 20 again.
#[test]
fn the_safeguard_leaves_the_sum_as_it_is() {
    let mut scores = vec![0.0; 40];
    scores[..15].fill(2.0);
    scores[30..35].fill(1.0);
    assert_eq!(head_capacities(&scores, 20, 10, 0.2), [14, 6]);
}

#[test]
fn half_precision_rows_are_carried_bit_by_bit() {
    let backend = Arc::new(ReferenceBackend::new());
    let shape = KvShape { kv_dtype: DType::F16, ..shape() };
    let mut store = crate::store::PlainStore::new(&shape).unwrap();
    let bytes = encode_f32(DType::F16, &[1.0, 2.0, 3.0, 4.0, -1.0, -2.0, -3.0, -4.0]);
    HostStore::<ReferenceBackend>::write_rows(&mut store, LayerId(0), HeadId(1), 3, &bytes);
    let mut mover = RowMover::new(&*backend, &shape, 4, false).unwrap();
    let mut buffer = backend.alloc(DType::F16, 13 * 8, "test").unwrap();
    let rows = LayerRows { shape: &shape, store: &store, layer: LayerId(0) };
    let kept = kept(&backend);
    kept.load(&backend, rows, &places(false), &mut mover, &mut buffer).unwrap();
    let mut read = vec![0; 16];
    let last = View::part(&buffer, 12 * 8, 8);
    pollster::block_on(backend.read(last, &mut read)).unwrap();
    assert_eq!(read, bytes);
}
