//! Every variant of every shader is parsed and validated, at all levels, without a device; and
//! stays inside of what WebGPU guarantees.

use std::collections::HashSet;
use std::path::PathBuf;

use longview_ops::Op;
use longview_wgpu::shader::{FILES, expand};
use longview_wgpu::{ShaderLevel, ShaderVariant, variants};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Module};

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

#[test]
fn every_variant_is_valid_at_every_level() {
    let mut texts = HashSet::new();
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
