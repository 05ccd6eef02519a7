//! Whether the WGSL backend chooses what the CPU chooses.

use longview_tests::backends;
use longview_tests::suite::selection;

#[test]
fn the_same_index_gives_the_same_lists() {
    let Some(gpu) = backends::wgpu() else { return };
    selection::the_same_index_gives_the_same_lists(&gpu);
}

#[test]
fn end_to_end_recalls_the_same_tokens() {
    let Some(gpu) = backends::wgpu() else { return };
    selection::end_to_end_recalls_the_same_tokens(&gpu);
}

#[test]
fn end_to_end_recalls_the_same_rows_of_8_bits() {
    let Some(gpu) = backends::wgpu() else { return };
    selection::end_to_end_recalls_the_same_rows_of_8_bits(&gpu);
}
