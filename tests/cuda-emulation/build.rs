//! Compiles the CUDA kernels as C++ into two shared libraries: one that is fast, one that looks at
//! every access (address and undefined-behaviour sanitizers).
//!
//! Each `.cu` gets a wrapper that includes it in a namespace of its own and says where the compiler
//! placed the fields of its structs of arguments.

use std::env;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

type Failure = Box<dyn std::error::Error>;

/// A way to build the library.
struct Variant {
    name: &'static str,
    flags: &'static [&'static str],
    opt_level: u32,
}

/// Without the sanitizer of the Rust side, which cc would take over: the compiler of this library
/// would bring a runtime of its own, and a process can hold one alone.
const FAST: Variant = Variant { name: "fast", flags: &["-fno-sanitize=address"], opt_level: 2 };

const SANITIZED: Variant = Variant {
    name: "sanitized",
    flags: &[
        "-fsanitize=address,undefined",
        "-fno-sanitize-recover=all",
        "-fno-omit-frame-pointer",
    ],
    opt_level: 1,
};

fn main() -> Result<(), Failure> {
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("../..").canonicalize()?;
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let folders = [root.join("kernels"), root.join("tests/cuda-emulation/kernels")];
    let machine = root.join("tests/cuda-emulation/emulation");
    // Not the whole of kernels/: what is compiled to PTX below it is no input here. A new file is
    // listed in the table of kernels.
    println!("cargo::rerun-if-changed={}", root.join("crates/cuda/src/kernels.rs").display());
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", machine.display());
    println!("cargo::rerun-if-changed={}", folders[1].display());
    println!("cargo::rerun-if-changed={}", folders[0].join("shared").display());
    let mut stems = Vec::new();
    for folder in &folders {
        for path in sorted(folder)? {
            let extension = path.extension().unwrap_or_default();
            if extension == "cu" {
                println!("cargo::rerun-if-changed={}", path.display());
                stems.push(wrap(&path, &out)?);
            }
        }
    }
    fs::write(out.join("files.cpp"), files(&stems))?;
    let mut sources: Vec<_> = stems.iter().map(|stem| out.join(format!("{stem}.cpp"))).collect();
    sources.extend([out.join("files.cpp"), machine.join("machine.cpp")]);
    let includes = [machine, folders[0].clone()];
    if env::var("CARGO_CFG_UNIX").is_err() || is_for_clippy() {
        // Fibers are made with what Unix has; elsewhere the library is absent, which its loader
        // says.
        println!("cargo::rustc-env=LONGVIEW_EMULATION=");
        println!("cargo::rustc-env=LONGVIEW_EMULATION_SANITIZED=");
        println!("cargo::rustc-env=LONGVIEW_EMULATION_SANITIZER=");
        return Ok(());
    }
    let fast = library(&FAST, &sources, &includes, &out)?;
    println!("cargo::rustc-env=LONGVIEW_EMULATION={}", fast.display());
    let runtime = sanitizer_runtime();
    let sanitized = match &runtime {
        Some(_) => library(&SANITIZED, &sources, &includes, &out)?,
        None => PathBuf::new(),
    };
    println!("cargo::rustc-env=LONGVIEW_EMULATION_SANITIZED={}", sanitized.display());
    let runtime = runtime.unwrap_or_default();
    println!("cargo::rustc-env=LONGVIEW_EMULATION_SANITIZER={}", runtime.display());
    Ok(())
}

/// Whether nothing will run: clippy compiles build scripts anew, and what it calls them for is
/// thrown away. That was a second compilation of all kernels.
fn is_for_clippy() -> bool {
    let wrapper = env::var_os("RUSTC_WORKSPACE_WRAPPER").map(PathBuf::from);
    wrapper.is_some_and(|wrapper| wrapper.file_stem().is_some_and(|name| name == "clippy-driver"))
}

