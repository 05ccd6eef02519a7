//! Every variant of every shader is parsed and validated, at all levels, without a device; stays
//! inside of what WebGPU guarantees; and is written in the languages of Vulkan, DX12 and Metal.

use std::collections::HashSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use longview_ops::Op;
use longview_wgpu::shader::{FILES, expand};
use longview_wgpu::{ShaderLevel, ShaderVariant, variants};
use naga::back::{hlsl, msl, spv};
use naga::proc::{BoundsCheckPolicies, BoundsCheckPolicy};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module};

use crate::common;

/// WebGPU's guaranteed limits.
const STORAGE_BUFFERS: usize = 8;
const SHARED_BYTES: u32 = 16384;
const INVOCATIONS: u32 = 256;
const UNIFORM_BYTES: u32 = 256;

/// The text of a variant at a level, as the device gets it outside of a browser.
fn text_of(variant: &ShaderVariant, level: ShaderLevel) -> String {
    let enables: &[&str] = if level >= ShaderLevel::F16 { &["f16"] } else { &[] };
    let mut defines = variant.defines.clone();
    defines.push(("HAS_F16", (level >= ShaderLevel::F16).into()));
    defines.push(("HAS_SUBGROUPS", (level >= ShaderLevel::Subgroups).into()));
    defines.push(("HAS_PACKED_DOT", (level > ShaderLevel::Core).into()));
    expand(variant.stem, &defines, enables).unwrap_or_else(|e| panic!("{variant:?}: {e}"))
}

fn capabilities(level: ShaderLevel) -> Capabilities {
    // `unpack2x16float` is WebGPU's; only old OpenGL lacks it.
    let core = Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    match level {
        ShaderLevel::Core => core,
        ShaderLevel::F16 => core | Capabilities::SHADER_FLOAT16,
        ShaderLevel::Subgroups => core | Capabilities::SHADER_FLOAT16 | Capabilities::SUBGROUP,
    }
}

/// Parses and validates; panics with what naga says.
fn validate(variant: &ShaderVariant, level: ShaderLevel) -> (Module, ModuleInfo) {
    let text = text_of(variant, level);
    assert!(!text.contains("enable subgroups"), "{variant:?}: naga refuses it, browsers get it");
    let module = naga::front::wgsl::parse_str(&text);
    let module =
        module.unwrap_or_else(|e| panic!("{variant:?}, {level}: {}", e.emit_to_string(&text)));
    let info = Validator::new(ValidationFlags::all(), capabilities(level)).validate(&module);
    let info = info.unwrap_or_else(|e| panic!("{variant:?}, {level}: {}", e.emit_to_string(&text)));
    (module, info)
}

/// Storage buffers, bytes of workgroup memory and of parameters that an entry point uses.
fn used(module: &Module, info: &ModuleInfo, entry: usize) -> (usize, u32, u32) {
    let mut layouter = naga::proc::Layouter::default();
    layouter.update(module.to_ctx()).expect("a valid module has a layout");
    let (mut buffers, mut shared, mut uniform) = (0, 0, 0);
    let function = info.get_entry_point(entry);
    for (handle, variable) in module.global_variables.iter() {
        if function[handle].is_empty() {
            continue;
        }
        let size = layouter[variable.ty].size;
        match variable.space {
            AddressSpace::Storage { .. } => buffers += 1,
            AddressSpace::WorkGroup => shared += size.next_multiple_of(16),
            AddressSpace::Uniform => uniform += size,
            _ => {}
        }
    }
    (buffers, shared, uniform)
}

/// Indices stay checked, as on a device.
const CHECKED: BoundsCheckPolicies = BoundsCheckPolicies {
    index: BoundsCheckPolicy::Restrict,
    buffer: BoundsCheckPolicy::Restrict,
    image_load: BoundsCheckPolicy::Restrict,
    binding_array: BoundsCheckPolicy::Unchecked,
};

/// The module as Vulkan gets it.
fn spirv(module: &Module, info: &ModuleInfo) -> Result<Vec<u32>, String> {
    let options = spv::Options {
        lang_version: (1, 3),
        bounds_check_policies: CHECKED,
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        use_storage_input_output_16: false,
        ..spv::Options::default()
    };
    spv::write_vec(module, info, &options, None).map_err(|e| e.to_string())
}

/// The module as DX12 gets it: for the old compiler without optional features, for DXC with them.
fn hlsl(module: &Module, info: &ModuleInfo, level: ShaderLevel) -> Result<String, String> {
    let shader_model = match level {
        ShaderLevel::Core => hlsl::ShaderModel::V5_1,
        ShaderLevel::F16 => hlsl::ShaderModel::V6_2,
        ShaderLevel::Subgroups => hlsl::ShaderModel::V6_6,
    };
    let options = hlsl::Options {
        shader_model,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..hlsl::Options::default()
    };
    let mut text = String::new();
    let pipeline = hlsl::PipelineOptions::default();
    let mut writer = hlsl::Writer::new(&mut text, &options, &pipeline);
    let written = writer.write(module, info, None).map_err(|e| e.to_string())?;
    written
        .entry_point_names
        .into_iter()
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| e.to_string())?;
    Ok(text)
}

/// The module as Metal gets it.
fn msl(module: &Module, info: &ModuleInfo) -> Result<String, String> {
    let options = msl::Options {
        lang_version: (2, 4),
        bounds_check_policies: CHECKED,
        zero_initialize_workgroup_memory: false,
        force_loop_bounding: false,
        ..msl::Options::default()
    };
    let pipeline = msl::PipelineOptions::default();
    let written = msl::write_string(module, info, &options, &pipeline);
    let (text, written) = written.map_err(|e| e.to_string())?;
    let names = written.entry_point_names.into_iter().collect::<Result<Vec<_>, _>>();
    names.map(|_| text).map_err(|e| e.to_string())
}

