//! Host memory that kernels of an asynchronous device use too: whoever looks at the bytes finds
//! what the device was told to write, and waits for no more than that.
//!
//! On the emulated CUDA device, which does everything as late as it can: a wait that is missing
//! shows old bytes.

use std::sync::Arc;

use longview_core::DType;
use longview_cuda::CudaBackend;
use longview_cuda_emulation::{EmulatedDriver, EmulatedOptions};
use longview_ops::{
    Backend, KvGather, KvGatherParams, KvView, RotateRows, RotateRowsParams, SiluMul,
    SiluMulParams, Storage, View, ViewMut,
};
use longview_scheduler::{
    HostStoreKind, Placement, PolicyOptions, Preset, RecallMode, SequenceOptions, SpanMode,
};
use longview_tests::backends::cuda_emulated;
use longview_tests::sim::{Sim, small_shape};
use longview_tests::suite::policy;
use pollster::block_on;

type Cuda = CudaBackend<EmulatedDriver>;
type Buffer = <Cuda as Storage>::Buffer;

const N_ROWS: usize = 4;
const ROW: usize = 16;

fn cuda() -> Cuda {
    cuda_emulated(EmulatedOptions::default()).expect("the kernels are compiled as C++")
}

fn host_rows(backend: &Cuda) -> Buffer {
    backend.alloc_host(DType::F32, N_ROWS * ROW, "rows").unwrap().expect("mapped memory")
}

/// Rows of the device, all elements `value`, and what a gather needs.
struct Moves {
    src: Buffer,
    rows: Buffer,
    n: Buffer,
}

impl Moves {
    fn new(backend: &Cuda, value: f32) -> Self {
        let mut src = backend.alloc(DType::F32, N_ROWS * ROW, "src").unwrap();
        backend
            .write(ViewMut::all(&mut src), bytemuck::cast_slice(&[value; N_ROWS * ROW]))
            .unwrap();
        let mut rows = backend.alloc(DType::U32, N_ROWS, "lists").unwrap();
        backend.write(ViewMut::all(&mut rows), bytemuck::cast_slice(&[0u32, 1, 2, 3])).unwrap();
        let mut n = backend.alloc(DType::U32, 1, "n").unwrap();
        backend.write(ViewMut::all(&mut n), bytemuck::cast_slice(&[N_ROWS as u32])).unwrap();
        Self { src, rows, n }
    }

    /// Gives a queue the copy of the rows to `dst`.
    fn carry(&self, queue: &Cuda, dst: &mut Buffer) {
        let p = KvGatherParams {
            n_kv_heads: 1,
            head_dim: ROW as u32 / 2,
            list_stride: N_ROWS as u32,
            dst_head_stride: N_ROWS as u32,
        };
        let gather = KvGather {
            p,
            src: KvView::new(&self.src, N_ROWS),
            src_rows: View::all(&self.rows),
            dst_rows: View::all(&self.rows),
            n_rows: View::all(&self.n),
            dst,
        };
        queue.kv_gather(gather).unwrap();
    }
}

fn holds(backend: &Cuda, buffer: &Buffer, value: f32) -> bool {
    let bytes = backend.host_bytes(buffer).expect("host memory");
    bytes.chunks_exact(4).all(|word| word == value.to_le_bytes())
}

#[test]
fn bytes_wait_for_the_work_that_writes_them_and_once() {
    let backend = cuda();
    let (moves, mut rows) = (Moves::new(&backend, 2.5), host_rows(&backend));
    assert!(holds(&backend, &rows, 0.0));
    assert_eq!(backend.counters().host_waits, 0, "nobody uses the rows");
    moves.carry(&backend, &mut rows);
    assert!(holds(&backend, &rows, 2.5));
    assert!(holds(&backend, &rows, 2.5));
    assert_eq!(backend.counters().host_waits, 1);
    // A copy up counts as well, and a read waits for both.
    backend.write(ViewMut::all(&mut rows), bytemuck::cast_slice(&[1.5f32; 64])).unwrap();
    moves.carry(&backend, &mut rows);
    block_on(backend.read(View::all(&moves.n), &mut [0; 4])).unwrap();
    assert!(holds(&backend, &rows, 2.5));
    assert_eq!(backend.counters().host_waits, 1);
}

