//! Tests of what a session file and a fork take from a sequence.

use longview_ops::ReferenceBackend;

use super::super::fixture::{
    check_rows, clusters, heavy_hitters, in_place, made, options, prefilled, shape, streaming,
};
use super::super::options::{HostStoreKind, Placement};
use super::*;
use crate::eviction::KeptRecord;
use crate::index::ClustersRecord;
use crate::policy::{BudgetOption, PolicyOptions, Preset};
use crate::session_file::{
    Fingerprint, FingerprintPart, SaveOptions, SessionContent, SessionFile, restore_sequence,
    save_sequence,
};

/// Ten tokens: a sink, six rows in two batches, three pending. Head 0 has units of 2, 1 and 3
/// rows, head 1 of 3 and 3.
fn sound() -> RecallRecord<'static> {
    let units = |sizes: &[u32]| ClustersRecord { sizes: sizes.to_vec(), ..Default::default() };
    let batches = vec![(4, vec![2, 1]), (7, vec![3, 2])];
    let heads = vec![units(&[2, 1, 3]), units(&[3, 3])];
    let heads_chosen = vec![vec![[2, 3], [0, 1]], vec![[1, 2]]];
    RecallRecord {
        n_indexed: 7,
        is_submitted: false,
        budgets: None,
        projection: None,
        low_rank: None,
        index: IndexRecord { width: 4, is_coded: false, batches, heads },
        tokens: None,
        selection: Some(SelectionRecord { n_tokens: 9, n_indexed: 7, heads: heads_chosen }),
    }
}

