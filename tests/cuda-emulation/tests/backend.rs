//! The backend's own part, on a device that does everything as late as it can: copies, queues,
//! counts, loss.

use longview_core::{DType, HostBytes, SplitMix64, encode_f32};
use longview_cuda::{
    CopyCall, CudaBackend, Driver, DriverError, DriverResult, Memory, Place, Work,
};
use longview_cuda_emulation::{EmulatedDriver, EmulatedOptions};
use longview_ops::*;
use pollster::block_on;

type Emulated = CudaBackend<EmulatedDriver>;

fn driver() -> EmulatedDriver {
    EmulatedDriver::new(EmulatedOptions::default()).expect("the kernels are compiled as C++")
}

fn backend() -> Emulated {
    CudaBackend::on(driver()).expect("an emulated device")
}

fn bytes(seed: u64, n: usize) -> Vec<u8> {
    let mut rng = SplitMix64::new(seed);
    (0..n).map(|_| rng.below(256) as u8).collect()
}

fn read(backend: &Emulated, view: View<'_, Emulated>) -> Vec<u8> {
    let mut out = vec![0; view.len * view.buffer.dtype().size()];
    block_on(backend.read(view, &mut out)).unwrap();
    out
}

fn copy(
    driver: &EmulatedDriver,
    stream: &<EmulatedDriver as Driver>::Stream,
    to: Place<'_, <EmulatedDriver as Driver>::Memory>,
    from: Place<'_, <EmulatedDriver as Driver>::Memory>,
    bytes: u64,
) -> DriverResult<()> {
    // SAFETY: the copy lies in both memories, which do all work before they go.
    unsafe { driver.run(stream, Work::Copy(CopyCall::new(&to, &from, bytes))) }
}

fn silu(
    backend: &Emulated,
    from: &<Emulated as Storage>::Buffer,
    to: &mut <Emulated as Storage>::Buffer,
) {
    let n = from.len();
    let d = SiluMul {
        p: SiluMulParams { n: n as u32 },
        gate: View::all(from),
        up: View::all(from),
        out: ViewMut::all(to),
    };
    backend.silu_mul(d).unwrap();
}

#[test]
fn work_happens_when_somebody_waits_and_not_before() {
    let driver = driver();
    let stream = driver.new_stream().unwrap();
    let device = driver.alloc(4).unwrap();
    let mut from = driver.alloc_host(4).unwrap();
    let to = driver.alloc_host(4).unwrap();
    from.host_bytes_mut().unwrap().fill(1);
    copy(&driver, &stream, Place::new(&device, 0), Place::new(&from, 0), 4).unwrap();
    copy(&driver, &stream, Place::new(&to, 0), Place::new(&device, 0), 4).unwrap();
    // Too early, and so it counts.
    from.host_bytes_mut().unwrap().fill(2);
    assert_eq!(to.host_bytes().unwrap(), [0; 4]);
    driver.synchronize(&stream).unwrap();
    assert_eq!(to.host_bytes().unwrap(), [2; 4]);
}

#[test]
fn streams_are_ordered_by_events_alone() {
    for is_ordered in [false, true] {
        let driver = driver();
        let (first, second) = (driver.new_stream().unwrap(), driver.new_stream().unwrap());
        let (event, device) = (driver.new_event().unwrap(), driver.alloc(4).unwrap());
        let mut from = driver.alloc_host(4).unwrap();
        let to = driver.alloc_host(4).unwrap();
        from.host_bytes_mut().unwrap().fill(1);
        copy(&driver, &first, Place::new(&device, 0), Place::new(&from, 0), 4).unwrap();
        driver.record(&first, &event).unwrap();
        if is_ordered {
            driver.wait(&second, &event).unwrap();
        }
        copy(&driver, &second, Place::new(&to, 0), Place::new(&device, 0), 4).unwrap();
        driver.synchronize(&second).unwrap();
        assert_eq!(to.host_bytes().unwrap(), [u8::from(is_ordered); 4]);
    }
}

