//! Products by a vendor's library: everything but its calls, with an emulated one in its place.

use longview_core::DType;
use longview_cuda::{CudaBackend, Kernel};
use longview_cuda_emulation::{EmulatedDriver, EmulatedLibrary, EmulatedOptions, LEAST_OUT};
use longview_ops::parity::{ParitySummary, format_parity, run_parity};
use longview_ops::*;
use pollster::block_on;

type Emulated = CudaBackend<EmulatedDriver>;

fn open(library: EmulatedLibrary) -> (Emulated, Result<(), String>) {
    let options = EmulatedOptions { library, ..Default::default() };
    let driver = EmulatedDriver::new(options).expect("the kernels are compiled as C++");
    let backend = CudaBackend::on(driver).expect("an emulated device");
    let result = block_on(backend.try_library());
    assert_eq!(backend.library(), result);
    (backend, result)
}

fn passes_matmul(backend: &Emulated) {
    let rows = run_parity(backend, Some(Op::Matmul));
    let (summary, table) = (ParitySummary::of(&rows), format_parity(&rows));
    assert!(summary.failed == 0 && summary.not_run == 0 && summary.passed > 0, "{table}");
}

#[test]
fn a_library_that_agrees_makes_large_products() {
    let (backend, result) = open(EmulatedLibrary::Right);
    assert_eq!(result, Ok(()));
    passes_matmul(&backend);
    let launched = backend.driver().launched();
    for kernel in [Kernel::matmul_round_f16, Kernel::matmul_round_bf16, Kernel::matmul_bias] {
        assert!(launched.contains(kernel.facts().name), "{kernel:?} never ran");
    }
    // Few rows, f32 and what the library does not take are for our own kernels.
    assert!(launched.contains("matmul_narrow_f16") && launched.contains("matmul_wide_f32"));
    for sizes in [[65, 8, 9], [512, 96, 33], [300, 7, 130]] {
        assert_eq!(block_on(backend.check_library(sizes)), Ok(()));
    }
    let few = LEAST_OUT as usize - 1;
    let error = block_on(backend.check_library([65, 8, few])).unwrap_err();
    assert!(error.contains("it does not multiply [65, 8, 8] of f16"), "{error}");
}

/// Before compute capability 8.0 our own kernel does not round rows that meet weights of bf16, as a
/// library does: it makes the products of f16 and no others.
#[test]
fn an_old_device_has_no_products_of_bf16_by_a_library() {
    let (library, compute_capability) = (EmulatedLibrary::Right, (7, 5));
    let options = EmulatedOptions { library, compute_capability, ..Default::default() };
    let driver = EmulatedDriver::new(options).expect("the kernels are compiled as C++");
    let backend = CudaBackend::on(driver).expect("an emulated device");
    assert_eq!(block_on(backend.try_library()), Ok(()));
    passes_matmul(&backend);
    let launched = backend.driver().launched();
    for kernel in [Kernel::matmul_round_f16, Kernel::matmul_bias] {
        assert!(launched.contains(kernel.facts().name), "{kernel:?} never ran");
    }
    assert!(!launched.contains(Kernel::matmul_round_bf16.facts().name));
}

/// So many rows that they do not fit into the scratch at once.
#[test]
fn rows_that_do_not_fit_are_several_products() {
    let (backend, _) = open(EmulatedLibrary::Right);
    let n_before = backend.counters().device.dispatches;
    assert_eq!(block_on(backend.check_library([66, 131_080, 9])), Ok(()));
    // 64 and 2 rows, each rounded and multiplied, and the product of our kernel; once more with a
    // bias; in two types.
    assert_eq!(backend.counters().device.dispatches - n_before, 2 * (4 + 1 + 5 + 1));
}

#[test]
fn a_library_that_computes_wrong_numbers_is_not_used() {
    let (backend, result) = open(EmulatedLibrary::Wrong);
    let reason = result.unwrap_err();
    assert!(reason.starts_with("[131, 203, 164] of f16: "), "{reason}");
    passes_matmul(&backend);
}

#[test]
fn without_a_library_there_is_a_reason_and_more_memory() {
    let (backend, result) = open(EmulatedLibrary::Absent);
    assert_eq!(result, Err("this emulated device has none".into()));
    let without = backend.capabilities().memory_bytes.unwrap();
    let (with, _) = open(EmulatedLibrary::Right);
    assert_eq!(without - with.capabilities().memory_bytes.unwrap(), 64 << 20);
    let fresh = block_on(with.reopen()).unwrap();
    assert_eq!(fresh.library(), Ok(()), "a device that is opened again has it again");
}

/// A queue that multiplies has its scratch after the first time.
#[test]
fn nothing_is_allocated_after_the_first_product() {
    let (backend, _) = open(EmulatedLibrary::Right);
    let of_a_check = |sizes| {
        let before = backend.allocations();
        block_on(backend.check_library(sizes)).unwrap();
        backend.allocations() - before
    };
    // What each check allocates for its own operands.
    let n = of_a_check([70, 16, 16]);
    assert_eq!(of_a_check([300, 160, 90]), n);
}

/// What waits is handed over before the call, and either that is refused loses the device.
#[test]
fn a_product_comes_after_what_was_given_before() {
    // Weight and bias, rows and what `out` holds are brought, the rows are rounded: commands 0 to
    // 4. Then comes the product.
    for refused in [4, 5] {
        let options = EmulatedOptions {
            library: EmulatedLibrary::Right,
            refused_command: Some(refused),
            ..Default::default()
        };
        let backend = CudaBackend::on(EmulatedDriver::new(options).unwrap()).unwrap();
        let reason = block_on(backend.try_library()).unwrap_err();
        assert!(reason.contains("out of memory"), "{reason}");
        let mut launched = backend.driver().launched();
        launched.remove("upload_words");
        assert_eq!(launched.len(), refused as usize - 4);
        assert!(backend.is_lost() && backend.alloc(DType::F32, 1, "x").is_err());
    }
}
