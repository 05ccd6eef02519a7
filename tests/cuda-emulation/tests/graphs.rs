//! Runs of commands that come again are handed over as graphs, and nobody can tell but by counting.

use longview_core::{DType, SplitMix64, encode_f32};
use longview_cuda::{Counters, CudaBackend};
use longview_cuda_emulation::{EmulatedDriver, EmulatedOptions, FailingGraphs, GraphCall};
use longview_ops::*;
use pollster::block_on;

type Emulated = CudaBackend<EmulatedDriver>;
type Buffer = <Emulated as Storage>::Buffer;

fn backend(has_graphs: bool) -> Emulated {
    open(EmulatedOptions { has_graphs, ..Default::default() })
}

fn open(options: EmulatedOptions) -> Emulated {
    let driver = EmulatedDriver::new(options).expect("the kernels are compiled as C++");
    CudaBackend::on(driver).expect("an emulated device")
}

/// `n` numbers on the device.
fn buffer(backend: &Emulated, seed: u64, n: usize) -> Buffer {
    let mut buffer = backend.alloc(DType::F32, n, "numbers").unwrap();
    write(backend, &mut buffer, seed);
    buffer
}

fn write(backend: &Emulated, to: &mut Buffer, seed: u64) {
    let mut rng = SplitMix64::new(seed);
    let numbers: Vec<f32> = (0..to.len()).map(|_| rng.next_normal()).collect();
    backend.write(ViewMut::all(to), &encode_f32(DType::F32, &numbers)).unwrap();
}

fn silu(backend: &Emulated, gate: View<'_, Emulated>, to: &mut Buffer) {
    let up = View::part(gate.buffer, 0, gate.len);
    let p = SiluMulParams { n: gate.len as u32 };
    backend.silu_mul(SiluMul { p, gate, up, out: ViewMut::all(to) }).unwrap();
}

fn read(backend: &Emulated, buffer: &Buffer) -> Vec<u8> {
    let mut out = vec![0; 4 * buffer.len()];
    block_on(backend.read(View::all(buffer), &mut out)).unwrap();
    out
}

/// A step of `2 * n_pairs` kernels and one write: what goes in differs from step to step, and so
/// does the place where it is read. Returns what comes out.
fn step(backend: &Emulated, bufs: &mut [Buffer; 3], n_pairs: usize, i: usize) -> Vec<u8> {
    let [from, mid, to] = bufs;
    write(backend, from, 7 * i as u64);
    for _ in 0..n_pairs {
        silu(backend, View::part(from, i % 5, mid.len()), mid);
        silu(backend, View::all(mid), to);
    }
    backend.submit().unwrap();
    read(backend, to)
}

fn buffers(backend: &Emulated) -> [Buffer; 3] {
    [69, 64, 64].map(|n| buffer(backend, 1, n))
}

#[test]
fn the_second_time_makes_a_graph_and_nothing_else_changes() {
    let (with, without) = (backend(true), backend(false));
    let (mut a, mut b) = (buffers(&with), buffers(&without));
    let mut before = Counters::default();
    for i in 0..12 {
        assert_eq!(step(&with, &mut a, 6, i), step(&without, &mut b, 6, i), "step {i}");
        let now = with.counters();
        // 13 commands before the submit; the read is one more, and is handed over by itself.
        let submits = now.device.submits - before.device.submits;
        // The three writes that made the buffers go with the first step, as one command.
        assert_eq!(submits, [15, 14][i.min(1)] - if i > 1 { 12 } else { 0 }, "step {i}");
        assert_eq!(now.graphs, u64::from(i > 1), "step {i}");
        // What is written lies at the same place of the staging at each step, but one kernel of
        // each pair reads from another place.
        assert_eq!(now.nodes_set - before.nodes_set, if i > 2 { 6 } else { 0 }, "step {i}");
        before = now;
    }
    assert_eq!(with.no_graphs(), None);
    assert!(without.no_graphs().is_some_and(|reason| reason.contains("graphs are not there")));
    assert_eq!(without.counters().graphs, 0);
}

