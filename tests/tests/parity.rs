//! Every backend against the reference, over the whole corpus.
//!
//! The WGSL backend runs at each shader level, the CUDA backend without a GPU, in both orders of
//! its threads and under the sanitizers. The CPU backend does so in its own crate, on each
//! instruction set that this machine has. The program behind `cargo xtask parity` is called as a
//! user calls it.

use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Output as ProcessOutput, Stdio};
use std::sync::LazyLock;

use longview_core::quant::QuantType;
use longview_cuda::{CudaBackend, Kernel};
use longview_cuda_emulation::{
    EmulatedDriver, EmulatedLibrary, EmulatedOptions, Library, sanitizer,
};
use longview_ops::corpus::{self, Case, Outcome, Plan, Values, cases_of};
use longview_ops::fused_case::FusedCase;
use longview_ops::parity::{ParitySummary, format_parity, run_parity};
use longview_ops::{Activation, Activations, Backend, Op};
use longview_tests::backends::{
    Sample, UnknownBackend, cuda_emulated, not_run, parity_rows, parse_list,
};
use longview_tests::suite::parity::{Expected, PLACES, failures_elsewhere, runs_on};
use longview_wgpu::ShaderLevel;

/// The program, with an op that takes no time.
fn parity(args: &[&str], required: &str) -> ProcessOutput {
    let mut command = Command::new(env!("CARGO_BIN_EXE_parity"));
    command.args(["--op", "embed"]).args(args).env("REQUIRE_BACKENDS", required);
    command.output().expect("the program starts")
}

fn stdout(output: &ProcessOutput) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &ProcessOutput) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether every case is to run at every shader level and under the sanitizers, as
/// `cargo xtask parity --all` wants it. Otherwise cases take turns.
fn all_is_wanted() -> bool {
    std::env::var_os("LONGVIEW_ALL_CASES").is_some()
}

/// The corpus at each shader level, in turns; every op at every level. Nothing may be missing from
/// a run but what no WGSL device has: host memory that kernels read.
///
/// A process of its own, because Mesa's software device reads once, when it is first opened, that
/// it is not to optimise (other devices do not look). A kernel runs here for a moment and takes a
/// second to compile; the tests of answers run long and keep the optimised ones. What it says to
/// stderr is shown: how many cases ran of how many.
#[test]
fn wgpu_passes_at_every_shader_level() {
    if std::env::var_os("LONGVIEW_NO_GPU").is_some() {
        not_run();
        return;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_parity"));
    let share = if all_is_wanted() { "all" } else { "turns" };
    command.args(["--backends", "wgpu", "--levels", share]).env("REQUIRE_BACKENDS", "wgpu");
    command.env("GALLIVM_PERF", "nopt").stderr(Stdio::inherit());
    let output = command.output().expect("it starts");
    let text = stdout(&output);
    assert!(output.status.success(), "{text}");
    for level in ShaderLevel::ALL {
        let heading = format!("shader level {level}: ");
        let (_, table) = text.split_once(&heading).unwrap_or_else(|| panic!("no {level}\n{text}"));
        let table = table.split("\n\n").next().unwrap_or_default();
        let taken = table.split_once(" of ").and_then(|(taken, _)| taken.parse::<usize>().ok());
        assert!(taken.is_some_and(|count| count >= 500), "{level}\n{table}");
        let rows = |status: &str| -> BTreeSet<String> {
            let rows = table.lines().filter(|line| line.contains(status));
            rows.filter_map(|line| line.split_whitespace().next().map(String::from)).collect()
        };
        let missing = [Op::KvGather, Op::KvKeys].map(|op| op.to_string());
        assert_eq!(rows(" NOT RUN "), BTreeSet::from(missing), "{level}\n{table}");
        let ops = Op::ALL.iter().map(|op| op.to_string()).collect();
        assert_eq!(rows(" passed "), ops, "{level}\n{table}");
    }
}

/// The kernels of products where a library makes them, which must be right too.
fn by_library() -> BTreeSet<&'static str> {
    let options = EmulatedOptions { library: EmulatedLibrary::Right, ..Default::default() };
    let backend = emulated(options);
    pollster::block_on(backend.try_library()).expect("a library that agrees");
    let failures = failures_elsewhere(&backend, &PLACES, |op| op == Op::Matmul);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    backend.driver().launched()
}

