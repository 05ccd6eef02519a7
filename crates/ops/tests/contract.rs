//! The contract holds together: ops, trait methods and cases are the same list, and descriptors
//! refuse what does not fit.

use std::collections::BTreeSet;

use longview_core::DType;
use longview_ops::corpus::{Buffers, Case, Placed, PlannedWeight, Values, cases_of, corpus};
use longview_ops::*;

/// Fewest cases that an op has. The corpus may grow; it does not shrink unseen.
const MIN_CASES: usize = 40;

/// The trait methods that take a descriptor, in order, as the source has them. Those with a body
/// are fused calls of others and no ops.
fn trait_methods() -> Vec<String> {
    let source = include_str!("../src/backend.rs");
    let methods = source.lines().filter(|line| line.contains("(&self, d: ") && line.ends_with(';'));
    let name =
        |line: &str| line.trim().trim_start_matches("fn ").split('(').next().map(str::to_owned);
    methods.filter_map(name).collect()
}

#[test]
fn every_op_is_a_method_of_the_trait_and_the_reverse() {
    let stems: Vec<String> = Op::ALL.iter().map(|op| op.stem().to_owned()).collect();
    let sorted = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    assert_eq!(sorted(&stems), sorted(&trait_methods()));
    assert_eq!(sorted(&stems).len(), stems.len(), "a stem is there twice");
    assert_eq!(trait_methods().len(), stems.len());
}

#[test]
fn stems_parse_back() {
    for op in Op::ALL {
        assert_eq!(op.stem().parse::<Op>().as_ref(), Ok(op));
    }
    assert!("matmull".parse::<Op>().unwrap_err().contains("unknown op 'matmull': one of embed, "));
}

#[test]
fn every_op_has_cases_and_no_name_is_there_twice() {
    for op in Op::ALL {
        let cases = cases_of(*op);
        assert!(cases.len() >= MIN_CASES, "{op} has {} cases", cases.len());
        assert!(cases.iter().all(|case| case.op() == *op));
        let prefix = format!("{op}[");
        assert!(cases.iter().all(|case| case.name().starts_with(&prefix)), "{op}");
        let names: BTreeSet<_> = cases.iter().map(Case::name).collect();
        let twice = cases.len() - names.len();
        assert_eq!(twice, 0, "{op}: a name stands for two cases, or a case is there twice");
    }
}

#[test]
fn data_is_a_function_of_the_name() {
    let case = &cases_of(Op::AttendList)[3];
    let values = |case: &Case| -> Vec<String> {
        case.plan().inputs.iter().map(|i| format!("{:?}", i.values)).collect()
    };
    assert_eq!(values(case), values(&case.clone()));
    assert_ne!(values(case), values(&cases_of(Op::AttendList)[4]));
}

#[test]
fn the_corpus_covers_what_the_house_rules_ask_for() {
    let names: Vec<String> = corpus().iter().map(Case::name).collect();
    let has = |op: Op, parts: &[&str]| {
        for part in parts {
            let prefix = format!("{op}[");
            let found = names.iter().any(|n| n.starts_with(&prefix) && n.contains(part));
            assert!(found, "{op} {part}");
        }
    };
    for op in [Op::Embed, Op::RmsNorm, Op::Matmul, Op::Matvec] {
        has(op, &["w=f32", "w=f16", "w=bf16"]);
    }
    for op in [Op::KvScatter, Op::KvGather, Op::KvKeys, Op::AttendChunk, Op::AttendList] {
        has(op, &["kv=f32", "kv=f16", "kv=bf16"]);
    }
    has(Op::CentroidScores, &["centroids=f32", "centroids=f16", "centroids=bf16"]);
    for op in [Op::AttendChunk, Op::AttendList, Op::CentroidScores, Op::SelectClusters] {
        has(op, &["seqs=0", "seqs=1", "seqs=2", "seqs=3"]);
    }
    for op in [Op::KmeansAssign, Op::KmeansUpdate, Op::ClusterStats, Op::CentroidScores] {
        has(op, &["c=257,", "c=300,", "c=1030,"]);
    }
    has(Op::SelectClusters, &["c=256,", "c=257,", "c=1025,", "c=2500,", "b=0,", "Ties", "Equal"]);
    has(Op::Argmax, &["Nan", "Ties", "Equal"]);
    has(Op::TopK, &["k=1,", "k=40,", "k=256,", "rows=3,v=151936", "Nan", "Ties", "NegInfinite"]);
    has(Op::Matmul, &["accumulate", "bias", "bias,accumulate"]);
    has(Op::AttendChunk, &["dh=20", "dh=40", "dh=64", "dh=80", "dh=128"]);
    has(Op::AttendChunk, &["rows=0", "Sharp", "accumulate", "Past", "Causal"]);
    has(Op::AttendList, &["hq=4,hkv=4", "hq=8,hkv=1", "hq=14,hkv=2", "rows=0", "Sharp"]);
}

