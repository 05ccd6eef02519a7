//! The table of kernels in Rust against what the sources declare.

use std::collections::{BTreeMap, BTreeSet};

use longview_cuda::{Kernel, Layout, SOURCES, Target};
use longview_cuda_emulation::{ArgsFacts, EmulatedKernel, Library};

fn declared() -> BTreeMap<&'static str, &'static EmulatedKernel> {
    let library = Library::get().expect("the kernels are compiled as C++");
    let own = library.kernels().iter().filter(|kernel| kernel.file != "primitives");
    own.map(|kernel| (kernel.name.as_str(), kernel)).collect()
}

fn facts_of(layout: Layout) -> ArgsFacts {
    let field = |field: &longview_cuda::Field| (field.name.to_owned(), field.offset, field.size);
    ArgsFacts {
        name: layout.name.to_owned(),
        size: layout.size,
        fields: layout.fields.iter().map(field).collect(),
    }
}

#[test]
fn the_table_lists_what_the_sources_declare() {
    let declared = declared();
    let mut listed: Vec<_> = Kernel::ALL.iter().map(|kernel| kernel.facts().name).collect();
    listed.sort_unstable();
    assert_eq!(listed, declared.keys().copied().collect::<Vec<_>>());
    let mut files: Vec<_> = declared.values().map(|kernel| kernel.file.as_str()).collect();
    files.sort_unstable();
    files.dedup();
    assert_eq!(SOURCES.iter().map(|source| source.stem).collect::<Vec<_>>(), files);
}

#[test]
fn a_kernel_has_its_file_its_threads_and_its_arguments() {
    for kernel in Kernel::ALL {
        let facts = kernel.facts();
        let source = declared()[facts.name];
        assert_eq!((facts.file, facts.threads), (source.file.as_str(), source.threads));
        assert_eq!(facts_of(facts.args), source.args, "{}", facts.name);
    }
}

/// Nothing is left to padding, which two compilers could fill differently.
#[test]
fn structs_of_arguments_have_no_gaps() {
    for kernel in Kernel::ALL {
        let args = kernel.facts().args;
        let mut end = 0;
        for field in args.fields {
            assert_eq!(field.offset, end, "{}.{}", args.name, field.name);
            end += field.size;
        }
        assert_eq!(args.size, end, "{}", args.name);
    }
}

/// Files that the compiler orders in another way for old devices, and nothing else.
const REORDERED: [&str; 2] = ["kv_keys", "quantised"];

/// A file whose PTX is another for 7.5 than for 8.0 runs as both here: what is compiled for old
/// devices is executed. That of [`REORDERED`] differs without any other text: the compiler orders
/// their loads in another way.
#[test]
fn what_is_compiled_otherwise_for_old_devices_is_emulated_for_them() {
    let library = Library::get().expect("the kernels are compiled as C++");
    let emulated = library.files_by_capability();
    let differs = |stem: &&str| {
        let source = SOURCES.iter().find(|source| source.stem == *stem).expect("a source");
        let [old, new] = [Target::Compute75, Target::Compute80].map(|target| {
            let (ptx, line) =
                (source.ptx(target), target.name().replace("compute_", ".target sm_"));
            let without = ptx.replacen(&line, "", 1);
            assert_ne!(ptx, without, "{stem}: no {line}");
            without
        });
        old != new
    };
    let compiled: BTreeSet<&str> =
        SOURCES.iter().map(|source| source.stem).filter(differs).collect();
    for stem in REORDERED {
        assert!(compiled.contains(stem), "{stem} is the same now: emulate it as the others");
    }
    let left_out: Vec<_> =
        compiled.difference(&emulated).filter(|stem| !REORDERED.contains(stem)).collect();
    assert!(left_out.is_empty(), "{left_out:?}");
    assert!(compiled.len() > 5, "{compiled:?}");
}
