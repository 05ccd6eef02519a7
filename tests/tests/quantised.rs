//! Products with quantised weights on every backend, where the corpus does not look.

use std::sync::Arc;

use longview_cpu::{CpuBackend, CpuOptions};
use longview_cuda_emulation::EmulatedOptions;
use longview_ops::Backend;
use longview_tests::backends::{cuda_emulated, not_run};
use longview_tests::suite::quantised::*;
use longview_wgpu::{ShaderLevel, WgpuBackend, WgpuOptions};
use pollster::block_on;

fn passes<B: Backend>(backend: B) {
    let backend = &Arc::new(backend);
    assert_eq!(a_quantised_row_depends_on_no_other_row(backend), None);
    assert_eq!(a_group_of_quantised_layers_gives_what_single_layers_give(backend), None);
    assert_eq!(fused_calls_of_a_quantised_row_are_right(backend), None);
    assert_eq!(what_is_no_number_stays_in_its_row(backend), None);
}

#[test]
fn quantised_products_on_the_cpu() {
    passes(CpuBackend::new(CpuOptions { threads: 2, isa: None }).unwrap());
}

#[test]
fn quantised_products_of_the_emulated_device() {
    passes(cuda_emulated(EmulatedOptions::default()).unwrap());
}

#[test]
fn quantised_products_of_wgpu_with_and_without_dot_products_of_bytes() {
    if std::env::var_os("LONGVIEW_NO_GPU").is_some() {
        return not_run();
    }
    for shader_level in [Some(ShaderLevel::Core), None] {
        let options = WgpuOptions { shader_level, ..WgpuOptions::default() };
        let backend = block_on(WgpuBackend::new(&options)).unwrap();
        // There rows of any number are blocks of the same kernel.
        assert_rows_are_alike(&backend, &[1, 3, 8, 64]);
        passes(backend);
    }
}