fn emulated(options: EmulatedOptions) -> CudaBackend<EmulatedDriver> {
    cuda_emulated(options).expect("the kernels are compiled as C++")
}

/// At every place of the views, and in every order; and no kernel is there that nobody launches.
/// What an op's cases are and give is computed once for all devices.
#[test]
fn cuda_passes_without_a_gpu() {
    let devices = Devices::open();
    let Devices { forward, old, .. } = &devices;
    let mut wrong = Vec::new();
    for op in Op::ALL.iter().copied() {
        let mut cases = devices.cases_of(op);
        wrong.extend(failures_at_places(forward, &cases));
        wrong.extend(failures_of_single_calls(forward, op, &cases));
        let is_by_capability = devices.pass_in_every_order(&cases, &mut wrong);
        cases.retain(|expected| runs_on(&expected.case, old));
        let of_old = is_by_capability.then(|| failures_at_places(old, &cases));
        let of_old = of_old.into_iter().flatten().chain(failures_of_single_calls(old, op, &cases));
        wrong.extend(of_old.map(|failure| format!("7.5: {failure}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let mut launched = forward.driver().launched();
    launched.extend(by_library());
    launched.extend(OF_FUSED_CALLS.iter());
    let idle = Kernel::ALL.iter().map(|kernel| kernel.facts().name);
    let idle: Vec<_> = idle.filter(|name| !launched.contains(name)).collect();
    assert!(idle.is_empty(), "never launched: {}", idle.join(", "));
    an_old_device_launches_all_it_has(old);
}

/// What is wrong with cases at each place of their views.
fn failures_at_places(device: &CudaBackend<EmulatedDriver>, cases: &[Expected]) -> Vec<String> {
    cases.iter().flat_map(|case| case.failures_elsewhere(device, &PLACES)).collect()
}

/// [`failures_at_places`] where products of one quantised row have a launch for themselves and a
/// rounding before it. Other ops make no difference.
fn failures_of_single_calls(
    device: &CudaBackend<EmulatedDriver>,
    op: Op,
    cases: &[Expected],
) -> Vec<String> {
    if op != Op::Matvec {
        return Vec::new();
    }
    device.set_fused(false);
    let failures = failures_at_places(device, cases).into_iter();
    let failures = failures.map(|failure| format!("single calls: {failure}")).collect();
    device.set_fused(true);
    failures
}

/// Several ops in one launch against the reference, which makes them one by one; to the bit the
/// same in either order of threads and on an old device.
#[test]
fn fused_calls_pass_in_every_order() {
    assert!(OF_FUSED_CALLS.contains("norm_matvec_bf16_1"), "{OF_FUSED_CALLS:?}");
    assert!(OF_FUSED_CALLS.contains("tile_layers_q4_k"), "{OF_FUSED_CALLS:?}");
}

/// What [`of_fused_calls`] says, which takes its time once.
static OF_FUSED_CALLS: LazyLock<BTreeSet<&'static str>> = LazyLock::new(of_fused_calls);

/// The kernels that fused calls launch, which must be right. With quantised weights they give the
/// bits of the single calls, also where a block takes many pairs of tiles.
fn of_fused_calls() -> BTreeSet<&'static str> {
    let forward = &emulated(EmulatedOptions { n_workers: 3, ..Default::default() });
    let backward = EmulatedOptions { backward: true, n_workers: 1, ..Default::default() };
    let old = EmulatedOptions { compute_capability: (7, 5), ..Default::default() };
    let few = emulated(EmulatedOptions { n_multiprocessors: 1, ..backward.clone() });
    let single = emulated(EmulatedOptions::default());
    single.set_fused(false);
    let others = [emulated(backward), emulated(old)];
    let of_quantised = [few, single];
    let bits = |floats: Vec<f32>| -> Vec<u32> { floats.into_iter().map(f32::to_bits).collect() };
    let made = |backend: &CudaBackend<EmulatedDriver>, case: &FusedCase, activation| {
        let mut made = pollster::block_on(case.project(backend)).expect("q, k and v");
        made.push(pollster::block_on(case.gated(backend, activation)).expect("a gated product"));
        made.into_iter().flat_map(bits).collect::<Vec<_>>()
    };
    for case in [FusedCase::all(), FusedCase::quantised()].concat() {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let error = pollster::block_on(case.error_of(forward, activation)).expect("a call");
            let is_right = [error.project, error.gated].iter().all(|error| *error <= case.most());
            assert!(is_right, "{case:?}: {error:?}");
            let expected = made(forward, &case, activation);
            for other in &others {
                assert_eq!(made(other, &case, activation), expected, "{case:?}");
            }
            if case.quantised.is_some() {
                for other in &of_quantised {
                    assert_eq!(made(other, &case, activation), expected, "{case:?}");
                }
                let case = FusedCase { is_single: true, ..case };
                assert_eq!(made(forward, &case, activation), expected, "{case:?}");
            }
        }
    }
    forward.driver().launched()
}

/// A norm with what reads it is one launch for each four rows.
#[test]
fn a_fused_call_of_few_rows_is_one_launch() {
    let backend = emulated(EmulatedOptions::default());
    for n_rows in 1..=8 {
        let before = backend.driver().launches();
        let case = FusedCase { n_rows, width: 1028, ..FusedCase::DECODE };
        pollster::block_on(case.project(&backend)).expect("q, k and v");
        pollster::block_on(case.gated(&backend, Activation::Silu)).expect("a gated product");
        let after = backend.driver().launches();
        let n = |name| after.get(name).unwrap_or(&0) - before.get(name).unwrap_or(&0);
        let (one, four) = (n("norm_matvec_bf16_1"), n("norm_matvec_bf16_4"));
        let expected = match n_rows {
            1 => (2, 0),
            2..=4 => (0, 2),
            5 => (2, 2),
            _ => (0, 4),
        };
        assert_eq!((one, four), expected, "{n_rows} rows");
        assert_eq!(n("matvec_bf16_1") + n("rms_norm_wide_f32") + n("rope"), 0, "{n_rows} rows");
    }
}

/// Whatever comes before and behind quantised layers of one row is in their launch, also where v
/// has another format, as in files of Q4_K_M.
#[test]
fn a_fused_call_of_one_quantised_row_is_one_launch() {
    let backend = emulated(EmulatedOptions::default());
    let [q4, q6] = [QuantType::Q4K, QuantType::Q6K];
    for (types, n_q4, n_mixed) in [([q4; 3], 2, 0), ([q4, q4, q6], 1, 1)] {
        let case = FusedCase {
            width: 512,
            head_dim: 32,
            rotary_dim: 32,
            quantised: Some(types),
            activations: Activations::Int16,
            ..FusedCase::DECODE
        };
        let before = backend.driver().launches();
        pollster::block_on(case.project(&backend)).expect("q, k and v");
        pollster::block_on(case.gated(&backend, Activation::Silu)).expect("a gated product");
        let launches = backend.driver().launches().into_iter();
        let more = launches.map(|(name, n)| (name, n - before.get(name).unwrap_or(&0)));
        let made: BTreeMap<_, _> =
            more.filter(|(name, n)| *n > 0 && *name != "upload_words").collect();
        let expected = [("tile_layers_q4_k", n_q4), ("tile_layers_q4_k_q6_k", n_mixed)];
        let expected: BTreeMap<_, _> = expected.into_iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(made, expected);
    }
}

/// Of the files that read otherwise for an old device, it launched every kernel that is not empty.
fn an_old_device_launches_all_it_has(device: &CudaBackend<EmulatedDriver>) {
    let launched = device.driver().launched();
    let by_capability = Library::get().expect("it is loaded").files_by_capability();
    let kernels = Kernel::ALL.iter().map(|kernel| kernel.facts());
    let idle = kernels.filter(|facts| by_capability.contains(facts.file));
    let idle: BTreeSet<_> =
        idle.map(|facts| facts.name).filter(|name| !launched.contains(name)).collect();
    let empty = [
        "attend_blocks_bf16_128",
        "attend_blocks_bf16_64",
        "attend_chunk_bf16_128",
        "attend_chunk_bf16_64",
        "column_mass_bf16_128",
        "column_mass_bf16_64",
        "kmeans_assign_tensor_narrow",
        "kmeans_assign_tensor_wide",
    ];
    // These go with a vendor's library, which has a test of its own.
    let of_library = ["matmul_bias", "matmul_round_bf16", "matmul_round_f16"];
    let expected = BTreeSet::from(empty).union(&BTreeSet::from(of_library)).copied().collect();
    assert_eq!(idle, expected, "never launched on 7.5, and empty there or a library's");
}

/// The devices of the emulation on which all cases run. Who comes first changes nothing, to the
/// bit: neither the order of threads and blocks, nor how many blocks run at once. A device with
/// fewer multiprocessors gets fewer blocks for the same work, and is right too. A device before
/// compute capability 8.0 gets what is compiled for it; cases that launch nothing that differs
/// would be the same work again. Products of many rows use shared memory in another way there, so
/// they run in both orders.
struct Devices {
    forward: CudaBackend<EmulatedDriver>,
    backward: CudaBackend<EmulatedDriver>,
    few: CudaBackend<EmulatedDriver>,
    old: CudaBackend<EmulatedDriver>,
    old_backward: CudaBackend<EmulatedDriver>,
}

impl Devices {
    fn open() -> Self {
        let forward = EmulatedOptions { n_workers: 3, ..Default::default() };
        let backward = EmulatedOptions { backward: true, n_workers: 1, ..Default::default() };
        let few = EmulatedOptions { backward: true, n_multiprocessors: 16, ..Default::default() };
        let compute_capability = (7, 5);
        Self {
            old: emulated(EmulatedOptions { compute_capability, ..forward.clone() }),
            old_backward: emulated(EmulatedOptions { compute_capability, ..backward.clone() }),
            forward: emulated(forward),
            backward: emulated(backward),
            few: emulated(few),
        }
    }

    /// All cases of an op, but for what the backend says that it lacks.
    fn cases_of(&self, op: Op) -> Vec<Expected> {
        let capabilities = self.forward.capabilities();
        let mut cases = cases_of(op);
        cases.retain(|case| case.elsewhere(capabilities).is_none());
        if capabilities.missing_ops.iter().any(|(missing, _)| *missing == op) {
            cases.clear();
        }
        for case in &cases {
            assert_eq!(case.excused(capabilities), None, "{}", case.name());
        }
        let expected = |case| Expected::of(case).unwrap_or_else(|e| panic!("{e}"));
        cases.into_iter().map(expected).collect()
    }

    /// Runs cases on each device and adds what is wrong to `wrong`. Whether any of them launches
    /// what is compiled otherwise for an old device.
    fn pass_in_every_order(&self, cases: &[Expected], wrong: &mut Vec<String>) -> bool {
        let mut any_by_capability = false;
        for Expected { case, plan, want } in cases {
            let name = case.name();
            let before = self.forward.driver().n_by_capability();
            let got = outcome(case, plan, &self.forward);
            let is_by_capability = self.forward.driver().n_by_capability() > before;
            if bits(case, &outcome(case, plan, &self.backward)) != bits(case, &got) {
                wrong.push(format!("{name}: other bits backward"));
            }
            let with_few = outcome(case, plan, &self.few);
            let mut all = vec![("", got), ("few multiprocessors: ", with_few)];
            if is_by_capability {
                any_by_capability = true;
                let got = outcome(case, plan, &self.old);
                let is_ordered = case.op() != Op::Matmul
                    || bits(case, &outcome(case, plan, &self.old_backward)) == bits(case, &got);
                if !is_ordered {
                    wrong.push(format!("7.5: {name}: other bits backward"));
                }
                all.push(("7.5: ", got));
            }
            for (device, got) in &all {
                let comparison = case.compare_plan(plan, got, want);
                if !comparison.passed() {
                    wrong.push(format!("{device}{name}: {comparison}"));
                }
            }
        }
        any_by_capability
    }
}

fn outcome(case: &Case, plan: &Plan, backend: &impl Backend) -> Outcome {
    let outcome = pollster::block_on(case.execute_plan(plan, backend));
    outcome.unwrap_or_else(|e| panic!("{}: {e}", case.name()))
}

/// The bits of what a case wrote, but for the table of a cache: it is no result in which of its
/// places a row stands.
fn bits(case: &Case, outcome: &Outcome) -> Vec<Vec<u32>> {
    let is_result =
        |output: &&corpus::Output| (case.op(), output.name) != (Op::LookUpRows, "state");
    let bits = |output: &corpus::Output| match &output.values {
        Values::Floats(values) => values.iter().map(|value| value.to_bits()).collect(),
        Values::Ints(values) => values.clone(),
    };
    outcome.outputs.iter().filter(is_result).map(bits).collect()
}

/// Before compute capability 8.0 no tensor core knows tf32: the same labels by f32 products.
#[test]
fn keys_are_clustered_by_an_old_device_too() {
    for (compute_capability, is_tensor) in [((7, 5), false), ((8, 0), true)] {
        let options = EmulatedOptions { compute_capability, ..Default::default() };
        let backend = emulated(options);
        let failures = failures_elsewhere(&backend, &PLACES[..1], |op| op == Op::KmeansAssign);
        assert!(failures.is_empty(), "{}", failures.join("\n"));
        let rows = run_parity(&backend, Some(Op::KmeansAssign));
        let (summary, table) = (ParitySummary::of(&rows), format_parity(&rows));
        assert!(summary.failed == 0 && summary.passed > 0, "{table}");
        let launched = backend.driver().launched();
        for kernel in ["kmeans_assign_wide", "kmeans_assign_narrow"] {
            assert!(launched.contains(kernel), "{kernel} never ran");
        }
        for kernel in ["kmeans_assign_tensor_wide", "kmeans_assign_tensor_narrow"] {
            assert_eq!(launched.contains(kernel), is_tensor, "{kernel}");
        }
    }
}

/// No kernel reads or writes a byte outside of its buffers and its shared memory. On a device
/// before compute capability 8.0 products of many rows use memory in another way, and nothing else
/// does.
#[test]
#[expect(clippy::print_stderr, reason = "a test that did not run says so")]
fn cuda_passes_under_the_sanitizers() {
    let Some(sanitizer) = sanitizer() else {
        eprintln!("NOT RUN: the C++ compiler has no address sanitizer");
        return;
    };
    for what in [&[][..], &["--capability", "7.5", "--op", "matmul"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_parity"));
        command.args(["--backends", "cuda-emulated"]).args(what).envs(sanitizer.env.clone());
        let output = command.env("REQUIRE_BACKENDS", "cuda-emulated").output().expect("it starts");
        assert!(output.status.success(), "{what:?}\n{}{}", stdout(&output), stderr(&output));
    }
}

/// On a machine with a GPU the row says how it went, not that there is none.
#[test]
fn absent_backends_are_rows_and_fail_only_where_required() {
    if parity_rows("cuda", Sample::of(Op::Embed)).iter().any(|row| row.op.is_some()) {
        return;
    }
    let output = parity(&["--backends", "cpu,cuda"], "cpu");
    let table = stdout(&output);
    assert_eq!(output.status.code(), Some(0), "{table}{}", stderr(&output));
    assert!(table.contains("NOT RUN: "), "{table}");
    assert!(table.ends_with(" passed, 0 failed, 1 not run\n"), "{table}");

    let output = parity(&["--backends", "cpu,cuda"], "cuda");
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).starts_with("required backend cuda was not run: "));
}

#[test]
fn a_backend_that_is_required_but_not_asked_for_fails() {
    let output = parity(&["--backends", "cuda"], "cpu");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output), "required backend cpu was not asked for\n");
}