#[test]
fn a_row_is_read_before_the_host_replaces_it() {
    let backend = cuda();
    let (moves, mut rows) = (Moves::new(&backend, 0.0), host_rows(&backend));
    let mut out = backend.alloc(DType::F32, N_ROWS * ROW, "out").unwrap();
    backend.host_bytes_mut(&mut rows).unwrap().fill(0x3f);
    let gather = KvGather {
        p: KvGatherParams { n_kv_heads: 1, head_dim: 8, list_stride: 4, dst_head_stride: 4 },
        src: KvView::new(&rows, N_ROWS),
        src_rows: View::all(&moves.rows),
        dst_rows: View::all(&moves.rows),
        n_rows: View::all(&moves.n),
        dst: &mut out,
    };
    backend.kv_gather(gather).unwrap();
    backend.host_bytes_mut(&mut rows).unwrap().fill(0);
    let mut bytes = [0; 4 * N_ROWS * ROW];
    block_on(backend.read(View::all(&out), &mut bytes)).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 0x3f));
}

#[test]
fn a_row_is_turned_before_the_host_replaces_it() {
    let (backend, n) = (cuda(), N_ROWS as u32);
    let (mut rows, mut out) = (host_rows(&backend), host_rows(&backend));
    let mut table = backend.alloc(DType::F32, 2, "table").unwrap();
    backend.write(ViewMut::all(&mut table), bytemuck::cast_slice(&[0.0f32, 1.0])).unwrap();
    backend.host_bytes_mut(&mut rows).unwrap().fill(0x3f);
    let p = RotateRowsParams {
        n_kv_heads: 1,
        head_dim: ROW as u32 / 2,
        rotary_dim: 2,
        n_rows: n,
        dst_head_stride: n,
    };
    let src = KvView::new(&rows, N_ROWS);
    let turn = RotateRows { p, src, table: View::all(&table), dst: &mut out };
    backend.rotate_rows(turn).unwrap();
    backend.host_bytes_mut(&mut rows).unwrap().fill(0);
    let waits = backend.counters().host_waits;
    // By a right angle: the first of a pair becomes the second, less its sign.
    let bytes = backend.host_bytes(&out).expect("host memory");
    let signs = bytes.chunks_exact(4).map(|word| word[3] == 0xbf && word[..3] == [0x3f; 3]);
    let turned: Vec<usize> =
        signs.zip(0..).filter_map(|(is_turned, i)| is_turned.then_some(i)).collect();
    assert_eq!(turned, [0, ROW, 2 * ROW, 3 * ROW]);
    assert!(bytes.chunks_exact(4).all(|word| word[0] == 0x3f));
    assert_eq!(backend.counters().host_waits, waits, "one wait is for both sides");
}

#[test]
fn a_queue_that_works_elsewhere_is_not_waited_for_and_one_that_went_is_done() {
    let backend = cuda();
    let (moves, mut rows) = (Moves::new(&backend, 2.5), host_rows(&backend));
    let second = backend.background();
    let x = backend.alloc(DType::F32, 64, "x").unwrap();
    let mut y = backend.alloc(DType::F32, 64, "y").unwrap();
    let silu = |gate: &Buffer, out: &mut Buffer| {
        let (gate, out) = (View::all(gate), ViewMut::all(out));
        second.silu_mul(SiluMul { p: SiluMulParams { n: 64 }, gate, up: gate, out }).unwrap();
    };
    silu(&x, &mut y);
    assert!(holds(&backend, &rows, 0.0));
    assert_eq!(backend.counters().host_waits, 0, "only device memory is in use");
    moves.carry(&second, &mut rows);
    assert!(holds(&backend, &rows, 2.5), "written on another queue");
    assert_eq!(backend.counters().host_waits, 1);
    // An op that has no business with host memory: every queue is waited for.
    silu(&x, &mut rows);
    assert!(holds(&backend, &rows, 0.0));
    moves.carry(&second, &mut rows);
    drop(second);
    assert!(holds(&backend, &rows, 2.5));
}