/// A device that is short of memory for a moment.
#[test]
fn a_graph_that_failed_is_tried_again() {
    for (kind, first) in [(GraphCall::Make, 0), (GraphCall::Update, 3), (GraphCall::Launch, 2)] {
        // The first try and the one after the pause fail, the next one works.
        let failing_graphs = Some(FailingGraphs { kind, calls: first..first + 2 });
        let failing = open(EmulatedOptions { failing_graphs, ..Default::default() });
        let without = backend(false);
        let (mut a, mut b) = (buffers(&failing), buffers(&without));
        let mut n_slow = 0;
        for i in 0..120 {
            let out = step(&failing, &mut a, 6, i);
            assert_eq!(out, step(&without, &mut b, 6, i), "{kind:?}, step {i}");
            let fallback = failing.fallback();
            assert_eq!(fallback.is_some(), failing.no_graphs().is_some());
            n_slow += usize::from(fallback.is_some_and(|why| why.contains("out of memory")));
        }
        let failures = failing.counters().graph_failures;
        assert!((1..=2).contains(&failures), "{kind:?}: {failures} failures");
        assert_eq!(failing.fallback(), None, "{kind:?} recovered");
        // It goes one by one only as long as the pauses last: 16 steps, then 32.
        assert!((16..=50).contains(&n_slow), "{kind:?}: {n_slow} slow steps");
        let before = failing.counters().device.submits;
        step(&failing, &mut a, 6, 120);
        assert_eq!(failing.counters().device.submits - before, 2, "{kind:?}: a graph and a read");
    }
}

#[test]
fn a_failure_is_about_one_run_of_commands() {
    let failing_graphs = Some(FailingGraphs { kind: GraphCall::Make, calls: 0..1 });
    let failing = open(EmulatedOptions { failing_graphs, ..Default::default() });
    let mut bufs = buffers(&failing);
    (0..3).for_each(|i| drop(step(&failing, &mut bufs, 6, i)));
    assert_eq!((failing.counters().graph_failures, failing.counters().graphs), (1, 0));
    (0..3).for_each(|i| drop(step(&failing, &mut bufs, 7, i)));
    assert_eq!((failing.counters().graph_failures, failing.counters().graphs), (1, 1));
    assert!(failing.fallback().is_some(), "the first run still goes one by one");
}

#[test]
fn a_device_without_graphs_is_asked_ever_less_often() {
    let without = backend(false);
    let mut bufs = buffers(&without);
    (0..600).for_each(|i| drop(step(&without, &mut bufs, 4, i)));
    // At the second step, then after 16, 32, 64, 128 and 256 more.
    assert_eq!(without.counters().graph_failures, 6);
}

#[test]
fn steps_of_many_shapes_push_the_least_used_graph_out() {
    let (with, without) = (backend(true), backend(false));
    let (mut a, mut b) = (buffers(&with), buffers(&without));
    for i in 0..108 {
        let n_pairs = 4 + i / 3;
        assert_eq!(step(&with, &mut a, n_pairs, i), step(&without, &mut b, n_pairs, i), "step {i}");
    }
    let made = with.counters().graphs;
    assert!(made >= 35, "{made} graphs of 36 shapes");
    // The first shape was pushed out, and comes back.
    assert_eq!(step(&with, &mut a, 5, 1), step(&without, &mut b, 5, 1));
    assert_eq!(with.counters().graphs, made + 1);
}

#[test]
fn memory_is_freed_after_what_waits_was_handed_over() {
    let backend = backend(true);
    let mut out: Vec<Buffer> = (0..3).map(|_| buffer(&backend, 2, 1000)).collect();
    let expected = {
        let from = buffer(&backend, 3, 1000);
        silu(&backend, View::all(&from), &mut out[0]);
        read(&backend, &out[0])
    };
    // Nothing was submitted when the buffer goes, twice: of device and of host memory.
    {
        let from = buffer(&backend, 3, 1000);
        silu(&backend, View::all(&from), &mut out[1]);
    }
    {
        let mut from = backend.alloc_host(DType::F32, 1000, "host").unwrap().expect("pinned");
        write(&backend, &mut from, 3);
        silu(&backend, View::all(&from), &mut out[2]);
    }
    assert!(read(&backend, &out[1]) == expected && read(&backend, &out[2]) == expected);
}

#[test]
fn a_dropped_queue_did_what_it_was_given() {
    let backend = backend(true);
    let (from, mut to) = (buffer(&backend, 4, 64), buffer(&backend, 5, 64));
    let before = read(&backend, &to);
    let fork = backend.background();
    silu(&fork, View::all(&from), &mut to);
    drop(fork);
    // The fork is another stream: its work is done when the whole device has been waited for.
    drop(backend.alloc(DType::F32, 1, "frees").unwrap());
    assert_ne!(read(&backend, &to), before);
}