#[test]
fn what_is_written_is_read_whatever_its_length_and_place() {
    let backend = backend();
    // More than both pieces of the staging, and more than a download takes at once.
    let n = 10_000_001;
    let mut buffer = backend.alloc(DType::F16, n, "large").unwrap();
    assert!(read(&backend, View::all(&buffer)).iter().all(|byte| *byte == 0));
    let all = bytes(1, 2 * n);
    backend.write(ViewMut::all(&mut buffer), &all).unwrap();
    let part = bytes(2, 2 * 3);
    backend.write(ViewMut::part(&mut buffer, 5, 3), &part).unwrap();
    let got = read(&backend, View::all(&buffer));
    assert!(got[..10] == all[..10] && got[10..16] == part && got[16..] == all[16..]);
    assert_eq!(read(&backend, View::part(&buffer, 7, 2)), [&part[4..], &all[16..18]].concat());
    let counters = backend.counters();
    assert_eq!(counters.device.bytes_up, 2 * n as u64 + 6);
    assert_eq!(counters.device.bytes_down, 4 * n as u64 + 4);
    assert_eq!((counters.device.readbacks, counters.device.dispatches), (3, 0));
}

/// Writes of all lengths, over each other and at odd places, with kernels and reads between some of
/// them: what is there is what was written last, as a model on the host has it.
#[test]
fn many_short_writes_arrive_in_their_order() {
    for backward in [false, true] {
        let options = EmulatedOptions { backward, ..Default::default() };
        let backend = CudaBackend::on(EmulatedDriver::new(options).unwrap()).unwrap();
        let n = 5000;
        let mut buffers = [DType::U32, DType::F16].map(|dtype| {
            let buffer = backend.alloc(dtype, n, "written").unwrap();
            (buffer, vec![0; n * dtype.size()])
        });
        let x = backend.alloc(DType::F32, 8, "x").unwrap();
        let mut y = backend.alloc(DType::F32, 8, "y").unwrap();
        let mut rng = SplitMix64::new(3);
        for i in 0..3000 {
            let (buffer, model) = &mut buffers[rng.below(2)];
            let size = buffer.dtype().size();
            // One of fifty is longer than a block holds.
            let len = if rng.below(50) == 0 { 3500 } else { 1 + rng.below(40) };
            // Many at few places.
            let at = rng.below(if i % 2 == 0 { 60 } else { n - len });
            let new = bytes(i, len * size);
            model[at * size..][..new.len()].copy_from_slice(&new);
            backend.write(ViewMut::part(buffer, at, len), &new).unwrap();
            if rng.below(20) == 0 {
                silu(&backend, &x, &mut y);
            }
            if rng.below(200) == 0 {
                backend.submit().unwrap();
            }
            if rng.below(150) == 0 {
                assert!(read(&backend, View::all(buffer)) == *model, "after write {i}");
            }
        }
        for (buffer, model) in &buffers {
            assert!(read(&backend, View::all(buffer)) == *model);
        }
    }
}

/// Writes that no op is between are one launch, and the same one in every step.
#[test]
fn what_the_host_tells_in_a_step_is_one_launch_that_stays_the_same() {
    let backend = backend();
    let (n, n_kernels) = (64, 10);
    let mut told = [0; 40].map(|_| backend.alloc(DType::F32, n, "told").unwrap());
    let mut out = backend.alloc(DType::F32, n, "out").unwrap();
    let mut before = (backend.counters(), backend.driver().launches(), backend.driver().n_copies());
    for step in 0..8 {
        for (i, buffer) in told.iter_mut().enumerate() {
            let values = encode_f32(DType::F32, &[(step * 40 + i) as f32; 64]);
            backend.write(ViewMut::part(buffer, 0, 1 + i % 3), &values[..4 * (1 + i % 3)]).unwrap();
        }
        for _ in 0..n_kernels {
            silu(&backend, &told[7], &mut out);
        }
        let expected = encode_f32(DType::F32, &[(step * 40 + 39) as f32]);
        assert_eq!(read(&backend, View::part(&told[39], 0, 1)), expected, "step {step}");
        let now = (backend.counters(), backend.driver().launches(), backend.driver().n_copies());
        let n_launches = now.1["upload_words"] - before.1.get("upload_words").unwrap_or(&0);
        assert_eq!(n_launches, 1, "step {step}");
        assert_eq!(now.2 - before.2, 1, "the read of step {step}");
        assert_eq!(now.0.nodes_set, 0, "step {step}");
        before = now;
    }
    assert_eq!(before.0.graphs, 1);
}

