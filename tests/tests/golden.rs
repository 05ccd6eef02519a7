//! Logits and greedy tokens against a published implementation, through the engine on every
//! backend: see `longview_tests::suite::golden`.

use std::path::PathBuf;
use std::sync::Arc;

use longview_cpu::{CpuBackend, CpuOptions};
use longview_model::export::{ExportType, GgufExport};
use longview_model::folder::ModelFolder;
use longview_scheduler::{PolicyOptions, Preset};
use longview_tests::suite::golden::{self, check, clusterkv};

fn fixtures() -> Vec<PathBuf> {
    golden::fixtures().expect("tests/fixtures is there")
}

fn cpu() -> Arc<CpuBackend> {
    Arc::new(CpuBackend::new(CpuOptions::default()).expect("a processor"))
}

#[test]
fn there_is_a_fixture_of_every_kind() {
    let names: Vec<_> = fixtures().iter().map(|p| p.file_name().unwrap().to_owned()).collect();
    assert!(names.len() >= 14, "{names:?}");
}

#[test]
fn full_attention_agrees() {
    for path in fixtures() {
        check(&cpu(), &path, &PolicyOptions::new(Preset::Full), false);
    }
}

#[test]
fn full_attention_agrees_through_a_separate_device() {
    for path in fixtures() {
        check(&cpu(), &path, &PolicyOptions::new(Preset::Full), true);
    }
}

#[test]
fn clusterkv_with_the_whole_context_as_budget_agrees() {
    for path in fixtures() {
        check(&cpu(), &path, &clusterkv(512), false);
    }
}

#[test]
fn clusterkv_agrees_through_a_separate_device() {
    for path in fixtures() {
        check(&cpu(), &path, &clusterkv(512), true);
    }
}

#[test]
fn a_budget_beyond_the_context_equals_full() {
    for path in fixtures().iter().take(3) {
        check(&cpu(), path, &clusterkv(100_000), true);
    }
}

/// Of those that have a GGUF form: neither GLM-4 of 2024, nor a scale of scores that is not that of
/// Gemma's sizes, nor RoPE that grows with the context.
#[test]
fn gguf_files_of_checkpoints_agree() {
    let file = std::env::temp_dir().join(format!("longview-golden-{}.gguf", std::process::id()));
    let mut without = Vec::new();
    for path in fixtures() {
        let folder = ModelFolder::open(&path).expect("a sound fixture");
        let export = GgufExport::plan(&folder, ExportType::F32);
        let says_all = |export: &GgufExport| !export.notes().iter().any(|n| n.contains("RoPE"));
        let Some(export) = export.ok().filter(says_all) else {
            without.push(path.file_name().unwrap().to_string_lossy().into_owned());
            continue;
        };
        let mut out = std::fs::File::create(&file).expect("a file");
        export.write(&mut out, &mut |_| {}).expect("room");
        golden::check_file(&cpu(), &path, &file);
    }
    std::fs::remove_file(&file).expect("written last");
    let dynamic = ["internlm2-fused", "internlm2-llama", "llama-dynamic", "llama-dynamic-within"];
    assert_eq!(without, [&["gemma3-windows", "glm-partial"], &dynamic[..]].concat());
}

#[test]
fn a_gpu_agrees_under_full_attention_and_clusterkv() {
    let Some(gpu) = longview_tests::backends::wgpu() else { return };
    for path in fixtures() {
        check(&gpu, &path, &PolicyOptions::new(Preset::Full), false);
        check(&gpu, &path, &clusterkv(512), false);
    }
}