/// A case of each op whose inputs and outputs all have elements.
fn full_case(op: Op) -> Case {
    let is_full = |case: &Case| {
        let plan = case.plan();
        plan.inputs.iter().all(|i| i.values.len() > 2) && plan.outputs.iter().all(|o| o.len > 1)
    };
    let with_bias = |case: &Case| !case.plan().weights.is_empty();
    let needs_weight = [Op::Embed, Op::RmsNorm, Op::Matmul, Op::Matvec].contains(&op);
    // What lies in a pool is known to fit only row by row.
    let in_pool = |case: &Case| case.name().ends_with(",pool]");
    let fits = |case: &Case| is_full(case) && !in_pool(case) && (!needs_weight || with_bias(case));
    cases_of(op).into_iter().find(fits).unwrap_or_else(|| cases_of(op).swap_remove(8))
}

/// Launches a case after `spoil` had its way with the buffers.
fn launch_spoilt(
    case: &Case,
    spoil: impl FnOnce(&ReferenceBackend, &mut Buffers<ReferenceBackend>),
) -> OpResult<()> {
    let backend = ReferenceBackend::new();
    let mut buffers = case.plan().upload(&backend)?;
    spoil(&backend, &mut buffers);
    case.launch(&backend, &mut buffers)
}

/// The i-th of the inputs and outputs together.
fn placed(b: &mut Buffers<ReferenceBackend>, i: usize) -> &mut Placed<ReferenceBackend> {
    let n_inputs = b.inputs.len();
    if i < n_inputs { &mut b.inputs[i] } else { &mut b.outputs[i - n_inputs] }
}

fn n_buffers(case: &Case) -> usize {
    case.plan().inputs.len() + case.plan().outputs.len()
}

fn is_kv(case: &Case, i: usize) -> bool {
    let plan = case.plan();
    let name = plan.inputs.get(i).map(|i| i.name);
    let name = name.unwrap_or_else(|| plan.outputs[i - plan.inputs.len()].name);
    ["kv", "means", "src", "dst", "more dst"].contains(&name)
}

#[test]
fn a_view_of_the_wrong_length_is_refused_by_name() {
    for op in Op::ALL {
        let case = full_case(*op);
        for i in (0..n_buffers(&case)).filter(|i| !is_kv(&case, *i)) {
            let wrong: [fn(usize) -> usize; 2] = [|len| len + 1, |len| len - 1];
            for change in wrong {
                let result = launch_spoilt(&case, |_, b| {
                    let view = placed(b, i);
                    view.len = change(view.len);
                });
                let is_named =
                    matches!(result, Err(OpError::Shape { op: named, .. }) if named == *op);
                assert!(is_named, "{} buffer {i}: {result:?}", case.name());
            }
        }
    }
}

#[test]
fn a_buffer_that_ends_too_early_is_refused_by_name() {
    for op in Op::ALL {
        let case = full_case(*op);
        for i in 0..n_buffers(&case) {
            let result = launch_spoilt(&case, |backend, b| {
                let view = placed(b, i);
                let len = view.offset + view.len / 2;
                view.buffer = backend.alloc(view.buffer.dtype(), len, "short").unwrap();
            });
            let is_named = matches!(result, Err(OpError::Shape { op: named, .. }) if named == *op);
            assert!(is_named, "{} buffer {i}: {result:?}", case.name());
        }
    }
}

#[test]
fn a_buffer_of_the_wrong_type_is_refused_by_name() {
    for op in Op::ALL {
        let case = full_case(*op);
        for i in 0..n_buffers(&case) {
            let result = launch_spoilt(&case, |backend, b| {
                let view = placed(b, i);
                let wrong = if view.buffer.dtype().is_float() { DType::U32 } else { DType::F32 };
                view.buffer = backend.alloc(wrong, view.buffer.len(), "wrong").unwrap();
            });
            let is_named = matches!(result, Err(OpError::Type { op: named, .. }) if named == *op);
            assert!(is_named, "{} buffer {i}: {result:?}", case.name());
        }
    }
}