#[test]
fn one_wait_serves_several_views_of_both_kinds_of_memory() {
    let backend = backend();
    let mut device = backend.alloc(DType::U32, 8, "device").unwrap();
    let mut host = backend.alloc_host(DType::U32, 8, "host").unwrap().expect("pinned memory");
    let all = bytes(3, 32);
    backend.write(ViewMut::all(&mut device), &all).unwrap();
    backend.write(ViewMut::part(&mut host, 4, 4), &all[..16]).unwrap();
    let (mut a, mut b, mut c) = ([0; 8], [0; 32], [0; 0]);
    let mut parts = [
        (View::part(&device, 2, 2), &mut a[..]),
        (View::all(&host), &mut b[..]),
        (View::part(&device, 8, 0), &mut c[..]),
    ];
    block_on(backend.read_all(&mut parts)).unwrap();
    assert_eq!(a, all[8..16]);
    assert_eq!(b, [&[0; 16], &all[..16]].concat()[..]);
    assert_eq!(backend.counters().device.readbacks, 1);
    assert_eq!(backend.host_bytes(&host).unwrap(), b);
    assert!(backend.host_bytes(&device).is_none());
}

#[test]
fn weights_larger_than_a_piece_have_rows_of_whole_units() {
    let backend = backend();
    let (n_rows, n_cols) = (40_000, 67);
    let values: Vec<f32> = (0..n_rows * n_cols).map(|i| (i % 31) as f32 - 15.0).collect();
    let source = WeightSource {
        name: "w".into(),
        dtype: DType::BF16,
        n_rows,
        n_cols,
        bytes: HostBytes::from_vec(encode_f32(DType::BF16, &values)),
        activations: Activations::default(),
    };
    let weight = backend.load_weight(source).unwrap();
    let wanted = [0, 1, n_rows - 1, 26_214, 26_215];
    let ids: Vec<u8> = wanted.iter().flat_map(|id| (*id as u32).to_le_bytes()).collect();
    let mut id_buffer = backend.alloc(DType::U32, 5, "ids").unwrap();
    backend.write(ViewMut::all(&mut id_buffer), &ids).unwrap();
    let mut out = backend.alloc(DType::F32, 5 * n_cols, "out").unwrap();
    let d = Embed {
        p: EmbedParams { n_tokens: 5, width: n_cols as u32, scale: 1.0 },
        ids: View::all(&id_buffer),
        table: &weight,
        out: ViewMut::all(&mut out),
    };
    backend.embed(d).unwrap();
    let rows = wanted.iter().flat_map(|row| &values[row * n_cols..(row + 1) * n_cols]);
    let expected: Vec<u8> = rows.flat_map(|v| v.to_le_bytes()).collect();
    assert_eq!(read(&backend, View::all(&out)), expected);
}

#[test]
fn nothing_is_allocated_after_the_first_time() {
    let backend = backend();
    let mut x = backend.alloc(DType::F32, 9000, "x").unwrap();
    let mut out = backend.alloc(DType::U32, 1, "out").unwrap();
    let mut step = |seed| {
        let values = bytes(seed, 36_000);
        backend.write(ViewMut::all(&mut x), &values).unwrap();
        let p = ArgmaxParams { n_rows: 1, width: 9000 };
        backend.argmax(Argmax { p, x: View::all(&x), out: ViewMut::all(&mut out) }).unwrap();
        read(&backend, View::all(&out));
        backend.allocations()
    };
    let warm = step(0);
    // More than the staging holds.
    assert!((1..300).all(|seed| step(seed) == warm));
    drop((x, out));
    assert!(backend.counters().bytes_live < backend.counters().bytes_peak);
}