fn is_sound(change: impl FnOnce(&mut RecallRecord<'_>)) -> bool {
    let mut record = sound();
    change(&mut record);
    record.is_sound(1, 8, 10)
}

#[test]
fn a_record_that_says_where_all_rows_are_is_sound() {
    assert!(is_sound(|_| {}));
    assert!(is_sound(|r| r.selection = None));
}

#[test]
fn units_that_miss_or_share_rows_are_not() {
    assert!(!is_sound(|r| r.index.heads[0].sizes[1] = 2));
    assert!(!is_sound(|r| r.index.heads[1].sizes = vec![4, 2]), "a unit over two batches");
    assert!(!is_sound(|r| r.index.heads[0].sizes = vec![3, 0, 3]), "an empty unit");
    assert!(!is_sound(|r| r.index.heads[1].sizes.push(1)), "a unit of no batch");
    assert!(!is_sound(|r| r.n_indexed = 6));
    assert!(!sound().is_sound(2, 8, 10), "rows of the sinks");
}

#[test]
fn no_more_rows_may_wait_than_the_ring_has_room_for() {
    assert!(sound().is_sound(1, 4, 10));
    assert!(!sound().is_sound(1, 3, 10), "three wait, and the next token comes");
    assert!(!sound().is_sound(1, 8, 6), "more rows are indexed than there are");
}

#[test]
fn a_choice_is_of_units_that_exist_and_have_as_many_rows() {
    let chosen = |pair: [u32; 2]| is_sound(|r| r.selection.as_mut().unwrap().heads[1] = vec![pair]);
    assert!(chosen([1, 3]));
    assert!(!chosen([1, 4]));
    assert!(!chosen([1, 0]));
    assert!(!chosen([2, 1]), "head 0 has a third unit, head 1 has not");
    let twice = vec![[2, 1], [0, 1], [2, 1]];
    assert!(!is_sound(|r| r.selection.as_mut().unwrap().heads[0] = twice), "a unit twice");
}

/// With two stages a selection names tokens, which must cover the same rows.
#[test]
fn tokens_of_a_second_stage_cover_what_is_clustered() {
    let tokens = |n: usize| {
        let head = ClustersRecord { sizes: vec![1; n], ..Default::default() };
        let heads = vec![head.clone(), head];
        IndexRecord { width: 2, is_coded: true, batches: vec![(1 + n, vec![n as u32; 2])], heads }
    };
    let chosen = |unit| {
        let heads = vec![vec![[unit, 1]], vec![]];
        Some(SelectionRecord { n_tokens: 9, n_indexed: 7, heads })
    };
    assert!(is_sound(|r| (r.tokens, r.selection) = (Some(tokens(6)), chosen(5))));
    assert!(!is_sound(|r| (r.tokens, r.selection) = (Some(tokens(6)), chosen(6))));
    assert!(!is_sound(|r| (r.tokens, r.selection) = (Some(tokens(5)), None)));
}

fn restored(policy: Policy, n_tokens: usize) -> Restored<ReferenceBackend> {
    let backend = Arc::new(ReferenceBackend::new());
    let options = options(Placement::InPlace, HostStoreKind::Auto);
    Restored::new(&backend, shape(), policy, options, n_tokens, true).unwrap()
}

#[test]
fn places_are_kept_as_far_as_rows_are_out_of_order() {
    let sequence = prefilled(in_place(clusters()), 20);
    let places = sequence.places(LayerId(1));
    assert_eq!(places.permuted_to, 18);
    for (saved, positions) in places.positions.iter().zip(&sequence.layers[1].positions) {
        assert_eq!(saved, &positions[..18]);
    }
    let mut other = restored(clusters(), 20);
    other.layer(LayerId(1)).0.set_places(&places);
    assert_eq!(other.sequence.layers[1].positions, sequence.layers[1].positions);
    assert_eq!(other.sequence.layers[1].permuted_to, 18);
}

/// A layer of a sequence is the same layer of another one.
#[test]
fn a_layer_that_was_recorded_is_there_again() {
    let sequence = prefilled(in_place(clusters()), 20);
    let mut other = restored(clusters(), 20);
    for layer in shape().layers() {
        let (mut place, mut rows) = other.layer(layer);
        place.set_places(&sequence.places(layer));
        for head in shape().heads() {
            let mut bytes = vec![0; 20 * 32];
            sequence.store.read_rows(layer, head, 0..20, &mut bytes);
            rows.write_rows(head, 0, &bytes);
        }
        let record = pollster::block_on(sequence.layer_record(layer)).unwrap();
        let loaded = place.set(record).unwrap();
        drop(rows);
        other.note_loaded(layer, loaded);
    }
    let other = pollster::block_on(other.finish()).unwrap();
    check_rows(&other);
    for layer in shape().layers() {
        let [before, after] =
            [&sequence, &other].map(|s| pollster::block_on(s.layer_record(layer)).unwrap());
        assert_eq!(before, after);
        assert_eq!(other.layers[layer].n_indexed, 18);
    }
}

/// Where every step attends everything, rows wait for their index: it is not saved, and whoever
/// opens the file makes one where steps need it.
#[test]
fn an_index_that_waits_is_made_where_it_is_needed() {
    let policy = Policy { attend_all: 20, ..clusters() };
    let options_of = |placement| options(placement, HostStoreKind::Auto);
    let indexed = |s: &Sequence<ReferenceBackend>| s.layers[1].n_indexed;
    // The second of two layers has one token left until it searches, the first two.
    let at_end = prefilled(in_place(policy.clone()), 19);
    assert_eq!((at_end.layers[0].n_indexed, indexed(&at_end)), (17, 1));
    assert!(at_end.has_waiting_index());
    assert_eq!(indexed(&prefilled(in_place(policy.clone()), 20)), 18);
    let on_device = prefilled(made(policy.clone(), options_of(Placement::Device)), 16);
    assert_eq!(indexed(&on_device), 14, "a device attends no more than the budget");

    let mut waiting = prefilled(in_place(policy.clone()), 16);
    assert_eq!(indexed(&waiting), 1);
    let fork = pollster::block_on(waiting.fork()).unwrap();
    assert_eq!(indexed(&fork), 1);
    check_rows(&fork);
    let mut said = PolicyOptions::new(Preset::Clusterkv);
    said.budget = Some(BudgetOption::Tokens(16));
    let part = FingerprintPart { digest: [7; 32], about: "a test".into() };
    let fingerprint = Fingerprint {
        config: part.clone(),
        weights: part.clone(),
        tokenizer: None,
        vocabulary: Some(part.clone()),
        rope: part,
    };
    let save = SaveOptions::new(&fingerprint, &said);
    let content = SessionContent { tokens: (0..16).collect(), ..Default::default() };
    let mut file = vec![];
    pollster::block_on(save_sequence(&mut waiting, &save, &content, &mut file)).unwrap();
    for (placement, want) in [(Placement::InPlace, 1), (Placement::Device, 14)] {
        let source = SessionFile::open(&file).unwrap();
        let backend = Arc::new(ReferenceBackend::new());
        let (policy, options) = (policy.clone(), options_of(placement));
        let mut reader = source.read().unwrap();
        reader.content().unwrap();
        let opened = restore_sequence(&backend, shape(), policy, options, &mut reader);
        let opened = pollster::block_on(opened).unwrap();
        assert_eq!(indexed(&opened), want, "{placement:?}");
        check_rows(&opened);
    }
}

fn recorded_nothing() -> RecordedRecord {
    let (gram_q, gram_k) = (vec![0.0; 32], vec![0.0; 32]);
    RecordedRecord { gram_q, gram_k, ..Default::default() }
}

fn set(
    policy: Policy,
    n_tokens: usize,
    state: LayerStateRecord<'_>,
) -> Result<LoadedLayer, SchedulerError> {
    let record = LayerRecord { recorded: recorded_nothing(), state };
    restored(policy, n_tokens).layer(LayerId(0)).0.set(record)
}

/// Four places, a ring of six: a stride of eleven for each of four query heads.
fn kept(n_indexed: usize) -> KeptRecord {
    let rows = vec![vec![[2, 0], [0, 1]], vec![[1, 3]]];
    KeptRecord { n_indexed, capacity: vec![4, 4], rows, mass: vec![0.0; 44] }
}

#[test]
fn kept_rows_wait_in_the_ring_or_are_refused() {
    let with = |kept| set(heavy_hitters(), 10, LayerStateRecord::Kept(kept));
    with(kept(4)).unwrap();
    with(kept(10)).unwrap();
    assert!(with(kept(3)).is_err(), "seven rows do not fit a ring of six");
    assert!(with(kept(11)).is_err(), "more rows than tokens");
    assert!(with(KeptRecord { mass: vec![0.0; 43], ..kept(4) }).is_err());
}

#[test]
fn a_layer_is_in_the_state_that_its_policy_asks_for() {
    set(streaming(), 10, LayerStateRecord::Plain).unwrap();
    for (policy, state) in [
        (streaming(), LayerStateRecord::Kept(kept(4))),
        (heavy_hitters(), LayerStateRecord::Plain),
        (clusters(), LayerStateRecord::Plain),
        (streaming(), LayerStateRecord::Recall(Box::new(sound()))),
    ] {
        let refused = set(policy, 10, state);
        let is_said =
            matches!(refused, Err(SchedulerError::Session(SessionFileError::Inconsistent(_))));
        assert!(is_said, "{refused:?}");
    }
}

#[test]
fn a_window_has_no_rows_out_of_order() {
    let mut permuted = restored(streaming(), 3);
    let positions = vec![vec![1, 0], vec![0, 1]];
    let (mut place, _) = permuted.layer(LayerId(0));
    place.set_places(&PlacesRecord { permuted_to: 2, positions });
    let state = LayerStateRecord::Plain;
    let record = LayerRecord { recorded: recorded_nothing(), state };
    assert!(place.set(record).is_err());
}
