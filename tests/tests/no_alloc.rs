//! A decode step allocates nothing, on the device or on the heap, on any thread.
//!
//! A counting allocator watches the whole process while the embedded model decodes 700 tokens
//! through the policy, with two windows clustered by the worker on the way. (The warm-up has a
//! window too: the worker's scratch grows once.) One test alone in its file: another would be
//! counted too.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use longview_cpu::{CpuBackend, CpuOptions};
use longview_engine::{Engine, EngineOptions, Sampler, SamplingParams, SessionStep};
use longview_model::folder::ModelFolder;
use longview_ops::Backend;
use longview_scheduler::{PolicyOptions, Preset, RecallMode, SpanMode};
use pollster::block_on;

/// The system's allocator with a count of the calls that take memory.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call is handed on to the system's allocator unchanged; counting has no effect on
// memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.realloc(ptr, layout, new_size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// In turn: the device chooses, the device finds candidates, the host reads all logits.
const SAMPLING: [SamplingParams; 3] = {
    let greedy = SamplingParams {
        temperature: 0.0,
        top_k: 0,
        top_p: 0.9,
        min_p: 0.0,
        repeat_penalty: 1.0,
        repeat_last_n: 64,
        seed: 1,
    };
    let drawn = SamplingParams { temperature: 0.8, ..greedy };
    [greedy, SamplingParams { top_k: 40, ..drawn }, drawn]
};

/// Steps before counting begins: a window is full after 320.
const WARM_UP: usize = 350;

/// Decodes 700 steps after a warm-up and returns (heap allocations, device allocations,
/// clusterings a layer) of the steps.
fn count(policy: &PolicyOptions, simulate_device: bool, recall: RecallMode) -> (u64, u64, f64) {
    let backend = Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"));
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/needle");
    let folder = ModelFolder::open(&model).expect("the embedded model");
    let options =
        EngineOptions { ctx_size: 4096, simulate_device, recall, ..EngineOptions::default() };
    let mut engine = Engine::load(Arc::clone(&backend), folder, options, policy).expect("it loads");
    let mut session = engine.session(policy).expect("a session");
    let prompt: Vec<u32> = (0..2000u32).map(|i| 2 + i * 7919 % 2000).collect();
    // One future for the whole run: an executor may allocate for each that it drives.
    block_on(async {
        let mut go_on = |_| ControlFlow::Continue(());
        assert!(engine.prefill(&mut session, &prompt, &mut go_on).await.expect("prefill"));
        let mut samplers = SAMPLING.map(|p| Sampler::new(p, 2048).expect("sound parameters"));
        let (mut heap, mut device, mut clusterings) = (0, 0, 0);
        for step in 0..WARM_UP + 700 {
            if step == WARM_UP {
                heap = ALLOCATIONS.load(Ordering::Relaxed);
                device = backend.allocations();
                clusterings = session.stats().clusterings;
            }
            let id = samplers[step % 3].next_token(&session).expect("numbers");
            let ids = [id];
            let part = SessionStep::new(&mut session, &ids, SpanMode::Policy);
            let part = part.for_sampler(&samplers[(step + 1) % 3]);
            engine.step(&mut [part]).await.expect("a step");
        }
        heap = ALLOCATIONS.load(Ordering::Relaxed) - heap;
        let n_layers = engine.model().config().n_layers as u64;
        let clusterings = session.stats().clusterings - clusterings;
        (heap, backend.allocations() - device, clusterings as f64 / n_layers as f64)
    })
}

#[test]
fn seven_hundred_steps_allocate_nothing() {
    let mut clusterkv = PolicyOptions::new(Preset::Clusterkv).with_budget(1024);
    clusterkv.window = Some(320);
    let exact = [(false, RecallMode::Exact), (true, RecallMode::Exact)];
    // Never run again, and always.
    let speculative = [-1.0, 2.0].map(|gate| (true, RecallMode::Speculative { gate }));
    let all = [exact, speculative].concat();
    for (policy, windows, modes) in [
        (clusterkv, 2.0, &all[..]),
        (PolicyOptions::new(Preset::Full), 0.0, &exact),
        (PolicyOptions::new(Preset::StreamingLlm), 0.0, &exact),
    ] {
        for (simulate_device, recall) in modes {
            let (heap, device, clusterings) = count(&policy, *simulate_device, *recall);
            let case = format!("{} simulate_device={simulate_device} {recall:?}", policy.preset);
            assert_eq!(heap, 0, "{case}: heap allocations in 700 steps");
            assert_eq!(device, 0, "{case}: device allocations in 700 steps");
            assert_eq!(clusterings, windows, "{case}: windows clustered in every layer");
        }
    }
}