fn sorted(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let mut paths: Vec<_> = fs::read_dir(folder)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// Writes the wrapper of a file; returns its stem.
fn wrap(path: &Path, out: &Path) -> Result<String, Failure> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let structs = structs(&fs::read_to_string(path)?);
    let mut text =
        String::from("#include \"shared/common.cuh\"\n#include <cstddef>\n\nnamespace {\n\n");
    text += "const lv::Kernel* lv_last_kernel = nullptr;\n\n";
    writeln!(text, "#include \"{}\"\n", path.display())?;
    for (name, fields) in &structs {
        writeln!(text, "const lv::Field {name}_fields[] = {{")?;
        for field in fields {
            let place = format!("offsetof({name}, {field}), sizeof({name}::{field})");
            writeln!(text, "    {{\"{field}\", {place}}},")?;
        }
        text += "};\n";
    }
    text += "const lv::Args lv_args[] = {\n";
    for (name, fields) in &structs {
        let n = fields.len();
        writeln!(text, "    {{\"{name}\", sizeof({name}), {n}, {name}_fields}},")?;
    }
    text += "};\n\n}  // namespace\n\n";
    let n = structs.len();
    writeln!(text, "extern const lv::File lv_file_{stem};")?;
    writeln!(
        text,
        "const lv::File lv_file_{stem} = {{\"{stem}\", &lv_last_kernel, lv_args, {n}}};"
    )?;
    fs::write(out.join(format!("{stem}.cpp")), text)?;
    Ok(stem)
}

/// The structs of arguments: names, and names of fields. A field is the last word before a `;`.
fn structs(text: &str) -> Vec<(String, Vec<String>)> {
    let mut structs: Vec<(String, Vec<String>)> = Vec::new();
    let mut is_inside = false;
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or_default().trim();
        if let Some(name) = code.strip_prefix("struct ").and_then(|rest| rest.strip_suffix(" {")) {
            is_inside = name.ends_with("Args");
            if is_inside {
                structs.push((name.to_owned(), Vec::new()));
            }
        } else if code == "};" {
            is_inside = false;
        } else if let Some((_, fields)) = structs.last_mut().filter(|_| is_inside)
            && let Some(field) = code.strip_suffix(';')
        {
            let name = field.rsplit([' ', '*']).next().unwrap_or_default();
            fields.push(name.to_owned());
        }
    }
    structs
}

/// The list of all files, for the loader.
fn files(stems: &[String]) -> String {
    let mut text = String::from("#include \"machine.hpp\"\n\n");
    for stem in stems {
        text += &format!("extern const lv::File lv_file_{stem};\n");
    }
    let list: Vec<_> = stems.iter().map(|stem| format!("&lv_file_{stem}")).collect();
    text += &format!(
        "\nstatic const lv::File* const list[] = {{{}}};\n\n\
         extern \"C\" u32 lv_n_files() {{ return {}; }}\n\
         extern \"C\" const lv::File* lv_file(u32 i) {{ return list[i]; }}\n",
        list.join(", "),
        stems.len()
    );
    text
}

/// Compiles and links.
fn library(
    variant: &Variant,
    sources: &[PathBuf],
    includes: &[PathBuf],
    out: &Path,
) -> Result<PathBuf, Failure> {
    let folder = out.join(variant.name);
    fs::create_dir_all(&folder)?;
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").pic(true).debug(false).opt_level(variant.opt_level);
    build.cargo_metadata(false).warnings(true).out_dir(&folder);
    build.define("LONGVIEW_EMULATED", None).flag("-g1");
    // Kernels read floats as vectors, as a GPU may; every product is rounded by itself, so results
    // do not depend on what the processor fuses; one shared library may use the fast way to
    // variables of a thread.
    build.flags(["-fno-strict-aliasing", "-ffp-contract=off", "-ftls-model=initial-exec"]);
    build.flags(["-Wno-unknown-pragmas", "-Wno-unused-function", "-Wno-unused-variable"]);
    build.flags(variant.flags).includes(includes).files(sources);
    let objects = build.try_compile_intermediates()?;
    let library = folder.join("liblongview_kernels.so");
    let mut link = build.try_get_compiler()?.to_command();
    link.args(&objects).args(["-shared", "-o"]).arg(&library);
    if link.status()?.success() {
        Ok(library)
    } else {
        Err(format!("cannot link: {link:?}").into())
    }
}

/// Where the address sanitizer's library is: a program that was not built with it must load it
/// first. `None` where the compiler has none.
fn sanitizer_runtime() -> Option<PathBuf> {
    let compiler = cc::Build::new().cpp(true).try_get_compiler().ok()?;
    let path = compiler.path();
    let output = Command::new(path).arg("-print-file-name=libasan.so").output().ok()?;
    let found = PathBuf::from(String::from_utf8(output.stdout).ok()?.trim());
    (found.is_absolute() && found.exists()).then_some(found)
}
