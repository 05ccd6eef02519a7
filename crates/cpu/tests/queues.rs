//! Queues and threads: several at once, the same results from any number, errors that name what is
//! wrong.

use longview_core::DType;
use longview_cpu::{CpuBackend, CpuOptions};
use longview_ops::{
    Activations, Backend, DeviceBuffer, Embed, EmbedParams, OpError, View, ViewMut, WeightSource,
};

use super::common;

fn backend(threads: usize) -> CpuBackend {
    CpuBackend::new(CpuOptions { threads, isa: None }).unwrap()
}

fn digest(backend: &CpuBackend, steps: usize) -> Vec<u8> {
    let mut rig = common::Rig::new(backend);
    for _ in 0..steps {
        rig.step(backend);
    }
    rig.bytes(backend)
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let alone = digest(&backend(1), 3);
    for threads in 2..=4 {
        assert_eq!(digest(&backend(threads), 3), alone, "{threads} threads");
    }
}

#[test]
fn foreground_and_background_work_at_the_same_time() {
    let foreground = backend(3);
    let want = digest(&foreground, 3);
    let background = foreground.background();
    std::thread::scope(|scope| {
        // Two threads on one queue and a third on the other: each gets its own answers.
        for queue in [&foreground, &foreground, &background] {
            let want = &want;
            scope.spawn(move || assert_eq!(&digest(queue, 3), want));
        }
    });
}

#[test]
fn memory_that_is_not_there_is_an_error_with_the_label() {
    let backend = backend(1);
    let before = backend.allocations();
    let error = backend.alloc(DType::F32, usize::MAX / 8, "rows").err().unwrap();
    assert!(matches!(&error, OpError::OutOfMemory { label, .. } if label == "rows"), "{error}");
    assert_eq!(backend.allocations(), before + 1);
}

#[test]
fn only_host_buffers_show_their_bytes() {
    let backend = backend(1);
    let mut host = backend.alloc_host(DType::F16, 3, "host").unwrap().unwrap();
    let mut device = backend.alloc(DType::F16, 3, "device").unwrap();
    backend.host_bytes_mut(&mut host).unwrap().fill(7);
    assert_eq!(backend.host_bytes(&host), Some(&[7u8; 6][..]));
    assert!(backend.host_bytes(&device).is_none() && backend.host_bytes_mut(&mut device).is_none());
}

#[test]
fn a_token_outside_the_table_is_named_and_nothing_is_written() {
    let backend = backend(1);
    let mut ids = backend.alloc(DType::U32, 2, "ids").unwrap();
    backend.write(ViewMut::all(&mut ids), bytemuck::cast_slice(&[1u32, 5])).unwrap();
    let mut out = backend.alloc(DType::F32, 4, "out").unwrap();
    let bytes = longview_core::HostBytes::from_vec(vec![1; 5 * 2 * 4]);
    let (name, dtype, activations) = ("table".into(), DType::F32, Activations::F32);
    let source = WeightSource { name, dtype, n_rows: 5, n_cols: 2, bytes, activations };
    let table = backend.load_weight(source).unwrap();
    let p = EmbedParams { n_tokens: 2, width: 2, scale: 1.0 };
    let d = Embed { p, ids: View::all(&ids), table: &table, out: ViewMut::all(&mut out) };
    assert_eq!(backend.embed(d).unwrap_err().to_string(), "embed: token 5 is not below 5");
    let mut bytes = vec![1; out.size_bytes() as usize];
    pollster::block_on(backend.read(View::all(&out), &mut bytes)).unwrap();
    assert!(bytes.iter().all(|b| *b == 0));
}