#[test]
fn wrong_calls_are_told_what_there_is() {
    let calls: [(&[&str], &str, &str); 8] = [
        (&["--backends", "gpu"], "", "unknown backend 'gpu': one of cpu, wgpu, cuda"),
        (&[], "cpu,tpu", "REQUIRE_BACKENDS: unknown backend 'tpu': one of cpu, wgpu, cuda"),
        (&["--op", "softmax"], "", "unknown op 'softmax': one of embed, rms_norm, "),
        (&["--op"], "", "--op needs a value"),
        (&["--every", "0"], "", "--every 0: not a number from 1"),
        (&["--levels", "core"], "", "--levels core: all or turns"),
        (&["--capability", "7.0"], "", "--capability 7.0: not a compute capability from 7.5"),
        (&["--all"], "", "unknown option '--all'"),
    ];
    for (args, required, message) in calls {
        let output = parity(args, required);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(stderr(&output).contains(message), "{args:?}: {}", stderr(&output));
    }
}

#[test]
fn lists_of_backends_are_read() {
    assert_eq!(parse_list("cuda, cpu,"), Ok(vec!["cuda", "cpu"]));
    assert_eq!(parse_list(""), Ok(vec![]));
    assert_eq!(parse_list("cpu,metal"), Err(UnknownBackend("metal".into())));
}