#[test]
fn bytes_of_a_lost_device_are_there() {
    let backend = cuda();
    let (moves, mut rows) = (Moves::new(&backend, 2.5), host_rows(&backend));
    moves.carry(&backend, &mut rows);
    backend.submit().unwrap();
    backend.lose_device();
    assert!(holds(&backend, &rows, 2.5) && backend.is_lost());
}

/// A segment is handed to the worker while the chunk that ends it is still under way.
#[test]
fn clusters_are_made_of_rows_that_kernels_have_written() {
    policy::members_of_a_cluster_stand_closest_first(&Arc::new(cuda()));
}

fn clusterkv() -> PolicyOptions {
    let mut o = PolicyOptions::new(Preset::Clusterkv).with_budget(48);
    (o.sinks, o.recent, o.window) = (Some(4), Some(8), Some(16));
    (o.cluster_tokens, o.cluster_segment) = (Some(5), Some(32));
    o
}

/// Rows are stored by kernels and permuted by the host, in prefill and in decode; the host waits
/// where it permutes, and a step without that waits for its token alone.
#[test]
fn a_sequence_finds_its_rows_and_a_step_waits_for_its_token_alone() {
    let backend = Arc::new(cuda());
    let options = SequenceOptions {
        placement: Placement::Device,
        store: HostStoreKind::Auto,
        chunk: 24,
        tile: 20,
        overlap: true,
        recall: RecallMode::Exact,
        device_cache: true,
        ..SequenceOptions::default()
    };
    let mut sim = Sim::new(&backend, small_shape(256), &clusterkv(), options).unwrap();
    assert!(sim.sequence.rows_come_later());
    sim.prefill(3, 100);
    sim.check_rows();
    let mut n_quiet = 0;
    for step in 0..40 {
        let (waits, clusterings) =
            (backend.counters().host_waits, sim.sequence.stats().clusterings);
        sim.decode(3);
        let stats = sim.sequence.stats();
        assert_eq!(stats.attended_last, [48; 4], "the budget is used and kept");
        // A window that is handed to the worker is read behind the read of the token.
        if stats.clusterings == clusterings {
            assert_eq!(backend.counters().host_waits, waits, "step {step}");
            n_quiet += 1;
        }
    }
    assert!(n_quiet > 30, "{n_quiet}");
    sim.check_rows();
    // Cut back and go on: rows return to the order of tokens.
    block_on(sim.sequence.truncate(90)).unwrap();
    sim.check_rows();
    sim.step(3, 8, SpanMode::Exact { remaining: 0 }).unwrap();
    block_on(sim.sequence.finish_prefill()).unwrap();
    sim.check_rows();
}

/// What replaces a lost device has host memory of its own, with the same rows.
#[test]
fn rows_move_to_the_device_that_replaces_a_lost_one() {
    let backend = Arc::new(cuda());
    let options = SequenceOptions {
        placement: Placement::Device,
        chunk: 24,
        tile: 20,
        device_cache: true,
        ..SequenceOptions::default()
    };
    let mut sim = Sim::new(&backend, small_shape(256), &clusterkv(), options).unwrap();
    sim.prefill(3, 100);
    (0..3).for_each(|_| sim.decode(3));
    backend.lose_device();
    let fresh = Arc::new(block_on(backend.reopen()).unwrap());
    sim.move_to(&fresh).unwrap();
    drop(backend);
    sim.check_rows();
    (0..20).for_each(|_| sim.decode(3));
    sim.check_rows();
    assert_eq!(sim.sequence.stats().attended_last, [48; 4]);
}