/// What Khronos' validator says of a module, if it is installed.
fn spirv_val(words: &[u32]) -> Option<Result<(), String>> {
    let mut command = Command::new("spirv-val");
    command.args(["--target-env", "vulkan1.1", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().ok()?;
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let mut stdin = child.stdin.take().expect("a pipe");
    stdin.write_all(&bytes).expect("it reads all");
    drop(stdin);
    let output = child.wait_with_output().expect("it ends");
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text).into_owned();
    Some(if output.status.success() { Ok(()) } else { Err(text) })
}

/// Of that many modules one is validated outside, where each takes a process; all of them with
/// `LONGVIEW_ALL_CASES` in the environment.
const VALIDATED_EVERY: usize = 29;

#[test]
fn every_variant_is_valid_at_every_level() {
    let mut texts = HashSet::new();
    let all = std::env::var_os("LONGVIEW_ALL_CASES").is_some();
    let every = if all { 1 } else { VALIDATED_EVERY };
    let (mut n_validated, mut has_validator) = (0, true);
    for variant in variants() {
        for level in ShaderLevel::ALL {
            // Many variants do not know of levels.
            let text = text_of(&variant, level);
            let own = |line: &&str| !line.contains("HAS_") && !line.starts_with("enable ");
            let text: Vec<&str> = text.lines().filter(own).collect();
            if !texts.insert((variant.entry, text.join("\n"))) {
                continue;
            }
            let (module, info) = validate(&variant, level);
            let fails = |e: String| -> ! { panic!("{variant:?}, {level}: {e}") };
            let words = spirv(&module, &info).unwrap_or_else(|e| fails(e));
            let text = hlsl(&module, &info, level).unwrap_or_else(|e| fails(e));
            assert!(text.contains("numthreads"), "{variant:?}, {level}: {text}");
            let text = msl(&module, &info).unwrap_or_else(|e| fails(e));
            assert!(text.contains("kernel void"), "{variant:?}, {level}: {text}");
            if has_validator && texts.len().is_multiple_of(every) {
                match spirv_val(&words) {
                    Some(valid) => valid.unwrap_or_else(|e| fails(e)),
                    None => has_validator = false,
                }
                n_validated += 1;
            }
            let entry = module.entry_points.iter().position(|e| e.name == variant.entry);
            let entry = entry.unwrap_or_else(|| panic!("{variant:?} has no such entry point"));
            let size = module.entry_points[entry].workgroup_size;
            assert!(size.iter().product::<u32>() <= INVOCATIONS, "{variant:?}: {size:?}");
            let (buffers, shared, uniform) = used(&module, &info, entry);
            assert!(buffers <= STORAGE_BUFFERS, "{variant:?}, {level}: {buffers} storage buffers");
            assert!(
                shared <= SHARED_BYTES,
                "{variant:?}, {level}: {shared} bytes of shared memory"
            );
            assert!(
                uniform <= UNIFORM_BYTES,
                "{variant:?}, {level}: {uniform} bytes of parameters"
            );
        }
    }
    if !has_validator {
        return common::not_run("spirv-val is not installed (Debian: spirv-tools)");
    }
    // Not by a macro of the standard library, which keeps it back where a test passes.
    let (n, stderr) = (texts.len(), &mut std::io::stderr());
    let _ = writeln!(stderr, "{n} modules in three languages, {n_validated} by spirv-val");
}

#[test]
fn every_file_is_launched_or_imported() {
    let launched: HashSet<&str> = variants().iter().map(|variant| variant.stem).collect();
    for (name, _) in FILES {
        let imports = |line: &str| {
            let rest = line.strip_prefix("//# import ").and_then(|rest| rest.strip_prefix(name));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        let imported = FILES.iter().any(|(_, text)| text.lines().any(imports));
        assert!(launched.contains(name) || imported, "nobody needs {name}.wgsl");
    }
}

#[test]
fn every_file_is_in_the_list() {
    let mut known: Vec<String> = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let mut found = names_in("shaders", "", "wgsl");
    found.extend(names_in("shaders", "shared/", "wgsl"));
    known.sort();
    found.sort();
    assert_eq!(found, known, "shaders/ and shader::FILES");
}

#[test]
fn there_is_one_file_an_op_beside_the_shared_ones() {
    let mut ops: Vec<&str> = Op::ALL.iter().map(|op| op.stem()).collect();
    ops.sort_unstable();
    assert_eq!(names_in("shaders", "", "wgsl"), ops);
    ops.push("mod");
    ops.sort_unstable();
    assert_eq!(names_in("crates/wgpu/src/ops", "", "rs"), ops);
}

/// The files with this ending in a folder below `top`, by their names from there, in order.
fn names_in(top: &str, folder: &str, extension: &str) -> Vec<String> {
    let root = format!("{}/../../{top}/{folder}", env!("CARGO_MANIFEST_DIR"));
    let entries = std::fs::read_dir(root).expect("a folder of the workspace");
    let paths = entries.map(|entry| entry.expect("a file").path());
    let files = paths.filter(|path| path.extension().is_some_and(|found| found == extension));
    let name = |path: PathBuf| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let mut names: Vec<String> =
        files.filter_map(name).map(|stem| format!("{folder}{stem}")).collect();
    names.sort();
    names
}