#[test]
fn a_second_queue_begins_where_the_first_one_is() {
    let backend = backend();
    let mut x = backend.alloc(DType::F32, 64, "x").unwrap();
    let mut y = backend.alloc(DType::F32, 64, "y").unwrap();
    let mut z = backend.alloc(DType::F32, 64, "z").unwrap();
    let values = encode_f32(DType::F32, &[1.5; 64]);
    backend.write(ViewMut::all(&mut x), &values).unwrap();
    silu(&backend, &x, &mut y);
    let second = backend.background();
    silu(&second, &y, &mut z);
    let on_second = read(&second, View::all(&z));
    silu(&backend, &y, &mut z);
    assert_eq!(read(&backend, View::all(&z)), on_second);
    assert!(on_second.iter().any(|byte| *byte != 0));
    assert_eq!(backend.counters().device.dispatches, 3);
}

#[test]
fn no_memory_is_an_error_that_passes() {
    let options = EmulatedOptions { memory_bytes: 1000, ..Default::default() };
    let backend = CudaBackend::on(EmulatedDriver::new(options).unwrap()).unwrap();
    let error = backend.alloc(DType::F32, 300, "too much").map(drop).unwrap_err();
    assert!(matches!(error, OpError::OutOfMemory { bytes: 1200, .. }), "{error}");
    assert!(!backend.is_lost());
    let fits = backend.alloc(DType::F32, 200, "fits").unwrap();
    drop(fits);
    backend.alloc(DType::F32, 250, "fits again").unwrap();
}

/// Whoever gave the work was told that it would be done, and remembers what the device has since
/// then: only a device that is opened again may go on.
#[test]
fn work_that_is_refused_when_it_is_handed_over_loses_the_device() {
    for refused in 0..3 {
        let options = EmulatedOptions { refused_command: Some(refused), ..Default::default() };
        let backend = CudaBackend::on(EmulatedDriver::new(options).unwrap()).unwrap();
        let mut x = backend.alloc(DType::F32, 4, "x").unwrap();
        let mut y = backend.alloc(DType::F32, 4, "y").unwrap();
        backend.write(ViewMut::all(&mut x), &[1; 16]).unwrap();
        silu(&backend, &x, &mut y);
        silu(&backend, &x, &mut y);
        let error = backend.submit().unwrap_err();
        assert!(matches!(error, OpError::DeviceLost { .. }), "{error}");
        assert!(error.to_string().contains("out of memory"), "{error}");
        assert!(backend.is_lost());
        let again = block_on(backend.read(View::all(&y), &mut [0; 16])).unwrap_err();
        assert_eq!(again.to_string(), error.to_string());
        assert!(!block_on(backend.reopen()).unwrap().is_lost());
    }
}

#[test]
fn a_lost_device_says_so_for_ever_and_is_opened_again() {
    let backend = backend();
    let mut x = backend.alloc(DType::F32, 4, "x").unwrap();
    backend.lose_device();
    assert!(backend.is_lost());
    let error = backend.write(ViewMut::all(&mut x), &[0; 16]).unwrap_err();
    assert!(matches!(error, OpError::DeviceLost { backend: "cuda-emulated", .. }), "{error}");
    assert!(backend.background().submit().is_err());
    let fresh = block_on(backend.reopen()).unwrap();
    let mut x = fresh.alloc(DType::F32, 4, "x").unwrap();
    fresh.write(ViewMut::all(&mut x), &[7; 16]).unwrap();
    assert_eq!(read(&fresh, View::all(&x)), [7; 16]);
}

#[test]
fn a_copy_never_leaves_its_memory() {
    let driver = driver();
    let (stream, device) = (driver.new_stream().unwrap(), driver.alloc(8).unwrap());
    let copy = || copy(&driver, &stream, Place::new(&device, 5), Place::new(&device, 0), 4);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(copy)).is_err());
    assert_eq!(driver.alloc(1 << 60).map(drop), Err(DriverError::OutOfMemory));
}