#[test]
fn a_weight_of_the_wrong_shape_is_refused_by_name() {
    for op in [Op::Embed, Op::RmsNorm, Op::Matmul, Op::Matvec] {
        let case = full_case(op);
        let mut plan = case.plan();
        for weight in &mut plan.weights {
            let PlannedWeight::Plain(weight) = weight else { panic!("a plain weight") };
            weight.n_cols += 1;
            weight.bytes = longview_core::HostBytes::from_vec(vec![
                0;
                weight.n_rows
                    * weight.n_cols
                    * weight.dtype.size()
            ]);
        }
        let backend = ReferenceBackend::new();
        let mut buffers = plan.upload(&backend).unwrap();
        let result = case.launch(&backend, &mut buffers);
        let is_named = matches!(result, Err(OpError::Shape { op: named, .. }) if named == op);
        assert!(is_named, "{}: {result:?}", case.name());
    }
}

#[test]
fn an_index_that_points_outside_is_refused_by_name_and_nothing_is_written() {
    for op in Op::ALL {
        let case = full_case(*op);
        for i in 0..case.plan().inputs.len() {
            let mut plan = case.plan();
            let is_amount = ["sizes", "budgets", "starts", "takes", "group_tokens"]
                .contains(&plan.inputs[i].name);
            // Of the steps of one case, later ones fail when the first has written.
            let is_later = *op == Op::LookUpRows && i > 3;
            let Values::Ints(ints) = &mut plan.inputs[i].values else { continue };
            if is_amount || is_later {
                continue;
            }
            ints.fill(1_000_000);
            let backend = ReferenceBackend::new();
            let mut buffers = plan.upload(&backend).unwrap();
            let before = pollster::block_on(plan.read_back(&backend, &buffers)).unwrap();
            let result = case.launch(&backend, &mut buffers);
            let is_named = matches!(result, Err(OpError::Index { op: named, .. }) if named == *op);
            assert!(is_named, "{} input {i}: {result:?}", case.name());
            let after = pollster::block_on(plan.read_back(&backend, &buffers)).unwrap();
            assert_eq!(format!("{before:?}"), format!("{after:?}"), "{}", case.name());
        }
    }
}

#[test]
fn a_weight_whose_bytes_do_not_fit_is_refused() {
    let bytes = longview_core::HostBytes::from_vec(vec![0; 10]);
    let (name, dtype, activations) = ("w".into(), DType::F16, Activations::F32);
    let source = WeightSource { name, dtype, n_rows: 2, n_cols: 3, bytes, activations };
    let error = ReferenceBackend::new().load_weight(source).unwrap_err();
    assert_eq!(error.to_string(), "weight w: 10 bytes of f16, expected 12 for [2, 3]");
}

#[test]
fn a_copy_of_the_wrong_length_is_refused() {
    let backend = ReferenceBackend::new();
    let mut buffer = backend.alloc(DType::F32, 4, "x").unwrap();
    let error = backend.write(ViewMut::all(&mut buffer), &[0; 15]).unwrap_err();
    assert_eq!(error.to_string(), "copy of 15 bytes to or from a view of 16 bytes");
    let mut bytes = [0; 12];
    let read = backend.read(View::part(&buffer, 2, 3), &mut bytes);
    assert!(matches!(pollster::block_on(read), Err(OpError::Copy { .. })));
}

#[test]
fn parameters_that_contradict_each_other_are_refused() {
    let backend = ReferenceBackend::new();
    let empty = backend.alloc(DType::F32, 0, "empty").unwrap();
    let mut out = backend.alloc(DType::F32, 0, "out").unwrap();
    let mut lse = backend.alloc(DType::F32, 0, "lse").unwrap();
    let p = RopeParams { n_tokens: 0, n_heads: 1, head_dim: 8, rotary_dim: 7 };
    let rope =
        Rope { p, x: View::all(&empty), table: View::all(&empty), out: ViewMut::all(&mut out) };
    assert_eq!(backend.rope(rope).unwrap_err().to_string(), "rope: rotary_dim 7 of head width 8");
    let p = AttendParams {
        n_tokens: 0,
        n_q_heads: 6,
        n_kv_heads: 4,
        head_dim: 8,
        scale: 1.0,
        accumulate: 0,
    };
    let attend = AttendChunk {
        p,
        q: View::all(&empty),
        spans: &[],
        out: ViewMut::all(&mut out),
        lse: ViewMut::all(&mut lse),
    };
    let message = backend.attend_chunk(attend).unwrap_err().to_string();
    assert_eq!(message, "attend_chunk: 6 query heads, 4 KV heads, head width 8");
}
